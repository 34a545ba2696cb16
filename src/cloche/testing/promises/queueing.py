"""Queue: many runs at once."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

from cloche.errors import OverloadedError, SandboxErrorCode
from cloche.testing.claims import describe, has_code, has_value, holds, refused
from cloche.testing.promises.limits import GROW_TEXT, SPIN
from cloche.testing.subject import Subject, promise

BUSY: Final = {
    "javascript": "const t = Date.now(); while (Date.now() - t < 250); 1",
    "python": "n = 0\nwhile n < 2000000:\n    n += 1\n1",
}


@promise(1001)
async def runs_at_once_have_each_their_own_result(subject: Subject) -> None:
    """Twenty runs at a time are not mixed up.

    "A run never sees anything of an earlier run."
    """
    codes = {"javascript": "console.log(me); me", "python": "print(me)\nme"}
    for language in subject.languages:
        code = codes["python" if language == "python" else "javascript"]
        runs = (
            subject.run(code, {"me": number}, language=language, timeout_ms=20_000)
            for number in range(20)
        )
        results = await asyncio.gather(*runs)
        for number, result in enumerate(results):
            has_value(result, number)
            holds(result.stdout == f"{number}\n", describe(result))
        holds(len({result.run_id for result in results}) == 20, "run ids are not unique")


@promise(1002)
async def a_greedy_neighbour_fails_alone(subject: Subject) -> None:
    """A run that is stopped for its memory or its time harms no other.

    "killed from outside when they overrun"; "a verdict that a busy neighbour cannot change."
    """
    python = subject.language == "python"
    bad = (
        GROW_TEXT["python" if python else "javascript"],
        SPIN["python" if python else "javascript"],
    )
    async with subject.create(timeout_ms=1500, memory_limit_mb=64) as sandbox:
        runs = [sandbox.run(bad[i // 4 % 2] if i % 4 == 0 else "1 + 1") for i in range(12)]
        results = await asyncio.gather(*runs)
    for index, result in enumerate(results):
        if index % 4 == 0:
            codes = (SandboxErrorCode.MEMORY_EXCEEDED, SandboxErrorCode.TIMEOUT)
            holds(result.error_code in codes, describe(result))
        else:
            has_value(result, 2)


@promise(1003)
async def ten_times_too_many_are_served_or_refused(subject: Subject) -> None:
    """Nothing hangs at ten times the load, and the sandbox works afterwards.

    "SANDBOX_OVERLOADED: queue full or queue timeout; retry later; raised."
    """
    busy = BUSY["python" if subject.language == "python" else "javascript"]
    async with subject.create(max_pending=20, queue_timeout_ms=1000, timeout_ms=5000) as sandbox:
        count = 10 * (20 + 2 * (os.cpu_count() or 1))
        started = time.monotonic()
        runs = [sandbox.run(busy) for _ in range(count)]
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        took_s = time.monotonic() - started
        refused_count = served_count = 0
        for outcome in outcomes:
            if isinstance(outcome, OverloadedError):
                holds(outcome.retry_safe, "refused, but not retry_safe")
                refused_count += 1
            elif isinstance(outcome, BaseException):
                raise AssertionError(f"neither served nor refused: {outcome!r}") from outcome
            else:
                has_value(outcome, 1)
                served_count += 1
        told = f"{served_count} served, {refused_count} refused in {took_s:.1f} s"
        holds(served_count > 0 and refused_count > 0 and took_s < 15, told)
        has_value(await sandbox.run("1 + 1"), 2)


@promise(1004)
async def a_full_queue_refuses_at_once(subject: Subject) -> None:
    """With no place to wait in, a run that finds no slot is refused.

    "`max_pending`: 1000"; "SANDBOX_OVERLOADED: queue full or queue timeout; retry later; raised."
    """
    spin = SPIN["python" if subject.language == "python" else "javascript"]
    async with subject.create(max_pending=0, timeout_ms=400) as sandbox:
        started = time.monotonic()
        runs = [asyncio.ensure_future(sandbox.run(spin)) for _ in range(200)]
        done, _ = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
        holds(time.monotonic() - started < 0.3, "the refusal took too long")
        error = next(iter(done)).exception()
        holds(isinstance(error, OverloadedError), f"{error!r}")
        holds("max_pending" in str(error), f"{error}")
        await asyncio.gather(*runs, return_exceptions=True)


@promise(1005)
async def the_wait_for_a_slot_is_bounded_and_measured(subject: Subject) -> None:
    """`queue_timeout_ms` bounds the wait; `queue_ms` tells it, and it is no part of the run's time.

    "`queue_timeout_ms`: 30,000: longest wait for a free slot."
    """
    busy = BUSY["python" if subject.language == "python" else "javascript"]
    async with subject.create(timeout_ms=5000) as sandbox:
        runs = [asyncio.ensure_future(sandbox.run(busy)) for _ in range(6 * (os.cpu_count() or 1))]
        await asyncio.sleep(0.05)
        started = time.monotonic()
        with refused("queue_timeout_ms", code=SandboxErrorCode.OVERLOADED):
            await sandbox.run("1", queue_timeout_ms=50)
        holds(time.monotonic() - started < 1, "it waited on")
        results = await asyncio.gather(*runs)
        for result in results:
            has_value(result, 1)
        waits = [result.queue_ms for result in results]
        holds(min(waits) < 100 and max(waits) > 150, f"queue_ms: {waits}")


@promise(1006)
async def a_wait_does_not_count_against_the_timeout(subject: Subject) -> None:
    """A run that waited longer than its `timeout_ms` still has all of that.

    "`timeout_ms`: wall clock from the start of the code to the converted result."
    """
    python = subject.language == "python"
    code = "n = 0\nwhile n < 300000:\n    n += 1\n1" if python else BUSY["javascript"]
    async with subject.create(timeout_ms=1200) as sandbox:
        results = await asyncio.gather(*(sandbox.run(code) for _ in range(12)))
    for result in results:
        has_value(result, 1)


@promise(1007)
async def languages_mix(subject: Subject) -> None:
    """One sandbox runs all its languages at a time.

    "`language`: javascript · typescript · python."
    """
    runs = [
        subject.run(f"{number} + 1", language=language, timeout_ms=20_000)
        for number in range(4)
        for language in subject.languages
    ]
    results = await asyncio.gather(*runs)
    expected = [number + 1 for number in range(4) for _ in subject.languages]
    for result, value in zip(results, expected, strict=True):
        has_value(result, value)


@promise(1008)
async def a_failed_run_leaves_its_slot(subject: Subject) -> None:
    """However runs end, the slots are free again.

    "what outlives that is an internal error and its slot is not used again" (and only that).
    """
    python = subject.language == "python"
    spin = SPIN["python" if python else "javascript"]
    async with subject.create(timeout_ms=150, queue_timeout_ms=20_000) as sandbox:
        for _ in range(2):
            runs = [sandbox.run(spin) for _ in range(5)]
            for result in await asyncio.gather(*runs):
                has_code(result, SandboxErrorCode.TIMEOUT)
        has_value(await sandbox.run("1 + 1", timeout_ms=5000), 2)
