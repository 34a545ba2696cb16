// Preloaded before a JavaScript or TypeScript program: adds an error frame to what Node does anyway.
//
// In:  fd 3, a memory file with one frame: 4 bytes big-endian length + JSON {nonce, path}.
// Out: fd 4, a frame only when an error that nobody handles ends the program: 16 bytes nonce + 4
//      bytes big-endian length + JSON. Node's own message on stderr and the exit code stay as they
//      are; the exit code alone is the verdict.

import { readFileSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { blockOutput } from "./node_output.mjs";

const frame = readFileSync(3);
const { nonce, path } = JSON.parse(frame.toString("utf8", 4, 4 + frame.readUInt32BE(0)));

blockOutput();
process.on("uncaughtExceptionMonitor", (thrown) => {
  if (process.listenerCount("uncaughtException") > 0) return;
  const { describe } = createRequire(import.meta.url)("./javascript_failure.mjs");
  const source = { path, name: path, code: readFileSync(path, "utf8"), map: null };
  const body = Buffer.from(JSON.stringify({ ok: false, error: describe(thrown, source) }));
  const head = Buffer.alloc(20);
  head.write(nonce, "hex");
  head.writeUInt32BE(body.length, 16);
  writeSync(4, Buffer.concat([head, body]));
});
