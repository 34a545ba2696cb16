// Runs one JavaScript or TypeScript snippet inside a box, under Bun: see javascript.mjs.
//
// node:fs costs 2 ms here, process.stdout 10 ms and a turn of the event loop 1 ms: a cold run that
// is usual touches none of them.

import { decodeFrame, partOf, readFrame, runSnippet, warmUp } from "./javascript.mjs";
import { drainMicrotasks } from "bun:jsc";

const isStream = process.argv[2] === "stream";
const { read, readSync, writeSync } = isStream ? require("node:fs") : {};
const out = isStream ? null : Bun.file(4).writer();
const write = out?.write.bind(out);
const flush = out?.flush.bind(out);
const exit = process.reallyExit.bind(process);
const host = process;
const listenerCount = host.listenerCount.bind(host);
const AllPromise = Promise;
const offered = Object.create(null); // path → whether a plugin gives what `load` has at hand
let contents = "";
let loader = "js";
let fail = null;

function offer(path) {
  offered[path] = true;
  const setup = (build) => build.module(path, () => ({ contents, loader }));
  Bun.plugin({ name: "snippet", setup });
}

// A handler of the guest's own has the say, as it would without us.
function listenToErrors() {
  for (const name of ["uncaughtException", "unhandledRejection"])
    host.on(name, (thrown) => {
      if (listenerCount(name) === 1) fail(thrown);
    });
}

const runtime = {
  readsTypes: true,

  load(request, source) {
    contents = request.code;
    loader = request.loader;
    if (!offered[source.path]) offer(source.path);
    return import(source.path);
  },

  // A top-level return is fine with it.
  check(request) {
    new Bun.Transpiler({ loader: request.loader }).transformSync(request.check);
  },

  settle: drainMicrotasks,

  onUncaught(take) {
    if (fail === null) listenToErrors();
    fail = take;
  },

  setVariable(name, value) {
    host.env[name] = value;
  },

  unsetVariable(name) {
    delete host.env[name];
  },

  // process.stdout writes later when the pipe is full; console.log has written when it returns.
  async flush() {
    await new AllPromise((done) => process.stdout.end(done));
    await new AllPromise((done) => process.stderr.end(done));
  },

  async send(frame) {
    if (isStream) {
      let sent = 0;
      do sent += writeSync(4, frame, sent, frame.length - sent);
      while (sent < frame.length);
    } else {
      write(frame);
      await flush();
    }
  },

  // A read that is under way does not hold the process: only one that a call waits for is started.
  listen(take) {
    const bytes = new Uint8Array(65536);
    let held = false;
    let reading = false;
    function next() {
      reading = held;
      if (!held) return;
      read(3, bytes, 0, bytes.length, null, (error, count) => {
        if (error || count === 0) return;
        take(partOf(bytes, 0, count));
        next();
      });
    }
    return {
      hold(value) {
        held = value;
        if (!reading) next();
      },
    };
  },

  exit,
};

function readRequest() {
  if (!isStream) return decodeFrame(Bun.mmap("/proc/self/fd/3", { shared: false }));
  return readFrame((bytes) => readSync(3, bytes));
}

if (isStream) {
  process.argv.pop();
  await warmUp(runtime);
  for (const path in offered) delete require.cache[path];
  for (const name of ["snippet.js", "snippet.ts"]) offer(`/workspace/${name}`);
  Bun.inspect({ warm: [1, "x"] });
}
await runSnippet(readRequest(), runtime);
