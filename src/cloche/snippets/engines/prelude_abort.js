// AbortController and AbortSignal: https://dom.spec.whatwg.org/#aborting-ongoing-activities. There
// are with and without network. Of events there is only "abort".

const ABORT_KEY = {}; // who holds it may make a signal
let signalAbort; // (signal, reason)
let followAbort; // (signal, react): react(reason) is called once, when the signal fires
let leaveAbort; // (signal, react)
let isSignal;

class AbortSignal {
  #aborted = false;
  #reason = undefined;
  #reactions = []; // the engine's own, before listeners
  #listeners = [];
  onabort = null;
  static {
    signalAbort = (signal, reason) => signal.#fire(reason);
    followAbort = (signal, react) => void push(signal.#reactions, react);
    leaveAbort = (signal, react) => {
      for (let i = 0; i < signal.#reactions.length; i++)
        if (signal.#reactions[i] === react) return void splice(signal.#reactions, i, 1);
    };
    isSignal = (value) => typeof value === "object" && value !== null && #aborted in value;
  }
  constructor(key) {
    if (key !== ABORT_KEY) throw new TypeError("an AbortSignal is made by an AbortController");
  }
  static abort(reason = new Exception("This operation was aborted", "AbortError")) {
    const signal = new AbortSignal(ABORT_KEY);
    signal.#fire(reason);
    return signal;
  }
  static timeout(milliseconds) {
    const delay = +milliseconds;
    if (!(delay >= 0 && delay <= Numeric.MAX_SAFE_INTEGER))
      throw new TypeError("AbortSignal.timeout wants a number of milliseconds");
    const signal = new AbortSignal(ABORT_KEY);
    const fire = () => signal.#fire(new Exception("The operation timed out", "TimeoutError"));
    // More than 24 days are more than a run has.
    if (delay <= 0x7fffffff) addTimer({ id: ++timerCount, callback: fire, args: [], delay, every: false });
    return signal;
  }
  static any(signals) {
    const made = new AbortSignal(ABORT_KEY);
    const all = [...signals];
    for (let i = 0; i < all.length; i++)
      if (!isSignal(all[i])) throw new TypeError("AbortSignal.any wants signals");
    for (let i = 0; i < all.length; i++)
      if (all[i].#aborted) {
        made.#fire(all[i].#reason);
        return made;
      }
    for (let i = 0; i < all.length; i++) push(all[i].#reactions, (reason) => made.#fire(reason));
    return made;
  }
  #fire(reason) {
    if (this.#aborted) return;
    this.#aborted = true;
    this.#reason = reason;
    const reactions = this.#reactions;
    const listeners = this.#listeners;
    this.#reactions = [];
    this.#listeners = [];
    for (let i = 0; i < reactions.length; i++) reactions[i](reason);
    const event = { type: "abort", target: this, currentTarget: this };
    const call = (one) => {
      try {
        if (typeof one === "function") apply(one, this, [event]);
        else if (typeof one?.handleEvent === "function") one.handleEvent(event);
      } catch (thrown) {
        fail(thrown);
      }
    };
    call(this.onabort);
    for (let i = 0; i < listeners.length; i++) call(listeners[i]);
  }
  get aborted() {
    return this.#aborted;
  }
  get reason() {
    return this.#reason;
  }
  throwIfAborted() {
    if (this.#aborted) throw this.#reason;
  }
  addEventListener(type, listener) {
    if (`${type}` !== "abort" || listener === null || this.#aborted) return;
    if (!includes(this.#listeners, listener)) push(this.#listeners, listener);
  }
  removeEventListener(type, listener) {
    for (let i = 0; i < this.#listeners.length; i++)
      if (`${type}` === "abort" && this.#listeners[i] === listener)
        return void splice(this.#listeners, i, 1);
  }
  get [toStringTag]() {
    return "AbortSignal";
  }
}

class AbortController {
  #signal = new AbortSignal(ABORT_KEY);
  get signal() {
    return this.#signal;
  }
  abort(reason = new Exception("This operation was aborted", "AbortError")) {
    signalAbort(this.#signal, reason);
  }
  get [toStringTag]() {
    return "AbortController";
  }
}

define("AbortSignal", AbortSignal);
define("AbortController", AbortController);
