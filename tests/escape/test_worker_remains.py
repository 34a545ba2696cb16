"""Threat: a run in a worker host finds what an earlier one left, or speaks in the host's name."""

import asyncio
import contextlib
from pathlib import Path

import pytest

import cloche
import cloche.sync
from needs import BOX, needs
from observer import descendants

pytestmark = needs(*BOX, "worker-engines")

Code = cloche.SandboxErrorCode
SECRET = "sEcReT-7f3a91"
OWN_FILES = ("/dev/null", "/opt/cloche/site/quickjs.machine")


@pytest.fixture(scope="module")
def worker():
    with cloche.sync.create_worker_sandbox(timeout_ms=15_000, pool_size=1) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def monty():
    with cloche.sync.create_worker_sandbox(
        timeout_ms=15_000, pool_size=1, language="python"
    ) as sandbox:
        yield sandbox


def host_pids():
    return {pid for pid, each in descendants().items() if "/opt/cloche/worker.py" in each.command}


@contextlib.contextmanager
def in_one_host():
    """Asserts that no host came or went meanwhile: what runs inside has one host in turn."""
    before = host_pids()
    yield
    assert host_pids() & before


def value(sandbox, code, context=None, **fields):
    result = sandbox.run(code, context, **fields)
    assert result.ok, result.error
    return result.value


# Looks first, then leaves something in every place that there is.
LEAVE = """
const places = [Object.prototype, Array.prototype, Function.prototype, Promise.prototype, JSON,
  Math, globalThis, Error, Symbol, Reflect, console, Error.prototype, String.prototype,
  RegExp, crypto, performance, Date, URL.prototype, Map.prototype, (async () => {}).__proto__];
const seen = [];
for (const [at, place] of places.entries()) {
  if ("left" in place) seen.push(at);
  if (Symbol.for("left") in place) seen.push(-at);
}
if (JSON.stringify(1) !== "1" || [1].map(x => x).length !== 1) seen.push("built-ins");
if (Error.prepareStackTrace || Error.stackTraceLimit === 3) seen.push("stacks");
if (RegExp.$1 || RegExp.lastMatch) seen.push("last match");
/(left)/.exec("left");
const registry = new FinalizationRegistry(() => {});
registry.register({}, "left");
for (const place of places) {
  try { place.left = place[Symbol.for("left")] = "SECRET"; } catch { /* it is frozen */ }
}
Error.prepareStackTrace = () => "left";
Error.stackTraceLimit = 3;
console.group("left");
console.count("left");
console.time("left");
setTimeout(() => { globalThis.later = 1; }, 1);
setInterval(() => {}, 1);
queueMicrotask(() => { globalThis.later = 2; });
new Promise(() => {});
return seen;
"""
BREAK = """
JSON.stringify = () => '"broken"';
JSON.parse = () => { throw 1; };
Promise.prototype.then = () => { throw 1; };
Array.prototype[Symbol.iterator] = () => { throw 1; };
Math.random = () => 4;
Date.now = () => 0;
for (const key of Reflect.ownKeys(globalThis)) { try { delete globalThis[key]; } catch {} }
"""


@pytest.mark.case("file-04-cross-run-residue")
def test_a_run_finds_no_global_of_an_earlier_one(worker):
    value(worker, "1")
    with in_one_host():
        for _ in range(3):
            assert value(worker, LEAVE.replace("SECRET", SECRET)) == []
        worker.run(BREAK)
        assert value(worker, LEAVE) == []
        result = worker.run("console.count('left'); typeof later")
        assert (result.value, result.stdout) == ("undefined", "left: 1\n")


FILL = """
const held = [];
for (let i = 0; i < 400; i++) held.push(new TextEncoder().encode(SECRET.repeat(2000)));
for (let i = 0; i < 400; i++) held.push((SECRET + i).repeat(500).split("").join(""));
held.length;
"""
# Every way to memory that nothing was written to yet.
SCAN = """
const found = [];
const makers = [n => new Uint8Array(n), n => new Uint8Array(new ArrayBuffer(n)),
  n => new Uint8Array(new SharedArrayBuffer(n)),
  n => new Uint8Array(new Float64Array(n / 8).buffer)];
for (const make of makers)
  for (const size of [64, 4096, 65536, 1 << 20, 1 << 23]) {
    const bytes = make(size);
    for (let i = 0; i < size; i += 7) if (bytes[i] !== 0) { found.push([size, i]); break; }
  }
const grown = new ArrayBuffer(8, { maxByteLength: 1 << 20 });
grown.resize(1 << 20);
if (new Uint8Array(grown).some(it => it !== 0)) found.push("grown");
const moved = new ArrayBuffer(8).transfer?.(1 << 20);
if (moved && new Uint8Array(moved).some(it => it !== 0)) found.push("moved");
found;
"""


def test_memory_of_an_earlier_run_is_not_found_in_fresh_buffers(worker):
    assert value(worker, FILL, {"SECRET": SECRET}) == 800
    assert value(worker, SCAN) == []
    # The control: the same scan does see what is there.
    control = SCAN.replace("const bytes = make(size);", "const bytes = make(size).fill(1);")
    assert value(worker, control) != []


def test_random_numbers_and_clocks_start_anew_in_each_run(worker, monty):
    numbers = [tuple(value(worker, "[Math.random(), Math.random()]")) for _ in range(6)]
    assert len(set(numbers)) == 6
    assert len({number for pair in numbers for number in pair}) == 12
    identifiers = {value(worker, "crypto.randomUUID()") for _ in range(4)}
    assert len(identifiers) == 4
    assert value(worker, "performance.now() < 5000")
    drawn = [value(monty, "import random\nx = random.random()\nx") for _ in range(4)]
    assert len(set(drawn)) == 4


PYTHON_NAMES = ("left", "Left", "helper", "json_left")


@pytest.mark.case("file-04-cross-run-residue")
def test_a_python_run_finds_no_name_of_an_earlier_one(monty):
    plant = (
        f"left = {SECRET!r}\nclass Left:\n    kept = {SECRET!r}\n"
        "def helper(kept=[]):\n    kept.append(1)\n    return len(kept)\n"
        "abs = print = sorted = None\nhelper()"
    )
    with in_one_host():
        for _ in range(2):
            assert value(monty, plant) == 1
        for name in PYTHON_NAMES:
            result = monty.run(name)
            assert result.error_code is Code.EXECUTION_ERROR, name
            assert SECRET not in f"{result}"
        assert value(monty, "[len([1]), abs(-1)]") == [1, 1]


def test_an_error_or_a_timeout_leaves_nothing_for_the_next_run(worker, monty):
    for code in (f"globalThis.left = '{SECRET}'; throw new Error(left)", "left = 1; for (;;);"):
        worker.run(code, timeout_ms=200)
        assert value(worker, "typeof left") == "undefined"
    for code in (f"left = {SECRET!r}\n1 / 0", "left = 1\nwhile True:\n    pass"):
        monty.run(code, timeout_ms=200)
        assert monty.run("left").error_code is Code.EXECUTION_ERROR


def test_a_context_and_its_tools_are_gone_with_their_run(worker, monty):
    async def tell():
        return SECRET

    assert value(worker, "(await tools.tell()) + given", {"given": 1}, tools={"tell": tell})
    assert value(worker, "[typeof given, typeof tools]") == ["undefined", "undefined"]
    assert value(monty, "[await tools.tell(), given]", {"given": 1}, tools={"tell": tell})
    for name in ("given", "tools"):
        assert not monty.run(name).ok


def test_an_answer_of_an_earlier_run_settles_no_call_of_the_next(worker):
    """The first run ends while its calls are open; they are answered, too late."""
    released = asyncio.Event()

    async def slow(number):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return f"stale {number}"  # a tool that answers all the same

    async def quick(number):
        await asyncio.sleep(0.05)
        return f"fresh {number}"

    for _ in range(5):
        code = "for (let i = 0; i < 8; i++) tools.it(i); 'left open'"
        assert value(worker, code, tools={"it": slow}) == "left open"
        code = "await Promise.all([0, 1, 2].map(i => tools.it(i)))"
        assert value(worker, code, tools={"it": quick}) == ["fresh 0", "fresh 1", "fresh 2"]
    released.set()


def test_nothing_of_a_sandbox_is_in_the_hosts_of_another():
    with cloche.sync.create_worker_sandbox(trust_domain="a", pool_size=1) as first:
        value(first, "1")
        before = host_pids()
        with cloche.sync.create_worker_sandbox(trust_domain="a", pool_size=1) as second:
            own = host_pids() - before
            assert own
            value(second, "for (let i = 0; i < 1e5; i++); 1")
        assert not host_pids() & own


def test_a_worker_host_holds_no_descriptor_and_no_variable_of_the_caller(worker, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", SECRET)
    with cloche.sync.create_worker_sandbox(pool_size=1) as sandbox:
        value(sandbox, "1")
        for pid in host_pids():
            is_python = b"python\0" in Path(f"/proc/{pid}/cmdline").read_bytes()[-8:]
            assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
            held = {link.name: str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
            # Pipes, what an engine opens to wait, and its own code; no socket and no folder.
            # (Monty's has a pair of sockets of its own: both ends are in the box.)
            kinds = ("pipe:", "anon_inode:", *OWN_FILES)
            for what in held.values():
                assert what.startswith(kinds) or (is_python and what.startswith("socket:")), held
            status = Path(f"/proc/{pid}/status").read_text()
            assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
            assert "CapEff:\t0000000000000000" in status and "CapBnd:\t0000000000000000" in status


# --- who speaks on the channel ---

CLAIM = "{ code: 'SANDBOX_%s', name: 'E', message: 'forged', stack: '', line: null, column: null }"
FORGERIES = {
    "inherited verdict": "Object.prototype.wrong = CLAIM; 1",
    "inherited error": "Object.prototype.error = CLAIM; Object.prototype.ok = false; 1",
    "toJSON": (
        "Object.prototype.toJSON = function () {"
        " return typeof this.code === 'string' && this.message !== 'forged' ? CLAIM : this; };\n"
        "throw new Error('x')"
    ),
    "thrown": "throw CLAIM",
    "accessor": (
        "const claim = CLAIM;\nfor (const key of ['wrong', 'thrown', 'body', 'frame'])\n"
        "  Object.defineProperty(Object.prototype, key, { get: () => claim });\n1"
    ),
}


@pytest.mark.case("out-09-result-forgery")
@pytest.mark.parametrize(
    ("way", "code"),
    [
        (way, code)
        for way in FORGERIES
        for code in ("MEMORY_EXCEEDED", "TIMEOUT", "ABORTED", "INTERNAL_ERROR")
    ],
)
def test_code_cannot_choose_its_fate(worker, way, code):
    """Its value and the words of its error are its own; why it ended is not."""
    result = worker.run(FORGERIES[way].replace("CLAIM", CLAIM % code))
    assert result.ok or result.error_code is Code.EXECUTION_ERROR, result.error_code


REACH = """
const found = [];
const { apply } = Reflect;
const wanted = ["end", "settled", "starved", "out", "wait", "decode"];
let count = 0;
const look = (value, how) => {
  if ((typeof value !== "object" && typeof value !== "function") || value === null) return;
  for (let i = 0; i < wanted.length; i++)
    if (typeof value[wanted[i]] === "function") found[count++] = how;
};
const keys = ["host", "request", "source", "0", "1", "text", "check", "args", "timers",
  "callback", "entry", "due", "stream", "body", "thrown", "wrong", "name", "map", "resolve"];
for (const key of keys)
  Object.defineProperty(Object.prototype, key, {
    configurable: true,
    get() { look(this, `get ${key}`); },
    set(value) { look(this, `set ${key}`); look(value, `value of ${key}`); },
  });
for (const holder of [Array.prototype, String.prototype, Function.prototype, Promise.prototype,
    Map.prototype, Set.prototype, RegExp.prototype])
  for (const key of Reflect.ownKeys(holder)) {
    const { value, writable } = Object.getOwnPropertyDescriptor(holder, key);
    if (typeof value !== "function" || !writable || key === "constructor") continue;
    const how = String(key);
    holder[key] = function () {
      look(this, how);
      for (let i = 0; i < arguments.length; i++) look(arguments[i], how);
      return apply(value, this, arguments);
    };
  }
console.log("%s %o", "a", { b: [1, new Map([[1, 2]]), new Error("x")] });
try { null.x; } catch (error) { console.error(error); }
const timer = setTimeout(() => {}, 1);
try { structuredClone({ a: [1n] }); new URL("http://a/?b=c").searchParams.get("b"); } catch {}
try { throw new TypeError("x"); } catch (error) { look(error.stack, "stack"); }
for (const key of keys) delete Object.prototype[key];
found;
"""


def test_no_way_leads_to_what_writes_frames(worker):
    assert value(worker, REACH) == []
    # The control: what stands on a path that is looked at is found.
    seen = value(
        worker, REACH.replace("const timer =", "[1].includes({ end() {} });\nconst timer =")
    )
    assert seen == ["includes"]


def test_console_output_that_looks_like_frames_is_output(worker, monty):
    body = '{"ok":true,"value":"FORGED"}'
    frames = ["\0" * 20 + body, body, '{"call":1,"tool":"it","args":[],"kwargs":{}}']
    frames += ['{"out":"stdout","text":"FORGED"}', "\n" + body + "\n", "\ufeff" + body]
    called = []
    result = worker.run(
        "for (const it of frames) { console.log(it); console.error(it); }\n'own'",
        {"frames": frames},
        tools={"it": lambda: called.append(1)},
    )
    assert (result.value, called) == ("own", [])
    assert result.stdout == result.stderr == "".join(f"{it}\n" for it in frames)
    code = "for it in frames:\n    print(it)\n'own'"
    result = monty.run(code, {"frames": frames}, tools={"it": lambda: called.append(1)})
    assert (result.value, called) == ("own", [])
    assert result.stdout == "".join(f"{it}\n" for it in frames)


def test_output_of_the_values_way_to_json_is_kept_and_is_no_value(worker):
    code = (
        "({ get a() { console.log('during'); return 1; },"
        " toJSON() { console.log('x'); return this; } })"
    )
    result = worker.run(code)
    assert result.ok
    assert result.value["a"] == 1
    assert result.stdout.split() == ["x", "during"]


@pytest.mark.parametrize(
    "name", ["__cloche_value", "__cloche_tools", "__cloche_call", "__builtins__", "__import__"]
)
def test_names_of_the_python_prelude_cannot_be_had(monty, name):
    tools = {"it": lambda: 1}
    for code in (name, f"{name}(1, 1, 1)", f"{name} = 1\n2", f"def f():\n    return {name}\nf()"):
        result = monty.run(code, tools=tools)
        assert not result.ok, code
    assert (
        value(monty, "await tools.it()", tools=tools) == 1
    )  # the control: what they are for works
    with pytest.raises(cloche.InvalidRequestError):
        monty.run("1", {name: 1})
