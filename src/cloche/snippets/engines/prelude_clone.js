// structuredClone: https://html.spec.whatwg.org/multipage/structured-data.html, for what is here.

const CLONED_ERRORS = { Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };
const sliceBuffer = method(ArrayBuffer.prototype, "slice");
const moveBuffer = method(ArrayBuffer.prototype, "transfer");
const constructors = { __proto__: null };
for (const kind of [Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array,
  Uint32Array, BigInt64Array, BigUint64Array, Float16Array, Float32Array, Float64Array])
  constructors[kind.name] = kind;

function cannotClone(what) {
  return new Exception(`${what} cannot be cloned`, "DataCloneError");
}

function clone(value, seen) {
  if (typeof value === "symbol") throw cannotClone("a symbol");
  if (typeof value === "function") throw cannotClone("a function");
  if (typeof value !== "object" || value === null) return value;
  if (mapHas(seen, value)) return mapGet(seen, value);
  const keep = (made) => {
    mapSet(seen, value, made);
    return made;
  };
  if (isArray(value)) return cloneProperties(value, keep(new Array(value.length)), seen);
  if (isKind(dateTime, value)) return keep(new NativeDate(dateTime(value)));
  if (tagOf(value) === "[object RegExp]") return keep(new RegExp(value.source, value.flags));
  const boxed = unbox[tagOf(value)];
  if (boxed && isKind(boxed[0], value)) {
    if (boxed[1] === "Symbol") throw cannotClone("a symbol");
    return keep(Object(boxed[0](value)));
  }
  if (isKind(bufferSize, value)) return keep(sliceBuffer(value, 0));
  if (isKind(typedLength, value) && typedName(value) !== undefined) {
    const buffer = clone(viewBuffer(value), seen);
    return keep(new constructors[typedName(value)](buffer, viewOffset(value), typedLength(value)));
  }
  if (value instanceof DataView)
    return keep(new DataView(clone(value.buffer, seen), value.byteOffset, value.byteLength));
  if (isKind(mapSize, value)) {
    const made = keep(new NativeMap());
    mapEach(value, (item, key) => void mapSet(made, clone(key, seen), clone(item, seen)));
    return made;
  }
  if (isKind(setSize, value)) {
    const made = keep(new NativeSet());
    setEach(value, (item) => void setAdd(made, clone(item, seen)));
    return made;
  }
  if (isError(value)) return cloneError(value, keep, seen);
  if (value instanceof NativePromise || value instanceof WeakMap || value instanceof WeakSet ||
      value instanceof WeakRef)
    throw cannotClone(`an object of ${nameOf(value)}`);
  return cloneProperties(value, keep({}), seen);
}

function cloneError(value, keep, seen) {
  const Kind = getOwnPropertyDescriptor(CLONED_ERRORS, field(value, "name"))?.value ?? NativeError;
  const made = keep(new Kind(field(value, "message")));
  define("stack", field(value, "stack"), made);
  if ("cause" in value) define("cause", clone(value.cause, seen), made);
  return made;
}

function cloneProperties(value, made, seen) {
  const names = keys(value);
  for (let i = 0; i < names.length; i++)
    defineProperty(made, names[i], {
      value: clone(value[names[i]], seen),
      writable: true,
      configurable: true,
      enumerable: true,
    });
  return made;
}

define("structuredClone", function structuredClone(value, { transfer = [] } = {}) {
  const seen = new NativeMap();
  for (const buffer of transfer) {
    if (!isKind(bufferSize, buffer)) throw cannotClone("what is no ArrayBuffer");
    mapSet(seen, buffer, moveBuffer(buffer));
  }
  return clone(value, seen);
});
