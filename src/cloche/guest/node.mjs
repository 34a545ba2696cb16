// Runs one JavaScript or TypeScript snippet inside a box, under Node: see javascript.mjs.

import { partOf, readFrame, runSnippet, warmUp } from "./javascript.mjs";
import { readSync, writeSync } from "node:fs";
import { createRequire, registerHooks, stripTypeScriptTypes } from "node:module";
import process from "node:process";
import { blockOutput } from "./node_output.mjs";

const isStream = process.argv[2] === "stream";
const exit = process.reallyExit.bind(process);
const listenerCount = process.listenerCount.bind(process);
const nextTurn = setImmediate;
const AllPromise = Promise;
const require = createRequire("/workspace/snippet.js");
const snippets = Object.create(null); // URL → text
let fail = null;
const UNRESOLVED = "cloche:unresolved";

function notFound(specifier) {
  const error = new Error(`Cannot find module '${specifier}'`);
  error.code = "ERR_MODULE_NOT_FOUND";
  return error;
}

registerHooks({
  resolve(specifier, context, next) {
    if (specifier in snippets) return { url: specifier, shortCircuit: true };
    if (specifier === UNRESOLVED) throw new Error(UNRESOLVED);
    if (/^(?!node:|file:|data:)[a-z][a-z+.-]+:/i.test(specifier)) throw notFound(specifier);
    return next(specifier, context);
  },
  load(url, context, next) {
    if (!(url in snippets)) return next(url, context);
    return { format: "module", source: snippets[url], shortCircuit: true };
  },
});

// A handler of the guest's own has the say, as it would without us.
function listenToErrors() {
  for (const name of ["uncaughtException", "unhandledRejection"])
    process.on(name, (thrown) => {
      if (listenerCount(name) === 1) fail(thrown);
    });
  process.on("beforeExit", () => fail(new Error("the code waits for what never comes")));
}

const runtime = {
  load(request, source) {
    source.path = `file://${source.path}`;
    snippets[source.path] = request.code;
    return import(source.path);
  },

  // Parses it as a module that cannot be linked, and so is not run.
  async check(request, source) {
    if (request.loader === "ts") stripTypeScriptTypes(request.check, { mode: "transform" });
    const url = `file://${source.path}?check`;
    snippets[url] = `${request.check}\nimport "${UNRESOLVED}";`;
    try {
      await import(url);
    } catch (thrown) {
      if (thrown.message !== UNRESOLVED) throw thrown;
    }
  },

  settle: () => new AllPromise((done) => nextTurn(done)),

  onUncaught(take) {
    if (fail === null) listenToErrors();
    fail = take;
  },

  setVariable(name, value) {
    process.env[name] = value;
  },

  unsetVariable(name) {
    delete process.env[name];
  },

  flush() {}, // see blockOutput

  send(frame) {
    let sent = 0;
    do sent += writeSync(4, frame, sent, frame.length - sent);
    while (sent < frame.length);
  },

  listen(take) {
    const { Socket } = require("node:net");
    const control = new Socket({ fd: 3, readable: true, writable: false });
    control.on("data", take);
    const ref = control.ref.bind(control);
    const unref = control.unref.bind(control);
    return { hold: (value) => (value ? ref() : unref()) };
  },

  exit,
};

// What the other runtimes' modules and a CommonJS one of Node have; code may shadow it.
const common = { require, __filename: "/workspace/snippet.js", __dirname: "/workspace" };
for (const [name, value] of Object.entries(common))
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });

// The console's first line costs 2 ms: it is written to nowhere.
function warmConsole() {
  for (const name of ["log", "error"]) {
    const stream = name === "log" ? process.stdout : process.stderr;
    stream.write("");
    stream.write = () => true;
    console[name]("x", { warm: [1, "x"] });
    delete stream.write;
  }
}

blockOutput();
if (isStream) {
  process.argv.pop();
  await warmUp(runtime);
  warmConsole();
}
runSnippet(
  readFrame((bytes) => readSync(3, bytes)),
  runtime,
);
