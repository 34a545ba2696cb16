"""`dispose` ends what runs, leaves nothing, and may be called as often as one likes."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import cloche
from cloche import DisposedError, SandboxErrorCode

SLEEP = {
    "javascript": "await new Promise(r => setTimeout(r, 20000))",
    "python": "import time\ntime.sleep(20)",
}


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


def test_a_run_after_dispose_is_refused(create_sync: Callable[..., Any]) -> None:
    sandbox = create_sync()
    with sandbox:
        assert sandbox.run("1").ok
    for _ in range(2):
        with pytest.raises(DisposedError) as caught:
            sandbox.run("1")
        assert caught.value.code is SandboxErrorCode.DISPOSED
        assert caught.value.retry_safe
        sandbox.dispose()


def test_a_sandbox_that_never_ran_can_be_disposed(create_sync: Callable[..., Any]) -> None:
    sandbox = create_sync()
    sandbox.dispose()
    sandbox.dispose()
    with pytest.raises(DisposedError), sandbox:
        raise AssertionError("entered")


def test_a_sandbox_starts_with_its_first_run_when_nobody_enters_it(
    create_sync: Callable[..., Any],
) -> None:
    sandbox = create_sync()
    try:
        assert sandbox.run("1 + 1").value == 2
        assert sandbox.run("1 + 1", language="python").value == 2
    finally:
        sandbox.dispose()


@pytest.mark.parametrize("language", SLEEP)
def test_runs_in_flight_end_as_disposed(create: Callable[..., Any], language: str) -> None:
    async def test() -> None:
        sandbox = create(language=language, timeout_ms=30_000)
        # More than there are slots: some wait in the queue.
        count = 2 * (os.cpu_count() or 1) + 3
        runs = [asyncio.create_task(sandbox.run(SLEEP[language])) for _ in range(count)]
        await asyncio.sleep(0.6)
        started = time.monotonic()
        await sandbox.dispose()
        assert time.monotonic() - started < 3
        for one in runs:
            assert one.done() or await asyncio.wait_for(one, 1)
            result = one.result()
            assert (result.ok, result.error_code) == (False, SandboxErrorCode.DISPOSED)
            with pytest.raises(cloche.DisposedInFlightError):
                result.raise_for_error()

    run(test)


@pytest.mark.parametrize("delay_s", [0, 0.001, 0.01, 0.05])
@pytest.mark.parametrize("language", SLEEP)
def test_dispose_may_come_at_any_time_of_a_run(
    create: Callable[..., Any], language: str, delay_s: float
) -> None:
    async def test() -> None:
        sandbox = create(language=language, timeout_ms=30_000)
        running = asyncio.create_task(sandbox.run(SLEEP[language]))
        await asyncio.sleep(delay_s)
        await sandbox.dispose()
        (outcome,) = await asyncio.gather(running, return_exceptions=True)
        told = outcome if isinstance(outcome, cloche.ClocheError) else None
        code = told.code if told is not None else outcome.error_code
        assert code is SandboxErrorCode.DISPOSED, repr(outcome)

    run(test)


def test_dispose_waits_for_runs_and_not_for_what_their_callers_do_next(
    create: Callable[..., Any],
) -> None:
    async def test() -> None:
        sandbox = create(language="python", timeout_ms=30_000)
        disposed = asyncio.Event()

        async def caller() -> SandboxErrorCode:
            result = await sandbox.run(SLEEP["python"])
            await disposed.wait()
            return SandboxErrorCode(result.error_code)

        task = asyncio.create_task(caller())
        await asyncio.sleep(0.5)
        await asyncio.wait_for(sandbox.dispose(), 5)
        disposed.set()
        assert await task is SandboxErrorCode.DISPOSED

    run(test)


def test_two_may_dispose_at_once(create: Callable[..., Any]) -> None:
    async def test() -> None:
        sandbox = create(timeout_ms=30_000)
        running = asyncio.create_task(sandbox.run(SLEEP["javascript"]))
        await asyncio.sleep(0.5)
        await asyncio.gather(*(sandbox.dispose() for _ in range(3)))
        assert (await running).error_code is SandboxErrorCode.DISPOSED

    run(test)


def test_leaving_the_block_by_an_error_disposes(create: Callable[..., Any]) -> None:
    async def test() -> None:
        sandbox = create(language="python", timeout_ms=30_000)
        with pytest.raises(ZeroDivisionError):
            async with sandbox:
                running = asyncio.create_task(sandbox.run(SLEEP["python"]))
                await asyncio.sleep(0.4)
                raise ZeroDivisionError
        assert running.done()
        assert running.result().error_code is SandboxErrorCode.DISPOSED

    run(test)
