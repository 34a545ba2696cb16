// URL and URLSearchParams: https://url.spec.whatwg.org. Hosts are ASCII here: names with other
// letters would need tables of their own, and are refused by name.

const SPECIAL_PORTS = { "http:": "80", "https:": "443", "ws:": "80", "wss:": "443", "ftp:": "21", "file:": "" };
const portOf = (protocol) => getOwnPropertyDescriptor(SPECIAL_PORTS, protocol)?.value;
const isSpecial = (protocol) => portOf(protocol) !== undefined;

// Which ASCII characters are written as %XX, beside controls: the sets of the standard.
const FRAGMENT = ' "<>`';
const QUERY = ' "#<>';
const SPECIAL_QUERY = QUERY + "'";
const PATH = QUERY + "?^`{}";
const USERINFO = PATH + "/:;=@[\\]|";

function percentEncode(text, set) {
  let result = "";
  text = wellFormed(text);
  for (let i = 0; i < text.length; i++) {
    const code = codeAt(text, i);
    if (code > 0x1f && code < 0x7f) {
      result += find(set, text[i]) < 0 ? text[i] : percent(code);
      continue;
    }
    const whole = code >= 0xd800 && code < 0xe000 ? text[i] + text[++i] : text[i];
    if (code < 0x80) result += percent(code);
    else for (const byte of host.encode(whole)) result += percent(byte);
  }
  return result;
}

function percent(byte) {
  const upper = "0123456789ABCDEF";
  return `%${upper[byte >> 4]}${upper[byte & 15]}`;
}

function percentDecode(text) {
  if (find(text, "%") < 0) return text;
  const bytes = host.encode(wellFormed(text));
  const decoded = new Bytes(bytes.length);
  let length = 0;
  for (let i = 0; i < bytes.length; i++, length++) {
    const value = bytes[i] === 37 ? hexValue(bytes[i + 1]) * 16 + hexValue(bytes[i + 2]) : NaN;
    decoded[length] = isNaN(value) ? bytes[i] : value;
    if (!isNaN(value)) i += 2;
  }
  return length ? host.decode(tail(decoded, 0, length), "") : "";
}

function hexValue(code) {
  if (code >= 48 && code <= 57) return code - 48;
  const letter = code | 32;
  return letter >= 97 && letter <= 102 ? letter - 87 : NaN;
}

function parseHost(text, special) {
  if (text[0] === "[") {
    if (text[text.length - 1] !== "]") return null;
    return parseIPv6(cut(text, 1, -1));
  }
  if (!special) return matches(/[\0\t\n\r #/<>?@[\\\]^|]/, text) ? null : percentEncode(text, "");
  const name = lower(percentDecode(text));
  if (matches(/[^\0-\x7f]/, name))
    throw new TypeError(`the host ${name} is not ASCII, which the worker sandbox does not know`);
  if (name === "" || matches(/[\0-\x20"#%/:<>?@[\\\]^`{|}\x7f]/, name)) return null;
  return matches(/(^|\.)(\d+|0x[\da-f]*)\.?$/, name) ? parseIPv4(name) : name;
}

function parseIPv4(text) {
  const parts = split(text, ".");
  if (parts.length > 1 && parts[parts.length - 1] === "") pop(parts);
  if (parts.length > 4) return null;
  let address = 0;
  for (let i = 0; i < parts.length; i++) {
    const [, hex, octal, decimal] = matches(/^(?:0x([\da-f]*)|0([0-7]+)|(\d+))$/, parts[i]) ?? [];
    if (hex === undefined && octal === undefined && decimal === undefined) return null;
    if (decimal?.length > 1 && decimal[0] === "0") return null;
    const value = hex !== undefined ? parseInt(hex || "0", 16) : parseInt(octal ?? decimal, octal ? 8 : 10);
    const last = i === parts.length - 1;
    if (value >= (last ? 256 ** (5 - parts.length) : 256)) return null;
    address += last ? value : value * 256 ** (3 - i);
  }
  return `${trunc(address / 2 ** 24)}.${(address >>> 16) & 255}.${(address >>> 8) & 255}.${address & 255}`;
}

function parseIPv6(text) {
  const halves = split(lower(text), "::");
  if (halves.length > 2) return null;
  const read = (half) => {
    if (half === "") return [];
    const pieces = [];
    const parts = split(half, ":");
    for (let i = 0; i < parts.length; i++) {
      if (i === parts.length - 1 && matches(/^(\d{1,3}\.){3}\d{1,3}$/, parts[i])) {
        const four = split(parts[i], ".");
        for (let k = 0; k < 4; k++) if (+four[k] > 255 || (four[k].length > 1 && four[k][0] === "0")) return null;
        push(pieces, +four[0] * 256 + +four[1], +four[2] * 256 + +four[3]);
      } else if (matches(/^[\da-f]{1,4}$/, parts[i])) push(pieces, parseInt(parts[i], 16));
      else return null;
    }
    return pieces;
  };
  const before = read(halves[0]);
  const after = halves.length === 2 ? read(halves[1]) : [];
  if (!before || !after) return null;
  const missing = 8 - before.length - after.length;
  if (halves.length === 2 ? missing < 1 : missing !== 0) return null;
  const pieces = [...before];
  for (let i = 0; i < missing; i++) push(pieces, 0);
  for (let i = 0; i < after.length; i++) push(pieces, after[i]);
  // The first of the longest runs of two zeros and more is left out.
  let start = -1;
  let longest = 1;
  for (let i = 0; i < 8; i++) {
    let run = 0;
    while (i + run < 8 && pieces[i + run] === 0) run++;
    if (run > longest) [start, longest] = [i, run];
    i += run;
  }
  let result = "";
  for (let i = 0; i < 8; i++) {
    if (i === start) {
      result += i === 0 ? "::" : ":";
      i += longest - 1;
    } else result += pieces[i].toString(16) + (i < 7 ? ":" : "");
  }
  return `[${result}]`;
}

function parsePort(text, protocol) {
  if (!matches(/^\d*$/, text) || +text > 65535) return null;
  return text === "" || Text(+text) === portOf(protocol) ? "" : Text(+text);
}

// Resolves dots; `base` are the segments that it starts from.
function parsePath(text, base, special, file) {
  const path = [...base];
  const parts = split(special ? replaceAll(text, "\\", "/") : text, "/");
  for (let i = 0; i < parts.length; i++) {
    const plain = replaceAll(lower(parts[i]), "%2e", ".");
    const last = i === parts.length - 1;
    if (plain === "..") {
      if (!(file && path.length === 1 && matches(/^[a-z]:$/i, path[0]))) pop(path);
      if (last) push(path, "");
    } else if (plain === ".") {
      if (last) push(path, "");
    } else push(path, percentEncode(parts[i], PATH));
  }
  return path;
}

function parseURL(text, base) {
  text = replaceAll(replaceAll(replaceAll(text, "\t", ""), "\n", ""), "\r", "");
  text = matches(/^[\0-\x20]*([^]*?)[\0-\x20]*$/, text)[1];
  const url = { protocol: "", username: "", password: "", host: null, port: "", path: [], opaque: null,
    query: null, fragment: null };
  const hash = find(text, "#");
  if (hash >= 0) {
    url.fragment = percentEncode(cut(text, hash + 1), FRAGMENT);
    text = cut(text, 0, hash);
  }
  const scheme = matches(/^[a-z][a-z\d+.-]*:/i, text)?.[0];
  let rest = scheme ? cut(text, scheme.length) : text;
  url.protocol = scheme ? lower(scheme) : base?.protocol;
  if (!scheme && (!base || (base.opaque !== null && (rest !== "" || hash < 0)))) return null;
  const special = isSpecial(url.protocol);
  const slash = (at) => rest[at] === "/" || (special && rest[at] === "\\");
  const relative = base && base.opaque === null && url.protocol === base.protocol && (!scheme || (special && !slash(0)));
  const question = find(rest, "?");
  if (question >= 0) {
    url.query = percentEncode(cut(rest, question + 1), special ? SPECIAL_QUERY : QUERY);
    rest = cut(rest, 0, question);
  }
  const file = url.protocol === "file:";
  if (!scheme && base.opaque !== null) {
    url.opaque = base.opaque;
    url.query = base.query;
    return url;
  }
  if (scheme && !special && !slash(0)) {
    url.opaque = percentEncode(rest, "");
    return url;
  }
  const authority = (slash(0) && slash(1)) || (special && !file && !relative);
  if (authority) {
    let start = 0;
    if (special && !file) while (slash(start)) start++;
    else start = 2;
    let end = start;
    while (end < rest.length && !slash(end)) end++;
    if (!parseAuthority(cut(rest, start, end), url, special, file)) return null;
    rest = cut(rest, end);
    if (rest !== "" || special) url.path = parsePath(cut(rest, 1), [], special, file);
    return url;
  }
  if (file && !base) url.host = "";
  if (base && (relative || !scheme)) {
    const { username, password, host: name, port } = base;
    url.username = username;
    url.password = password;
    url.host = name;
    url.port = port;
    if (rest === "") {
      url.path = [...base.path];
      url.query ??= question < 0 ? base.query : url.query;
      return url;
    }
    const from = slash(0) ? [] : slice(base.path, 0, -1);
    url.path = parsePath(slash(0) ? cut(rest, 1) : rest, from, special, file);
    return url;
  }
  if (file) url.host = "";
  url.path = parsePath(slash(0) ? cut(rest, 1) : rest, [], special, file);
  return url;
}

function parseAuthority(text, url, special, file) {
  const at = findLast(text, "@");
  if (at >= 0) {
    if (file) return false;
    const colon = find(cut(text, 0, at), ":");
    url.username = percentEncode(cut(text, 0, colon < 0 ? at : colon), USERINFO);
    if (colon >= 0) url.password = percentEncode(cut(text, colon + 1, at), USERINFO);
    text = cut(text, at + 1);
  }
  const [, name, , port] = matches(/^(\[[^\]]*\]|[^:]*)(:([^]*))?$/, text) ?? [];
  if (name === undefined || (name === "" && (at >= 0 || port !== undefined || (special && !file)))) return false;
  if (file && port !== undefined) return false;
  url.host = name === "" ? "" : parseHost(name, special);
  if (file && url.host === "localhost") url.host = "";
  url.port = parsePort(port ?? "", url.protocol);
  return url.host !== null && url.port !== null;
}

function pathText({ opaque, path }) {
  return opaque !== null ? opaque : path.length ? `/${join(path, "/")}` : "";
}

function urlText(url) {
  let text = url.protocol;
  if (url.host !== null) {
    text += "//";
    if (url.username || url.password)
      text += url.username + (url.password ? `:${url.password}` : "") + "@";
    text += url.host + (url.port ? `:${url.port}` : "");
  }
  else if (url.opaque === null && url.path.length > 1 && url.path[0] === "") text += "/.";
  text += pathText(url);
  if (url.query !== null) text += `?${url.query}`;
  return url.fragment !== null ? `${text}#${url.fragment}` : text;
}

let bindParams;

class URLSearchParams {
  #pairs = [];
  #changed = null;
  static {
    bindParams = (params, text, changed) => {
      params.#pairs = readPairs(text);
      params.#changed = changed;
    };
  }
  constructor(init = "") {
    if (typeof init === "object" && init !== null) {
      const iterate = init[Symbol.iterator];
      if (iterate) {
        for (const pair of init) {
          const [name, value, ...more] = pair;
          if (value === undefined || more.length) throw new TypeError("a pair of a name and a value is wanted");
          push(this.#pairs, [wellFormed(`${name}`), wellFormed(`${value}`)]);
        }
      } else
        for (const name of keys(init)) push(this.#pairs, [wellFormed(name), wellFormed(`${init[name]}`)]);
    } else {
      const text = `${init}`;
      this.#pairs = readPairs(text[0] === "?" ? cut(text, 1) : text);
    }
  }
  #change() {
    this.#changed?.(this.toString());
  }
  get size() {
    return this.#pairs.length;
  }
  append(name, value) {
    push(this.#pairs, [wellFormed(`${name}`), wellFormed(`${value}`)]);
    this.#change();
  }
  delete(name, value) {
    this.#pairs = this.#pairs.filter(([key, one]) => key !== `${name}` || (value !== undefined && one !== `${value}`));
    this.#change();
  }
  get(name) {
    return this.#pairs.find(([key]) => key === `${name}`)?.[1] ?? null;
  }
  getAll(name) {
    return this.#pairs.filter(([key]) => key === `${name}`).map(([, value]) => value);
  }
  has(name, value) {
    return this.#pairs.some(([key, one]) => key === `${name}` && (value === undefined || one === `${value}`));
  }
  set(name, value) {
    const first = this.#pairs.find(([key]) => key === `${name}`);
    if (!first) return this.append(name, value);
    first[1] = wellFormed(`${value}`);
    this.#pairs = this.#pairs.filter((pair) => pair === first || pair[0] !== `${name}`);
    this.#change();
  }
  sort() {
    this.#pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
    this.#change();
  }
  forEach(callback, receiver) {
    for (const [name, value] of this.#pairs) apply(callback, receiver, [value, name, this]);
  }
  *entries() {
    for (const [name, value] of this.#pairs) yield [name, value];
  }
  *keys() {
    for (const [name] of this.#pairs) yield name;
  }
  *values() {
    for (const [, value] of this.#pairs) yield value;
  }
  [Symbol.iterator]() {
    return this.entries();
  }
  toString() {
    const all = [];
    for (const [name, value] of this.#pairs) push(all, `${formEncode(name)}=${formEncode(value)}`);
    return join(all, "&");
  }
  get [Symbol.toStringTag]() {
    return "URLSearchParams";
  }
}

const FORM = "!\"#$%&'()+,/:;<=>?@[\\]^`{|}~";
function formEncode(text) {
  return replaceAll(percentEncode(text, FORM), " ", "+");
}

function readPairs(text) {
  const pairs = [];
  const parts = split(wellFormed(text), "&");
  for (let i = 0; i < parts.length; i++) {
    if (parts[i] === "") continue;
    const plain = replaceAll(parts[i], "+", " ");
    const at = find(plain, "=");
    const name = at < 0 ? plain : cut(plain, 0, at);
    push(pairs, [percentDecode(name), at < 0 ? "" : percentDecode(cut(plain, at + 1))]);
  }
  return pairs;
}

class URL {
  #url;
  #params;
  constructor(text, base) {
    this.#take(text, base);
  }
  #take(text, base) {
    const from = base === undefined ? undefined : parseURL(wellFormed(`${base}`));
    const url = from === null ? null : parseURL(wellFormed(`${text}`), from);
    if (!url) throw new TypeError(`"${text}" is no URL`);
    this.#url = url;
    this.#params ??= new URLSearchParams();
    bindParams(this.#params, url.query ?? "", (query) => {
      this.#url.query = query === "" ? null : query;
    });
  }
  static canParse(text, base) {
    return URL.parse(text, base) !== null;
  }
  static parse(text, base) {
    try {
      return new URL(text, base);
    } catch {
      return null;
    }
  }
  get href() {
    return urlText(this.#url);
  }
  set href(text) {
    this.#take(text);
  }
  get origin() {
    const { protocol, host: name, port } = this.#url;
    if (protocol === "blob:") return URL.parse(this.pathname)?.origin ?? "null";
    if (!isSpecial(protocol) || protocol === "file:") return "null";
    return `${protocol}//${name}${port ? `:${port}` : ""}`;
  }
  get protocol() {
    return this.#url.protocol;
  }
  set protocol(text) {
    const scheme = lower(matches(/^[a-z][a-z\d+.-]*/i, `${text}`)?.[0] ?? "");
    if (!scheme || isSpecial(`${scheme}:`) !== isSpecial(this.#url.protocol)) return;
    this.#url.protocol = `${scheme}:`;
    if (this.#url.port === portOf(`${scheme}:`)) this.#url.port = "";
  }
  get username() {
    return this.#url.username;
  }
  set username(text) {
    if (this.#url.host) this.#url.username = percentEncode(`${text}`, USERINFO);
  }
  get password() {
    return this.#url.password;
  }
  set password(text) {
    if (this.#url.host) this.#url.password = percentEncode(`${text}`, USERINFO);
  }
  get host() {
    const { host: name, port } = this.#url;
    return name === null ? "" : name + (port ? `:${port}` : "");
  }
  set host(text) {
    const [, name, , port] = matches(/^(\[[^\]]*\]|[^:/?#\\]*)(:(\d*))?/, `${text}`) ?? [];
    this.hostname = name;
    if (port) this.port = port;
  }
  get hostname() {
    return this.#url.host ?? "";
  }
  set hostname(text) {
    if (this.#url.opaque !== null || `${text}` === "") return;
    const name = parseHost(`${text}`, isSpecial(this.#url.protocol));
    if (name !== null) this.#url.host = name;
  }
  get port() {
    return this.#url.port;
  }
  set port(text) {
    const digits = matches(/^\d*/, `${text}`)[0];
    const port = !this.#url.host || (digits === "" && `${text}` !== "") ? null : parsePort(digits, this.#url.protocol);
    if (port !== null) this.#url.port = port;
  }
  get pathname() {
    return pathText(this.#url);
  }
  set pathname(text) {
    if (this.#url.opaque !== null) return;
    const { protocol } = this.#url;
    const special = isSpecial(protocol);
    const rest = `${text}`;
    const plain = rest[0] === "/" || (special && rest[0] === "\\") ? cut(rest, 1) : rest;
    this.#url.path = parsePath(replaceAll(replaceAll(plain, "?", "%3F"), "#", "%23"), [], special, protocol === "file:");
  }
  get search() {
    return this.#url.query ? `?${this.#url.query}` : "";
  }
  set search(text) {
    const query = `${text}`[0] === "?" ? cut(`${text}`, 1) : `${text}`;
    this.#url.query = query === "" ? null : percentEncode(query, isSpecial(this.#url.protocol) ? SPECIAL_QUERY : QUERY);
    bindParams(this.#params, query, (changed) => {
      this.#url.query = changed === "" ? null : changed;
    });
  }
  get searchParams() {
    return this.#params;
  }
  get hash() {
    return this.#url.fragment ? `#${this.#url.fragment}` : "";
  }
  set hash(text) {
    const fragment = `${text}`[0] === "#" ? cut(`${text}`, 1) : `${text}`;
    this.#url.fragment = fragment === "" ? null : percentEncode(fragment, FRAGMENT);
  }
  toString() {
    return this.href;
  }
  toJSON() {
    return this.href;
  }
  get [Symbol.toStringTag]() {
    return "URL";
  }
}

define("URL", URL);
define("URLSearchParams", URLSearchParams);
