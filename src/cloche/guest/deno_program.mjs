// Preloaded before a JavaScript or TypeScript program: adds an error frame to what Deno does anyway.
//
// In:  fd 3, a memory file with one frame: 4 bytes big-endian length + JSON {nonce, path}.
// Out: fd 4, a frame only when the program does not parse or an error that nobody handles ends it: 16
//      bytes nonce + 4 bytes big-endian length + JSON. Deno's own message on stderr and the exit
//      code stay as they are; the exit code alone is the verdict.

const { symbols: library } = Deno.dlopen("libc.so.6", {
  read: { parameters: ["i32", "buffer", "usize"], result: "isize" },
  write: { parameters: ["i32", "buffer", "usize"], result: "isize" },
});
const UNRESOLVED = "cloche:unresolved";
const isPrevented = Object.getOwnPropertyDescriptor(Event.prototype, "defaultPrevented").get;
let told = false;

function readRequest() {
  const bytes = new Uint8Array(1 << 20);
  const size = Number(library.read(3, bytes, BigInt(bytes.length)));
  return JSON.parse(new TextDecoder().decode(bytes.subarray(4, size)));
}

const { nonce, path } = readRequest();
const code = await Deno.readTextFile(path);
const { describe } = await import("./javascript_failure.mjs");

function tell(thrown, place) {
  if (told) return;
  told = true;
  const source = { path: place, name: path, code, map: null };
  const body = new TextEncoder().encode(
    JSON.stringify({ ok: false, error: describe(thrown, source) }),
  );
  const frame = new Uint8Array(20 + body.length);
  frame.set(Uint8Array.fromHex(nonce));
  new DataView(frame.buffer).setUint32(16, body.length);
  frame.set(body, 20);
  library.write(4, frame, BigInt(frame.length));
}

// Deno asks for this when all listeners have been heard: an error that they let pass is fatal.
for (const [name, ofNode] of [
  ["error", "uncaughtException"],
  ["unhandledrejection", "unhandledRejection"],
])
  addEventListener(name, (event) => {
    Object.defineProperty(event, "defaultPrevented", {
      get() {
        const prevented = isPrevented.call(event);
        if (!prevented && process.listenerCount(ofNode) === 0)
          tell(event.error ?? event.reason, `file://${path}`);
        return prevented;
      },
    });
  });

// Deno tells nobody here that the program does not parse. Parsed as a module that cannot be linked,
// it is not run.
const type = path.endsWith(".ts") ? "application/typescript" : "text/javascript";
const url = URL.createObjectURL(new Blob([`${code}\nimport "${UNRESOLVED}";`], { type }));
await import(url).catch((thrown) => {
  if (/^SyntaxError|SyntaxError: /.test(`${thrown.name} ${thrown.message}`)) tell(thrown, url);
});
