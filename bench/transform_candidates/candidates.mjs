// One candidate on one input: `bun --no-install candidates.mjs NAME` with the input as JSON on
// stdin; prints {value} or {error: [line, column]} or {syntax: [line, column]}, positions in the
// caller's text. `… NAME time` prints milliseconds per transform of a small snippet, warm.
import { SourceMapConsumer } from "./source_map.mjs";

const [name, mode] = process.argv.slice(2);
const input = mode === "time" ? null : JSON.parse(await Bun.stdin.text());

const at = (code, offset) => {
  const before = code.slice(0, offset).split(/\r\n|[\n\r\u2028\u2029]/);
  return [before.length, before.at(-1).length + 1];
};

class Syntax extends Error {
  constructor(position) {
    super("syntax");
    this.position = position;
  }
}

// The same splice for every candidate that yields a tree: {value: [start, end], returns, open}.
function splice(code, { value, isDefault, returns, open }) {
  const inserted = [];
  const put = (offset, text) => inserted.push([offset, text]);
  // The mark that cloche.source puts first as well: it also stops Bun from inlining constants.
  if (!code.startsWith("#!")) put(0, "export {};");
  if (returns) put(open, "export default await (async () => {");
  if (value) {
    put(value[0], returns ? "return (" : isDefault ? "await (" : "export default await (");
    put(value[1], ")");
  }
  if (returns) put(code.length, "\n})();");
  let text = "";
  let done = 0;
  const edits = [];
  for (const [offset, word] of inserted) {
    text += code.slice(done, offset);
    edits.push([...at(text, text.length), -word.length]);
    text += word;
    done = offset;
  }
  return {
    code: text + code.slice(done),
    back: (line, column) => {
      let shift = 0;
      for (const [l, c, d] of edits) if (l === line && column >= c) shift += Math.max(d, c - column);
      return [line, column + shift];
    },
  };
}

const INERT = ["EmptyStatement", "FunctionDeclaration", "ImportDeclaration"];
const INERT_TYPES = ["TSInterfaceDeclaration", "TSTypeAliasDeclaration"];

function fromEstree(code, program) {
  const body = program.body;
  const last = body.findLast((s) => !INERT.includes(s.type) && !INERT_TYPES.includes(s.type));
  const isDefault = last?.type === "ExportDefaultDeclaration";
  const value = isDefault ? last.declaration : last?.expression;
  const first = body.find((s) => !/^Import|^TS/.test(s.type));
  return {
    value: value && last.type !== "LabeledStatement" ? [value.start, value.end] : null,
    isDefault,
    returns: hasReturn(body),
    open: first?.start ?? 0,
  };
}

function hasReturn(node) {
  if (!node || typeof node !== "object") return false;
  if (Array.isArray(node)) return node.some(hasReturn);
  if (node.type === "ReturnStatement") return true;
  if (/Function|Class/.test(node.type ?? "")) return false;
  return Object.values(node).some(hasReturn);
}

const CANDIDATES = {
  async "tree-sitter"() {
    // The text comes transformed, from trial.py.
    return ({ transformed: t, language }) => {
      if (t.check !== null)
        try {
          new Bun.Transpiler({ loader: loaderOf(language) }).scan(t.check);
        } catch (error) {
          const first = (error.errors ?? [error]).find((e) => !/^Top-level return/.test(e.message));
          if (first) throw new Syntax([first.position.line, first.position.column]);
        }
      return {
        code: t.code,
        back: (line, column) => {
          let shift = 0;
          for (const [l, c, d] of t.edits)
            if (l === line && column >= c) shift += Math.max(d, c - column);
          return [line - t.line_offset, column + shift];
        },
      };
    };
  },
  async "bun replMode"() {
    const transpilers = {
      javascript: new Bun.Transpiler({ loader: "js", replMode: true }),
      typescript: new Bun.Transpiler({ loader: "ts", replMode: true }),
    };
    return ({ code, language }) => ({
      repl: transpilers[language].transformSync(code),
      back: (line, column) => [line, column], // it prints anew, without a source map
    });
  },
  async "oxc"() {
    const { parseSync } = await import("oxc-parser");
    return ({ code, language }) => {
      const result = parseSync(`snippet.${loaderOf(language)}`, code, { sourceType: "module" });
      const errors = result.errors.filter((e) => !/return/i.test(e.message));
      if (errors.length) throw new Syntax(at(code, errors[0].labels[0].start));
      return splice(code, fromEstree(code, result.program));
    };
  },
  async "swc wasm"() {
    const swc = await import("@swc/wasm");
    return ({ code, language }) => {
      const syntax = language === "typescript" ? "typescript" : "ecmascript";
      let module;
      try {
        // Spans count bytes from a base that grows with each call: the empty span at the start.
        module = swc.parseSync(code, {
          syntax, decorators: true, target: "esnext", allowReturnOutsideFunction: true,
          explicitResourceManagement: true,
        });
      } catch (error) {
        // No position in the data: it has to be read off the frame that the message draws.
        const found = /(\d+) \|[^\n]*\n +: ( *)\^/.exec(String(error));
        throw new Syntax(found ? [Number(found[1]), found[2].length + 1] : null);
      }
      const bytes = new TextEncoder().encode(code);
      const units = (n) => new TextDecoder().decode(bytes.slice(0, n)).length;
      const lead = units(0) + (code.length - code.trimStart().length);
      const base = module.span.start - lead;
      const last = module.body.findLast((s) => !INERT.includes(s.type) && !/^Ts(Interface|TypeAlias)/.test(s.type));
      const isDefault = last?.type === "ExportDefaultExpression";
      const value = last?.type === "ExpressionStatement" || isDefault ? last.expression : null;
      const span = (s) => [units(s.start - base), units(s.end - base)];
      const first = module.body.find((s) => !/^Import|^Ts/.test(s.type));
      return splice(code, {
        value: value && span(value.span ?? value.expression.span), isDefault,
        returns: hasReturn(module.body), open: first ? span(first.span)[0] : 0,
      });
    };
  },
  async "typescript"() {
    const ts = (await import("typescript")).default;
    const inert = [
      ts.SyntaxKind.EmptyStatement, ts.SyntaxKind.FunctionDeclaration,
      ts.SyntaxKind.ImportDeclaration, ts.SyntaxKind.InterfaceDeclaration,
      ts.SyntaxKind.TypeAliasDeclaration,
    ];
    const returns = (node) =>
      node.kind === ts.SyntaxKind.ReturnStatement ||
      (!ts.isFunctionLike(node) && !ts.isClassLike(node) && !!ts.forEachChild(node, returns));
    return ({ code, language }) => {
      const file = ts.createSourceFile(`s.${loaderOf(language)}`, code, ts.ScriptTarget.ESNext);
      if (file.parseDiagnostics.length) throw new Syntax(at(code, file.parseDiagnostics[0].start));
      const last = file.statements.findLast((s) => !inert.includes(s.kind));
      const isDefault = !!last && ts.isExportAssignment(last);
      const value = last && (ts.isExpressionStatement(last) || isDefault) ? last.expression : null;
      const stays = (s) =>
        ts.isImportDeclaration(s) || ts.isModuleDeclaration(s) || ts.isInterfaceDeclaration(s);
      return splice(code, {
        value: value && [value.getStart(file), value.end], isDefault,
        returns: returns(file), open: file.statements.find((s) => !stays(s))?.getStart(file) ?? 0,
      });
    };
  },
  async "esbuild wasm"() {
    const esbuild = await import("esbuild-wasm");
    return async ({ code, language }) => {
      try {
        // No tree to be had: types go, the value cannot be told.
        const result = await esbuild.transform(code, {
          loader: loaderOf(language), format: "esm", sourcemap: "external", target: "esnext",
        });
        const map = new SourceMapConsumer(result.map);
        return { code: result.code, loader: "js", back: (l, c) => map.original(l, c) };
      } catch (error) {
        if (!error.errors) throw error;
        const { line, column } = error.errors[0].location;
        throw new Syntax([line, column + 1]);
      }
    };
  },
  async "swc wasm-typescript"() {
    const swc = await import("@swc/wasm-typescript");
    return ({ code }) => {
      try {
        // Strips TypeScript for Node; no tree to be had.
        const result = swc.transformSync(code, { mode: "transform", module: true, sourceMap: true });
        const map = new SourceMapConsumer(result.map);
        return { code: result.code, loader: "js", back: (l, c) => map.original(l, c) };
      } catch (error) {
        throw new Syntax([error.startLine ?? 0, (error.startColumn ?? -1) + 1]);
      }
    };
  },
};

const loaderOf = (language) => (language === "typescript" ? "ts" : "js");

async function evaluate(result, language) {
  if (result.repl !== undefined) {
    const value = await (0, eval)(result.repl);
    // The last expression comes in a box without a prototype, a returned value as it is.
    const boxed = value && typeof value === "object" && Object.getPrototypeOf(value) === null;
    return boxed ? value.value : value;
  }
  const loader = result.loader ?? loaderOf(language);
  Bun.plugin({
    name: "snippet",
    setup: (build) => build.module("/snippet", () => ({ contents: result.code, loader })),
  });
  return (await import("/snippet")).default;
}

const transform = await CANDIDATES[name]();
if (mode === "time") {
  const small = {
    language: "typescript",
    code:
      "const xs: number[] = [1, 2, 3];\nconst total = xs.reduce((a, b) => a + b, 0);\n" +
      "console.log(total);\ntotal * 2",
  };
  for (let i = 0; i < 300; i++) await transform(small);
  const times = [];
  for (let i = 0; i < 500; i++) {
    const start = performance.now();
    await transform(small);
    times.push(performance.now() - start);
  }
  console.log(times.sort((a, b) => a - b)[250].toFixed(3));
} else {
  let outcome;
  let result;
  try {
    result = await transform(input);
    outcome = { value: (await evaluate(result, input.language)) ?? null };
  } catch (error) {
    if (error instanceof Syntax) outcome = { syntax: error.position };
    else if (error?.position ?? error?.errors?.[0]?.position) {
      const { line, column } = error.position ?? error.errors[0].position;
      outcome = { syntax: result ? result.back(line, column) : [line, column] };
    } else {
      const found = /(?:snippet|candidates\.mjs):(\d+):(\d+)/.exec(String(error?.stack));
      outcome = { error: found && result ? result.back(+found[1], +found[2]) : null, what: String(error) };
    }
  }
  console.log(JSON.stringify(outcome));
}
process.exit(0);
