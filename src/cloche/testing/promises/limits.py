"""Limits: time, memory and processes, and what happens where they are passed."""

from __future__ import annotations

import time

from cloche.errors import SandboxErrorCode
from cloche.testing.claims import describe, has_code, has_value, holds, is_ok
from cloche.testing.subject import Subject, promise

# Longest call: queue_timeout + timeout + grace.
GRACE_S = 1.0
SPIN = {"javascript": "while (true);", "python": "while True:\n    pass"}
WAIT = {"javascript": "await new Promise(() => {})", "python": SPIN["python"]}
GROW = {
    "javascript": "const x = []; for (;;) x.push(new Uint8Array(1 << 20).fill(1))",
    "python": "x = []\nwhile True:\n    x.append(bytearray(1 << 20))",
}
GROW_TEXT = {
    "javascript": "const x = []; for (let i = 0;; i++) x.push('x'.repeat(1 << 20) + i)",
    "python": "x = []\ni = 0\nwhile True:\n    i += 1\n    x.append('x' * 1000000 + str(i))",
}


@promise(701)
async def a_timeout_ends_the_run(subject: Subject) -> None:
    """A run that computes for ever ends when `timeout_ms` is over, and says which deadline it was.

    "`timeout_ms`: wall clock from the start of the code to the converted result";
    "SANDBOX_TIMEOUT: a deadline passed (which one: `error`); result."
    """
    async for result in subject.each(SPIN, timeout_ms=300):
        has_code(result, SandboxErrorCode.TIMEOUT, "timeout_ms=300")
        holds(300 <= result.duration_ms < 300 + GRACE_S * 1000, describe(result))
    has_value(await subject.run("1 + 1"), 2)


@promise(702, needs=("javascript",))
async def a_run_that_waits_for_ever_ends(subject: Subject) -> None:
    """A promise that is never settled is a timeout, or an error that says so; never a value.

    "Longest call: queue_timeout + timeout + grace (1 s)."
    """
    started = time.monotonic()
    result = await subject.run(WAIT["javascript"], language="javascript", timeout_ms=400)
    holds(time.monotonic() - started < 0.4 + GRACE_S + 1, describe(result))
    holds(not result.ok, f"it had a value: {describe(result)}")
    has_value(await subject.run("1 + 1"), 2)


@promise(703)
async def a_timeout_holds_in_one_long_operation(subject: Subject) -> None:
    """The deadline is kept where the language itself is busy and asks nobody.

    "`timeout_ms`: wall clock from the start of the code to the converted result."
    """
    codes = {
        "javascript": "const a = new Array(3e7).fill(1); a.sort(() => 0.5 - Math.random()); 1",
        "python": "n = 7 ** 30000000",
    }
    stopped = [SandboxErrorCode.TIMEOUT, SandboxErrorCode.MEMORY_EXCEEDED]
    started = time.monotonic()
    async for result in subject.each(codes, timeout_ms=300, memory_limit_mb=1024):
        refused = subject.kind == "worker" and not result.ok  # an engine may know better
        holds(refused or result.error_code in stopped, describe(result))
        holds(result.duration_ms < 300 + GRACE_S * 1000, describe(result))
    limit = len(subject.languages) * (0.3 + GRACE_S + 1)
    holds(time.monotonic() - started < limit, "a call took too long")
    has_value(await subject.run("1 + 1"), 2)


@promise(704)
async def cpu_time_has_a_limit_of_its_own(subject: Subject) -> None:
    """`cpu_time_ms` ends what computes for too long, and does not count what waits.

    "`cpu_time_ms`: CPU time of everything the run starts; a verdict that a busy neighbour cannot
    change."
    """
    async for result in subject.each(SPIN, cpu_time_ms=200, timeout_ms=20_000):
        has_code(result, SandboxErrorCode.TIMEOUT, "cpu_time_ms=200")
        holds(result.usage.cpu_ms >= 200, describe(result))
    async for result in subject.each({"javascript": "1", "python": "1"}, cpu_time_ms=5000):
        is_ok(result)


@promise(705)
async def memory_has_a_limit(subject: Subject) -> None:
    """A run that takes ever more memory is stopped as such, and the next one works.

    "SANDBOX_MEMORY_EXCEEDED: the memory limit stopped it or any part of it; result."
    """
    for codes in (GROW_TEXT, GROW):
        async for result in subject.each(codes, memory_limit_mb=64, timeout_ms=20_000):
            if subject.kind == "worker" and "bytearray" in (result.error or ""):
                continue  # its engine has no bytearray
            has_code(result, SandboxErrorCode.MEMORY_EXCEEDED)
        has_value(await subject.run("1 + 1"), 2)


@promise(706)
async def memory_within_the_limit_is_there(subject: Subject) -> None:
    """What the limit allows can be used.

    "`memory_limit_mb`: 128: everything the run holds, its scratch included."
    """
    codes = {
        "javascript": "const a = []; for (let i = 0; i < 40; i++)"
        " a.push(new Uint8Array(1 << 20).fill(1)); a.length",
        "python": "a = []\nfor i in range(40):\n    a.append('x' * 1000000 + str(i))\nlen(a)",
    }
    async for result in subject.each(codes, memory_limit_mb=192, timeout_ms=20_000):
        has_value(result, 40)


@promise(707, needs=("programs", "python"))
async def the_memory_of_children_counts(subject: Subject) -> None:
    """A process that the code starts counts, and its death is told as the limit's.

    "SANDBOX_MEMORY_EXCEEDED: the memory limit stopped it or any part of it; result."
    """
    code = (
        "import os\n"
        "if os.fork() == 0:\n"
        "    x = []\n"
        "    while True:\n"
        "        x.append(bytearray(1 << 20))\n"
        "os.wait()\n1"
    )
    result = await subject.run(code, language="python", memory_limit_mb=64, timeout_ms=20_000)
    has_code(result, SandboxErrorCode.MEMORY_EXCEEDED)


@promise(708, needs=("programs", "python"))
async def processes_have_a_limit(subject: Subject) -> None:
    """No more processes than `pids_limit`; the host does not notice.

    "`pids_limit`: 64: processes and threads."
    """
    code = (
        "import os, time\nmade = 0\n"
        "try:\n    for _ in range(40):\n        if os.fork() == 0:\n            time.sleep(30)\n"
        "        made += 1\nexcept OSError:\n    pass\nmade"
    )
    result = await subject.run(code, language="python", pids_limit=12)
    holds(result.ok and 5 <= result.value < 12, describe(result))
    has_value(await subject.run(code, language="python", pids_limit=64), 40)


@promise(709)
async def limits_are_set_per_run(subject: Subject) -> None:
    """A small limit of one run is none of the next one's, and the other way round.

    "… its fields, which override per run, both ways."
    """
    codes = {
        "javascript": "const a = []; for (let i = 0; i < 60; i++)"
        " a.push('x'.repeat(1 << 20) + i); a.length",
        "python": "a = []\nfor i in range(60):\n    a.append('x' * 1000000 + str(i))\nlen(a)",
    }
    for limit in (32, 256, 32):
        async for result in subject.each(codes, memory_limit_mb=limit, timeout_ms=20_000):
            if limit == 32:
                has_code(result, SandboxErrorCode.MEMORY_EXCEEDED)
            else:
                has_value(result, 60)


@promise(710, needs=("programs", "python"))
async def no_process_of_a_run_outlives_it(subject: Subject) -> None:
    """A process that has left its parent, its session and its signals ends with the run.

    "When `run` returns, no process of the run exists and everything it wrote is gone, whatever it
    did."
    """
    code = (
        "import os, signal, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    if os.fork() == 0:\n"
        "        for _ in range(600):\n"
        "            print('alive', flush=True)\n"
        "            time.sleep(0.05)\n"
        "    os._exit(0)\n"
        "time.sleep(0.3)\n1"
    )
    heard: list[str] = []
    result = await subject.run(
        code, language="python", on_output=lambda _, text: heard.append(text)
    )
    has_value(result, 1)
    holds(bool(heard), "the process did not even start")
    count = len(heard)
    has_value(await subject.run("1 + 1", language="python"), 2)
    holds(len(heard) == count, "it was heard after the run")
