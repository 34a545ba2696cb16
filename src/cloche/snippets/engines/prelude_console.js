// The console: log, info, debug and their kin go to stdout, warn, error and trace to stderr.

const CHUNK_LENGTH = 32 * 1024; // of UTF-16 units: no more leaves the engine at a time
const counts = new NativeMap();
const stopwatches = new NativeMap();
let groupIndent = "";

function print(stream, text) {
  if (groupIndent) text = groupIndent + replaceAll(text, "\n", `\n${groupIndent}`);
  text = wellFormed(text + "\n");
  if (text.length <= CHUNK_LENGTH) return void host.out(stream, text);
  for (let start = 0; start < text.length; ) {
    let end = min(start + CHUNK_LENGTH, text.length);
    const code = codeAt(text, end - 1);
    if (code >= 0xd800 && code < 0xdc00) end--; // not between two halves of a character
    host.out(stream, cut(text, start, end));
    start = end;
  }
}

function asNumber(value, convert) {
  if (typeof value === "bigint") return `${value}n`;
  return typeof value === "symbol" ? "NaN" : Text(convert(value));
}

const DIRECTIVES = {
  s: (value) => (typeof value === "object" && value !== null ? inspect(value, 0) : spell(value)),
  d: (value) => asNumber(value, Numeric),
  i: (value) => asNumber(value, (one) => parseInt(one, 10)),
  f: (value) => asNumber(value, parseFloat),
  j: (value) => stringify(value) ?? "undefined",
  o: (value) => inspect(value, 4),
  O: (value) => inspect(value),
  c: () => "",
};

function spell(value) {
  return typeof value === "string" ? value : inspect(value);
}

function format(args) {
  let text = "";
  let used = 0;
  if (typeof args[0] === "string") {
    const pattern = args[0];
    used = 1;
    let start = 0;
    let at;
    while (args.length > 1 && (at = find(pattern, "%", start)) >= 0 && at + 1 < pattern.length) {
      const letter = pattern[at + 1];
      const known = getOwnPropertyDescriptor(DIRECTIVES, letter);
      text += cut(pattern, start, at);
      if (letter === "%") text += "%";
      else if (known && used < args.length) text += known.value(args[used++]);
      else text += `%${letter}`;
      start = at + 2;
    }
    text += cut(pattern, start);
    if (used < args.length) text += " ";
  }
  const rest = [];
  for (let i = used; i < args.length; i++) push(rest, spell(args[i]));
  return text + join(rest, " ");
}

// A table with a row for each entry and a column for each key of theirs.
function tabulate(data) {
  const columns = ["(index)"];
  const rows = [];
  const names = keys(data);
  for (let i = 0; i < names.length && i < ENTRIES_LIMIT; i++) {
    const row = data[names[i]];
    const cells = { "(index)": names[i] };
    const inner = typeof row === "object" && row !== null ? keys(row) : ["Values"];
    for (let k = 0; k < inner.length; k++) {
      if (!includes(columns, inner[k])) push(columns, inner[k]);
      cells[inner[k]] = inspect(inner[k] === "Values" && inner.length === 1 ? row : row[inner[k]], 0);
    }
    push(rows, cells);
  }
  const widths = [];
  for (let k = 0; k < columns.length; k++) {
    let width = columns[k].length;
    for (let i = 0; i < rows.length; i++) width = max(width, rows[i][columns[k]]?.length ?? 0);
    push(widths, width);
  }
  const line = (cells, [left, between, right], fill) => {
    const padded = [];
    for (let k = 0; k < columns.length; k++)
      push(padded, fill + padEnd(cells ? (cells[columns[k]] ?? "") : "", widths[k], fill) + fill);
    return left + join(padded, between) + right;
  };
  const heads = {};
  for (let k = 0; k < columns.length; k++) heads[columns[k]] = columns[k];
  const lines = [line(null, "┌┬┐", "─"), line(heads, "│││", " "), line(null, "├┼┤", "─")];
  for (let i = 0; i < rows.length; i++) push(lines, line(rows[i], "│││", " "));
  push(lines, line(null, "└┴┘", "─"));
  return join(lines, "\n");
}

function elapsed(label) {
  const started = mapGet(stopwatches, label);
  return started === undefined ? null : `${label}: ${(clock() - started).toFixed(2)}ms`;
}

const console = {
  log: (...args) => print("stdout", format(args)),
  info: (...args) => print("stdout", format(args)),
  debug: (...args) => print("stdout", format(args)),
  warn: (...args) => print("stderr", format(args)),
  error: (...args) => print("stderr", format(args)),
  trace(...args) {
    const { text } = cleanStack(new NativeError().stack, source);
    const title = args.length ? `Trace: ${format(args)}` : "Trace";
    print("stderr", text ? `${title}\n${text}` : title);
  },
  dir: (value) => print("stdout", inspect(value)),
  dirxml: (...args) => print("stdout", format(args)),
  table(data) {
    const table = typeof data === "object" && data !== null;
    print("stdout", table ? tabulate(data) : format([data]));
  },
  assert(held, ...args) {
    if (held) return;
    print("stderr", args.length ? `Assertion failed: ${format(args)}` : "Assertion failed");
  },
  count(label = "default") {
    const count = (mapGet(counts, `${label}`) ?? 0) + 1;
    mapSet(counts, `${label}`, count);
    print("stdout", `${label}: ${count}`);
  },
  countReset: (label = "default") => void mapDelete(counts, `${label}`),
  group(...args) {
    if (args.length) print("stdout", format(args));
    groupIndent = cut(groupIndent + "  ", 0, 40);
  },
  groupEnd: () => void (groupIndent = cut(groupIndent, 2)),
  time: (label = "default") => void mapSet(stopwatches, `${label}`, clock()),
  timeLog(label = "default", ...args) {
    const text = elapsed(`${label}`);
    if (text) print("stdout", format([text, ...args]));
  },
  timeEnd(label = "default") {
    const text = elapsed(`${label}`);
    if (text) print("stdout", text);
    mapDelete(stopwatches, `${label}`);
  },
  clear() {},
};
console.groupCollapsed = console.group;
define("console", console);
