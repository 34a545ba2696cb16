"""Abort: a signal fires, or the awaiting task is cancelled."""

from __future__ import annotations

import asyncio
import threading
import time

from cloche.errors import SandboxErrorCode
from cloche.model.abort import AbortController
from cloche.testing.claims import describe, has_code, has_value, holds
from cloche.testing.promises.limits import SPIN
from cloche.testing.subject import Subject, promise


@promise(801)
async def a_signal_that_has_fired_starts_nothing(subject: Subject) -> None:
    """A run whose signal has fired already is aborted without a start.

    "SANDBOX_ABORTED: the signal fired (before the start: nothing is started); result."
    """
    controller = AbortController()
    controller.abort()
    heard: list[str] = []
    code = "print('ran')" if subject.language == "python" else "console.log('ran')"
    result = await subject.run(
        code, signal=controller.signal, on_output=lambda _, text: heard.append(text)
    )
    has_code(result, SandboxErrorCode.ABORTED)
    holds(not heard and result.duration_ms == 0 and result.usage.cpu_ms == 0, describe(result))


@promise(802)
async def a_signal_ends_a_run_at_once(subject: Subject) -> None:
    """A signal that fires, from any thread, ends the run; the next one works.

    "SANDBOX_ABORTED: the signal fired; result."
    """
    for language in subject.languages:
        controller = AbortController()
        timer = threading.Timer(0.3, controller.abort)
        timer.start()
        started = time.monotonic()
        code = SPIN["python" if language == "python" else "javascript"]
        result = await subject.run(
            code, language=language, signal=controller.signal, timeout_ms=30_000
        )
        took_s = time.monotonic() - started
        timer.join()
        has_code(result, SandboxErrorCode.ABORTED)
        holds(0.25 < took_s < 1.5, f"it took {took_s:.2f} s")
        has_value(await subject.run("1 + 1", language=language), 2)


@promise(803)
async def a_signal_that_fires_late_changes_nothing(subject: Subject) -> None:
    """After the end of a run its signal does nothing.

    "SANDBOX_ABORTED: the signal fired; result."
    """
    controller = AbortController()
    result = await subject.run("1 + 1", signal=controller.signal)
    controller.abort()
    has_value(result, 2)
    has_value(await subject.run("1 + 1"), 2)


@promise(804)
async def a_signal_at_any_instant_has_one_outcome(subject: Subject) -> None:
    """Whenever it fires, the run is either whole or aborted.

    "SANDBOX_ABORTED: the signal fired; result."
    """
    for step in range(12):
        controller = AbortController()
        timer = threading.Timer(step * 0.003, controller.abort)
        timer.start()
        result = await subject.run("1 + 1", signal=controller.signal)
        timer.join()
        if not result.ok:
            has_code(result, SandboxErrorCode.ABORTED)
        else:
            has_value(result, 2)
    has_value(await subject.run("1 + 1"), 2)


@promise(805)
async def a_signal_ends_a_run_that_waits_for_its_turn(subject: Subject) -> None:
    """A run in the queue is aborted there, and those that run are not.

    "SANDBOX_ABORTED: the signal fired (before the start: nothing is started); result."
    """
    controller = AbortController()
    spin = SPIN["python" if subject.language == "python" else "javascript"]
    async with subject.create(pool_size=1, timeout_ms=30_000) as sandbox:
        holders = [asyncio.ensure_future(sandbox.run(spin)) for _ in range(64)]
        await asyncio.sleep(0.4)
        waiting = asyncio.ensure_future(sandbox.run("1", signal=controller.signal))
        await asyncio.sleep(0.1)
        holds(not waiting.done(), "it did not wait")
        started = time.monotonic()
        controller.abort()
        result = await waiting
        holds(time.monotonic() - started < 1, "it waited on")
        has_code(result, SandboxErrorCode.ABORTED)
        holds(not any(holder.done() for holder in holders), "another run ended with it")
        for holder in holders:
            holder.cancel()
        await asyncio.gather(*holders, return_exceptions=True)
        has_value(await sandbox.run("1 + 1"), 2)


@promise(806)
async def cancelling_the_task_kills_the_run(subject: Subject) -> None:
    """The cancellation is kept, the code does not go on, and the next run works.

    "Cancelling the awaiting task kills the run."
    """
    codes = {
        "javascript": "for (;;) { console.log('alive');"
        " const t = Date.now(); while (Date.now() - t < 20); }",
        "python": "while True:\n    print('alive', flush=True)\n"
        "    n = 0\n    while n < 100000:\n        n += 1",
    }
    for language in subject.languages:
        heard: list[str] = []
        code = codes["python" if language == "python" else "javascript"]
        running = asyncio.ensure_future(
            subject.run(
                code,
                language=language,
                timeout_ms=30_000,
                on_output=lambda _, text, heard=heard: heard.append(text),
            )
        )
        deadline = time.monotonic() + 10
        while not heard and time.monotonic() < deadline and not running.done():
            await asyncio.sleep(0.02)
        holds(bool(heard), "it did not start")
        started = time.monotonic()
        running.cancel()
        (outcome,) = await asyncio.gather(running, return_exceptions=True)
        holds(isinstance(outcome, asyncio.CancelledError), f"swallowed: {outcome!r}")
        holds(time.monotonic() - started < 1.5, "the cancellation took too long")
        count = len(heard)
        await asyncio.sleep(0.15)
        holds(len(heard) == count, "the code went on")
        has_value(await subject.run("1 + 1", language=language), 2)


@promise(807)
async def a_cancellation_at_any_instant_is_kept(subject: Subject) -> None:
    """Whenever it comes, the cancellation is not swallowed, and nothing is clogged.

    "Cancelling the awaiting task kills the run."
    """
    await subject.run("1")
    for step in range(16):
        running = asyncio.ensure_future(subject.run("1 + 1"))
        await asyncio.sleep(step * 0.002)
        asked = running.cancel()
        (outcome,) = await asyncio.gather(running, return_exceptions=True)
        if asked:
            holds(isinstance(outcome, asyncio.CancelledError), f"{step}: swallowed: {outcome!r}")
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            has_value(outcome, 2)
    has_value(await subject.run("1 + 1"), 2)
