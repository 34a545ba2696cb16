"""Collected attacks, each on every sandbox that it applies to: worker hosts and all runtimes."""

import contextlib
import logging
import os
import socket
import threading

import pytest

import cloche
import cloche.sync
from needs import BOX, needs, require_facts

pytestmark = needs(*BOX)

Code = cloche.SandboxErrorCode
LIMIT_MS, GRACE_MS = 500, 1500
WORKERS = {"quickjs": "javascript", "monty": "python"}
SCRIPTS = ("quickjs", "bun", "node", "deno")
PYTHONS = ("monty", "python")


class Place:
    """One started sandbox, and what it is called here."""

    def __init__(self, name):
        self.name = name
        self.is_worker = name in WORKERS
        self.language = "python" if name in PYTHONS else "javascript"
        self.fields = {} if self.is_worker else {"runtime": name, "pool_size": 0}
        if self.is_worker:
            require_facts("worker-engines")
            create = cloche.sync.create_worker_sandbox
        else:
            require_facts(f"runtime-{name}")
            create = cloche.sync.create_process_sandbox
        self.sandbox = create(language=self.language, timeout_ms=10_000, **self.fields)

    def run(self, code, context=None, **fields):
        return self.sandbox.run(code, context, **{"language": self.language, **fields})

    def value(self, code, context=None, **fields):
        result = self.run(code, context, **fields)
        assert result.ok, (result.error, result.stderr)
        return result.value


@pytest.fixture(scope="module")
def place(request):
    found = Place(request.param)
    with found.sandbox:
        yield found


def on(*names):
    return pytest.mark.parametrize("place", names, indirect=True)


def refused(result):
    """A clean error of the code's own, in the caller's positions."""
    return result.error_code in (Code.EXECUTION_ERROR, Code.INVALID_CODE) and result.value is None


# --- escapes from an engine ---

HOST_NAMES = """
const F = (() => {}).constructor;
const g = F("return globalThis")();
["process", "require", "Deno", "Bun", "module", "__host", "std", "os"].filter(k => k in g);
"""


@pytest.mark.case("esc-01-ctor-chain")
@on("quickjs", "node")
def test_the_constructor_of_functions_leads_to_no_host_global(place):
    found = place.value(HOST_NAMES)
    assert found == [] if place.is_worker else "process" in found  # Node: the control


GIVEN = """
[cfg, cfg.list, tools.log, tools].map(o => {
  try { return o.constructor.constructor("return typeof process")(); } catch (e) { return "none"; }
});
"""


@pytest.mark.case("esc-03-injected-object")
@on("quickjs", "node")
def test_what_the_caller_gives_carries_no_prototype_of_a_host(place):
    found = place.value(GIVEN, {"cfg": {"list": [1]}}, tools={"log": lambda text: None})
    if place.is_worker:
        assert set(found) <= {"undefined", "none"}
    else:
        assert found[:3] == ["object"] * 3  # the control: there is a `process` to be reached


FRAMES = """
let count = 0;
const seen = [];
Error.prepareStackTrace = (err, frames) => {
  for (const f of Array.isArray(frames) ? frames : []) {
    count++;
    for (const m of ["getThis", "getFunction", "getEvalOrigin"]) {
      const v = typeof f[m] === "function" ? f[m]() : undefined;
      if (v && v.constructor) seen.push(v.constructor.constructor("return typeof process")());
    }
  }
  return "s";
};
async function boom() { await null; null.x; }
boom().catch(e => String(e.stack)).then(() => [count > 0, seen.filter(it => it === "object")]);
"""


@pytest.mark.case("esc-04-async-stack-frames")
@on("quickjs", "node")
def test_frames_of_an_asynchronous_error_lead_to_no_host(place):
    asked, found = place.value(FRAMES)
    if place.is_worker:
        assert found == []
    else:
        assert asked  # the control: Node hands frames out


FAILURE = """
let s = "";
try { await tools.fail("x"); }
catch (e) {
  s = String(e.message) + String(e.stack) + JSON.stringify(e, Object.getOwnPropertyNames(e));
}
s;
"""
PYTHON_FAILURE = """
try:
    await tools.fail("x")
    found = "it did not fail"
except Exception as error:
    found = str(error)
found
"""


@pytest.mark.case("esc-06-host-error-text")
@on(*SCRIPTS, *PYTHONS)
def test_the_text_of_a_tools_error_stays_with_the_host(place, caplog):
    async def fail(_):
        raise OSError(2, "TOKEN-81f2", "/srv/app/settings.py")

    code = PYTHON_FAILURE if place.language == "python" else FAILURE
    with caplog.at_level(logging.WARNING, "cloche.tools"):
        told = place.value(code, tools={"fail": fail})
    assert "fail" in told
    for word in ("TOKEN-81f2", "/srv/", "Traceback", ".py", __file__):
        assert word not in told
    assert "TOKEN-81f2" in caplog.text  # the control: the host's own log has the cause


@pytest.mark.case("esc-07-untrusted-snapshot")
@on("quickjs", "monty")
def test_nothing_but_text_is_taken_for_code(place):
    for code in (b"1 + 1", bytearray(b"1"), compile("1 + 1", "x", "eval"), None, ["1"], 1):
        with pytest.raises(cloche.InvalidRequestError, match="code: must be str"):
            place.run(code)
    assert place.value("1 + 1") == 2


WALK = """
out = "blocked"
for c in ().__class__.__base__.__subclasses__():
    if c.__name__ == "_wrap_close":
        try:
            out = c.__init__.__globals__["__builtins__"]["open"](PLACE).read()
        except Exception as e:
            out = "blocked"
print(out)
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the control's file
@pytest.mark.case("esc-08-py-subclasses")
@on(*PYTHONS)
def test_a_walk_over_subclasses_reads_no_file_of_the_host(place, tmp_path):
    marker = tmp_path / "marker"
    marker.write_text("TOKEN-52ab")
    result = place.run(WALK, {"PLACE": str(marker)})
    assert "TOKEN-52ab" not in f"{result}"
    assert result.ok or refused(result)
    if place.name == "python":
        assert result.stdout == "blocked\n"
    names: dict[str, object] = {"PLACE": str(marker), "print": lambda text: found.append(text)}
    found: list[str] = []
    exec(compile(WALK, "walk", "exec"), names)  # the control
    assert found == ["TOKEN-52ab"]


TRACE = """
names = []
try:
    1 / 0
except ZeroDivisionError as e:
    try:
        fr = e.__traceback__.tb_frame
        while fr is not None:
            names.append(repr(sorted(fr.f_globals)))
            fr = fr.f_back
    except AttributeError:
        pass
print(names)
"""


@pytest.mark.case("esc-10-py-traceback-frames")
@on(*PYTHONS)
def test_frames_of_a_traceback_lead_to_nothing_of_the_caller(place):
    result = place.run(TRACE)
    assert result.ok or refused(result)
    for word in ("TRACE", "cloche.sync", "pytest", "Place"):
        assert word not in result.stdout


DENO = """
let out = "denied";
try {
  const c = new Deno.Command("cat", { args: [MARKER], env: { LD_PRELOAD: "./x.so" } });
  out = new TextDecoder().decode((await c.output()).stdout) || "denied";
} catch { /* expected */ }
try { out += await Deno.readTextFile(MARKER); } catch { /* expected */ }
const ran = await new Deno.Command("/usr/bin/deno", { args: ["--version"] }).output();
[out, ran.success];
"""


@pytest.mark.case("esc-18-deno-run-write")
@on("deno")
def test_no_subprocess_of_deno_reads_a_file_of_the_host(place, tmp_path):
    marker = tmp_path / "marker"
    marker.write_text("TOKEN-77c0")
    # The control: Deno's own permissions do not stand in the way of a subprocess.
    assert place.value(DENO, {"MARKER": str(marker)}, memory_limit_mb=512) == ["denied", True]


# --- files of the host ---

SECRETS = """
const fs = require("node:fs"), os = require("node:os"), path = require("node:path");
const hit = [];
for (const p of PLACES.concat(["/etc/shadow", path.join(os.homedir(), ".ssh")]))
  try { fs.readdirSync(path.dirname(p)); fs.readFileSync(p); hit.push(p); } catch {}
if (JSON.stringify(process.env).includes("TOKEN-3e10")) hit.push("env");
[hit, fs.readFileSync("/etc/passwd", "utf8").length > 0];
"""


@pytest.mark.case("file-01-host-secrets")
@on("bun", "node", "deno")
def test_no_credential_of_the_host_is_there(place, tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "TOKEN-3e10")
    marker = tmp_path / ".npmrc"
    marker.write_text("TOKEN-3e10")
    assert "TOKEN-3e10" in str(os.environ)
    with cloche.sync.create_process_sandbox(**place.fields) as sandbox:
        result = sandbox.run(SECRETS, {"PLACES": [str(marker), "/root/.npmrc"]})
    # The control is the file of the box itself, which is read.
    assert result.value == [[], True], result.error


@pytest.mark.case("file-02-compile-time-import")
@on(*SCRIPTS)
@pytest.mark.parametrize("form", ["static", "climbing", "dynamic", "reference"])
def test_no_module_path_of_the_host_is_read(place, form, tmp_path):
    marker = tmp_path / "marker.json"
    marker.write_text('{"token": "TOKEN-96d4"}')
    path = str(marker)
    code = {
        "static": f'import a from "{path}" with {{ type: "json" }};\nconsole.log(a); a',
        "climbing": f'import b from "../../../../../..{path}" with {{ type: "json" }};\nb',
        "dynamic": f'const c = await import("{path}", {{ with: {{ type: "json" }} }}); c.default',
        "reference": f'/// <reference path="{path}" />\nimport d = require("{path}");\nd',
    }[form]
    result = place.run(code, language="typescript")
    assert refused(result), result.value
    # Names that the code itself holds may be told; what lies behind them may not.
    assert "TOKEN-96d4" not in f"{result}"


# --- networks ---


CONNECTS = """
const net = require("node:net");
const hosts = ["127.0.0.1", "::1", "0.0.0.0", "localhost"];
const greet = s => s.on("error", () => {}).end("own"); // the caller may be gone before the greeting
const own = net.createServer(greet).listen(0, "127.0.0.1");
await new Promise(done => own.on("listening", done));
const reach = (host, port) => new Promise(done => {
  const s = net.connect({ host, port, timeout: 800 }, () => { s.destroy(); done(host); });
  s.on("error", () => done(null)); s.on("timeout", () => { s.destroy(); done(null); });
});
const found = (await Promise.all(hosts.map(h => reach(h, PORT)))).filter(Boolean);
const control = await reach("127.0.0.1", own.address().port);
own.close();
[found, control];
"""


@contextlib.contextmanager
def canary():
    """A listener of the host on both loopbacks; yields (port, hits)."""
    hits = []
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)

    def greet():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                hits.append(connection.getpeername()[0])
                connection.close()

    thread = threading.Thread(target=greet)
    thread.start()
    try:
        yield listener.getsockname()[1], hits
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


@pytest.mark.case("net-01-loopback")
@on("bun", "node", "deno")
def test_no_listener_of_the_host_is_reached_from(place):
    with canary() as (port, hits):
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), 2).close()
        code = CONNECTS
        assert place.value(code, {"PORT": port}, memory_limit_mb=256) == [[], "127.0.0.1"]
        assert len(hits) == 2  # the controls, and nobody else


SOCKETS = """
import socket
found = []
for name in (PLACE, "\\0" + ABSTRACT):
    with socket.socket(socket.AF_UNIX) as attempt:
        attempt.settimeout(1)
        try:
            attempt.connect(name)
            found.append(name)
        except OSError:
            pass
for family, target in ((socket.AF_INET, ("127.0.0.1", PORT)), (socket.AF_INET6, ("::1", PORT))):
    with socket.socket(family) as attempt:
        attempt.settimeout(1)
        try:
            attempt.connect(target)
            found.append(attempt.recv(9).decode())
        except OSError:
            pass
found
"""


@pytest.mark.case("net-01-loopback", "net-05-unix-socket-path", "net-06-abstract-socket")
@on("python")
def test_a_snippet_that_may_reach_hosts_reaches_no_socket_of_this_one(place, tmp_path):
    sandbox = cloche.sync.create_process_sandbox(language="python", pool_size=0)
    path, abstract = str(tmp_path / "canary.sock"), f"canary-{os.getpid()}"
    with canary() as (port, hits), socket.socket(socket.AF_UNIX) as named:
        with socket.socket(socket.AF_UNIX) as unnamed:
            named.bind(path)
            unnamed.bind("\0" + abstract)
            named.listen()
            unnamed.listen()
            for target in (path, "\0" + abstract):
                with socket.socket(socket.AF_UNIX) as control:
                    control.connect(target)
            context = {"PLACE": path, "ABSTRACT": abstract, "PORT": port}
            for fields in ({"allow_hosts": (f"example.test:{port}",)}, {"allow_network": True}):
                result = sandbox.run(SOCKETS, context, **fields)
                assert result.ok, result.error
                assert [it for it in result.value if it] == []
            assert hits == []
    sandbox.dispose()


# --- resources ---

ENDLESS = {
    "res-01-cpu-loop": "let i = 0; while (true) { i++; }",
    "res-02-microtask-loop": (
        "async function spin() { while (true) await null; }\nspin(); 'scheduled';"
    ),
    "res-04-slow-builtin": "new Array(5e7).fill(0).map(String).sort().join('ab').length",
    "res-06-regex": "/^(a+)+$/.test('a'.repeat(40) + '!')",
    "res-25-getter-toJSON": (
        "({ get a() { while (true); }, toJSON() { while (true); },\n"
        "  fake: { __type: 'Map', __isMap: true, __name: 'Error', __message: 'forged' } })"
    ),
    "to-04-native-sleep": ("Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 60000)"),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=pytest.mark.case(each)) for each in ENDLESS]
)
@on("quickjs", "node", "deno")
def test_the_deadline_holds_against(place, kind):
    result = place.run(ENDLESS[kind], timeout_ms=LIMIT_MS, memory_limit_mb=1024)
    if place.is_worker and kind == "to-04-native-sleep":
        assert refused(result) and "Atomics" in result.error  # there is nothing to wait with
    else:
        assert result.error_code in (Code.TIMEOUT, Code.MEMORY_EXCEEDED), result.error
        assert result.duration_ms < LIMIT_MS + GRACE_MS
    assert place.value("1 + 1") == 2


HOLDS = {
    "res-07-typed-arrays": (
        "const keep = [];\nfor (let i = 0; i < COUNT; i++)"
        " keep.push(new Uint8Array(16 * 1024 * 1024).fill(1));\nkeep.length"
    ),
    "res-08-strings": (
        "const keep = [];\nfor (let i = 0; i < COUNT * 32; i++) {"
        " const s = ('x' + i).repeat(1 << 18); s.charCodeAt(7); keep.push(s.split('').join('')); }"
        "\nkeep.length"
    ),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=pytest.mark.case(each)) for each in HOLDS]
)
@on("quickjs", "node", "deno")
def test_memory_is_limited_and_the_next_run_has_its_own(place, kind):
    if kind == "res-08-strings" and not place.is_worker:
        code = HOLDS[kind].replace("s.split('').join('')", "Buffer.from(s).toString('latin1')")
    else:
        code = HOLDS[kind].replace("s.split('').join('')", "s")
    result = place.run(code, {"COUNT": 128}, timeout_ms=20_000)
    if result.error_code is not Code.MEMORY_EXCEEDED:
        assert refused(result), result.value  # the engine's own refusal, such as a RangeError
    assert place.value(code, {"COUNT": 1}) in (1, 32)  # the control: less of it is had


@pytest.mark.case("res-10-py-native-pow")
@on(*PYTHONS)
def test_one_long_operation_ends_at_a_limit(place):
    for code in ("x = 3 ** (10 ** 8)\nprint('done')", "y = 'ab' * (10 ** 9)\nprint('done')"):
        result = place.run(code, timeout_ms=LIMIT_MS)
        assert result.error_code in (Code.TIMEOUT, Code.MEMORY_EXCEEDED), (code, result.error)
        assert result.stdout == ""
    assert place.value("3 ** 3") == 27


FLOODS = {
    "python": "for i in range(500000):\n    print('x' * 1023)",
    "javascript": "for (let i = 0; i < 500000; i++) console.log('x'.repeat(1023))",
}


@pytest.mark.case("res-17-stdout-flood")
@on(*SCRIPTS, *PYTHONS)
def test_a_flood_of_output_is_kept_within_its_limit(place):
    result = place.run(FLOODS[place.language], timeout_ms=2000, output_limit_bytes=65536)
    assert result.ok or result.error_code is Code.TIMEOUT, result.error
    assert result.stdout_truncated
    assert len(result.stdout) <= 65536 + 200
    assert result.stdout_bytes > 10 * 65536  # the control: there was a flood
    assert place.run("console.log(1)" if place.language == "javascript" else "print(1)").stdout


@pytest.mark.case("res-20-huge-return")
@on("quickjs", "node", "deno", *PYTHONS)
def test_a_huge_value_is_refused_and_not_delivered(place):
    code = "({ a: 'x'.repeat(SIZE), b: new Array(SIZE / 12).fill(7) })"
    if place.language == "python":
        code = "{'a': 'x' * SIZE, 'b': [7] * (SIZE // 12)}"
    result = place.run(code, {"SIZE": 12_000_000}, memory_limit_mb=512, timeout_ms=20_000)
    assert result.error_code is Code.VALUE_TOO_LARGE, result.error
    assert result.value is None
    assert len(place.value(code, {"SIZE": 12_000})["a"]) == 12_000


RECURSION = """
function f(n) { return n === 0 ? 0 : 1 + f(n - 1); }
let r; try { r = f(1e6); } catch (e) { r = e.name; }
r;
"""


@pytest.mark.case("res-21-deep-recursion")
@on(*SCRIPTS)
def test_deep_recursion_is_an_error_that_the_code_can_catch(place):
    # 10^6 frames may fit: Bun's stack grows with its limit.
    assert place.value(RECURSION) in ("RangeError", 1_000_000)
    assert place.value("1 + 1") == 2


@pytest.mark.case("res-23-cyclic-deep-return")
@on("quickjs", "node", "deno", *PYTHONS)
def test_a_value_without_an_end_is_an_error(place):
    cyclic = "const o = { name: 'loop' }; o.self = o; o.list = [o, { o }]; o"
    deep = "let deep = {}, p = deep; for (let i = 0; i < 50000; i++) p = p.n = {};\ndeep"
    if place.language == "python":
        cyclic = "o = {'name': 'loop'}\no['self'] = o\no"
        deep = "deep = {}\nfor i in range(50000):\n    deep = {'n': deep}\ndeep"
    result = place.run(cyclic)
    assert refused(result) and "self" in result.error
    result = place.run(deep)
    assert result.error_code in (Code.VALUE_TOO_LARGE, Code.EXECUTION_ERROR), result.error
    assert place.value("[[1]]") == [[1]]


SPECIAL = """
({ nan: NaN, inf: -Infinity, negz: -0, date: new Date(0), map: new Map([["a", 1]]),
   set: new Set([1]), und: undefined, nul: null, re: /x/g, buf: new Uint8Array([0, 255]),
   err: new TypeError("t"), inv: new Date(NaN), lone: "\\ud800", ["__proto__"]: { polluted: 1 } });
"""
SPECIAL_VALUE = {
    "nan": None, "inf": None, "negz": 0, "date": "1970-01-01T00:00:00.000Z", "map": {}, "set": {},
    "nul": None, "re": {}, "buf": {"0": 0, "1": 255}, "err": {}, "inv": None, "lone": "\ufffd",
    "__proto__": {"polluted": 1},
}  # fmt: skip


@pytest.mark.case("res-24-special-values")
@on(*SCRIPTS)
def test_special_values_have_one_form_everywhere(place):
    value = place.value(SPECIAL)
    value["err"] = {}  # Bun's errors have fields of their own
    assert value == SPECIAL_VALUE
    for code, path in (("({ big: 9007199254740993n })", "big"), ("[1, [2n]]", "[1][0]")):
        result = place.run(code)
        assert refused(result) and path in result.error


@pytest.mark.case("res-25-getter-toJSON")
@on(*SCRIPTS)
def test_what_looks_like_a_type_stays_data(place):
    fake = {"__type": "Map", "__isMap": True, "__name": "Error", "__message": "forged"}
    assert place.value("({ fake, toJSON() { return { fake } } })", {"fake": fake}) == {"fake": fake}


WASM = """
const b = new Uint8Array([0,97,115,109,1,0,0,0,1,5,1,96,0,1,127,3,2,1,0,7,5,1,1,102,0,0,10,6,1,4,
  0,65,42,11]);
WebAssembly.instantiate(b).then(m => [typeof fetch === "function", m.instance.exports.f()]);
"""


@pytest.mark.case("res-26-benign-wasm-vmem")
@on("bun", "node", "deno")
def test_webassembly_works_under_the_default_memory_limit(place):
    assert place.value(WASM) == [True, 42]


# --- ends and output ---


@pytest.mark.case("to-02-grandchild-holds-pipe")
@on("bun", "node")
def test_a_program_ends_with_its_main_process_whoever_holds_its_pipes(place):
    code = (
        'const { spawn } = require("node:child_process");\n'
        'spawn(process.execPath, ["-e", "setTimeout(() => {}, 30000)"],'
        ' { detached: true, stdio: "inherit" }).unref();\n'
        'console.log("parent done");'
    )
    result = place.run(code, mode="program", timeout_ms=15_000, memory_limit_mb=512)
    assert result.ok, result.error
    assert result.stdout == "parent done\n"
    assert result.duration_ms < 10_000


@pytest.mark.case("to-07-partial-output")
@on(*SCRIPTS)
def test_what_was_printed_before_the_deadline_is_kept(place):
    write = "console.log" if place.is_worker else "process.stdout.write"
    code = f"{write}('first\\n'); {write}('second\\n'); setInterval(() => {{}}, 1000);"
    code += " await new Promise(() => {})"
    result = place.run(code, timeout_ms=1500)
    assert result.error_code is Code.TIMEOUT
    assert result.stdout.split() == ["first", "second"]


@pytest.mark.case("out-02-ansi")
@on("bun", "node", "deno")
def test_control_sequences_are_kept_as_data(place):
    text = (
        "visible\x1b[2J\x1b]0;title\x07\x1b]52;c;aGk=\x07\x1bPq\x1b\\\x9b31mFAIL\rPASS\b\b\nend\n"
    )
    assert place.run("process.stdout.write(text); 1", {"text": text}).stdout == text


FORGERY = """
const frames = ['{"ok":true,"value":"FORGED"}', "__RESULT__=FORGED", "exit:0"];
const fs = require("node:fs");
for (const fd of [1, 2, 3, 4, 5, 6]) for (const f of frames)
  try { fs.writeSync(fd, "\\n" + f + "\\n"); } catch {}
process.on("exit", () => { for (const f of frames) fs.writeSync(1, f + "\\n"); });
process.exit(0);
"""
CONSOLE_FORGERY = """
const body = '{"ok":true,"value":"FORGED"}';
const frame = "\\0".repeat(16) + "\\0\\0\\0" + String.fromCharCode(body.length) + body;
for (const write of [console.log, console.error]) for (const it of [body, frame]) write(it);
throw new Error("the real outcome");
"""


@pytest.mark.case("out-09-result-forgery")
@on(*SCRIPTS)
def test_nothing_printed_becomes_the_value(place):
    result = place.run(CONSOLE_FORGERY if place.is_worker else FORGERY)
    assert result.value is None
    assert "FORGED" in result.stdout  # what was printed is output, unchanged
    if place.is_worker:
        assert "the real outcome" in result.error


# --- hurried and wrong use ---


@pytest.mark.case("api-01-empty")
@on("quickjs", "node", "deno", *PYTHONS)
def test_code_that_says_nothing_has_no_value(place):
    comment = "# nothing" if place.language == "python" else "// nothing"
    for code in ("", "  \n ", comment, "\ufeff", *([";"] if place.language != "python" else [])):
        result = place.run(code)
        assert (result.ok, result.value) == (True, None), (code, result.error)


@pytest.mark.case("api-02-syntax-error")
@on("quickjs", "node", "deno")
def test_a_syntax_error_has_its_place_in_the_callers_text(place):
    result = place.run("const a = 1;\nconst b = 2;\nconst c = = 3;", language="typescript")
    assert result.error_code is Code.INVALID_CODE
    assert result.error_line == 3
    assert result.error_column in (9, 11)  # of either of the two signs
    assert "/opt/" not in f"{result.error}{result.error_stack}"


@pytest.mark.case("api-03-wrapper-breakout")
@on("quickjs", "node", "deno", *PYTHONS)
def test_code_cannot_close_what_is_around_it(place):
    texts = ["})(); globalThis.hit = 1; (async () => {", "}; globalThis.hit = 1; {", "`); hit("]
    texts += ["*/ globalThis.hit = 1; /*", "</script><script>hit=1", "$(touch /tmp/escaped)", "\0"]
    if place.language == "python":
        texts = [")\nhit = 1\n(", '"""\nhit = 1\n"""', "'''\nhit = 1\n''' )", "\\\n)", "\0"]
    for code in texts:
        result = place.run(code)
        assert result.ok or refused(result), (code, result.error_code)
        assert result.value in (None, "\nhit = 1\n"), code
    look = "typeof hit" if place.language != "python" else "'hit' if 0 else 'undefined'"
    assert place.value(look) == "undefined"


@pytest.mark.case("api-04-bad-context", "api-05-context-keys")
@on("quickjs", "node", "deno", *PYTHONS)
def test_a_bad_context_is_refused_and_an_odd_one_is_data(place):
    cyclic = []
    cyclic.append(cyclic)
    for bad in ({"x": cyclic}, {"x": {1}}, {"a-b": 1}, {"__proto__": {}}, {"x": float("nan")}):
        with pytest.raises(cloche.InvalidRequestError, match=r"context"):
            place.run("1", bad)
    odd = {"__proto__": {"polluted": 1}, "constructor": 2, "toJSON": 3, "a-b": 4}
    if place.language == "python":
        assert place.value("x", {"x": odd}) == odd
        return
    found = place.value(
        "[Object.keys(x), ({}).polluted, x['a-b'], typeof JSON.stringify]", {"x": odd}
    )
    assert found == [list(odd), None, 4, "function"]


ECHOES = {
    "javascript": "globalThis.me = id; let s = 0; for (let i = 0; i < 2e5; i++) s += i % 7; me",
    "python": "me = id\nfor i in range(20000):\n    pass\nme",
}


@pytest.mark.case("api-06-concurrent")
@on("quickjs", "node", "deno", *PYTHONS)
def test_twenty_runs_at_once_have_each_their_own_value(place):
    results = {}

    def run(number):
        results[number] = place.run(ECHOES[place.language], {"id": number}, timeout_ms=20_000)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: result.value for number, result in results.items()} == {
        number: number for number in range(20)
    }


@pytest.mark.case("api-08-abort-mid-run")
@on("quickjs", "node", "deno", "monty")
def test_an_abort_ends_a_run_at_once(place):
    controller = cloche.AbortController()
    code = "while True:\n    pass" if place.language == "python" else "for (;;);"
    threading.Timer(0.3, controller.abort).start()
    result = place.run(code, signal=controller.signal, timeout_ms=30_000)
    assert result.error_code is Code.ABORTED
    assert result.duration_ms < 3000
    assert place.value("1 + 1") == 2


@pytest.mark.case("api-11-timeout-values")
@on(*SCRIPTS, *PYTHONS)
def test_a_timeout_that_is_none_is_refused_and_a_huge_one_is_no_short_one(place):
    for wrong in (0, -1, float("nan"), float("inf"), True, "5", 1e300, 2**31, 86_400_001, None):
        with pytest.raises(cloche.InvalidRequestError, match="timeout_ms"):
            place.run("1", timeout_ms=wrong)
    assert place.run("1 + 1", timeout_ms=86_400_000).value == 2
    code = "while True:\n    pass" if place.language == "python" else "for (;;);"
    assert place.run(code, timeout_ms=1).error_code is Code.TIMEOUT


@pytest.mark.case("api-13-file-keys")
@on("node")
def test_odd_names_of_files_are_plain_files(place):
    for name in ("../x", "/abs", "a/../../x", "a\0b", "", ".", "a//b", "x" * 256):
        with pytest.raises(cloche.InvalidRequestError, match="files"):
            place.run("1", files={name: "x"})
    names = ["-rf", "--eval", "$(touch y)", "a b", "a\nb", "~x"]
    code = "require('node:fs').readdirSync('/workspace')"
    assert sorted(place.value(code, files=dict.fromkeys(names, "x"))) == sorted(names)


# --- TypeScript ---

TYPESCRIPT = {
    "ts-01-enum-namespace": (
        'enum Color { Red, Green = 2, Blue }\nconst enum Fast { A = 7 }\nenum Str { B = "b" }\n'
        "namespace N { export const x = 1; export namespace M { export const y = 2; } }\n"
        "[Color[0], N.M.y, Fast.A, Str.B];",
        ["Red", 2, 7, "b"],
    ),
    "ts-03-decorators": (
        'let log = "";\nfunction trace(v: any, c: any) { log += "called:" + String(c?.name ?? c);'
        " return v; }\nclass A { @trace m() { return 1; } }\nnew A().m();\nlog;",
        "called:m",
    ),
    "ts-06-top-level-await": (
        'console.log("a");\n'
        "const v: number = await new Promise<number>(r => Promise.resolve().then(() => r(41)));\n"
        'console.log("b");\nv + 1;',
        42,
    ),
    "ts-08-type-errors-do-not-block": (
        'const n: number = "1" as any; const m: string = 2 as never; n + m + "";',
        "12",
    ),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=pytest.mark.case(each)) for each in TYPESCRIPT]
)
@on(*SCRIPTS)
def test_typescript_means_the_same_on(place, kind):
    code, value = TYPESCRIPT[kind]
    result = place.run(code, language="typescript")
    assert (result.value, result.error) == (value, None)
    assert result.stdout == ("a\nb\n" if kind == "ts-06-top-level-await" else "")


MIXED = (
    'import { readFileSync } from "node:fs";\nconst os = require("node:os");\n'
    "export const a = typeof readFileSync + typeof os.platform;\na"
)


@pytest.mark.case("ts-07-esm-cjs-mix")
@on(*SCRIPTS)
def test_both_kinds_of_modules_are_mixed_or_refused_by_name(place):
    result = place.run(MIXED, language="typescript")
    if place.is_worker:
        assert result.error_code is Code.INVALID_CODE
        assert "node:fs" in result.error and result.error_line == 1
    else:
        assert result.ok or refused(result)
        assert result.ok is (result.value == "functionfunction"), result.error
    result = place.run("import pytest from 'lodash'; 1", language="typescript")
    assert refused(result) and "lodash" in result.error
    assert "/work" not in result.error.replace("/workspace", "")
