// Values as text for people: what console.log prints for anything but a text. Close to
// util.inspect of Node: one line where that fits, two levels deep, long lists cut.

const LINE_WIDTH = 76;
const LINE_ENTRIES = 6; // of numbers and the like; more go into rows
const DEPTH = 2;
const ENTRIES_LIMIT = 100;
const TEXT_LIMIT = 10_000;
const tagOf = method(Object.prototype, "toString");
const dateText = method(Date.prototype, "toISOString");
const dateTime = method(Date.prototype, "getTime");
const regexText = method(RegExp.prototype, "toString");
const symbolText = method(Symbol.prototype, "toString");
const functionText = method(Function.prototype, "toString");
const unbox = {
  "[object Number]": [method(Number.prototype, "valueOf"), "Number"],
  "[object String]": [method(String.prototype, "valueOf"), "String"],
  "[object Boolean]": [method(Boolean.prototype, "valueOf"), "Boolean"],
  "[object Symbol]": [method(Symbol.prototype, "valueOf"), "Symbol"],
  "[object BigInt]": [method(BigInt.prototype, "valueOf"), "BigInt"],
};
const typedArray = getPrototypeOf(Bytes.prototype);
const typedLength = method({ get: getOwnPropertyDescriptor(typedArray, "length").get }, "get");
const typedName = method(
  { get: getOwnPropertyDescriptor(typedArray, Symbol.toStringTag).get },
  "get",
);
const bufferSize = method(
  { get: getOwnPropertyDescriptor(ArrayBuffer.prototype, "byteLength").get },
  "get",
);
const { toStringTag } = Symbol;

// Whether `probe` accepts `value` as one of its own kind.
function isKind(probe, value) {
  try {
    probe(value);
    return true;
  } catch {
    return false;
  }
}

function quote(text) {
  let shown = text;
  let rest = "";
  if (text.length > TEXT_LIMIT) {
    shown = cut(text, 0, TEXT_LIMIT);
    rest = `... ${text.length - TEXT_LIMIT} more characters`;
  }
  const inner = cut(stringify(shown), 1, -1);
  const plain = replaceAll(inner, '\\"', '"');
  const mark = find(plain, "'") < 0 ? "'" : find(plain, '"') < 0 ? '"' : "`";
  return mark + (mark === '"' ? inner : plain) + mark + rest;
}

function inspect(value, depth = DEPTH) {
  return show(value, depth, [], 0);
}

function show(value, depth, above, indent) {
  if (typeof value === "string") return quote(value);
  if (typeof value === "number") return is(value, -0) ? "-0" : Text(value);
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value === "symbol") return symbolText(value);
  if (typeof value !== "function" && (typeof value !== "object" || value === null))
    return Text(value);
  if (includes(above, value)) return "[Circular *1]";
  try {
    return showObject(value, depth, above, indent);
  } catch {
    return "[an object that cannot be looked at]";
  }
}

// The name of the constructor, "" for a plain object, null without a prototype.
function nameOf(value) {
  for (let at = value; at !== null; at = getPrototypeOf(at)) {
    const made = getOwnPropertyDescriptor(at, "constructor")?.value;
    if (typeof made === "function" && typeof made.name === "string" && made.name) return made.name;
  }
  return null;
}

function showFunction(value) {
  const text = functionText(value);
  const name = getOwnPropertyDescriptor(value, "name")?.value;
  if (startsWith(text, "class")) return `[class ${name || "(anonymous)"}]`;
  const kind = nameOf(value) ?? "Function";
  return name ? `[${kind}: ${name}]` : `[${kind} (anonymous)]`;
}

function showObject(value, depth, above, indent) {
  const name = nameOf(value);
  const shown = { head: "", open: "{", close: "}", entries: [], short: false };
  const skip = describeKind(value, name, shown, depth, above, indent);
  const own = skip === null ? [] : ownKeys(value);
  if (shown.deep !== false && above.length > depth && (own.length || shown.deep))
    return `[${shown.open === "[" ? "Array" : (name ?? "Object: null prototype")}]`;
  const inside = [...above, value];
  shown.fill?.((one) => show(one, depth, inside, indent + 2));
  let count = 0;
  for (let i = 0; i < own.length; i++) {
    const key = own[i];
    const property = getOwnPropertyDescriptor(value, key);
    if (!property?.enumerable || skip(key)) continue;
    if (++count > ENTRIES_LIMIT) {
      push(shown.entries, `... more properties`);
      break;
    }
    push(shown.entries, `${showKey(key)}: ${showProperty(property, depth, inside, indent + 2)}`);
  }
  return layOut(shown, indent);
}

function showKey(key) {
  if (typeof key === "symbol") return `[${symbolText(key)}]`;
  return matches(/^[a-zA-Z_$][\w$]*$/, key) ? key : quote(key);
}

function showProperty(property, depth, above, indent) {
  if (property.get) return property.set ? "[Getter/Setter]" : "[Getter]";
  if (property.set) return "[Setter]";
  return show(property.value, depth, above, indent);
}

const skipNothing = () => false;
const skipIndexes = (key) => typeof key === "string" && matches(/^\d+$/, key) !== null;

// Puts what is special about the kind of `value` into `shown`; returns which keys to leave out.
function describeKind(value, name, shown, depth, above, indent) {
  if (typeof value === "function") {
    shown.head = showFunction(value);
    shown.short = true;
    return skipNothing;
  }
  if (isArray(value)) return describeList(value, value.length, name === "Array" ? "" : name, shown);
  if (isKind(typedLength, value)) {
    const title = typedName(value);
    if (title !== undefined) {
      shown.short = true;
      return describeList(value, typedLength(value), title, shown);
    }
  }
  if (isError(value)) {
    shown.head = showError(value, indent);
    shown.short = true;
    return (key) => key === "stack" || key === "message" || key === "cause" || key === "name";
  }
  if (isKind(mapSize, value)) return describeCollection(value, mapSize, mapEach, name, shown, true);
  if (isKind(setSize, value)) return describeCollection(value, setSize, setEach, name, shown, false);
  if (isKind(dateTime, value)) {
    shown.head = isNaN(dateTime(value)) ? "Invalid Date" : dateText(value);
    shown.short = true;
    return skipNothing;
  }
  if (tagOf(value) === "[object RegExp]") {
    shown.head = regexText(value);
    shown.short = true;
    return skipNothing;
  }
  const boxed = unbox[tagOf(value)];
  if (boxed && isKind(boxed[0], value)) {
    shown.head = `[${boxed[1]}: ${show(boxed[0](value), depth, above, indent)}]`;
    shown.short = true;
    return skipIndexes;
  }
  if (isKind(bufferSize, value)) {
    shown.head = `${name} `;
    push(shown.entries, `byteLength: ${bufferSize(value)}`);
    return skipNothing;
  }
  const tag = value[toStringTag];
  const title = name === "Object" ? "" : (name ?? "[Object: null prototype]");
  shown.head = title ? `${title} ` : "";
  if (typeof tag === "string" && tag && tag !== name) shown.head = `${title || "Object"} [${tag}] `;
  return skipNothing;
}

function describeList(list, length, title, shown) {
  if (title !== "") shown.head = `${title ?? "[Array: null prototype]"}(${length}) `;
  shown.open = "[";
  shown.close = "]";
  shown.rows = true;
  shown.deep = length > 0;
  shown.fill = (inner) => {
    let holes = 0;
    let i = 0;
    const flush = () => {
      if (holes) push(shown.entries, `<${holes} empty item${holes > 1 ? "s" : ""}>`);
      holes = 0;
    };
    for (; i < length && shown.entries.length < ENTRIES_LIMIT; i++) {
      const property = getOwnPropertyDescriptor(list, i);
      if (!property) {
        holes++;
        continue;
      }
      flush();
      push(shown.entries, property.get ? "[Getter]" : inner(property.value));
    }
    flush();
    if (i < length) push(shown.entries, `... ${length - i} more item${length - i > 1 ? "s" : ""}`);
  };
  return skipIndexes;
}

function describeCollection(value, size, each, name, shown, pairs) {
  const count = size(value);
  shown.head = `${name}(${count}) `;
  shown.deep = count > 0;
  shown.fill = (inner) => {
    let left = ENTRIES_LIMIT;
    each(value, (item, key) => {
      if (left-- > 0) push(shown.entries, pairs ? `${inner(key)} => ${inner(item)}` : inner(item));
    });
    if (left < 0) push(shown.entries, `... ${-left} more item${left < -1 ? "s" : ""}`);
  };
  return skipNothing;
}

function showError(error, indent) {
  const text = source ? fullStack(error, source).text : titleOf(error);
  return indent ? replaceAll(text, "\n", `\n${repeat(" ", indent)}`) : text;
}

// One line where that fits, else one entry a line; many short ones of a list go into rows.
function layOut({ head, open, close, entries, short, rows }, indent) {
  if (!entries.length) return open === "[" ? `${head}[]` : short ? head : `${head}{}`;
  if (short && open !== "[") head += " ";
  let width = head.length + indent;
  let longest = 0;
  let plain = true;
  for (let i = 0; i < entries.length; i++) {
    width += entries[i].length + 2;
    longest = max(longest, entries[i].length);
    if (find(entries[i], "\n") >= 0) plain = false;
  }
  const inRows = rows && plain && entries.length > LINE_ENTRIES && longest <= 16;
  if (plain && !inRows && width <= LINE_WIDTH) return `${head}${open} ${join(entries, ", ")} ${close}`;
  const margin = `\n${repeat(" ", indent + 2)}`;
  let text = head + open + margin;
  if (!inRows) return `${text}${join(entries, `,${margin}`)}\n${repeat(" ", indent)}${close}`;
  const columns = max(1, min(floor((LINE_WIDTH - indent) / (longest + 2)), 16));
  for (let i = 0; i < entries.length; i++) {
    const last = i === entries.length - 1;
    const ends = (i + 1) % columns === 0;
    text += last ? entries[i] : ends ? `${entries[i]},${margin}` : padEnd(`${entries[i]}, `, longest + 2);
  }
  return `${text}\n${repeat(" ", indent)}${close}`;
}
