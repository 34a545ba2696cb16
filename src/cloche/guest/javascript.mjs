// The half of a JavaScript harness that is the same in every runtime: frames, values, tools, ends.
// In a box it is one text with the runtime's own half, which starts the run (`bundle` in
// environments/roots.py): a second file costs Bun half a millisecond.
//
// In:  fd 3, frames of 4 bytes big-endian length + JSON. First the request, read before any guest
//      code runs: {nonce, code, loader, name, context, map, tools?, env?, imports?, check?, suspect?,
//      unclear?, value_limit_bytes, depth_limit}, where code is a module whose default export, if
//      any, is the value. Then the answers to calls of tools, {answer, ok, value | error}, where fd 3
//      is a pipe (argument `stream`); else it is a memory file and holds the request alone.
// Out: fd 4, frames of 16 bytes nonce + 4 bytes big-endian length + JSON: calls of tools, {call,
//      tool, args, kwargs}, and last the result; by then all output is in its pipes. The exit code
//      is 0 when the snippet has a value, 1 when it failed. A guest that leaves by itself
//      (process.exit) sends no result: its exit code speaks. Fds 0 to 2 belong to the guest.
//
// With `stream` a harness may have been started before there is a request: all that a usual run
// needs is loaded first. Without, a cold start is what a user waits for: what is slow to load is
// loaded where it is used, and what only a failure needs is in javascript_failure.mjs.
//
// Everything used after guest code has run is taken from the globals before it: a guest that breaks
// JSON or Promise harms its own value and not the frame around it.

const WARM_ROUNDS = 3;
const { stringify, parse } = JSON;
const { create, defineProperty, freeze, keys } = Object;
const NativePromise = Promise;
const NativeError = Error;
const Bytes = Uint8Array;
const encoder = new TextEncoder();
const encode = encoder.encode.bind(encoder);
const decoder = new TextDecoder();
const decode = decoder.decode.bind(decoder);
const unbound = Function.prototype.call.bind.bind(Function.prototype.call);
const setBytes = unbound(Bytes.prototype.set);
export const partOf = unbound(Bytes.prototype.subarray);
const sliceText = unbound(String.prototype.slice);

function lengthAt(bytes, at) {
  return (
    bytes[at] * 0x1000000 + bytes[at + 1] * 0x10000 + bytes[at + 2] * 0x100 + bytes[at + 3]
  );
}

// The object in the frame at the start of some bytes.
export function decodeFrame(bytes) {
  return parse(decode(partOf(bytes, 4, 4 + lengthAt(bytes, 0))));
}

function receive(read, size) {
  const bytes = new Bytes(size);
  for (let filled = 0; filled < size; ) {
    const count = read(filled ? partOf(bytes, filled) : bytes);
    if (count <= 0) throw new NativeError("the request ended early");
    filled += count;
  }
  return bytes;
}

// The object in the next frame; `read` fills a part of some bytes and returns how many.
export function readFrame(read) {
  return parse(decode(receive(read, lengthAt(receive(read, 4), 0))));
}

function encodeFrame(nonce, body) {
  const payload = encode(body);
  const frame = new Bytes(20 + payload.length);
  setBytes(frame, nonce);
  for (let i = 0; i < 4; i++) frame[16 + i] = payload.length >>> (24 - 8 * i);
  setBytes(frame, payload, 20);
  return frame;
}

// The nesting of a JSON text. Reads characters by index: no method of the guest's is called.
function depthOf(text) {
  let depth = 0;
  let deepest = 0;
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quoted) {
      if (c === "\\") i++;
      else if (c === '"') quoted = false;
    } else if (c === '"') quoted = true;
    else if (c === "{" || c === "[") {
      if (++depth > deepest) deepest = depth;
    } else if (c === "}" || c === "]") depth--;
  }
  return deepest;
}

// Why a JSON text is beyond a limit of the request, or null.
function excessOf(text, request) {
  const limit = request.value_limit_bytes;
  if (text.length > limit || encode(text).length > limit)
    return `the value is larger than ${limit} bytes`;
  // A text this short cannot nest deeper.
  if (text.length > 2 * request.depth_limit && depthOf(text) > request.depth_limit)
    return `the value is nested deeper than ${request.depth_limit} levels`;
  return null;
}

function failureBody(error) {
  return stringify({ ok: false, error: { stack: "", line: null, column: null, ...error } });
}

function tooLarge(message) {
  return { code: "SANDBOX_VALUE_TOO_LARGE", name: "RangeError", message };
}

// Bun's import() goes through the guest's Promise.prototype.then; its require does not.
const requireHere = import.meta.require;
function failure() {
  const name = "./javascript_failure.mjs";
  return requireHere ? requireHere(name) : import(name);
}

// The frame's JSON for a value, by the very rules of JSON.stringify.
async function valueBody(value, request) {
  let text;
  try {
    text = stringify(value);
  } catch (error) {
    return failureBody((await failure()).explainValue(value, "value", error, request));
  }
  if (text === undefined) return '{"ok":true}';
  const excess = excessOf(text, request);
  return excess ? failureBody(tooLarge(excess)) : `{"ok":true,"value":${text}}`;
}

async function errorBody(thrown, source) {
  try {
    return failureBody((await failure()).describe(thrown, source));
  } catch {
    // An error that defends itself against being looked at still is an error.
    const message = "the code threw something that cannot be read";
    return failureBody({ code: "SANDBOX_EXECUTION_ERROR", name: "Error", message });
  }
}

function nonceBytes(nonce) {
  const bytes = new Bytes(16);
  for (let i = 0; i < 16; i++) bytes[i] = parseInt(sliceText(nonce, 2 * i, 2 * i + 2), 16);
  return bytes;
}

// An Error named ToolError; `place` was made where the tool was called, and has that stack.
function toolError(message, place) {
  const hidden = { writable: true, configurable: true, enumerable: false };
  defineProperty(place, "name", { value: "ToolError", ...hidden });
  return defineProperty(place, "message", { value: message, ...hidden });
}

// The global `tools`. Nothing is read from fd 3 before the first call; from then on it is read
// while calls are pending, which keeps the process alive.
function makeTools(request, nonce, runtime) {
  const pending = create(null);
  let count = 0;
  let last = 0;
  let control = null;
  let kept = new Bytes(0);

  function settle({ answer, ok, value, error }) {
    const call = pending[answer];
    if (call === undefined) return;
    delete pending[answer];
    if (--count === 0) control.hold(false);
    if (ok) call.resolve(value);
    else call.reject(toolError(error.message, call.place));
  }

  function take(chunk) {
    const joined = new Bytes(kept.length + chunk.length);
    setBytes(joined, kept);
    setBytes(joined, chunk, kept.length);
    kept = joined;
    while (kept.length >= 4 && kept.length >= 4 + lengthAt(kept, 0)) {
      const frame = kept;
      kept = partOf(kept, 4 + lengthAt(kept, 0));
      settle(decodeFrame(frame));
    }
  }

  async function call(tool, args, place) {
    let text;
    try {
      text = stringify(args);
    } catch (error) {
      const { message } = (await failure()).explainValue(args, "args", error, request);
      throw new TypeError(message);
    }
    const excess = excessOf(text, request);
    if (excess) throw new RangeError(`args: ${excess}`);
    const id = ++last;
    const answer = new NativePromise((resolve, reject) => {
      pending[id] = { resolve, reject, place };
    });
    control ??= runtime.listen(take);
    if (++count === 1) control.hold(true);
    const body = `{"call":${id},"tool":${stringify(tool)},"args":${text},"kwargs":{}}`;
    await runtime.send(encodeFrame(nonce, body));
    return await answer; // `return answer` would ask the guest's Promise.prototype.then
  }

  const tools = create(null);
  for (const tool of request.tools) {
    const value = { [tool]: (...args) => call(tool, args, new NativeError()) }[tool];
    defineProperty(tools, tool, { value, enumerable: true });
  }
  return freeze(tools);
}

async function flushed(runtime) {
  try {
    await runtime.flush();
  } catch {
    // The guest took process.stdout away.
  }
}

function defineGlobal(name, value) {
  defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: true });
}

// Runs the snippet of a request to its end, which is the process's.
//
// runtime: {
//   readsTypes              whether it loads TypeScript; else request.loader has to be js
//   load(request, source)   evaluates the module, resolves to its namespace; may set source.path
//   check(request, source)  parses request.check, the caller's text; throws what is wrong with it
//   settle()                resolves when all promise jobs are done
//   onUncaught(fail)        calls fail(thrown) for what neither the code nor its handlers caught
//   setVariable(name, value), unsetVariable(name)
//   flush()                 resolves when all that was written to process.stdout is in its pipe
//   send(bytes)             writes to fd 4
//   listen(take)            reads fd 3 while `hold(true)`; {hold}
//   exit(code)
// }
export async function runSnippet(request, runtime) {
  const { code, context, env } = request;
  const nonce = nonceBytes(request.nonce);
  // Looking whether process.stdout is in use would load it (10 ms in Bun): ask the text.
  const streams = code.includes("stdout") || code.includes("stderr");
  const name = request.name ?? `snippet.${request.loader}`;
  // The path is what the runtime's stacks call the module.
  const source = { path: `/workspace/${name}`, name, code, map: request.map, imports: request.imports };
  let ended = false;

  async function end(makeBody) {
    if (ended) return;
    ended = true;
    const body = await makeBody();
    if (streams) await flushed(runtime);
    // The run may be killed as soon as the frame is out.
    await runtime.send(encodeFrame(nonce, body));
    runtime.exit(body[6] === "t" ? 0 : 1); // {"ok":true
  }
  const fail = (thrown) => end(() => errorBody(thrown, source));

  if (env) for (const key of keys(env)) runtime.setVariable(key, env[key]);
  for (const key of keys(context)) defineGlobal(key, context[key]);
  if (request.tools?.length) defineGlobal("tools", makeTools(request, nonce, runtime));
  runtime.onUncaught(fail);
  if (request.check != null) {
    const wrong = await (await failure()).checkText(request, source, runtime.check);
    if (wrong) return end(() => failureBody(wrong));
  }
  if (request.loader === "ts" && !runtime.readsTypes) {
    const message = "this construct is not known here; use runtime bun";
    const [line, column] = request.suspect ?? [null, null];
    const refusal = { code: "SANDBOX_INVALID_CODE", name: "SyntaxError", message };
    return end(() => failureBody({ ...refusal, line, column }));
  }
  let value;
  try {
    value = (await runtime.load(request, source)).default;
  } catch (thrown) {
    return fail(thrown);
  }
  // All promise jobs first: rejections nobody handled are reported at their end, and an endless
  // chain of them never comes to it, so that it ends as the timeout it is.
  await runtime.settle();
  return end(() => valueBody(value, request));
}

// Goes the way of a usual run, so that code and data are loaded when one comes.
export async function warmUp(runtime) {
  const code = "export {};const a = await 1;export default await ({ a: [a, `x`] });";
  const still = {
    ...runtime,
    send: (frame) => runtime.send(partOf(frame, 0, 0)),
    exit() {},
  };
  for (let round = 0; round < WARM_ROUNDS; round++) {
    const request = { code, name: `warm${round}.js`, context: {}, tools: [], env: { CLOCHE: "" } };
    const limits = { nonce: "00".repeat(16), loader: "js", value_limit_bytes: 99, depth_limit: 9 };
    const frame = encodeFrame(new Bytes(16), stringify({ ...request, ...limits }));
    let at = 16;
    const read = (bytes) => {
      setBytes(bytes, partOf(frame, at, at + bytes.length));
      at += bytes.length;
      return bytes.length;
    };
    await runSnippet(readFrame(read), still);
  }
  runtime.unsetVariable("CLOCHE");
}
