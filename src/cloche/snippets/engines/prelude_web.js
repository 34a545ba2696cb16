// What the web's runtimes have beside the language: the clock, randomness, texts and bytes.

let clockStart = 0;
let wallStart = 0;

function startClock() {
  clockStart = clock();
  wallStart = wallClock();
}

define("performance", {
  now: () => clock() - clockStart,
  get timeOrigin() {
    return wallStart;
  },
  toJSON: () => ({ timeOrigin: wallStart }),
});

// --- crypto ---

const RANDOM_LIMIT_BYTES = 65536;
const setBytes = method(Bytes.prototype, "set");
const viewBuffer = method({ get: getOwnPropertyDescriptor(typedArray, "buffer").get }, "get");
const viewOffset = method({ get: getOwnPropertyDescriptor(typedArray, "byteOffset").get }, "get");
const viewSize = method({ get: getOwnPropertyDescriptor(typedArray, "byteLength").get }, "get");

const crypto = {
  getRandomValues(array) {
    const kind = isKind(typedLength, array) ? typedName(array) : undefined;
    if (kind === undefined || startsWith(kind, "Float"))
      throw new Exception("getRandomValues wants an array of integers", "TypeMismatchError");
    const size = viewSize(array);
    if (size > RANDOM_LIMIT_BYTES)
      throw new Exception("getRandomValues gives 65536 bytes at most", "QuotaExceededError");
    if (size) setBytes(new Bytes(viewBuffer(array), viewOffset(array), size), host.random(Text(size)));
    return array;
  },
  randomUUID() {
    const bytes = host.random("16");
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let text = "";
    for (let i = 0; i < 16; i++) {
      if (i === 4 || i === 6 || i === 8 || i === 10) text += "-";
      text += hexDigit(bytes[i] >> 4) + hexDigit(bytes[i] & 15);
    }
    return text;
  },
};
define("crypto", freeze(crypto));

function hexDigit(value) {
  return "0123456789abcdef"[value];
}

// --- texts and bytes ---

// The bytes of a buffer or of a view of one, not copied.
function bytesOf(data, what) {
  if (isKind(bufferSize, data)) return new Bytes(data);
  if (isKind(typedLength, data) && typedName(data) !== undefined)
    return new Bytes(viewBuffer(data), viewOffset(data), viewSize(data));
  if (data instanceof DataView) return new Bytes(data.buffer, data.byteOffset, data.byteLength);
  throw new TypeError(`${what} wants an ArrayBuffer or a view of one`);
}

class TextEncoder {
  get encoding() {
    return "utf-8";
  }
  encode(text = "") {
    text = wellFormed(`${text}`);
    return text === "" ? new Bytes() : host.encode(text);
  }
  encodeInto(text, target) {
    let read = 0;
    let written = 0;
    const bytes = bytesOf(target, "encodeInto");
    for (const character of wellFormed(`${text}`)) {
      const encoded = host.encode(character);
      if (written + encoded.length > bytes.length) break;
      setBytes(bytes, encoded, written);
      written += encoded.length;
      read += character.length;
    }
    return { read, written };
  }
}

const UTF_8_LABELS = ["utf-8", "utf8", "unicode-1-1-utf-8", "unicode11utf8", "x-unicode20utf8"];
const tail = method(Bytes.prototype, "subarray");

class TextDecoder {
  #fatal;
  #keepMark;
  #pending = new Bytes(); // the beginning of a character, when the text comes in pieces
  #begun = false;
  constructor(label = "utf-8", { fatal = false, ignoreBOM = false } = {}) {
    if (!includes(UTF_8_LABELS, lower(trim(`${label}`))))
      throw new RangeError(`the encoding ${label} is not known to the worker sandbox: only utf-8 is`);
    this.#fatal = !!fatal;
    this.#keepMark = !!ignoreBOM;
  }
  get encoding() {
    return "utf-8";
  }
  get fatal() {
    return this.#fatal;
  }
  get ignoreBOM() {
    return this.#keepMark;
  }
  decode(data, { stream = false } = {}) {
    let bytes = data === undefined ? new Bytes() : bytesOf(data, "decode");
    if (this.#pending.length) {
      const joined = new Bytes(this.#pending.length + bytes.length);
      setBytes(joined, this.#pending);
      setBytes(joined, bytes, this.#pending.length);
      bytes = joined;
    }
    const whole = stream ? completeLength(bytes) : bytes.length;
    this.#pending = tail(bytes, whole);
    bytes = whole === bytes.length ? bytes : tail(bytes, 0, whole);
    let text = bytes.length ? host.decode(bytes, this.#fatal ? "fatal" : "") : "";
    if (text === undefined) throw new TypeError("the bytes are no UTF-8");
    if (!this.#begun && !this.#keepMark && text[0] === "\ufeff") text = cut(text, 1);
    this.#begun = stream && (this.#begun || text !== "");
    if (!stream) this.#pending = new Bytes();
    return text;
  }
}

// How many of the bytes do not belong to a character whose end may still come.
function completeLength(bytes) {
  const { length } = bytes;
  for (let back = 1; back <= 3 && back <= length; back++) {
    const byte = bytes[length - back];
    if (byte < 0x80) return length;
    if (byte >= 0xc0) {
      const need = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return need > back ? length - back : length;
    }
  }
  return length;
}

define("TextEncoder", TextEncoder);
define("TextDecoder", TextDecoder);
define("global", globalThis);
