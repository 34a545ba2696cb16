"""Threat: a box that waited for its run gives it more, or less, than a fresh one would."""

import asyncio
import os
import select
import signal
import time
from pathlib import Path

import pytest

import cloche
import cloche.sync
from needs import BOX, needs, require_facts
from observer import descendants, kept_as

pytestmark = needs(*BOX)

Code = cloche.SandboxErrorCode
RUNTIMES = {"bun": "javascript", "node": "javascript", "deno": "javascript", "python": "python"}
SECRET = "sEcReT-2b8f04"


@pytest.fixture(params=RUNTIMES)
def pooled(request):
    require_facts(f"runtime-{request.param}")
    found = Pooled(request.param)
    with found.sandbox:
        yield found


class Pooled:
    """A sandbox of one runtime with a pool of one box."""

    def __init__(self, runtime):
        self.runtime, self.language = runtime, RUNTIMES[runtime]
        self.fields = {"runtime": runtime, "language": self.language, "timeout_ms": 20_000}
        self.sandbox = cloche.sync.create_process_sandbox(pool_size=1, **self.fields)

    def warm(self, code, context=None, **fields):
        """Runs it warm; a busy machine may need a moment to have a box ready."""
        for _ in range(80):
            result = self.sandbox.run(code, context, **fields)
            if result.warm:
                return result
            time.sleep(0.05)
        raise AssertionError("no run was warm")

    def cold(self, code, context=None, **fields):
        with cloche.sync.create_process_sandbox(pool_size=0, **self.fields) as sandbox:
            return sandbox.run(code, context, **fields)

    def pick(self, script, text):
        return text if self.language == "python" else script


# --- what of its waiting it shows ---

STATE = """
const fs = require("node:fs");
const fds = fs.readdirSync("/proc/self/fd").map(name => {
  try { return [+name, fs.readlinkSync("/proc/self/fd/" + name).replace(/\\d+/g, "N")]; }
  catch { return null; }
}).filter(it => it && !/^\\/proc|anon_inode|^\\/dev\\/(null|urandom)|\\/fd$/.test(it[1]));
({ fds, env: { ...process.env }, argv: process.argv, cwd: process.cwd(),
   environ: fs.readFileSync("/proc/self/environ", "latin1"), names: Object.keys(globalThis),
   pids: fs.readdirSync("/proc").filter(it => /^\\d+$/.test(it)).length });
"""
PYTHON_STATE = """
import os, sys
fds = []
for name in os.listdir("/proc/self/fd"):
    try:
        fds.append([int(name), os.readlink("/proc/self/fd/" + name).split(":")[0]])
    except OSError:
        pass
{"fds": [it for it in fds if not it[1].startswith(("/proc", "anon_inode", "/dev/null"))],
 "env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd(),
 "environ": open("/proc/self/environ", encoding="latin1").read(),
 "names": sorted(name for name in globals() if not name.startswith("__")),
 "pids": len([it for it in os.listdir("/proc") if it.isdigit()])}
"""


def test_a_warm_run_sees_what_a_cold_one_sees(pooled, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", SECRET)
    code = pooled.pick(STATE, PYTHON_STATE)
    warm = pooled.warm(code, {"given": 1}, env={"OWN": "1"})
    cold = pooled.cold(code, {"given": 1}, env={"OWN": "1"})
    assert warm.ok and cold.ok, (warm.error, cold.error)
    assert SECRET not in f"{warm.value}"
    for name in ("env", "cwd", "pids"):
        assert warm.value[name] == cold.value[name], name
    assert warm.value["env"]["OWN"] == "1"
    assert set(warm.value["names"]) == set(cold.value["names"])
    kinds = [kind.partition(":")[0] for _, kind in warm.value["fds"]]
    own = {"pipe", "socket"} if pooled.runtime == "deno" else {"pipe"}  # Deno's wake-up pair
    assert set(kinds) <= own, warm.value["fds"]


def test_the_arguments_of_a_warm_process_are_those_of_a_cold_one(pooled):
    code = pooled.pick("process.argv", "import sys\nsys.argv")
    assert pooled.warm(code).value == pooled.cold(code).value


def test_a_warm_run_sees_nothing_of_the_runs_before_it(pooled):
    code = pooled.pick(
        "const seen = [globalThis.left, Object.prototype.left, process.env.LEFT].filter(Boolean);\n"
        "globalThis.left = Object.prototype.left = process.env.LEFT = '1'; seen.length",
        "import builtins, os\nseen = [hasattr(builtins, 'left'), 'LEFT' in os.environ]\n"
        "builtins.left = os.environ['LEFT'] = '1'\nseen.count(True)",
    )
    assert [pooled.warm(code).value for _ in range(3)] == [0, 0, 0]


def test_no_context_variable_or_code_of_a_run_stands_in_the_boxes_that_wait(pooled):
    """Also not in the next box, which is being made while the run is on."""
    pooled.warm("1", {"given": SECRET}, env={"OWN": SECRET})
    time.sleep(0.5)
    looked = 0
    for pid, process in descendants().items():
        if kept_as(process) == "warm":
            looked += 1
            for name in ("environ", "cmdline"):
                assert SECRET.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    assert looked


# --- its limits ---


def own_numbers(pooled, **fields):
    """What the kernel holds the box of a run to, read from outside while the run waits for it."""
    seen = {}
    names = ("memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.shares")

    async def look(inode):
        for pid, process in descendants().items():
            if not process.command.startswith("/usr/bin/"):
                continue
            if Path(f"/proc/{pid}/ns/pid").stat().st_ino != inode:
                continue
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                for controller in controllers.split(","):
                    folder = Path("/sys/fs/cgroup", controller, path.lstrip("/"))
                    seen.update(
                        {
                            n: (folder / n).read_text().strip()
                            for n in names
                            if (folder / n).exists()
                        }
                    )
            return 1
        return 0

    code = pooled.pick(
        "const fs = require('node:fs');\n"
        "await tools.look(+fs.readlinkSync('/proc/self/ns/pid').match(/\\d+/)[0])",
        "import os\nawait tools.look(int(os.readlink('/proc/self/ns/pid')[5:-1]))",
    )
    result = pooled.warm(code, tools={"look": look}, **fields)
    assert result.value == 1, result.error
    return seen, result


@pytest.mark.needs("cgroup-memory", "cgroup-pids")
def test_a_warm_run_with_limits_of_its_own_is_held_to_them_and_says_so(pooled):
    seen, result = own_numbers(pooled, memory_limit_mb=333, pids_limit=41)
    assert result.ok, result.error
    assert int(seen.get("memory.limit_in_bytes") or seen["memory.max"]) == 333 << 20
    assert int(seen["pids.max"]) >= 41
    told = {name: control.evidence for name, control in result.isolation.controls.items()}
    assert str(333 << 20) in told["memory"], told["memory"]
    # It is no box that waits any more: its weight is that of any run.
    assert seen.get("cpu.shares", "99") != "2"


def test_a_warm_run_over_its_own_memory_limit_is_ended_and_one_below_is_not(pooled):
    code = pooled.pick(
        "const a = []; for (let i = 0; i < n; i++) a.push(new Uint8Array(1 << 20).fill(1)); 1",
        "held = [bytes(1 << 20).replace(b'\\0', b'1') for _ in range(n)]\n1",
    )
    assert pooled.warm(code, {"n": 160}, memory_limit_mb=600).value == 1
    result = pooled.warm(code, {"n": 160}, memory_limit_mb=128)
    assert result.error_code is Code.MEMORY_EXCEEDED, result.error
    # The kernel lets a process that it kills take a little more on its way out.
    assert result.usage.peak_memory_bytes < 192 << 20


@pytest.mark.parametrize("limit", [4, 24])
def test_a_warm_run_starts_no_more_processes_than_it_may(limit):
    require_facts("runtime-python")
    code = (
        "import os, time\nn = 0\nfor _ in range(60):\n    try:\n        if os.fork() == 0:\n"
        "            time.sleep(9)\n            os._exit(0)\n        n += 1\n"
        "    except OSError:\n        break\nn"
    )

    async def test():
        async with cloche.create_process_sandbox(language="python", pool_size=1) as sandbox:
            result = await sandbox.run(code, pids_limit=limit)
            assert result.warm and result.ok, result.error
            assert result.value <= limit
            assert result.value >= limit - 3

    asyncio.run(test())


def test_the_deadline_of_a_warm_run_starts_with_its_request(pooled):
    pooled.warm("1")
    time.sleep(1.5)  # the box has waited longer than the run may take
    assert pooled.warm("1 + 1", timeout_ms=1200).value == 2
    spin = pooled.pick("for (;;);", "while True:\n    pass")
    result = pooled.warm(spin, timeout_ms=300)
    assert result.error_code is Code.TIMEOUT
    assert 300 <= result.duration_ms < 1500


def test_the_cpu_time_of_a_warm_run_is_not_that_of_its_waiting(pooled):
    assert pooled.warm("1 + 1", cpu_time_ms=400).value == 2
    spin = pooled.pick("for (;;);", "while True:\n    pass")
    result = pooled.warm(spin, cpu_time_ms=200)
    assert result.error_code is Code.TIMEOUT and "cpu_time_ms" in result.error
    assert result.usage.cpu_ms < 1500


def test_the_report_of_a_warm_run_is_that_of_the_process_that_ran_it(pooled):
    warm, cold = pooled.warm("1"), pooled.cold("1")
    controls = warm.isolation.controls
    assert set(controls) == set(cold.isolation.controls)
    for name, control in controls.items():
        assert control.strength == cold.isolation.controls[name].strength, name
        assert control.mechanism == cold.isolation.controls[name].mechanism, name


# --- its end ---


def test_all_that_was_printed_before_the_value_is_there(pooled):
    """The box is killed at its value's frame; what it printed is in the pipes by then."""
    code = pooled.pick(
        "for (let i = 0; i < n; i++) console.log('line ' + i);\n'value'",
        "for i in range(n):\n    print('line', i)\n'value'",
    )
    count = 100_000 if pooled.runtime in ("bun", "python") else 30_000
    result = pooled.warm(code, {"n": count}, output_limit_bytes=4 << 20)
    assert result.value == "value", result.error
    assert result.stdout == "".join(f"line {i}\n" for i in range(count))


def test_what_is_written_without_a_newline_and_to_both_streams_is_there(pooled):
    code = pooled.pick(
        "process.stdout.write('a'.repeat(300000)); process.stderr.write('b'.repeat(300000)); 1",
        "import sys\nsys.stdout.write('a' * 300000)\nsys.stderr.write('b' * 300000)\n1",
    )
    for _ in range(3):
        result = pooled.warm(code)
        assert result.value == 1, result.error
        assert (len(result.stdout), len(result.stderr)) == (300_000, 300_000)


LINGER = """
const { spawn } = require("node:child_process");
for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, () => {});
process.on("exit", () => { const end = Date.now() + 9000; while (Date.now() < end); });
process.on("beforeExit", () => setTimeout(() => {}, 9000));
spawn(process.execPath, ["-e", "setTimeout(() => {}, 9000)"],
  { detached: true, stdio: ["ignore", "inherit", "inherit"] }).unref();
setInterval(() => console.log("late"), 1);
"value";
"""
PYTHON_LINGER = """
import atexit, os, signal, threading, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
atexit.register(time.sleep, 9)
if os.fork() == 0:
    os.setsid()
    while True:
        try:
            os.write(1, b"late\\n")
        except OSError:
            os._exit(0)
        time.sleep(0.001)
threading.Thread(target=time.sleep, args=(9,)).start()
"value"
"""


def test_a_run_cannot_keep_its_box_beyond_its_value(pooled):
    began = time.monotonic()
    result = pooled.warm(pooled.pick(LINGER, PYTHON_LINGER), memory_limit_mb=512)
    assert (result.value, result.exit_code) == ("value", 0), result.error
    assert result.duration_ms < 5000
    assert time.monotonic() - began < 9
    # Output that came before the end is output; none comes to a later run.
    assert set(result.stdout.split()) <= {"late"}
    assert pooled.warm("1").stdout == ""


ORPHAN = """
const { spawn } = require("node:child_process");
spawn(process.execPath, ["-e", "setTimeout(() => {}, 60000)"],
  { detached: true, stdio: "ignore" }).unref();
await new Promise(done => setTimeout(done, 100));
console.log("started");
await new Promise(done => setTimeout(done, 300));
return "value";
"""
PYTHON_ORPHAN = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        time.sleep(5)
print("started", flush=True)
time.sleep(0.3)
"value"
"""


def box_of_the_orphan():
    """Pids of the box in which a runtime has a child: init, the runtime, the child.

    Empty where none of the runtimes looks as one that was started ahead.
    """
    now = descendants()
    guests = {each.parent for each in now.values() if not each.launches and each.parent in now}
    found = [pid for pid in guests if kept_as(now[pid]) == "warm"]
    below = [pid for pid, each in now.items() if each.parent in found]
    return {*(now[pid].parent for pid in found), *found, *below}


def test_nothing_of_a_warm_run_lives_at_the_moment_when_run_returns(pooled):
    held = {}

    def alive():
        return [pid for pid, pidfd in held.items() if not select.select([pidfd], [], [], 0)[0]]

    def hold(*_):
        if not held:
            held.update((pid, os.pidfd_open(pid)) for pid in box_of_the_orphan())
            seen.append(len(alive()))

    code = pooled.pick(ORPHAN, PYTHON_ORPHAN)
    for _ in range(80):
        seen = []
        result = pooled.sandbox.run(code, on_output=hold, memory_limit_mb=512)
        left = alive()
        for pidfd in held.values():
            os.close(pidfd)
        held.clear()
        assert (left, result.value) == ([], "value"), result.error
        if result.warm:
            assert seen[0] >= 3  # the control: init, the runtime and its orphan were there
            return
        time.sleep(0.05)
    raise AssertionError("no run was warm")


def test_what_a_run_prints_after_its_failure_is_no_excuse(pooled):
    code = pooled.pick(
        "setTimeout(() => console.log('late'), 300); throw new Error('first')",
        "import threading\nthreading.Timer(0.3, print, ['late']).start()\n1 / 0 + first",
    )
    result = pooled.warm(code)
    assert result.error_code is Code.EXECUTION_ERROR
    assert "first" in result.error or "ZeroDivisionError" in result.error
    assert result.exit_code == 1
    assert result.stdout == ""


def test_a_run_that_leaves_by_itself_has_its_own_exit_code(pooled):
    for number in (0, 3):
        code = pooled.pick(f"process.exit({number})", f"import os\nos._exit({number})")
        result = pooled.warm(code)
        assert (result.ok, result.exit_code) == (number == 0, number), result.error


FORGED_LATER = """
import os, sys
nonce, frame = None, sys._getframe()
while frame is not None:
    for value in list(frame.f_locals.values()):
        if isinstance(value, dict) and isinstance(value.get("nonce"), str):
            nonce = bytes.fromhex(value["nonce"])
    frame = frame.f_back
body = b'{"ok":true,"value":"early"}'
os.write(4, nonce + len(body).to_bytes(4, "big") + body)
open("/tmp/alive", "w").close()
while True:
    pass
"""


def test_a_forged_last_word_is_the_last_word():
    """Code of CPython may write the frame itself: then that is its value, and its end."""
    require_facts("runtime-python", "cgroup-memory", "cgroup-cpuacct")

    async def test():
        async with cloche.create_process_sandbox(language="python", pool_size=1) as sandbox:
            result = await sandbox.run(FORGED_LATER, timeout_ms=5000)
            assert (result.ok, result.value) == (True, "early"), result.error
            assert result.duration_ms < 4000

    asyncio.run(test())


# --- the pool ---


def test_no_run_is_served_after_disposal_and_nothing_waits_any_more(pooled):
    pooled.warm("1")
    pooled.sandbox.dispose()
    assert not [each for each in descendants().values() if each.command.startswith("/usr/bin/")]
    with pytest.raises(cloche.DisposedError):
        pooled.sandbox.run("1")


@pytest.mark.parametrize("varied", ["memory_limit_mb", "scratch_limit_mb"])
def test_runs_that_differ_in_a_limit_do_not_pile_up_warm_boxes(varied):
    """Whoever chooses a field of each run, chooses how many boxes the caller keeps."""
    name = "node" if varied == "memory_limit_mb" else "python"
    require_facts(f"runtime-{name}")
    pooled = Pooled(name)
    with pooled.sandbox as sandbox:
        for number in range(10):
            fields = {varied: 100 + number, "allow_fs": varied == "scratch_limit_mb"}
            assert sandbox.run("1", **fields).ok
        time.sleep(1.5)
        waiting = [each for each in descendants().values() if kept_as(each) == "warm"]
    assert len(waiting) <= 4


def test_two_hundred_runs_at_once_are_served_or_refused_and_never_mixed():
    async def test():
        async with cloche.create_process_sandbox(
            language="javascript", max_pending=60, queue_timeout_ms=60_000, timeout_ms=30_000
        ) as sandbox:
            runs = [
                sandbox.run("console.log(n); n", {"n": number}, memory_limit_mb=100 + number % 3)
                for number in range(200)
            ]
            results = await asyncio.gather(*runs, return_exceptions=True)
            refused = [
                n for n, each in enumerate(results) if isinstance(each, cloche.OverloadedError)
            ]
            served = [n for n, each in enumerate(results) if not isinstance(each, Exception)]
            assert len(refused) + len(served) == 200
            assert refused == list(range(len(served), 200))
            for number in served:
                assert (results[number].value, results[number].stdout) == (number, f"{number}\n")
            assert (await sandbox.run("1 + 1")).value == 2

    asyncio.run(asyncio.wait_for(test(), 55))


def test_a_hostile_neighbour_does_not_keep_the_pool_from_filling():
    """Beside a fork bomb and a memory hog, runs are served, each with its own value."""
    require_facts("runtime-python")
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    hog = "held = []\nwhile True:\n    held.append(bytes(1 << 20))"

    async def test():
        async with cloche.create_process_sandbox(
            language="python", pool_size=2, timeout_ms=20_000
        ) as sandbox:
            hostile = [
                asyncio.ensure_future(sandbox.run(bomb, timeout_ms=3000)),
                asyncio.ensure_future(sandbox.run(hog, timeout_ms=3000)),
            ]
            await asyncio.sleep(0.2)
            warm_count = 0
            for number in range(6):
                result = await sandbox.run("n * 2", {"n": number})
                assert result.value == number * 2, result.error
                warm_count += result.warm
                await asyncio.sleep(0.05)
            codes = {(await each).error_code for each in hostile}
            assert codes <= {Code.TIMEOUT, Code.MEMORY_EXCEEDED, Code.EXECUTION_ERROR}
            assert (await sandbox.run("1")).value == 1

    asyncio.run(asyncio.wait_for(test(), 50))


def test_a_box_that_is_killed_while_it_waits_costs_no_run(pooled):
    pooled.warm("1")
    time.sleep(0.5)
    killed = 0
    for pid, process in descendants().items():
        if kept_as(process) == "warm":
            os.kill(pid, signal.SIGKILL)
            killed += 1
    assert killed
    time.sleep(0.3)
    assert pooled.sandbox.run("1 + 1").value == 2
