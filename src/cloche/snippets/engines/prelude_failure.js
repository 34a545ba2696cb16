// What is told once something went wrong: an error as data, with positions in the caller's own
// text, and the reason why a value has no JSON form. The same words as in guest/javascript_failure.mjs.

const MESSAGE_LIMIT = 8 * 1024;
const STACK_LIMIT = 16 * 1024;
const CAUSE_LIMIT = 5;
const PRELUDE = "eval_script:"; // the name that the engine gives to scripts
const OUT_OF_MEMORY = "out of memory";

// What other runtimes have, and this one has not.
const ABSENT = ["require", "process", "Bun", "Deno", "Buffer", "module", "exports", "fetch",
  "__dirname", "__filename", "Intl", "WebSocket", "XMLHttpRequest", "Blob", "Worker",
  "WebAssembly", "localStorage", "document", "window"];

function bounded(text, limit) {
  return text.length <= limit ? text : `${cut(text, 0, limit - 16)} … (shortened)`;
}

function tooLarge(message) {
  return failureBody("SANDBOX_VALUE_TOO_LARGE", "RangeError", message);
}

function failureBody(code, name, message) {
  const error = { code, name, message, stack: "", line: null, column: null };
  return stringify({ ok: false, error });
}

// A position in the text that was run → one in the caller's text; see source/positions.py.
function mapped(line, column, map) {
  if (!map) return [line, column];
  let shift = 0;
  for (let i = 0; i < map.edits.length; i++) {
    const [atLine, start, delta] = map.edits[i];
    if (atLine === line && column >= start) shift += max(delta, start - column);
  }
  return line > map.line_offset ? [line - map.line_offset, column + shift] : null;
}

function textOf(value) {
  try {
    if (typeof value === "string") return value;
    if (typeof value === "object" && value !== null) return stringify(value) ?? "an object";
    return Text(value);
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
  if (typeof thrown !== "object" || thrown === null) return false;
  return NativeError.prototype.isPrototypeOf(thrown) || ("message" in thrown && "name" in thrown);
}

function messageOf(thrown) {
  return isError(thrown) ? field(thrown, "message") : textOf(thrown);
}

// The stack without frames of the engine and of the prelude, positions mapped.
function cleanStack(text, { name, map }) {
  let first = null;
  const lines = [];
  const all = split(text, "\n");
  for (let i = 0; i < all.length; i++) {
    const line = all[i];
    const frame = startsWith(trimStart(line), "at ");
    if (!line || (frame && (find(line, PRELUDE) >= 0 || find(line, "(native)") >= 0))) continue;
    const start = frame ? findLast(line, name + ":") : -1;
    if (start < 0) {
      push(lines, line);
      continue;
    }
    const [row, column] = split(cut(line, start + name.length + 1), ":");
    const place = mapped(parseInt(row, 10), parseInt(column, 10) || 1, map);
    if (!place) continue;
    first ??= place;
    let called = trim(replaceAll(cut(line, find(line, "at ") + 3, start), "(", ""));
    if (called === "<anonymous>") called = "";
    const where = `${name}:${place[0]}:${place[1]}`;
    push(lines, called ? `    at ${called} (${where})` : `    at ${where}`);
  }
  return { text: join(lines, "\n"), first };
}

// The engine's stacks are frames alone; other engines begin with the error's own text.
function titleOf(error) {
  const name = field(error, "name") || "Error";
  const message = field(error, "message");
  return message ? `${name}: ${message}` : name;
}

function fullStack(error, place, depth = 0) {
  const own = cleanStack(field(error, "stack"), place);
  const title = titleOf(error);
  let text = startsWith(own.text, title) ? own.text : own.text ? `${title}\n${own.text}` : title;
  const inner = (one) => (isError(one) ? fullStack(one, place, depth + 1).text : textOf(one));
  if (depth < CAUSE_LIMIT) {
    if (isArray(error.errors)) {
      const some = slice(error.errors, 0, CAUSE_LIMIT);
      for (let i = 0; i < some.length; i++) text += `\nOne of the errors: ${inner(some[i])}`;
    }
    if (error.cause !== undefined) text += `\nCaused by: ${inner(error.cause)}`;
  }
  return { text, first: own.first };
}

// Whether the module of this name does not parse. An error that is thrown has a function's frame.
function failedToCompile(error, name) {
  if (!(error instanceof SyntaxError)) return false;
  const stack = trimStart(field(error, "stack"));
  return stack === "" || startsWith(stack, `at ${name}:`); // "": in a regular expression
}
const { SyntaxError } = globalThis;

// Says why a name is missing that code for other runtimes may well use.
function explainMissing(error, message) {
  if (field(error, "name") !== "ReferenceError") return message;
  const found = matches(/^'?(\w+)'? is not defined$/, message);
  if (!found || !includes(ABSENT, found[1])) return message;
  return `${found[1]} is not available in the worker sandbox; use the process sandbox`;
}

// Ensures: {code, name, message, stack, line, column}; strings bounded, position 1-based or null.
function describe(thrown, place) {
  const error = isError(thrown);
  const stack = error ? fullStack(thrown, place) : { text: "", first: null };
  let message = error ? field(thrown, "message") : `threw ${textOf(thrown)}, which is no Error`;
  if (error) message = explainMissing(thrown, message);
  const invalid = error && failedToCompile(thrown, place.name);
  return {
    code: invalid ? "SANDBOX_INVALID_CODE" : "SANDBOX_EXECUTION_ERROR",
    name: error ? bounded(field(thrown, "name"), 256) || "Error" : "Error",
    message: bounded(message, MESSAGE_LIMIT),
    stack: invalid ? "" : bounded(stack.text, STACK_LIMIT),
    line: stack.first?.[0] ?? null,
    column: stack.first?.[1] ?? null,
  };
}

// Without memory the engine throws this error, or null where there is none for the error.
function noteStarvation(thrown) {
  if (thrown === null || (isError(thrown) && field(thrown, "message") === OUT_OF_MEMORY))
    host.starved();
}

function errorBody(thrown, place) {
  try {
    noteStarvation(thrown);
    return stringify({ ok: false, error: describe(thrown, place) });
  } catch {
    // An error that defends itself against being looked at still is an error.
    return failureBody(
      "SANDBOX_EXECUTION_ERROR",
      "Error",
      "the code threw something that cannot be read",
    );
  }
}

// What the engine's own parser finds wrong with the caller's text, or null. It is asked when the
// transformer's did not understand the text, by an import that fails with `error`.
function explainSyntax(error, { line, column, lines, unclear }) {
  const message = field(error, "message");
  if (failedToCompile(error, CHECK_NAME) && find(message, "return not in a function") < 0) {
    const { first } = cleanStack(field(error, "stack"), { name: CHECK_NAME, map: null });
    // The engine tells the column of a line's first token. Behind the text there is a line more.
    const known = first[0] === line || first[0] > lines;
    return invalidCode(message, known ? [line, column] : [first[0], null]);
  }
  if (!unclear) return null;
  const unknown = "the value of the last statement cannot be told; say it with `return (…)`";
  return invalidCode(unknown, [line, column]);
}
const CHECK_NAME = "snippet.check";

function invalidCode(message, [line, column]) {
  const code = "SANDBOX_INVALID_CODE";
  return { code, name: "SyntaxError", message: bounded(message, MESSAGE_LIMIT), stack: "", line, column };
}

class NoJSON {
  constructor(message) {
    this.message = message;
  }
}
class TooDeep extends NoJSON {}

// Walks a value as JSON.stringify does and throws at the first thing that it would refuse.
function walk(holder, key, path, above, limit) {
  let value = holder[key];
  if (typeof value === "bigint") throw new NoJSON(`${path}: a BigInt has no JSON form`);
  if (typeof value !== "object" || value === null) return;
  try {
    const convert = value.toJSON;
    if (typeof convert === "function") value = apply(convert, value, [key]);
  } catch (error) {
    throw new NoJSON(`${path}: toJSON threw ${messageOf(error)}`);
  }
  if (typeof value === "bigint" || value instanceof Big)
    throw new NoJSON(`${path}: a BigInt has no JSON form`);
  if (typeof value !== "object" || value === null) return;
  if (includes(above, value)) throw new NoJSON(`${path}: the value holds itself`);
  if (above.length >= limit) throw new TooDeep(`the value is nested deeper than ${limit} levels`);
  push(above, value);
  const list = isArray(value);
  const names = list ? null : keys(value);
  const length = list ? value.length : names.length;
  for (let i = 0; i < length; i++) {
    const name = list ? Text(i) : names[i];
    const inner = list ? `${path}[${name}]` : step(path, name);
    try {
      value[name];
    } catch (error) {
      throw new NoJSON(`${inner}: reading it threw ${messageOf(error)}`);
    }
    walk(value, name, inner, above, limit);
  }
  pop(above);
}

function step(path, name) {
  const plain = matches(/^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u, name);
  return plain ? `${path}.${name}` : `${path}[${stringify(name)}]`;
}

// The frame's JSON for a value that JSON.stringify refused with `error`.
function explainValue(value, error, limit) {
  let message = `the value has no JSON form: ${field(error, "message")}`;
  let code = "SANDBOX_EXECUTION_ERROR";
  try {
    walk({ value }, "value", "value", [], limit);
  } catch (found) {
    if (found instanceof TooDeep) code = "SANDBOX_VALUE_TOO_LARGE";
    if (found instanceof NoJSON) message = found.message;
  }
  return failureBody(code, "TypeError", bounded(message, MESSAGE_LIMIT));
}

// Why the arguments of a tool have no JSON form.
function explainArguments(args, error, limit) {
  try {
    walk({ args }, "args", "args", [], limit);
  } catch (found) {
    if (found instanceof NoJSON) return bounded(found.message, MESSAGE_LIMIT);
  }
  return bounded(`args: they have no JSON form: ${field(error, "message")}`, MESSAGE_LIMIT);
}
