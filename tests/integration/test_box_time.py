"""Deadlines hold whatever the guest does meanwhile, and the host's loop keeps turning."""

import asyncio
import time

import pytest

import cloche
from needs import BOX, needs, require_facts

TIMEOUT = cloche.SandboxErrorCode.TIMEOUT
LIMIT_MS, GRACE_MS = 400, 1000
# None of these ends by itself in less than many seconds.
ENDLESS = {
    # https://github.com/patriksimek/vm2/issues/180
    "loop": ("javascript", "let i = 0; while (true) { i++; }"),
    # https://github.com/rubyjs/mini_racer/issues/188
    "microtasks": (
        "javascript",
        "async function spin() { while (true) await null; }\nspin(); 'scheduled';",
    ),
    "ticks": ("javascript", "const spin = () => process.nextTick(spin); spin(); 'scheduled';"),
    # https://github.com/quickjs-ng/quickjs/issues/1399
    "regex": ("javascript", "/^(a+)+$/.test('a'.repeat(40) + '!');"),
    # https://github.com/justjake/quickjs-emscripten/issues/219
    "builtin": ("javascript", "new Array(5e7).fill(0).map(String).sort().join('ab').length;"),
    # https://github.com/rubyjs/mini_racer/issues/302
    "park": (
        "javascript",
        "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 60000);",
    ),
    "spawned": (
        "javascript",
        "require('node:child_process').execFileSync('/usr/bin/bun', ['-e', 'for(;;);'])",
    ),
    # https://github.com/n8n-io/n8n/pull/33969
    "conversion": ("javascript", "({ get a() { while (true); } })"),
    "toJSON": ("javascript", "({ toJSON() { while (true); } })"),
    "thenable": ("javascript", "await { then() {} }; 1"),
    "typescript": ("typescript", "for (let n: number = 0; ; n++);"),
    "python loop": ("python", "while True: pass"),
    # https://github.com/zopefoundation/RestrictedPython/issues/267
    "python builtin": ("python", "x = 3 ** (10 ** 8)\nprint('done')"),
    "python regex": ("python", "import re\nre.match(r'(a+)+$', 'a' * 40 + '!')"),
    "python sleep": ("python", "import time\ntime.sleep(60)"),
    "python lock": ("python", "import threading\nl = threading.Lock(); l.acquire(); l.acquire()"),
    "python conversion": (
        "python",
        "class D(dict):\n  def items(self):\n    while True: pass\nD(a=1)",
    ),
    "python read": ("python", "import os\nr, w = os.pipe()\nos.read(r, 1)"),
    "python finally": (
        "python",
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
    ),
}


@pytest.mark.case(
    "res-01-cpu-loop", "res-02-microtask-loop", "res-04-slow-builtin", "res-06-regex",
    "res-10-py-native-pow", "res-25-getter-toJSON", "to-04-native-sleep",
)  # fmt: skip
@pytest.mark.parametrize("kind", ENDLESS)
def test_the_deadline_holds_in(shared_sandbox, kind):
    language, code = ENDLESS[kind]
    started = time.monotonic()
    result = shared_sandbox.run(code, language=language, timeout_ms=LIMIT_MS, memory_limit_mb=1024)
    took_ms = (time.monotonic() - started) * 1000
    if kind == "python conversion" and result.ok:
        assert result.value == {"a": 1}  # the harness asks the dict itself, not its subclass
        return
    assert result.error_code is TIMEOUT, (result.error, result.value)
    assert str(LIMIT_MS) in result.error
    assert result.value is None
    assert LIMIT_MS <= took_ms < LIMIT_MS + GRACE_MS
    assert LIMIT_MS <= result.duration_ms < LIMIT_MS + GRACE_MS


def test_the_next_run_after_a_timeout_works(shared_sandbox):
    assert shared_sandbox.run("while (true);", timeout_ms=200).error_code is TIMEOUT
    assert shared_sandbox.run("1 + 1").value == 2


@pytest.mark.case("res-01-cpu-loop")
def test_the_hosts_loop_keeps_turning_while_guests_spin():
    require_facts(*BOX, "runtime-python")

    async def scenario():
        gaps = []
        async with cloche.create_process_sandbox(language="python") as sandbox:
            await sandbox.run("1")

            async def beat():
                last = time.monotonic()
                while True:
                    await asyncio.sleep(0.005)
                    now = time.monotonic()
                    gaps.append(now - last)
                    last = now

            heart = asyncio.create_task(beat())
            runs = [sandbox.run("while True: pass", timeout_ms=400) for _ in range(4)]
            results = await asyncio.gather(*runs)
            heart.cancel()
        assert {result.error_code for result in results} == {TIMEOUT}
        return max(gaps)

    assert asyncio.run(scenario()) < 0.25


@pytest.mark.case("to-07-partial-output")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "process.stdout.write('first\\n'); console.log('second');"
                       " console.error('third'); setInterval(() => {}, 1000);"
                       " await new Promise(() => {});"),
        ("python", "import sys, time\nprint('first')\nprint('second')\n"
                   "print('third', file=sys.stderr)\ntime.sleep(60)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["snippet", "program"])
def test_what_was_printed_before_the_deadline_is_kept(shared_sandbox, language, code, mode):
    # https://github.com/engineer-man/piston/issues/180
    result = shared_sandbox.run(code, language=language, mode=mode, timeout_ms=500)
    assert result.error_code is TIMEOUT
    assert (result.stdout, result.stderr) == ("first\nsecond\n", "third\n")


@pytest.mark.parametrize("children", [0, 3])
def test_cpu_time_is_counted_over_everything_that_the_run_starts(shared_sandbox, children):
    code = f"""
import os
for _ in range({children}):
    if os.fork() == 0:
        break
while True: pass
"""
    result = shared_sandbox.run(code, language="python", cpu_time_ms=300, timeout_ms=10_000)
    assert result.error_code is TIMEOUT
    assert "cpu_time_ms=300" in result.error
    assert 280 <= result.usage.cpu_ms < 1_000
    assert result.isolation.controls["cpu_time"].mechanism in ("cgroup", "proc")


def test_sleeping_costs_no_cpu_time(shared_sandbox):
    code = "import time\ntime.sleep(0.5)\n'slept'"
    result = shared_sandbox.run(code, language="python", cpu_time_ms=250)
    assert result.value == "slept", result.error


def test_cpu_time_of_children_that_have_ended_still_counts(shared_sandbox):
    code = """
import os, time
while True:
    if os.fork() == 0:
        end = time.process_time() + 0.02
        while time.process_time() < end: pass
        os._exit(0)
    os.wait()
"""
    result = shared_sandbox.run(code, language="python", cpu_time_ms=300, timeout_ms=10_000)
    assert result.error_code is TIMEOUT
    assert "cpu_time_ms" in result.error


@needs("cgroup-cpu")
def test_a_quota_of_cpus_holds_over_all_processes(shared_sandbox):
    code = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        break
end = time.monotonic() + 1.0
while time.monotonic() < end: pass
"""
    result = shared_sandbox.run(code, language="python", mode="program", cpu_limit=0.1)
    assert result.ok, result.error
    assert result.usage.cpu_ms < 250
    assert "0.1" in result.isolation.controls["cpu"].evidence
    free = shared_sandbox.run(code, language="python", mode="program")
    assert free.usage.cpu_ms > 300  # the control, also among busy neighbours


# https://github.com/quickjs-ng/quickjs/issues/1462
@pytest.mark.case("res-21-deep-recursion")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "function f(n) { return n === 0 ? 0 : 1 + f(n - 1); }\n"
                       "let r; try { r = f(1e6); } catch (e) { r = e.name; } r;"),
        ("javascript", "function f() { f(); }\nf();"),
        ("javascript", "let o = []; for (let i = 0; i < 1e5; i++) o = [o]; o.flat(Infinity)"),
        ("python", "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()"),
        ("python", "def f(): f()\nf()"),
    ],
)  # fmt: skip
def test_deep_recursion_harms_the_run_alone(shared_sandbox, language, code):
    result = shared_sandbox.run(code, language=language, timeout_ms=3_000)
    assert result.error_code in (
        None,
        cloche.SandboxErrorCode.EXECUTION_ERROR,
        cloche.SandboxErrorCode.MEMORY_EXCEEDED,
    )
    assert shared_sandbox.run("1 + 1", language=language).value == 2
