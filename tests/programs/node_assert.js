// What programs.jsonl asks of node:assert, for an engine that has no modules: deepEqual, loosely as
// Node documents it, over primitives, arrays and plain objects. Anything else it refuses to judge.
const assert = (() => {
  class AssertionError extends Error {
    name = "AssertionError";
  }
  const isObject = (value) => typeof value === "object" && value !== null;
  const kindOf = (value) => {
    const kind = Object.prototype.toString.call(value);
    if (kind !== "[object Array]" && kind !== "[object Object]")
      throw new TypeError(`node_assert.js cannot compare ${kind}`);
    return kind;
  };
  const isEqual = (left, right) => {
    if (!isObject(left) || !isObject(right)) {
      const bothNaN = left !== left && right !== right;
      return !isObject(left) && !isObject(right) && (left == right || bothNaN);
    }
    const keys = Object.keys(left);
    return (
      kindOf(left) === kindOf(right) &&
      left.length === right.length &&
      keys.length === Object.keys(right).length &&
      keys.every((key) => Object.hasOwn(right, key) && isEqual(left[key], right[key]))
    );
  };
  const deepEqual = (actual, expected) => {
    if (!isEqual(actual, expected)) throw new AssertionError("not loosely deep-equal");
  };
  return { deepEqual };
})();
