// The run of a snippet as seen from inside the engine. This file and the other prelude files are
// the body of one function of (host), whose result is [begin, turn, rejected]; they are evaluated
// once, when the engine's image is made, and stand ready in every instance.
//
// Code that runs later than the prelude may change every global and prototype. Whatever is used
// after that is taken from the globals here; `method` gives a function of the receiver that looks
// nothing up when it is called. A guest that breaks what is left harms its own value.
//
// host is the only way out; it takes texts and gives texts or bytes:
//   host.settled()                  what follows is the value's way to JSON
//   host.starved()                  what follows is for want of memory, if there was any
//   host.end(body)                  the text of the last frame
//   host.wait(milliseconds)         nothing to do before that; -1: for ever
//   host.map()                      what leads from positions in the module to the caller's text
//   host.out(stream, text)
//   host.call(id, tool, args) → why it was not passed on, or undefined
//   host.encode(text) → Uint8Array  host.decode(bytes, fatal) → text or undefined
//   host.random(count) → Uint8Array
//   host.fetch(id, request, body)   see guest/worker_fetch.py; body: Uint8Array or undefined
//   host.body(id) → Uint8Array      host.drop(id)

const { apply, ownKeys, getPrototypeOf, getOwnPropertyDescriptor } = Reflect;
const { parse, stringify } = JSON;
const { create, defineProperty, freeze, keys, is } = Object;
const { isArray } = Array;
const { floor, min, max, trunc, abs } = Math;
const Text = String;
const Numeric = Number;
const { isFinite, isInteger, isNaN, parseFloat, parseInt } = Number;
const NativePromise = Promise;
const NativeError = Error;
const NativeSet = Set;
const NativeMap = Map;
const Bytes = Uint8Array;
const Big = BigInt;
const NativeDate = Date;
const Exception = DOMException;

const method = (() => {
  const { bind, call } = Function.prototype;
  return (holder, name) => apply(bind, call, [holder[name]]);
})();
const then = method(Promise.prototype, "then");
const push = method(Array.prototype, "push");
const pop = method(Array.prototype, "pop");
const slice = method(Array.prototype, "slice");
const splice = method(Array.prototype, "splice");
const join = method(Array.prototype, "join");
const includes = method(Array.prototype, "includes");
const cut = method(String.prototype, "slice");
const split = method(String.prototype, "split");
const find = method(String.prototype, "indexOf");
const findLast = method(String.prototype, "lastIndexOf");
const startsWith = method(String.prototype, "startsWith");
const trimStart = method(String.prototype, "trimStart");
const trim = method(String.prototype, "trim");
const replaceAll = method(String.prototype, "replaceAll");
const repeat = method(String.prototype, "repeat");
const padEnd = method(String.prototype, "padEnd");
const padStart = method(String.prototype, "padStart");
const lower = method(String.prototype, "toLowerCase");
const codeAt = method(String.prototype, "charCodeAt");
const wellFormed = method(String.prototype, "toWellFormed");
const matches = method(RegExp.prototype, "exec");
const mapGet = method(Map.prototype, "get");
const mapSet = method(Map.prototype, "set");
const mapHas = method(Map.prototype, "has");
const mapDelete = method(Map.prototype, "delete");
const mapSize = method({ get: getOwnPropertyDescriptor(Map.prototype, "size").get }, "get");
const mapEach = method(Map.prototype, "forEach");
const setAdd = method(Set.prototype, "add");
const setSize = method({ get: getOwnPropertyDescriptor(Set.prototype, "size").get }, "get");
const setEach = method(Set.prototype, "forEach");
const clock = performance.now.bind(performance); // milliseconds; its origin is the image's
const wallClock = NativeDate.now;

let request;
let waited = false;
let source; // { name, map }: what the code is called in stacks, and the way back to its own text
let outcome = null; // { value } of the module, or { thrown }

// Defines what a global is in every runtime: writable, not enumerable.
function define(name, value, holder = globalThis) {
  defineProperty(holder, name, { value, writable: true, configurable: true, enumerable: false });
}

// --- the life of a run ---

function begin(text) {
  request = parse(text);
  const { name, context, tools } = request;
  let map;
  source = {
    name,
    get map() {
      return (map ??= parse(host.map()));
    },
  };
  startClock();
  for (const key of keys(context))
    defineProperty(globalThis, key, {
      value: context[key],
      writable: true,
      configurable: true,
      enumerable: true,
    });
  if (tools.length) offerTools(tools);
  if (request.network) offerFetch();
  const start = () =>
    then(import(name), ({ default: value }) => settle({ __proto__: null, value }), fail);
  if (!request.check) return void start();
  // Its import fails in any case; what matters is whether it came to that.
  then(import(CHECK_NAME), null, (error) => {
    const wrong = explainSyntax(error, request.check);
    if (wrong) settle({ __proto__: null, wrong });
    else start();
  });
}

function settle(how) {
  outcome ??= how;
}

function fail(thrown) {
  settle({ __proto__: null, thrown });
}

// A promise was rejected and nobody handled it.
function rejected(reason) {
  outcome = { __proto__: null, thrown: reason };
}

// Called when no promise job is left. Does one thing that is due, so that jobs come in between.
function turn(answers) {
  if (outcome) {
    if ("wrong" in outcome) host.end(stringify({ ok: false, error: outcome.wrong }));
    else if ("thrown" in outcome) host.end(errorBody(outcome.thrown, source));
    else host.end(valueBody(outcome.value));
    return;
  }
  const all = answers ? parse(answers) : [];
  for (let i = 0; i < all.length; i++) takeAnswer(all[i]);
  waited = true;
  const busy = all.length || fireTimer();
  host.wait(busy ? "0" : Text(nextTimer()));
}

// The frame's JSON for a value, by the very rules of JSON.stringify.
function valueBody(value) {
  if (waited && typeof value === "object") host.settled();
  let text;
  try {
    text = stringify(value);
  } catch (error) {
    noteStarvation(error);
    return explainValue(value, error, request.depth_limit);
  }
  if (text === undefined) return '{"ok":true}';
  const limit = request.value_limit_bytes;
  if (text.length > limit) return tooLarge(`the value is larger than ${limit} bytes`);
  return `{"ok":true,"value":${text}}`;
}

// --- timers ---

let timers = []; // a heap: none is due before the one at half its place
let timerCount = 0;
let timerOrder = 0;
let goneCount = 0; // removed ones, which stay in the heap until their turn
const timerOf = new NativeMap(); // by id; those that are to fire

class Timeout {
  #id = ++timerCount;
  #held = true;
  ref() {
    this.#held = true;
    return this;
  }
  unref() {
    this.#held = false;
    return this;
  }
  hasRef() {
    return this.#held;
  }
  refresh() {
    const entry = removeTimer(this.#id);
    if (entry) addTimer({ __proto__: null, ...entry });
    return this;
  }
  close() {
    removeTimer(this.#id);
    return this;
  }
  [Symbol.toPrimitive]() {
    return this.#id;
  }
  static id(timer) {
    return typeof timer === "object" && timer !== null && #id in timer ? timer.#id : +timer;
  }
}
const timerId = Timeout.id;
delete Timeout.id;

function addTimer(entry) {
  entry.due = clock() + entry.delay;
  entry.order = ++timerOrder;
  entry.gone = false;
  mapSet(timerOf, entry.id, entry);
  raiseTimer(entry);
}

function isSooner(one, other) {
  return one.due < other.due || (one.due === other.due && one.order < other.order);
}

function raiseTimer(entry) {
  let place = timers.length;
  push(timers, entry);
  while (place > 0) {
    const above = (place - 1) >> 1;
    if (!isSooner(entry, timers[above])) break;
    timers[place] = timers[above];
    place = above;
  }
  timers[place] = entry;
}

// Takes the one that is due first off the heap.
function popTimer() {
  const first = timers[0];
  const entry = pop(timers);
  const count = timers.length;
  if (count === 0) return first;
  let place = 0;
  while (true) {
    let below = 2 * place + 1;
    if (below >= count) break;
    if (below + 1 < count && isSooner(timers[below + 1], timers[below])) below++;
    if (!isSooner(timers[below], entry)) break;
    timers[place] = timers[below];
    place = below;
  }
  timers[place] = entry;
  return first;
}

function removeTimer(id) {
  const entry = mapGet(timerOf, id);
  if (!entry) return;
  mapDelete(timerOf, id);
  entry.gone = true;
  if (++goneCount > 1000 && goneCount > timers.length / 2) {
    const all = timers;
    timers = [];
    goneCount = 0;
    for (let i = 0; i < all.length; i++) if (!all[i].gone) raiseTimer(all[i]);
  }
  return entry;
}

function soonestTimer() {
  while (timers.length && timers[0].gone) {
    popTimer();
    goneCount--;
  }
  return timers[0];
}

function schedule(callback, delay, args, every) {
  if (typeof callback !== "function") throw new TypeError("the callback of a timer is no function");
  delay = +delay;
  if (!(delay >= 1 && delay <= 0x7fffffff)) delay = 1;
  const timer = new Timeout();
  addTimer({ __proto__: null, id: timerId(timer), callback, args, delay, every });
  return timer;
}

function fireTimer() {
  const entry = soonestTimer();
  if (!entry || entry.due > clock()) return false;
  popTimer();
  mapDelete(timerOf, entry.id);
  if (entry.every) addTimer(entry);
  try {
    apply(entry.callback, undefined, entry.args);
  } catch (thrown) {
    fail(thrown);
  }
  return true;
}

function nextTimer() {
  const entry = soonestTimer();
  return entry ? max(0, entry.due - clock()) : -1;
}

function clear(timer) {
  if (timer !== undefined && timer !== null) removeTimer(timerId(timer));
}

define("setTimeout", function setTimeout(callback, delay, ...args) {
  return schedule(callback, delay, args, false);
});
define("setInterval", function setInterval(callback, delay, ...args) {
  return schedule(callback, delay, args, true);
});
define("setImmediate", function setImmediate(callback, ...args) {
  return schedule(callback, 0, args, false);
});
define("clearTimeout", function clearTimeout(timer) {
  clear(timer);
});
define("clearInterval", function clearInterval(timer) {
  clear(timer);
});
define("clearImmediate", function clearImmediate(timer) {
  clear(timer);
});

const settled = NativePromise.resolve();
define("queueMicrotask", function queueMicrotask(callback) {
  if (typeof callback !== "function") throw new TypeError("queueMicrotask wants a function");
  then(settled, () => {
    try {
      callback();
    } catch (thrown) {
      fail(thrown);
    }
  });
});

// --- tools ---

const calls = new NativeMap();
let callCount = 0;

function offerTools(names) {
  const tools = create(null);
  for (const name of names)
    defineProperty(tools, name, { value: makeTool(name), enumerable: true });
  define("tools", freeze(tools));
}

function makeTool(name) {
  const tool = { [name]: (...args) => callTool(name, args) }[name];
  return freeze(tool);
}

function callTool(name, args) {
  return new NativePromise((resolve, reject) => {
    let text;
    try {
      text = stringify(args);
    } catch (error) {
      throw new TypeError(explainArguments(args, error, request.depth_limit));
    }
    // The error is made here, where its stack can tell who called.
    const error = new NativeError();
    define("name", "ToolError", error);
    const refused = host.call(Text(callCount + 1), name, text);
    if (refused) throw new TypeError(`the arguments are ${refused}`);
    mapSet(calls, ++callCount, { __proto__: null, resolve, reject, error });
  });
}

function takeAnswer({ answer, ok, value, error }) {
  if (answer < 0) return takeExchange(answer, ok, value, error);
  const call = mapGet(calls, answer);
  if (!call) return;
  mapDelete(calls, answer);
  if (ok) return call.resolve(value);
  define("message", error.message, call.error);
  call.reject(call.error);
}
