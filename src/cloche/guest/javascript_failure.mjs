// What the JavaScript harnesses need once something went wrong: an error as data, with positions in
// the caller's own text, and the reason why a value has no JSON form. Loaded on demand.
//
// source: {path: what stacks call the module, name: what the caller does, code, map, imports}.

const MESSAGE_LIMIT = 8 * 1024;
const STACK_LIMIT = 16 * 1024;
const CAUSE_LIMIT = 5;
const HARNESS = import.meta.dirname;

function bounded(text, limit) {
  return text.length <= limit ? text : `${text.slice(0, limit - 16)} … (shortened)`;
}

// A position in the text that was run → one in the caller's text, as the transformer defines it:
// edits are [line, column, delta], and a position inside of inserted text is that of the insertion.
export function mapped(line, column, map) {
  if (!map) return [line, column];
  let shift = 0;
  for (const [atLine, start, delta] of map.edits)
    if (atLine === line && column >= start) shift += Math.max(delta, start - column);
  return line > map.line_offset ? [line - map.line_offset, column + shift] : null;
}

// What is wrong with the caller's text, or null: `parse` asks the runtime's own parser and throws. It
// is asked when the transformer's did not understand the text. A final statement that only the
// runtime understands would silently lose its value.
export async function checkText(request, source, parse) {
  const { check, suspect, unclear } = request;
  const [line, column] = suspect ?? [null, null];
  const refusal = { code: "SANDBOX_INVALID_CODE", name: "SyntaxError", stack: "", line, column };
  const own = { ...source, code: check, map: null };
  try {
    await parse(request, own);
  } catch (thrown) {
    const found = syntaxFailure(thrown, own);
    if (!found) throw thrown;
    // A top-level return is fine, but what comes after it has not been read then.
    const wrong = isReturn(found.message) ? bodyFailure(check) : found.message;
    if (wrong !== null) {
      const isInside = !found.place || found.place[0] <= check.split("\n").length;
      if (!isInside) return { ...refusal, message: "the text ends too early" };
      const place = found.place ?? [line, column];
      return { ...refusal, message: wrong, line: place[0], column: place[1] };
    }
  }
  if (unclear) {
    const message = "the value of the last statement cannot be told; say it with `return (…)`";
    return { ...refusal, message };
  }
  return null;
}

function isReturn(message) {
  return /^Illegal return statement|return statement is not allowed/i.test(message);
}

// Why a text does not parse as the body of a function, or null. It is parsed alone, so that it cannot
// close the function around it.
function bodyFailure(text) {
  try {
    new (async () => {}).constructor(text);
    return null;
  } catch (thrown) {
    return messageOf(thrown);
  }
}

function textOf(value) {
  try {
    if (typeof value === "string") return value;
    if (typeof value === "object" && value !== null) return JSON.stringify(value) ?? "an object";
    return String(value);
  } catch {
    return `an ${typeof value}`;
  }
}

function field(error, key) {
  try {
    const value = error[key];
    return value === undefined || value === null ? "" : textOf(value);
  } catch {
    return "";
  }
}

function isError(thrown) {
  if (thrown instanceof Error) return true;
  return typeof thrown === "object" && thrown !== null && "message" in thrown && "name" in thrown;
}

function messageOf(thrown) {
  return isError(thrown) ? field(thrown, "message") : textOf(thrown);
}

// What the caller calls the module, instead of what the runtime calls it.
function renamed(text, { path, name }) {
  return text.replaceAll(path, name).replaceAll(`/workspace/${name}`, name);
}

// The stack without frames of the harness or of the runtime's loader, positions mapped.
function cleanStack(text, source) {
  let first = null;
  const lines = [];
  for (const line of text.split("\n")) {
    const frame = line.trimStart().startsWith("at ");
    const ours = line.includes(HARNESS) || /[ (](native|internal|node|bun|ext)[:)]/.test(line);
    if (frame && ours) continue;
    const start = frame ? line.lastIndexOf(source.path + ":") : -1;
    if (start < 0) {
      lines.push(line);
      continue;
    }
    const [row, column] = line.slice(start + source.path.length + 1).split(":");
    // Bun leaves out a column that is 1.
    const place = mapped(parseInt(row, 10), parseInt(column, 10) || 1, source.map);
    if (!place) continue;
    first ??= place;
    const called = line.slice(line.indexOf("at ") + 3, start).replace(/\(|file:\/\/$/g, "").trim();
    const where = `${source.name}:${place[0]}:${place[1]}`;
    lines.push(called ? `    at ${called} (${where})` : `    at ${where}`);
  }
  return { text: renamed(lines.join("\n"), source), first };
}

// A stack is made with its error: a name or a message that came later is not in it.
function headed(stack, error) {
  if (!/^Error\n +at /.test(stack)) return stack;
  const [name, message] = [field(error, "name"), field(error, "message")];
  return [name, message].filter(Boolean).join(": ") + stack.slice(5);
}

function fullStack(error, source, depth = 0) {
  const own = cleanStack(headed(field(error, "stack"), error), source);
  let { text } = own;
  const inner = (one) => (isError(one) ? fullStack(one, source, depth + 1).text : textOf(one));
  if (depth < CAUSE_LIMIT) {
    if (Array.isArray(error.errors))
      for (const one of error.errors.slice(0, CAUSE_LIMIT))
        text += `\nOne of the errors: ${inner(one)}`;
    if (error.cause !== undefined) text += `\nCaused by: ${inner(error.cause)}`;
  }
  return { text, first: own.first };
}

// Bun's own messages about code that does not parse or resolve: BuildMessage and ResolveMessage,
// which are no Errors, alone or inside an AggregateError.
function buildFailure(thrown) {
  for (const one of [thrown, ...(Array.isArray(thrown?.errors) ? thrown.errors : [])]) {
    const kind = one?.constructor?.name;
    if (kind === "BuildMessage" || kind === "ResolveMessage") return [kind, one];
  }
  return null;
}

// Bun takes an address for the name of a file that does not parse.
function isMissing({ message }) {
  return /^(ENOENT|FileNotFound) reading /.test(message);
}

// The place that Deno ends a message with, `at URL:line:column`.
function placeInMessage(message, source) {
  const start = message.lastIndexOf(`at ${source.path}:`);
  if (start < 0) return null;
  const [line, column] = message.slice(start + source.path.length + 4).split(":");
  return mapped(parseInt(line, 10), parseInt(column, 10), source.map);
}

// Node keeps the place of a module's syntax error to itself, but tells that of a script's. Parsed as
// one, the module is a function, and its imports and exports are blank.
function placeInScript({ code, path, map }) {
  const { Script } = process.getBuiltinModule?.("node:vm") ?? {};
  if (!Script) return null;
  const blank = (text) => text.replace(/[^\n]/g, " ");
  const opening = "async()=>{";
  const mark = "export {};";
  const isModule = code.startsWith(mark);
  const text = (isModule ? code.slice(mark.length) : code)
    .replace(/^[ \t]*import\b[^\n(]*$/gm, blank)
    .replace(/\bexport default (?=await \()|^[ \t]*export\b( default\b)?/gm, blank);
  try {
    new Script(`${opening}${text}\n}`, { filename: path });
  } catch (thrown) {
    const place = placeInArrow(field(thrown, "stack"), path);
    if (place?.[0] === 1 && !isModule) place[1] -= opening.length;
    return place && mapped(...place, map);
  }
  const comment = /<!--|-->/.exec(code); // fine in a script, and in no module
  if (!comment) return null;
  const before = code.slice(0, comment.index).split("\n");
  return mapped(before.length, before.at(-1).length + 1, map);
}

// Node heads a stack with `path:line`, some lines of the text, and carets below.
function placeInArrow(stack, path) {
  const [head, ...lines] = stack.split("\n", 6);
  const [, file, line] = /^(?:file:\/\/)?(.*):(\d+)$/.exec(head) ?? [];
  const carets = lines.find((text) => /^ *\^+$/.test(text));
  // What strips types has no name for the text that it is given.
  if ((file && file !== path.replace("file://", "")) || !line || !carets) return null;
  return [parseInt(line, 10), carets.indexOf("^") + 1];
}

// {message, place?} of an error that says that the module does not parse; else null.
function syntaxFailure(thrown, source) {
  const [kind, found] = buildFailure(thrown) ?? [];
  if (kind === "BuildMessage" && !isMissing(found)) {
    const { message, position } = found;
    const isHere = position?.line > 0 && (!source.map || position.file === source.path);
    const place = isHere ? mapped(position.line, position.column, source.map) : null;
    return { message: String(message), place };
  }
  const message = messageOf(thrown);
  const name = field(thrown, "name");
  // Deno: of its own parser, and of V8's.
  if (name === "TypeError" && message.startsWith("SyntaxError: "))
    return { message: message.split("\n")[0].slice(13), place: placeInMessage(message, source) };
  // Of Node's, which strips types for it.
  if (field(thrown, "code") === "ERR_INVALID_TYPESCRIPT_SYNTAX")
    return { message, place: placeInArrow(field(thrown, "stack"), source.path) };
  if (name !== "SyntaxError" || /^The requested module/.test(message)) return null;
  const place = placeInMessage(message, source);
  if (place) return { message: message.slice(0, message.lastIndexOf(" at ")), place };
  const pointed = placeInArrow(field(thrown, "stack"), source.path);
  if (pointed) return { message, place: mapped(...pointed, source.map) };
  if (!/at compileSourceTextModule \(node:internal/.test(field(thrown, "stack"))) return null;
  return { message, place: placeInScript(source) };
}

// {message, place?} of an error that says that an import is not to be had; else null.
function importFailure(thrown, source) {
  const [kind, found] = buildFailure(thrown) ?? [];
  const text = String(kind ? found.message : messageOf(thrown));
  if (!kind && !/MODULE_NOT_FOUND|UNSUPPORTED_ESM/.test(field(thrown, "code"))) return null;
  // Deno says so too of an error that has no stack of the engine's making.
  if (!/module|import|specifier|package|scheme|URL|ENOENT/i.test(text)) return null;
  const [, missing] = /^(?:ENOENT reading "|Loading unprepared module: (?:file:\/\/)?)([^",]+)/.exec(text) ?? [];
  const message = missing ? `Cannot find module '${missing}'` : text.replace(/^Error: /, "");
  const { position } = found ?? {};
  const place =
    position?.line > 0 && position.file === source.path
      ? mapped(position.line, position.column, source.map)
      : placeInMessage(text, source);
  // The others do not say where they were asked for it, and some name the file that they looked for.
  const isAsked = ([specifier]) => message.includes(specifier.replace(/^(\.{1,2}\/)+/, ""));
  return {
    message: message.split(/\n *(?:at |hint:|Require stack)/)[0],
    place: place ?? source.imports?.find(isAsked)?.slice(1),
  };
}

// Ensures: {code, name, message, stack, line, column}; strings bounded, position 1-based or null.
export function describe(thrown, source) {
  const invalid = syntaxFailure(thrown, source);
  const found = invalid ?? importFailure(thrown, source);
  if (found) {
    return {
      code: invalid ? "SANDBOX_INVALID_CODE" : "SANDBOX_EXECUTION_ERROR",
      name: invalid ? "SyntaxError" : "ResolveError",
      message: bounded(renamed(found.message, source), MESSAGE_LIMIT),
      stack: "",
      line: found.place?.[0] ?? null,
      column: found.place?.[1] ?? null,
    };
  }
  const error = isError(thrown);
  const stack = error ? fullStack(thrown, source) : { text: "", first: null };
  if (error) stack.first ??= placeInArrow(field(thrown, "stack"), source.path);
  const message = error ? field(thrown, "message") : `threw ${textOf(thrown)}, which is no Error`;
  return {
    code: "SANDBOX_EXECUTION_ERROR",
    name: error ? bounded(field(thrown, "name"), 256) || "Error" : "Error",
    message: bounded(renamed(message, source), MESSAGE_LIMIT),
    stack: bounded(stack.text, STACK_LIMIT),
    line: stack.first?.[0] ?? null,
    column: stack.first?.[1] ?? null,
  };
}

class NoJSON extends Error {}
class TooDeep extends Error {}

// Walks a value as JSON.stringify does and throws at the first thing that it would refuse.
function walk(holder, key, path, above, limit) {
  let value = holder[key];
  if (typeof value === "bigint") throw new NoJSON(`${path}: a BigInt has no JSON form`);
  if (typeof value !== "object" || value === null) return;
  let convert;
  try {
    convert = value.toJSON;
    if (typeof convert === "function") value = convert.call(value, key);
  } catch (error) {
    throw new NoJSON(`${path}: toJSON threw ${messageOf(error)}`);
  }
  if (typeof value === "bigint" || value instanceof BigInt)
    throw new NoJSON(`${path}: a BigInt has no JSON form`);
  if (typeof value !== "object" || value === null) return;
  if (above.includes(value)) throw new NoJSON(`${path}: the value holds itself`);
  if (above.length >= limit) throw new TooDeep(`the value is nested deeper than ${limit} levels`);
  above.push(value);
  const list = Array.isArray(value);
  for (const name of list ? value.keys() : Object.keys(value)) {
    const inner = list ? `${path}[${name}]` : step(path, name);
    try {
      value[name];
    } catch (error) {
      throw new NoJSON(`${inner}: reading it threw ${messageOf(error)}`);
    }
    walk(value, name, inner, above, limit);
  }
  above.pop();
}

function step(path, name) {
  const plain = /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(name);
  return plain ? `${path}.${name}` : `${path}[${JSON.stringify(name)}]`;
}

// {code, name, message} for a value that JSON.stringify refused with `error`; `name` is its name.
export function explainValue(value, name, error, request) {
  let message = `the ${name === "args" ? "arguments have" : "value has"} no JSON form: ${field(error, "message")}`;
  let code = "SANDBOX_EXECUTION_ERROR";
  try {
    walk({ [name]: value }, name, name, [], request.depth_limit);
  } catch (found) {
    if (found instanceof TooDeep) code = "SANDBOX_VALUE_TOO_LARGE";
    if (found instanceof TooDeep || found instanceof NoJSON) message = found.message;
  }
  return { code, name: "TypeError", message: bounded(message, MESSAGE_LIMIT) };
}
