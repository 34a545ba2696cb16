"""Ending a run from outside: a signal fires, or the awaiting task is cancelled."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import cloche
from cloche import AbortController, SandboxErrorCode

SPIN = {
    "javascript": "const t = Date.now(); while (Date.now() - t < 20000); 'late'",
    "typescript": "let t: number = Date.now(); while (Date.now() - t < 20000); 'late'",
    "python": "n = 0\nwhile n < 10 ** 12: n += 1\n'late'",
}


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())


def guests() -> set[int]:
    """Processes below this one that run a caller's code; the transformer's are not among them."""
    parents: dict[int, int] = {}
    names: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                names[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found = set()
    for pid in parents:
        above = parents[pid]
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and names[pid].startswith(b"/usr/bin/"):
            if b"transformer" in names[pid]:
                continue
            found.add(pid)
    return found


def test_a_signal_that_has_fired_already_starts_nothing(sandbox: Any) -> None:
    controller = AbortController()
    controller.abort()
    heard: list[str] = []
    started = time.monotonic()
    result = sandbox.run(
        "console.log('ran'); 1",
        signal=controller.signal,
        on_output=lambda _, text: heard.append(text),
    )
    assert time.monotonic() - started < 0.5
    assert result.error_code is SandboxErrorCode.ABORTED
    assert (result.ok, result.value, result.stdout, heard) == (False, None, "", [])
    assert (result.exit_code, result.duration_ms, result.usage.cpu_ms) == (None, 0, 0)
    assert result.isolation.backend == "none"


@pytest.mark.case("api-08-abort-mid-run")
@pytest.mark.parametrize("language", SPIN)
def test_a_signal_ends_a_run_at_once_and_the_next_one_works(sandbox: Any, language: str) -> None:
    sandbox.run("1", language=language)  # what it needs is there
    controller = AbortController()
    timer = threading.Timer(0.3, controller.abort)
    timer.start()
    started = time.monotonic()
    result = sandbox.run(
        SPIN[language], language=language, signal=controller.signal, timeout_ms=30_000
    )
    assert 0.25 < time.monotonic() - started < 1.3
    timer.join()
    assert result.error_code is SandboxErrorCode.ABORTED
    assert (result.ok, result.value, result.exit_code, result.signal) == (False, None, None, 9)
    assert sandbox.run("1 + 1", language=language).value == 2


def test_a_signal_ends_a_run_while_its_text_is_still_being_read(sandbox: Any, kind: str) -> None:
    takes_the_parser_seconds = "a?" * 500_000
    controller = AbortController()
    threading.Timer(0.1, controller.abort).start()
    started_at = time.monotonic()
    result = sandbox.run(takes_the_parser_seconds, signal=controller.signal)
    assert result.error_code is SandboxErrorCode.ABORTED
    assert time.monotonic() - started_at < 1
    # Control: without the signal it is read to its refusal, which takes longer than that.
    started_at = time.monotonic()
    result = sandbox.run(takes_the_parser_seconds)
    # A worker's parser has the memory of the run.
    codes = ("INVALID_CODE",) if kind == "process" else ("INVALID_CODE", "MEMORY_EXCEEDED")
    assert result.error_code in [SandboxErrorCode[code] for code in codes]
    assert time.monotonic() - started_at > 0.3


def test_a_signal_that_fires_after_the_end_changes_nothing(sandbox: Any) -> None:
    controller = AbortController()
    result = sandbox.run("1 + 1", signal=controller.signal)
    controller.abort()
    assert (result.ok, result.value) == (True, 2)
    assert sandbox.run("1 + 1").value == 2


def test_one_signal_ends_all_the_runs_that_have_it_and_no_other(
    create: Callable[..., Any],
) -> None:
    async def test() -> None:
        controller = AbortController()
        async with create() as sandbox:
            code = "const t = Date.now(); while (Date.now() - t < 1000); 'done'"
            signalled = [sandbox.run(code, signal=controller.signal) for _ in range(2)]
            running = asyncio.gather(sandbox.run(code), *signalled)
            await asyncio.sleep(0.4)
            controller.abort()
            other, *ended = await running
        assert other.value == "done"
        assert [one.error_code for one in ended] == [SandboxErrorCode.ABORTED] * 2

    run(test)


def test_a_signal_in_the_last_instant_gives_one_outcome_or_the_other(
    sandbox: Any, kind: str
) -> None:
    chance = random.Random(8)
    seen = set()
    started_at = time.monotonic()
    sandbox.run("1 + 1")
    usual_s = time.monotonic() - started_at
    for attempt in range(40):
        controller = AbortController()
        delay_s = chance.uniform(0, 2 * usual_s) if attempt else 0
        timer = threading.Timer(delay_s, controller.abort)
        timer.start()
        result = sandbox.run("1 + 1", signal=controller.signal)
        timer.join()
        if result.ok:
            assert result.value == 2
        else:
            assert result.error_code is SandboxErrorCode.ABORTED
            assert result.value is None
        seen.add(result.ok)
    assert sandbox.run("1 + 1").value == 2
    # A worker's run of a millisecond may be over before any thread gets its turn.
    assert len(seen) == 2 or kind == "worker", "the instants were all early or all late"


@pytest.mark.parametrize("language", ["javascript", "python"])
def test_a_signal_ends_a_run_that_waits_for_its_turn(
    create: Callable[..., Any], language: str
) -> None:
    async def test() -> None:
        controller = AbortController()
        slots_count = 2 * (os.cpu_count() or 1)
        async with create(timeout_ms=10_000) as sandbox:
            holders = [
                asyncio.create_task(sandbox.run(SPIN["python"], language="python"))
                for _ in range(slots_count)
            ]
            await asyncio.sleep(0.5)
            waiting = asyncio.create_task(
                sandbox.run("1", language=language, signal=controller.signal)
            )
            await asyncio.sleep(0.1)
            assert not any(holder.done() for holder in holders)
            assert not waiting.done()
            started = time.monotonic()
            controller.abort()
            result = await waiting
            assert time.monotonic() - started < 1
            assert result.error_code is SandboxErrorCode.ABORTED
            for holder in holders:
                holder.cancel()
            await asyncio.gather(*holders, return_exceptions=True)
            assert (await sandbox.run("1 + 1", language=language)).value == 2

    run(test)


@pytest.mark.kinds("process")
@pytest.mark.case("api-08-abort-mid-run")
@pytest.mark.parametrize("language", SPIN)
def test_cancelling_the_awaiting_task_kills_the_run(
    create: Callable[..., Any], language: str
) -> None:
    async def test() -> None:
        async with create(language=language, timeout_ms=30_000, pool_size=0) as sandbox:
            before = guests()
            running = asyncio.create_task(sandbox.run(SPIN[language]))
            await asyncio.sleep(0.5)
            assert guests() - before, "the run had not started yet"
            running.cancel()
            started = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not guests() - before
            assert time.monotonic() - started < 1
            assert (await sandbox.run("1 + 1")).value == 2

    run(test)


@pytest.mark.kinds("process")
def test_a_caller_that_waits_no_longer_leaves_nothing_running(create: Callable[..., Any]) -> None:
    async def test() -> None:
        async with create(language="python", timeout_ms=30_000, pool_size=0) as sandbox:
            before = guests()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.4):
                    await sandbox.run(SPIN["python"])
            assert not guests() - before

    run(test)


@pytest.mark.kinds("process")
@pytest.mark.parametrize("language", ["javascript", "python"])
def test_a_cancellation_at_any_instant_is_kept_and_leaves_nothing(
    create: Callable[..., Any], language: str
) -> None:
    async def test() -> None:
        chance = random.Random(3)
        outcomes = set()
        async with create(language=language, timeout_ms=5000, pool_size=0) as sandbox:
            await sandbox.run("1")
            before = guests()
            for attempt in range(40):
                running = asyncio.create_task(sandbox.run("1 + 1"))
                await asyncio.sleep(0 if attempt < 5 else chance.uniform(0, 0.05))
                was_done = running.done()
                asked = running.cancel()
                assert asked is not was_done
                (outcome,) = await asyncio.gather(running, return_exceptions=True)
                assert not guests() - before, f"attempt {attempt}: {outcome!r}"
                if asked:
                    assert isinstance(outcome, asyncio.CancelledError), f"{attempt}: swallowed"
                else:
                    assert outcome.value == 2
                outcomes.add(asked)
            assert (await sandbox.run("1 + 1")).value == 2
        assert True in outcomes

    run(test)


def test_abort_is_not_a_timeout_and_not_an_error_of_the_code() -> None:
    controller = AbortController()
    threading.Timer(0.4, controller.abort).start()
    result = cloche.sync.run("while (true);", signal=controller.signal, timeout_ms=20_000)
    assert result.error_code is SandboxErrorCode.ABORTED
    with pytest.raises(cloche.AbortedError):
        result.raise_for_error()
