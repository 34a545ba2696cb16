"""Warm boxes of the process sandbox: as good as cold ones, and gone when nobody needs them."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cloche
from cloche import Mount, SandboxErrorCode
from observer import descendants

pytestmark = pytest.mark.kinds("process")
PATIENCE_S = 5.0
RUNTIMES = {"javascript": b"/usr/bin/bun", "python": b"/usr/bin/python3"}
LANGUAGES = tuple(RUNTIMES)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40):
            await test()

    asyncio.run(bounded())


async def warm(sandbox: Any, code: str, context: Any = None, **fields: Any) -> Any:
    """A warm run of the code; where none is there, one is on its way."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        result = await sandbox.run(code, context, **fields)
        if result.warm:
            return result
        await asyncio.sleep(0.05)
    raise AssertionError("no run was warm")


def waiting_boxes(language: str = "python") -> list[int]:
    """Processes below this one that have a runtime up and wait for a run."""
    found = []
    for pid, process in descendants().items():
        words = process.command.encode()
        if words.startswith(RUNTIMES[language]) and b"stream" in words.split():
            found.append(pid)
    return found


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_sandbox_that_was_entered_has_a_box_ready_for_its_first_run(
    create: Callable[..., Any], language: str
) -> None:
    async def test() -> None:
        async with create(language=language) as sandbox:
            result = await sandbox.run("1 + 1")
            assert (result.value, result.warm) == (2, True)

    run(test)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_run_has_its_own_context_and_variables_and_nothing_of_an_earlier_one(
    create: Callable[..., Any], language: str
) -> None:
    code = {
        "javascript": "const seen = [typeof mine, process.env.MINE ?? null, typeof left];"
        " globalThis.left = 1; process.env.LEFT = '1'; seen",
        "python": "import builtins, os\n"
        "seen = ['number' if 'mine' in globals() else 'undefined', os.environ.get('MINE'),\n"
        "        'number' if hasattr(builtins, 'left') or 'LEFT' in os.environ else 'undefined']\n"
        "builtins.left = 1\nos.environ['LEFT'] = '1'\nseen",
    }[language]

    async def test() -> None:
        async with create(language=language) as sandbox:
            for number in range(3):
                given = await warm(sandbox, code, {"mine": number}, env={"MINE": f"é{number}"})
                assert given.value == ["number", f"é{number}", "undefined"], given.error
                bare = await warm(sandbox, code)
                assert bare.value == ["undefined", None, "undefined"], bare.error

    run(test)


LIMITED: list[tuple[str, str, dict[str, Any], SandboxErrorCode]] = [
    ("javascript", "while (true);", {"timeout_ms": 300}, SandboxErrorCode.TIMEOUT),
    ("python", "while True: pass", {"timeout_ms": 300}, SandboxErrorCode.TIMEOUT),
    ("javascript", "while (true);", {"cpu_time_ms": 200}, SandboxErrorCode.TIMEOUT),
    ("python", "while True: pass", {"cpu_time_ms": 200}, SandboxErrorCode.TIMEOUT),
    ("javascript", "const x = []; for (;;) x.push(new Uint8Array(1 << 20).fill(1))",
     {"memory_limit_mb": 64}, SandboxErrorCode.MEMORY_EXCEEDED),
    ("python", "x = []\nwhile True: x.append(bytearray(1 << 20))",
     {"memory_limit_mb": 32}, SandboxErrorCode.MEMORY_EXCEEDED),
    ("python", "'x' * 100", {"value_limit_bytes": 50}, SandboxErrorCode.VALUE_TOO_LARGE),
]  # fmt: skip


@pytest.mark.parametrize(("language", "code", "fields", "told"), LIMITED, ids=range(len(LIMITED)))
def test_the_limits_of_a_run_hold_in_a_warm_box(
    create: Callable[..., Any], language: str, code: str, fields: dict[str, Any], told: Any
) -> None:
    async def test() -> None:
        async with create(language=language, timeout_ms=15_000) as sandbox:
            result = await warm(sandbox, code, **fields)
            assert result.error_code is told, result.error
            assert (await warm(sandbox, "1 + 1")).value == 2

    run(test)


def test_processes_have_their_limit_in_a_warm_box(create: Callable[..., Any]) -> None:
    code = (
        "import os, time\nmade = 0\ntry:\n    for _ in range(30):\n        if os.fork() == 0:\n"
        "            time.sleep(30)\n        made += 1\nexcept OSError: pass\nmade"
    )

    async def test() -> None:
        async with create(language="python") as sandbox:
            assert (await warm(sandbox, code, pids_limit=8)).value == 7
            assert (await warm(sandbox, code, pids_limit=64)).value == 30

    run(test)


def test_the_report_of_a_warm_run_is_that_of_its_own_limits(create: Callable[..., Any]) -> None:
    async def test() -> None:
        async with create(language="python") as sandbox:
            for limit in (64, 96):
                result = await warm(sandbox, "1", memory_limit_mb=limit)
                memory = result.isolation.controls["memory"]
                told = limit * 1024 * 1024 if memory.mechanism == "cgroup" else limit
                assert str(told) in memory.evidence

    run(test)


def test_the_wait_of_a_box_is_no_part_of_its_run(create: Callable[..., Any]) -> None:
    async def test() -> None:
        async with create(language="python", timeout_ms=400) as sandbox:
            await asyncio.sleep(0.8)
            result = await sandbox.run("1 + 1")
            assert (result.value, result.warm) == (2, True), result.error
            assert result.duration_ms < 400
            assert result.usage.cpu_ms < 300

    run(test)


def test_what_must_be_there_at_the_start_has_a_box_of_its_own(
    create: Callable[..., Any], open_folder: Path
) -> None:
    bypassing: list[dict[str, Any]] = [
        {"mounts": [Mount(str(open_folder), "data")]},
        {"files": {"a": "b"}},
        {"stdin": "text"},
        {"env": {"PYTHONHASHSEED": "1"}},
        {"env": {"LANG": "C"}},
        {"mode": "program"},
    ]

    async def test() -> None:
        async with create(language="python") as sandbox:
            await warm(sandbox, "1")
            for fields in bypassing:
                result = await sandbox.run("1 + 1", **fields)
                assert result.ok and not result.warm, fields
            result = await warm(sandbox, "1 + 1")
            assert result.value == 2

    run(test)


def test_variables_that_a_runtime_reads_at_its_start_have_their_effect(
    create: Callable[..., Any],
) -> None:
    async def test() -> None:
        async with create(language="python") as sandbox:
            code = "import sys\nsys.flags.hash_randomization"
            await warm(sandbox, "1")
            result = await sandbox.run("import time\ntime.tzname[0]", env={"TZ": "XYZ-3"})
            assert result.value == "XYZ", result.error
            assert (await sandbox.run(code, env={"MINE": "1"})).ok

    run(test)


def test_a_pool_of_none_has_no_box_ahead(create: Callable[..., Any]) -> None:
    async def test() -> None:
        async with create(language="python", pool_size=0) as sandbox:
            for _ in range(3):
                result = await sandbox.run("1 + 1")
                assert (result.value, result.warm) == (2, False)
                await asyncio.sleep(0.1)
                assert waiting_boxes() == []

    run(test)


@pytest.mark.parametrize("language", LANGUAGES)
def test_boxes_wait_idle_and_are_all_gone_after_dispose(
    create: Callable[..., Any], language: str
) -> None:
    async def test() -> None:
        async with create(language=language, pool_size=2) as sandbox:
            for _ in range(3):
                await sandbox.run("1")
            await until(lambda: len(waiting_boxes(language)) == 2, "no two boxes wait")
            await asyncio.sleep(0.5)  # what still starts is up by then
            before = {pid: ticks_of(pid) for pid in waiting_boxes(language)}
            await asyncio.sleep(0.5)
            for pid, ticks in before.items():
                assert ticks_of(pid) - ticks <= 2, "a box that waits computes"
        assert waiting_boxes(language) == []

    run(test)


def ticks_of(pid: int) -> int:
    """CPU time of a process. Source: man 5 proc, fields 14 and 15 of stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_box_that_is_killed_while_it_waits_is_replaced(create: Callable[..., Any]) -> None:
    async def test() -> None:
        async with create(language="python", pool_size=1) as sandbox:
            await warm(sandbox, "1")
            await until(lambda: len(waiting_boxes()) == 1, "no box waits")
            for _ in range(3):
                dying = waiting_boxes()
                for pid in dying:
                    os.kill(pid, signal.SIGKILL)
                await until(lambda dying=dying: not set(dying) & set(descendants()), "it lives")
                await asyncio.sleep(0.05)
                result = await sandbox.run("1 + 1")
                assert result.value == 2, result.error
            assert (await warm(sandbox, "2 + 2")).value == 4

    run(test)


def test_a_run_never_waits_for_ever_for_a_box(create: Callable[..., Any]) -> None:
    """Boxes are killed all the time; each run has its value, warm or cold."""

    async def test() -> None:
        async with create(language="python", pool_size=2, timeout_ms=5000) as sandbox:
            stopped = asyncio.Event()

            async def murder() -> None:
                while not stopped.is_set():
                    for pid in waiting_boxes():
                        try:
                            os.kill(pid, signal.SIGSTOP)
                            os.kill(pid, signal.SIGKILL)
                        except ProcessLookupError:
                            continue
                    await asyncio.sleep(0.03)

            killer = asyncio.ensure_future(murder())
            outcomes = []
            for _ in range(15):
                result = await sandbox.run("1 + 1")
                outcomes.append(result)
            stopped.set()
            await killer
            await asyncio.sleep(0.2)
            for result in outcomes:  # a box may be killed with the run in it: that is told
                killed = result.error_code is SandboxErrorCode.EXECUTION_ERROR
                assert result.value == 2 or killed, result.error
            assert (await warm(sandbox, "1 + 1")).value == 2

    run(test)


def test_a_box_that_is_stopped_while_it_waits_is_a_timeout_and_no_hang(
    create: Callable[..., Any],
) -> None:
    async def test() -> None:
        async with create(language="python", pool_size=1, timeout_ms=500) as sandbox:
            await warm(sandbox, "1")
            await until(lambda: len(waiting_boxes()) == 1, "no box waits")
            for pid in waiting_boxes():
                os.kill(pid, signal.SIGSTOP)
            started = time.monotonic()
            result = await sandbox.run("1 + 1")
            assert time.monotonic() - started < 2.5
            assert result.value == 2 or result.error_code is SandboxErrorCode.TIMEOUT
            assert (await warm(sandbox, "1 + 1")).value == 2

    run(test)


@pytest.fixture
def many(create: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Makes a sandbox whose pool may grow."""
    yield lambda **fields: create(language="python", pool_size=4, timeout_ms=20_000, **fields)


def test_many_runs_at_once_have_each_a_box_of_their_own(many: Callable[..., Any]) -> None:
    code = "import os\ntry:\n    seen = open('/tmp/x').read()\nexcept OSError:\n    seen = None\n" \
           "open('/tmp/x', 'w').write(str(me))\n[me, seen]"  # fmt: skip

    async def test() -> None:
        async with many(allow_fs=True) as sandbox:
            for _ in range(2):
                runs = (sandbox.run(code, {"me": number}) for number in range(10))
                results = await asyncio.gather(*runs)
                assert [one.value for one in results] == [[number, None] for number in range(10)]
                await until(lambda: len(waiting_boxes()) >= 2, "no boxes wait")
            assert any(one.warm for one in results)

    run(test)


def test_the_one_shot_leaves_no_box_behind() -> None:
    result = cloche.sync.run("1 + 1", language="python")
    assert (result.value, result.warm) == (2, False)
    assert waiting_boxes() == []
