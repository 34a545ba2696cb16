// What depends on a language: as other runtimes have it, who are told of none (American English,
// UTC) and use ICU. What cannot be as exact here is refused, since a text in another order or form
// would be a wrong answer that nobody notices.

// Of ASCII, in the order of ICU's root collation; capitals follow their small letters.
const COLLATION =
  "\t\n\v\f\r _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789abcdefghijklmnopqrstuvwxyz";
const upper = method(String.prototype, "toUpperCase");
const numberText = method(Number.prototype, "toString");
const bigText = method(Big.prototype, "toString");
const getUTCFullYear = method(NativeDate.prototype, "getUTCFullYear");
const getUTCMonth = method(NativeDate.prototype, "getUTCMonth");
const getUTCDate = method(NativeDate.prototype, "getUTCDate");
const getUTCHours = method(NativeDate.prototype, "getUTCHours");
const getUTCMinutes = method(NativeDate.prototype, "getUTCMinutes");
const getUTCSeconds = method(NativeDate.prototype, "getUTCSeconds");

function refuse(what) {
  throw new TypeError(`${what} is not available in the worker sandbox; use the process sandbox`);
}

function compareText(left, right) {
  if (!matches(/^[\t-\r -~]*$/, left) || !matches(/^[\t-\r -~]*$/, right))
    refuse("localeCompare of text that is not ASCII");
  let byCase = 0;
  for (let i = 0; i < left.length && i < right.length; i++) {
    const one = lower(left[i]);
    const other = lower(right[i]);
    if (one !== other) return find(COLLATION, one) < find(COLLATION, other) ? -1 : 1;
    if (byCase === 0 && left[i] !== right[i]) byCase = left[i] === one ? -1 : 1;
  }
  if (left.length !== right.length) return left.length < right.length ? -1 : 1;
  return byCase;
}

function grouped(digits) {
  let text = cut(digits, -3);
  for (let end = digits.length - 3; end > 0; end -= 3)
    text = `${cut(digits, max(0, end - 3), end)},${text}`;
  return text;
}

// Rounds the shortest decimal form to three places, half away from zero, as ICU does.
function formatNumber(value) {
  if (isNaN(value)) return "NaN";
  const sign = value < 0 || is(value, -0) ? "-" : "";
  const size = abs(value);
  if (size === Infinity) return `${sign}∞`;
  if (size >= 1e21) refuse("toLocaleString of so large a number");
  const [whole, places = ""] = size < 1e-6 ? ["0"] : split(numberText(size), ".");
  const carried = places.length > 3 && places[3] >= "5" ? 1n : 0n;
  const digits = padStart(bigText(Big(whole + padEnd(cut(places, 0, 3), 3, "0")) + carried), 4, "0");
  let end = digits.length;
  while (end > digits.length - 3 && digits[end - 1] === "0") end--;
  const decimals = cut(digits, digits.length - 3, end);
  return sign + grouped(cut(digits, 0, -3)) + (decimals && `.${decimals}`);
}

function formatDay(date) {
  const year = getUTCFullYear(date);
  if (year < 1000) refuse("toLocaleString of so early a date");
  return `${getUTCMonth(date) + 1}/${getUTCDate(date)}/${year}`;
}

function formatTime(date) {
  const hour = getUTCHours(date);
  const two = (count) => padStart(Text(count), 2, "0");
  const clock = `${hour % 12 || 12}:${two(getUTCMinutes(date))}:${two(getUTCSeconds(date))}`;
  return `${clock} ${hour < 12 ? "AM" : "PM"}`;
}

// Puts a method in the place of the engine's: `format` of its receiver and the first `count`
// arguments. Others name a language or options.
function localise(prototype, name, format, count = 0) {
  const value = {
    [name](...args) {
      for (let i = count; i < args.length; i++)
        if (args[i] !== undefined) refuse(`${name} with a language or options`);
      return format(this, args[0]);
    },
  }[name];
  defineProperty(prototype, name, { value, writable: true, configurable: true });
}

const ofDate = (format) => (date) => (isNaN(dateTime(date)) ? "Invalid Date" : format(date));
const numberOf = method(Number.prototype, "valueOf");
localise(String.prototype, "localeCompare", (text, other) => compareText(cut(text, 0), Text(other)), 1);
localise(String.prototype, "toLocaleLowerCase", (text) => lower(text));
localise(String.prototype, "toLocaleUpperCase", (text) => upper(text));
localise(Number.prototype, "toLocaleString", (number) => formatNumber(numberOf(number)));
localise(Big.prototype, "toLocaleString", (number) => {
  const text = bigText(number);
  return text[0] === "-" ? `-${grouped(cut(text, 1))}` : grouped(text);
});
localise(NativeDate.prototype, "toLocaleDateString", ofDate(formatDay));
localise(NativeDate.prototype, "toLocaleTimeString", ofDate(formatTime));
localise(
  NativeDate.prototype,
  "toLocaleString",
  ofDate((date) => `${formatDay(date)}, ${formatTime(date)}`),
);
