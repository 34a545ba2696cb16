// What bun.mjs and bun_program.mjs need once something went wrong: an error as data, with positions
// in the caller's own text, and the reason why a value has no JSON form. Loaded on demand.

const MESSAGE_LIMIT = 8 * 1024;
const STACK_LIMIT = 16 * 1024;
const CAUSE_LIMIT = 5;
const HARNESS = import.meta.dir;

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

// What the runtime's own parser finds wrong with the caller's text, or null. It is asked when the
// transformer's did not understand the text. A top-level return is fine with it. A final statement
// that only the runtime understands would silently lose its value.
export function checkText(text, source, loader, { unclear, suspect }) {
  try {
    new Bun.Transpiler({ loader }).transformSync(text);
    if (!unclear) return null;
    return {
      code: "SANDBOX_INVALID_CODE",
      name: "SyntaxError",
      message: "the value of the last statement cannot be told; say it with `return (…)`",
      stack: "",
      line: suspect[0],
      column: suspect[1],
    };
  } catch (thrown) {
    const [kind, found] = buildFailure(thrown) ?? [];
    if (!kind) throw thrown;
    return describeBuild(kind, found, { ...source, map: null }, true);
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

// The stack without frames of the harness or of the runtime's loader, positions mapped.
function cleanStack(text, source) {
  let first = null;
  const lines = [];
  for (const line of text.split("\n")) {
    const frame = line.trimStart().startsWith("at ");
    const ours = line.includes(HARNESS) || /\((native|internal|node|bun)[:)]/.test(line);
    if (frame && ours) continue;
    const start = frame ? line.lastIndexOf(source.path + ":") : -1;
    if (start < 0) {
      lines.push(line);
      continue;
    }
    const [row, column] = line.slice(start + source.path.length + 1).split(":");
    // The runtime leaves out a column that is 1.
    const place = mapped(parseInt(row, 10), parseInt(column, 10) || 1, source.map);
    if (!place) continue;
    first ??= place;
    const called = line.slice(line.indexOf("at ") + 3, start).replace("(", "").trim();
    const where = `${source.name}:${place[0]}:${place[1]}`;
    lines.push(called ? `    at ${called} (${where})` : `    at ${where}`);
  }
  return { text: lines.join("\n"), first };
}

function fullStack(error, source, depth = 0) {
  const own = cleanStack(field(error, "stack"), source);
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

// The runtime's own messages about code that does not parse or resolve: BuildMessage and
// ResolveMessage, which are no Errors, alone or inside an AggregateError.
function buildFailure(thrown) {
  for (const one of [thrown, ...(Array.isArray(thrown?.errors) ? thrown.errors : [])]) {
    const kind = one?.constructor?.name;
    if (kind === "BuildMessage" || kind === "ResolveMessage") return [kind, one];
  }
  return null;
}

function describeBuild(kind, { message, position, specifier }, source, isHere) {
  const invalid = kind === "BuildMessage";
  let place = null;
  if (position && position.line > 0 && (isHere || position.file === source.path))
    place = mapped(position.line, position.column, source.map);
  // The runtime does not say where it was asked for a module that it cannot find.
  place ??= source.imports?.find(([name]) => !invalid && name === specifier)?.slice(1);
  return {
    code: invalid ? "SANDBOX_INVALID_CODE" : "SANDBOX_EXECUTION_ERROR",
    name: invalid ? "SyntaxError" : "ResolveError",
    message: bounded(String(message).replaceAll(source.path, source.name), MESSAGE_LIMIT),
    stack: "",
    line: place?.[0] ?? null,
    column: place?.[1] ?? null,
  };
}

// Ensures: {code, name, message, stack, line, column}; strings bounded, position 1-based or null.
export function describe(thrown, source) {
  const build = buildFailure(thrown);
  if (build) return describeBuild(...build, source, false);
  const error = isError(thrown);
  const stack = error ? fullStack(thrown, source) : { text: "", first: null };
  const message = error ? field(thrown, "message") : `threw ${textOf(thrown)}, which is no Error`;
  return {
    code: "SANDBOX_EXECUTION_ERROR",
    name: error ? bounded(field(thrown, "name"), 256) || "Error" : "Error",
    message: bounded(message, MESSAGE_LIMIT),
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

// The frame's JSON for a value that JSON.stringify refused with `error`.
export function explainValue(value, error, request) {
  let message = `the value has no JSON form: ${field(error, "message")}`;
  let code = "SANDBOX_EXECUTION_ERROR";
  try {
    walk({ value }, "value", "value", [], request.depth_limit);
  } catch (found) {
    if (found instanceof TooDeep) code = "SANDBOX_VALUE_TOO_LARGE";
    if (found instanceof TooDeep || found instanceof NoJSON) message = found.message;
  }
  message = bounded(message, MESSAGE_LIMIT);
  return JSON.stringify({
    ok: false,
    error: { code, name: "TypeError", message, stack: "", line: null, column: null },
  });
}
