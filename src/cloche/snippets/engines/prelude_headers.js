// Headers: https://fetch.spec.whatwg.org/#headers-class.

const FORBIDDEN_HEADERS = ["accept-charset", "accept-encoding", "access-control-request-headers",
  "access-control-request-method", "access-control-request-private-network", "connection",
  "content-length", "cookie", "cookie2", "date", "dnt", "expect", "host", "keep-alive", "origin",
  "referer", "set-cookie", "te", "trailer", "transfer-encoding", "upgrade", "via"];
const METHOD_HEADERS = ["x-http-method", "x-http-method-override", "x-method-override"];
const FORBIDDEN_METHODS = ["CONNECT", "TRACE", "TRACK"];
const capitals = method(String.prototype, "toUpperCase");
const sort = method(Array.prototype, "sort");

function isForbiddenHeader(name, value) {
  if (includes(FORBIDDEN_HEADERS, name) || startsWith(name, "proxy-") || startsWith(name, "sec-"))
    return true;
  if (!includes(METHOD_HEADERS, name)) return false;
  const names = split(value, ",");
  for (let i = 0; i < names.length; i++)
    if (includes(FORBIDDEN_METHODS, capitals(trim(names[i])))) return true;
  return false;
}

function headerName(name) {
  name = `${name}`;
  if (!matches(/^[!#$%&'*+\-.^_`|~\dA-Za-z]+$/, name))
    throw new TypeError(`${quote(bounded(name, 80))} is no name of a header`);
  return lower(name);
}

function headerValue(value) {
  value = matches(/^[\t\n\r ]*([^]*?)[\t\n\r ]*$/, `${value}`)[1];
  if (matches(/[\0\n\r]|[^\0-\xff]/, value))
    throw new TypeError("the value of a header has characters that no header may have");
  return value;
}

let headerPairs; // (headers): the pairs themselves
let guardHeaders; // (headers, guard)
let isHeaders;

class Headers {
  #pairs = []; // [name in lower case, value]
  #guard = "none"; // "request": what is forbidden is ignored; "immutable"
  static {
    headerPairs = (headers) => headers.#pairs;
    guardHeaders = (headers, guard) => {
      headers.#guard = guard;
      if (guard !== "request") return;
      for (let i = headers.#pairs.length - 1; i >= 0; i--)
        if (isForbiddenHeader(headers.#pairs[i][0], headers.#pairs[i][1])) splice(headers.#pairs, i, 1);
    };
    isHeaders = (value) => typeof value === "object" && value !== null && #pairs in value;
  }
  constructor(init) {
    if (init === undefined) return;
    if (isHeaders(init)) {
      for (let i = 0; i < init.#pairs.length; i++)
        push(this.#pairs, [init.#pairs[i][0], init.#pairs[i][1]]);
      return;
    }
    if (typeof init !== "object" || init === null)
      throw new TypeError("headers are an object, or a list of pairs");
    if (typeof init[Symbol.iterator] === "function") {
      for (const pair of init) {
        const [name, value, ...more] = pair;
        if (value === undefined || more.length) throw new TypeError("a header is a pair of a name and a value");
        this.append(name, value);
      }
      return;
    }
    const names = ownKeys(init);
    for (let i = 0; i < names.length; i++)
      if (getOwnPropertyDescriptor(init, names[i])?.enumerable) this.append(names[i], init[names[i]]);
  }
  // Whether a change may be made.
  #allows(name, value) {
    if (this.#guard === "immutable") throw new TypeError("these headers cannot be changed");
    return this.#guard !== "request" || !isForbiddenHeader(name, value);
  }
  #remove(name) {
    for (let i = this.#pairs.length - 1; i >= 0; i--)
      if (this.#pairs[i][0] === name) splice(this.#pairs, i, 1);
  }
  append(name, value) {
    name = headerName(name);
    value = headerValue(value);
    if (this.#allows(name, value)) push(this.#pairs, [name, value]);
  }
  set(name, value) {
    name = headerName(name);
    value = headerValue(value);
    if (!this.#allows(name, value)) return;
    this.#remove(name);
    push(this.#pairs, [name, value]);
  }
  delete(name) {
    name = headerName(name);
    if (this.#allows(name, "")) this.#remove(name);
  }
  get(name) {
    const values = this.#all(headerName(name));
    return values.length ? join(values, ", ") : null;
  }
  #all(name) {
    const values = [];
    for (let i = 0; i < this.#pairs.length; i++)
      if (this.#pairs[i][0] === name) push(values, this.#pairs[i][1]);
    return values;
  }
  getSetCookie() {
    return this.#all("set-cookie");
  }
  has(name) {
    return this.#all(headerName(name)).length > 0;
  }
  // Sorted by name, the values of one name joined.
  #sorted() {
    const names = [];
    for (let i = 0; i < this.#pairs.length; i++)
      if (!includes(names, this.#pairs[i][0])) push(names, this.#pairs[i][0]);
    sort(names);
    const result = [];
    for (let i = 0; i < names.length; i++) {
      const values = this.#all(names[i]);
      if (names[i] !== "set-cookie") push(result, [names[i], join(values, ", ")]);
      else for (let k = 0; k < values.length; k++) push(result, [names[i], values[k]]);
    }
    return result;
  }
  forEach(callback, receiver) {
    const sorted = this.#sorted();
    for (let i = 0; i < sorted.length; i++)
      apply(callback, receiver, [sorted[i][1], sorted[i][0], this]);
  }
  *entries() {
    const sorted = this.#sorted();
    for (let i = 0; i < sorted.length; i++) yield sorted[i];
  }
  *keys() {
    const sorted = this.#sorted();
    for (let i = 0; i < sorted.length; i++) yield sorted[i][0];
  }
  *values() {
    const sorted = this.#sorted();
    for (let i = 0; i < sorted.length; i++) yield sorted[i][1];
  }
  [Symbol.iterator]() {
    return this.entries();
  }
  get [toStringTag]() {
    return "Headers";
  }
}
