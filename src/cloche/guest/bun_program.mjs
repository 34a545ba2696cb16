// Preloaded before a JavaScript or TypeScript program: adds an error frame to what Bun does anyway.
//
// In:  fd 3, a memory file with one frame: 4 bytes big-endian length + JSON {nonce, path}.
// Out: fd 4, a frame only when an error that nobody handles ends the program: 16 bytes nonce + 4
//      bytes big-endian length + JSON. Bun's own message on stderr and the exit code stay as they
//      are; the exit code alone is the verdict.

const frame = Buffer.from(Bun.mmap("/proc/self/fd/3", { shared: false }));
const { nonce, path } = JSON.parse(frame.toString("utf8", 4, 4 + frame.readUInt32BE(0)));
const fatal = [];

// Looking at an error changes how Bun prints it: it is described when Bun has done so, at the exit.
process.on("exit", () => {
  if (fatal.length === 0) return;
  const { describe } = require("./javascript_failure.mjs");
  const source = { path, name: path, map: null };
  const body = Buffer.from(JSON.stringify({ ok: false, error: describe(fatal[0], source) }));
  const head = Buffer.alloc(20);
  head.write(nonce, "hex");
  head.writeUInt32BE(body.length, 16);
  const out = Bun.file(4).writer();
  out.write(Buffer.concat([head, body]));
  out.end();
});

process.on("uncaughtExceptionMonitor", (thrown) => {
  if (process.listenerCount("uncaughtException") === 0) fatal.push(thrown);
});

// Rejections have no monitor: step aside and reject again, so that Bun does what it always does.
process.on("unhandledRejection", function onRejection(thrown) {
  if (process.listenerCount("unhandledRejection") > 1) return;
  fatal.push(thrown);
  process.off("unhandledRejection", onRejection);
  Promise.reject(thrown);
});
