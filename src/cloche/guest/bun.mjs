// Runs one JavaScript or TypeScript snippet inside a box, under Bun.
//
// In:  fd 3, a memory file with one frame: 4 bytes big-endian length + JSON, read before any guest
//      code runs: {nonce, code, loader, context, map, imports?, check?, suspect?, unclear?, value_limit_bytes, depth_limit}, where
//      code is a module whose default export, if any, is the value.
// Out: fd 4, at most one frame: 16 bytes nonce + 4 bytes big-endian length + JSON; exit code 0 when
//      the snippet has a value, 1 when it failed. A guest that leaves by itself (process.exit)
//      sends none: its exit code speaks. Fds 0 to 2 belong to the guest; fd 3 stays open, drained.
//
// A cold start is what a user waits for, so the usual way through touches nothing that is slow to
// load: node:fs costs 2 ms, process.stdout 10 ms and a turn of the event loop 1 ms here.
// What is needed only after a failure lives in bun_failure.mjs.
//
// Everything used after guest code has run is taken from the globals before it: a guest that breaks
// JSON or Promise harms its own value and not the frame around it.

import { drainMicrotasks } from "bun:jsc";

const { stringify, parse } = JSON;
const { defineProperty, keys } = Object;
const { exit } = process;
const encoder = new TextEncoder();
const encode = encoder.encode.bind(encoder);
const listenerCount = process.listenerCount.bind(process);
const NativePromise = Promise;
const Bytes = Uint8Array;
const out = Bun.file(4).writer();
const write = out.write.bind(out);
const flush = out.flush.bind(out);

let finished = false;

function readRequest() {
  const frame = Bun.mmap("/proc/self/fd/3", { shared: false });
  const [a, b, c, d] = frame;
  return parse(new TextDecoder().decode(frame.subarray(4, 4 + a * 0x1000000 + b * 0x10000 + c * 0x100 + d)));
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

function tooLarge(message) {
  return stringify({
    ok: false,
    error: {
      code: "SANDBOX_VALUE_TOO_LARGE",
      name: "RangeError",
      message,
      stack: "",
      line: null,
      column: null,
    },
  });
}

// The frame's JSON for a value, by the very rules of JSON.stringify.
function valueBody(value, request) {
  let text;
  try {
    text = stringify(value);
  } catch (error) {
    return failure().explainValue(value, error, request);
  }
  if (text === undefined) return '{"ok":true}';
  const limit = request.value_limit_bytes;
  if (text.length > limit || encode(text).length > limit)
    return tooLarge(`the value is larger than ${limit} bytes`);
  // A text this short cannot nest deeper.
  if (text.length > 2 * request.depth_limit && depthOf(text) > request.depth_limit)
    return tooLarge(`the value is nested deeper than ${request.depth_limit} levels`);
  return `{"ok":true,"value":${text}}`;
}

function failure() {
  return require("./bun_failure.mjs");
}

function errorBody(thrown, source) {
  try {
    return stringify({ ok: false, error: failure().describe(thrown, source) });
  } catch {
    // An error that defends itself against being looked at still is an error.
    return (
      '{"ok":false,"error":{"code":"SANDBOX_EXECUTION_ERROR","name":"Error",' +
      '"message":"the code threw something that cannot be read",' +
      '"stack":"","line":null,"column":null}}'
    );
  }
}

async function finish(body, request) {
  if (finished) return;
  finished = true;
  const exitCode = body[6] === "t" ? 0 : 1; // {"ok":true
  const payload = encode(body);
  const frame = new Bytes(20 + payload.length);
  for (let i = 0; i < 16; i++) frame[i] = request.nonceBytes[i];
  for (let i = 0; i < 4; i++) frame[16 + i] = payload.length >>> (24 - 8 * i);
  for (let i = 0; i < payload.length; i++) frame[20 + i] = payload[i];
  write(frame);
  await flush();
  if (request.streams) {
    // process.stdout writes later when the pipe is full; console.log has written when it returns.
    await new NativePromise((done) => process.stdout.end(done));
    await new NativePromise((done) => process.stderr.end(done));
  }
  exit(exitCode);
}

async function main() {
  const request = readRequest();
  const { code, loader, context, nonce } = request;
  request.nonceBytes = new Bytes(16);
  for (let i = 0; i < 16; i++) request.nonceBytes[i] = parseInt(nonce.slice(2 * i, 2 * i + 2), 16);
  // Looking whether process.stdout is in use would load it (10 ms): ask the text.
  request.streams = code.includes("stdout") || code.includes("stderr");

  const name = `snippet.${loader}`;
  const path = `/workspace/${name}`;
  const source = { path, name, map: request.map, imports: request.imports };

  for (const key of keys(context))
    defineProperty(globalThis, key, {
      value: context[key],
      writable: true,
      configurable: true,
      enumerable: true,
    });

  const fail = (thrown) => finish(errorBody(thrown, source), request);
  // A handler of the guest's own has the say, as it would without us.
  process.on("uncaughtException", (thrown) => {
    if (listenerCount("uncaughtException") === 1) fail(thrown);
  });
  process.on("unhandledRejection", (thrown) => {
    if (listenerCount("unhandledRejection") === 1) fail(thrown);
  });

  Bun.plugin({
    name: "snippet",
    setup(build) {
      build.module(path, () => ({ contents: code, loader }));
    },
  });

  const wrong =
    request.check == null ? null : failure().checkText(request.check, source, loader, request);
  if (wrong) {
    await finish(stringify({ ok: false, error: wrong }), request);
    return;
  }
  let value;
  try {
    value = (await import(path)).default;
  } catch (thrown) {
    await fail(thrown);
    return;
  }
  // All promise jobs first: rejections nobody handled are reported at their end, and an endless
  // chain of them never comes to it, so that it ends as the timeout it is.
  drainMicrotasks();
  await finish(valueBody(value, request), request);
}

await main();
