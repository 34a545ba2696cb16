// fetch: https://fetch.spec.whatwg.org, as far as it goes without streams. A response is there with
// its head; its body is read whole, by the host, and comes into the engine at once. Defined with
// network only, by `offerFetch`.

const REDIRECTS_LIMIT = 20;
const UNDER_WAY_LIMIT = 64; // that the host has to do with; more wait here
const REDIRECT_STATUSES = [301, 302, 303, 307, 308];
const NULL_BODY_STATUSES = [101, 103, 204, 205, 304];
const KNOWN_METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"];
const NO_STREAMS =
  "the worker sandbox has no streams; use text(), json(), bytes() or arrayBuffer(), or the process sandbox";
const paramsText = method(URLSearchParams.prototype, "toString");
const { TypeError: NativeTypeError, RangeError: NativeRangeError } = globalThis;

// --- bodies ---

// A body: what is known of it so far. `waiting` are called when it is there, or failed.
function makeContent(bytes) {
  return { bytes, error: null, over: bytes !== null, waiting: [], shared: false };
}

function endContent(content, bytes, error) {
  if (content.over) return;
  content.over = true;
  content.bytes = bytes;
  content.error = error;
  for (let i = 0; i < content.waiting.length; i++) content.waiting[i]();
}

// → a promise of its bytes
function readContent(content) {
  return new NativePromise((resolve, reject) => {
    const give = () => (content.error ? reject(content.error.thrown) : resolve(content.bytes));
    if (content.over) give();
    else push(content.waiting, give);
  });
}

// Returns [bytes, type] of what may be given as a body.
function extractBody(value) {
  if (isKind(bufferSize, value) || isKind(typedLength, value) || value instanceof DataView) {
    const given = bytesOf(value, "a body");
    const copy = new Bytes(given.length);
    setBytes(copy, given);
    return [copy, null];
  }
  if (value instanceof URLSearchParams)
    return [encodeText(paramsText(value)), "application/x-www-form-urlencoded;charset=UTF-8"];
  return [encodeText(`${value}`), "text/plain;charset=UTF-8"];
}

function encodeText(text) {
  return text === "" ? new Bytes() : host.encode(wellFormed(text));
}

function decodeText(bytes) {
  const text = bytes.length ? host.decode(bytes, "") : "";
  return text[0] === "\ufeff" ? cut(text, 1) : text;
}

let contentOf; // (body): marks it as used; null where there is none
let setContent;
let shareContent; // (body): for one more that has it
let hasContent;

// What Request and Response have in common.
class Body {
  #content = null;
  #used = false;
  static {
    setContent = (body, content) => void (body.#content = content);
    hasContent = (body) => body.#content !== null;
    contentOf = (body) => {
      if (body.#used) throw new NativeTypeError("the body was used already");
      body.#used = body.#content !== null;
      return body.#content;
    };
    shareContent = (body) => {
      if (body.#used) throw new NativeTypeError("the body was used already");
      if (body.#content) body.#content.shared = true;
      return body.#content;
    };
  }
  #read(convert) {
    return new NativePromise((resolve, reject) => {
      const content = contentOf(this);
      if (!content) return resolve(convert(new Bytes()));
      const made = then(readContent(content), (bytes) => {
        if (!content.shared) content.bytes = null;
        return convert(bytes, content.shared);
      });
      then(made, resolve, reject);
    });
  }
  get body() {
    if (this.#content === null) return null;
    throw new NativeTypeError(`body: ${NO_STREAMS}`);
  }
  get bodyUsed() {
    return this.#used;
  }
  text() {
    return this.#read(decodeText);
  }
  json() {
    return this.#read((bytes) => parse(decodeText(bytes)));
  }
  bytes() {
    return this.#read(ownBytes);
  }
  arrayBuffer() {
    return this.#read((bytes, shared) => viewBuffer(ownBytes(bytes, shared)));
  }
  blob() {
    return NativePromise.reject(new NativeTypeError("blob: the worker sandbox has no Blob; use bytes()"));
  }
  formData() {
    return NativePromise.reject(
      new NativeTypeError("formData: the worker sandbox has no FormData; use text()"),
    );
  }
}

function ownBytes(bytes, shared) {
  return shared ? new Bytes(sliceBuffer(viewBuffer(bytes), 0)) : bytes;
}

// --- requests ---

let requestParts; // (request): { url, method, headers, redirect, signal }, its own

class Request extends Body {
  #parts;
  static {
    requestParts = (request) => (#parts in request ? request.#parts : undefined);
  }
  constructor(input, init = {}) {
    super();
    init ??= {};
    const from = typeof input === "object" && input !== null ? requestParts(input) : undefined;
    const url = from ? from.url : new URL(`${input}`);
    if (!from && (url.username || url.password))
      throw new NativeTypeError("a URL with a user or a password cannot be fetched: use the header authorization");
    const headers = new Headers(init.headers ?? from?.headers);
    guardHeaders(headers, "request");
    this.#parts = {
      url,
      headers,
      method: init.method === undefined ? (from?.method ?? "GET") : readMethod(init.method),
      redirect: readChoice("redirect", init.redirect ?? from?.redirect ?? "follow", ["follow", "error", "manual"]),
      signal: readSignal(init.signal === undefined ? from?.signal : init.signal),
    };
    if (init.integrity) throw new NativeTypeError("integrity: the worker sandbox does not check it");
    const { method } = this.#parts;
    const given = init.body ?? null;
    if ((given !== null || (from && hasContent(input))) && (method === "GET" || method === "HEAD"))
      throw new NativeTypeError(`a request with the method ${method} has no body`);
    if (given !== null) {
      const [bytes, type] = extractBody(given);
      setContent(this, makeContent(bytes));
      if (type && !headers.has("content-type")) headers.append("content-type", type);
    } else if (from) setContent(this, contentOf(input));
  }
  get url() {
    return this.#parts.url.href;
  }
  get method() {
    return this.#parts.method;
  }
  get headers() {
    return this.#parts.headers;
  }
  get redirect() {
    return this.#parts.redirect;
  }
  get signal() {
    return (this.#parts.signal ??= new AbortSignal(ABORT_KEY));
  }
  clone() {
    const content = shareContent(this);
    const { url, method, redirect, signal } = this.#parts;
    const made = new Request(url, { method, redirect, signal, headers: this.#parts.headers });
    setContent(made, content);
    return made;
  }
  get [toStringTag]() {
    return "Request";
  }
}

function readMethod(value) {
  const name = `${value}`;
  const known = capitals(name);
  if (!matches(/^[!#$%&'*+\-.^_`|~\dA-Za-z]+$/, name) || includes(FORBIDDEN_METHODS, known))
    throw new NativeTypeError(`${quote(bounded(name, 80))} is no method that a request may have`);
  return includes(KNOWN_METHODS, known) ? known : name;
}

function readChoice(field, value, choices) {
  if (includes(choices, `${value}`)) return `${value}`;
  throw new NativeTypeError(`${field}: ${join(choices, ", ")} are known`);
}

function readSignal(value) {
  if (value === undefined || value === null) return null;
  if (!isSignal(value)) throw new NativeTypeError("signal: an AbortSignal is wanted");
  return value;
}

// --- responses ---

let makeResponse; // (parts, content)

class Response extends Body {
  #parts = { status: 200, statusText: "", headers: null, url: "", redirected: false, type: "default" };
  static {
    makeResponse = (parts, content) => {
      const made = new Response();
      made.#parts = parts;
      setContent(made, content);
      return made;
    };
  }
  constructor(body = null, init = {}) {
    super();
    init ??= {};
    const status = init.status === undefined ? 200 : trunc(+init.status);
    if (!(status >= 200 && status <= 599)) throw new NativeRangeError("status: 200 to 599 are known");
    const statusText = `${init.statusText ?? ""}`;
    if (matches(/[^\t\x20-\x7e\x80-\xff]/, statusText)) throw new NativeTypeError("statusText: it has wrong characters");
    const headers = new Headers(init.headers ?? undefined);
    this.#parts = { status, statusText, headers, url: "", redirected: false, type: "default" };
    if (body === null || body === undefined) return;
    if (includes(NULL_BODY_STATUSES, status))
      throw new NativeTypeError(`a response with the status ${status} has no body`);
    const [bytes, type] = extractBody(body);
    setContent(this, makeContent(bytes));
    if (type && !headers.has("content-type")) headers.append("content-type", type);
  }
  static json(data, init = {}) {
    const text = stringify(data);
    if (text === undefined) throw new NativeTypeError("the data has no JSON form");
    const made = new Response(text, init);
    const given = new Headers(init?.headers ?? undefined);
    if (!given.has("content-type")) made.#parts.headers.set("content-type", "application/json");
    return made;
  }
  static error() {
    const headers = new Headers();
    guardHeaders(headers, "immutable");
    return makeResponse({ status: 0, statusText: "", headers, url: "", redirected: false, type: "error" }, null);
  }
  static redirect(url, status = 302) {
    if (!includes(REDIRECT_STATUSES, status)) throw new NativeRangeError("status: that is no redirect");
    return new Response(null, { status, headers: { location: new URL(url).href } });
  }
  get status() {
    return this.#parts.status;
  }
  get ok() {
    return this.#parts.status >= 200 && this.#parts.status <= 299;
  }
  get statusText() {
    return this.#parts.statusText;
  }
  get headers() {
    return this.#parts.headers;
  }
  get url() {
    return this.#parts.url;
  }
  get redirected() {
    return this.#parts.redirected;
  }
  get type() {
    return this.#parts.type;
  }
  clone() {
    const content = shareContent(this);
    const headers = new Headers(this.#parts.headers);
    return makeResponse({ ...this.#parts, headers }, content);
  }
  get [toStringTag]() {
    return "Response";
  }
}

// --- exchanges with the host ---

const exchanges = new NativeMap(); // by id: the jobs that the host has to do with
const waitingJobs = [];
let exchangeCount = 0;

function fetch(input, init) {
  return new NativePromise((resolve, reject) => {
    // The error is made here, where its stack can tell who called.
    const error = new NativeTypeError();
    const request = new Request(input, init);
    const { url, method, headers, redirect, signal } = requestParts(request);
    const content = contentOf(request);
    const job = {
      resolve, reject, error, url: new URL(url.href), method, redirect, signal,
      headers: new Headers(headers), id: 0, hops: 0,
      body: content ? content.bytes : undefined,
      content: null, // of the response, once its head is there
      react: null,
    };
    if (signal?.aborted) return reject(signal.reason);
    if (signal) followAbort(signal, (job.react = (reason) => abortJob(job, reason)));
    startJob(job);
  });
}

function endJob(job) {
  if (job.react) leaveAbort(job.signal, job.react);
  job.react = null;
  job.body = undefined;
}

function failJob(job, why) {
  endJob(job);
  define("message", `fetch failed: ${why}`, job.error);
  if (job.content) endContent(job.content, null, { thrown: job.error });
  else job.reject(job.error);
}

function abortJob(job, reason) {
  leaveHost(job);
  endJob(job);
  for (let i = 0; i < waitingJobs.length; i++)
    if (waitingJobs[i] === job) splice(waitingJobs, i--, 1);
  if (job.content) endContent(job.content, null, { thrown: reason });
  else job.reject(reason);
  startWaiting();
}

function leaveHost(job) {
  if (mapDelete(exchanges, job.id)) host.drop(Text(job.id));
}

function startWaiting() {
  while (waitingJobs.length && mapSize(exchanges) < UNDER_WAY_LIMIT) startJob(splice(waitingJobs, 0, 1)[0]);
}

function startJob(job) {
  const { protocol, hostname, port, pathname, search } = job.url;
  if (protocol !== "http:" && protocol !== "https:")
    return failJob(job, `${bounded(job.url.href, 200)}: only http: and https: can be fetched`);
  if (mapSize(exchanges) >= UNDER_WAY_LIMIT) return void push(waitingJobs, job);
  const headers = [["Host", hostname + (port ? `:${port}` : "")], ["Connection", "close"],
    ["Accept-Encoding", "gzip, deflate"]];
  const pairs = headerPairs(job.headers);
  for (let i = 0; i < pairs.length; i++) push(headers, pairs[i]);
  if (!job.headers.has("accept")) push(headers, ["Accept", "*/*"]);
  if (!job.headers.has("user-agent")) push(headers, ["User-Agent", "cloche"]);
  const secure = protocol === "https:";
  // Text by text: an object's way to JSON is the code's to change.
  const lines = [];
  for (let i = 0; i < headers.length; i++)
    push(lines, `[${stringify(headers[i][0])},${stringify(headers[i][1])}]`);
  const asked = `{"method":${stringify(job.method)},"secure":${secure},"host":${stringify(hostname)},` +
    `"port":${port || (secure ? 443 : 80)},"path":${stringify(pathname + search)},` +
    `"headers":[${join(lines, ",")}]}`;
  job.id = --exchangeCount;
  mapSet(exchanges, job.id, job);
  host.fetch(Text(job.id), asked, job.body);
}

// Hears of an exchange: its head, then its end, or its failure.
function takeExchange(id, ok, value, error) {
  const job = mapGet(exchanges, id);
  if (!job) return;
  if (ok && value) return takeHead(job, value);
  mapDelete(exchanges, id);
  if (!ok) failJob(job, error.message);
  else {
    endJob(job);
    endContent(job.content, host.body(Text(id)), null);
  }
  startWaiting();
}

function takeHead(job, { status, text, headers: pairs }) {
  const headers = new Headers();
  const own = headerPairs(headers);
  for (let i = 0; i < pairs.length; i++) push(own, pairs[i]);
  if (includes(REDIRECT_STATUSES, status) && job.redirect !== "manual") {
    const place = headers.get("location");
    if (job.redirect === "error" || place !== null) {
      leaveHost(job);
      redirectJob(job, status, place);
      return startWaiting();
    }
  }
  guardHeaders(headers, "immutable");
  const { href } = job.url;
  const hash = find(href, "#");
  const url = hash < 0 ? href : cut(href, 0, hash);
  const parts = { status, statusText: text, headers, url, redirected: job.hops > 0, type: "basic" };
  const none = job.method === "HEAD" || includes(NULL_BODY_STATUSES, status);
  job.content = makeContent(null);
  job.resolve(makeResponse(parts, none ? null : job.content));
}

// Source: Fetch standard, HTTP-redirect fetch.
function redirectJob(job, status, place) {
  const { host: from, hash } = job.url;
  if (job.redirect === "error") return failJob(job, `${from} redirects, which redirect: "error" refuses`);
  if (++job.hops > REDIRECTS_LIMIT) return failJob(job, `${from} redirects more than ${REDIRECTS_LIMIT} times`);
  const next = URL.parse(place, job.url.href);
  if (!next) return failJob(job, `${from} redirects to ${quote(bounded(place, 200))}, which is no URL`);
  if (next.username || next.password) return failJob(job, `${from} redirects to a URL with a user`);
  if (hash && !next.hash) next.hash = hash;
  const { method } = job;
  if (status === 303 ? method !== "GET" && method !== "HEAD" : status < 303 && method === "POST") {
    job.method = "GET";
    job.body = undefined;
    for (const name of ["content-encoding", "content-language", "content-location", "content-type"])
      job.headers.delete(name);
  }
  if (next.origin !== job.url.origin) job.headers.delete("authorization");
  job.url = next;
  startJob(job);
}

function offerFetch() {
  define("fetch", fetch);
  define("Headers", Headers);
  define("Request", Request);
  define("Response", Response);
}
