// Runs one JavaScript or TypeScript snippet inside a box, under Deno: see javascript.mjs.
//
// Deno gives no access to fds that it has not opened itself, hence the C library. Whatever belongs
// to Node (`process`, `Buffer`, `require`, modules `node:…`) costs 25 ms when it is first used: a cold
// run that is usual does not.

import { partOf, readFrame, runSnippet, warmUp } from "./javascript.mjs";

const { symbols: library } = Deno.dlopen("libc.so.6", {
  poll: { parameters: ["buffer", "usize", "i32"], result: "i32" },
  read: { parameters: ["i32", "buffer", "usize"], result: "isize" },
  write: { parameters: ["i32", "buffer", "usize"], result: "isize" },
  read_later: {
    name: "read",
    parameters: ["i32", "buffer", "usize"],
    result: "isize",
    nonblocking: true,
  },
  _exit: { parameters: ["i32"], result: "void" },
  getpid_later: { name: "getpid", parameters: [], result: "i32", nonblocking: true },
});
const { poll, read, write, read_later: readLater, getpid_later: nextTurn, _exit: exit } = library;
const AsNumber = Number;
const AsBigInt = BigInt;
const define = Object.defineProperty;
const createObjectURL = URL.createObjectURL.bind(URL);
const AsBlob = Blob;
const listenTo = addEventListener;
// What the context may put in the place of `process` is not asked.
const nodeProcess = Object.getOwnPropertyDescriptor(globalThis, "process").get;
const prevent = Function.prototype.call.bind(Event.prototype.preventDefault);
const snippets = Object.create(null); // URL → text
const UNRESOLVED = "cloche:unresolved";
let hooked = false;
let fail = null;
let code = "";

const readInto = (bytes) => AsNumber(read(3, bytes, AsBigInt(bytes.length)));

function nodeModule() {
  return nodeProcess().getBuiltinModule("node:module");
}

// Whether the guest handles a process event of Node's; asking would load Node.
function handlesEvent(name) {
  return code.includes(name) && nodeProcess().listenerCount(name) > 0;
}

function hook() {
  if (hooked) return;
  hooked = true;
  const { registerHooks, isBuiltin } = nodeModule();
  registerHooks({
    // Deno takes a bare name for a file's here.
    resolve(specifier, context, next) {
      if (specifier in snippets) return { url: specifier, shortCircuit: true };
      if (/^(\.{0,2}\/|(node|file|data|blob):)/.test(specifier)) return next(specifier, context);
      if (isBuiltin(specifier)) return next(`node:${specifier}`, context);
      const error = new Error(`Cannot find module '${specifier}'`);
      error.code = "ERR_MODULE_NOT_FOUND";
      throw error;
    },
    load(url, context, next) {
      if (url.endsWith(".json")) return readJSON(url); // Deno loses it when a require asks
      if (!(url in snippets)) return next(url, context);
      return { format: "module", source: snippets[url], shortCircuit: true };
    },
  });
}

function readJSON(url) {
  return { format: "json", source: Deno.readTextFileSync(new URL(url)), shortCircuit: true };
}

function objectURL(text, type) {
  return createObjectURL(new AsBlob([text], { type }));
}

// A handler of the guest's own has the say, as it would without us.
function listenToErrors() {
  for (const [name, ofNode] of [
    ["error", "uncaughtException"],
    ["unhandledrejection", "unhandledRejection"],
  ])
    listenTo(name, async (event) => {
      if (handlesEvent(ofNode)) return;
      let handled = false;
      define(event, "preventDefault", { value: () => (handled = true) });
      prevent(event);
      await null; // the guest's listeners come after this one
      if (!handled) fail(name === "error" ? event.error : event.reason);
    });
}

const runtime = {
  load(request, source) {
    code = request.code;
    // A module without this word cannot tell where it is.
    if (hooked || request.code.includes("import")) {
      hook();
      source.path = `file://${source.path}`;
      snippets[source.path] = request.code;
    } else source.path = objectURL(request.code, "text/javascript");
    return import(source.path);
  },

  // Parses it as a module that cannot be linked, and so is not run.
  async check(request, source) {
    const type = request.loader === "ts" ? "application/typescript" : "text/javascript";
    source.path = objectURL(`${request.check}\nimport "${UNRESOLVED}";`, type);
    try {
      await import(source.path);
    } catch (thrown) {
      // The message about a text that does not parse shows the text.
      if (!thrown.message.startsWith('Unsupported scheme "cloche"')) throw thrown;
    }
  },

  settle: () => nextTurn(),

  onUncaught(take) {
    if (fail === null) listenToErrors();
    fail = take;
  },

  setVariable(name, value) {
    Deno.env.set(name, value);
  },

  unsetVariable(name) {
    Deno.env.delete(name);
  },

  flush() {}, // process.stdout and the console have written when they return

  send(frame) {
    let sent = 0;
    do {
      const count = AsNumber(write(4, partOf(frame, sent), AsBigInt(frame.length - sent)));
      if (count > 0) sent += count;
    } while (sent < frame.length);
  },

  listen(take) {
    const bytes = new Uint8Array(65536);
    let held = false;
    let reading = false;
    async function next() {
      reading = true;
      while (held) {
        const count = AsNumber(await readLater(3, bytes, AsBigInt(bytes.length)));
        if (count <= 0) return;
        take(partOf(bytes, 0, count));
      }
      reading = false;
    }
    return {
      hold(value) {
        held = value;
        if (!reading && held) next();
      },
    };
  },

  exit,
};

// What the other runtimes' modules and a CommonJS one of Deno have; code may shadow it.
const place = { __filename: "/workspace/snippet.js", __dirname: "/workspace" };
for (const [name, value] of Object.entries(place))
  define(globalThis, name, { value, writable: true, configurable: true });
define(globalThis, "require", {
  get() {
    const value = nodeModule().createRequire(place.__filename);
    define(globalThis, "require", { value, writable: true, configurable: true });
    return value;
  },
  set(value) {
    define(globalThis, "require", { value, writable: true, configurable: true });
  },
  configurable: true,
});

// Started ahead, or after the request came: then there is nothing to make ready for. A memory file
// can always be read; no argument tells, since Deno would show it to the guest.
function isAhead() {
  const POLLIN = 1;
  return poll(new Uint8Array([3, 0, 0, 0, POLLIN, 0, 0, 0]), 1n, 0) === 0;
}

if (isAhead()) {
  hook();
  await warmUp(runtime);
  Deno.inspect({ warm: [1, "x"] });
}
runSnippet(readFrame(readInto), runtime);
