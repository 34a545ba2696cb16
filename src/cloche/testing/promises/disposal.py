"""Dispose: the end of a sandbox."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from cloche.errors import ClocheError, DisposedInFlightError, SandboxErrorCode
from cloche.testing.claims import has_code, has_value, holds, refused
from cloche.testing.promises.limits import SPIN
from cloche.testing.subject import Subject, promise

if TYPE_CHECKING:
    from cloche.model.snippet import SandboxResult


@promise(901)
async def a_run_after_dispose_is_refused(subject: Subject) -> None:
    """A sandbox that is disposed runs nothing more, and may be disposed of again.

    "`sandbox.dispose()`: idempotent"; "SANDBOX_DISPOSED: run after dispose (raised)."
    """
    async with subject.create() as sandbox:
        has_value(await sandbox.run("1 + 1"), 2)
    for _ in range(2):
        with refused(code=SandboxErrorCode.DISPOSED):
            await sandbox.run("1")
        await sandbox.dispose()


@promise(902)
async def a_sandbox_that_never_ran_can_be_disposed_of(subject: Subject) -> None:
    """`dispose` needs no start, and no start is possible after it.

    "`sandbox.dispose()`: idempotent, ends runs in flight, leaves nothing."
    """
    sandbox = subject.create()
    await sandbox.dispose()
    await sandbox.dispose()
    with refused(code=SandboxErrorCode.DISPOSED):
        await sandbox.__aenter__()


@promise(903)
async def a_sandbox_starts_with_its_first_run(subject: Subject) -> None:
    """Nobody has to enter it.

    "A pool starts with `async with` or the first run and grows with demand."
    """
    sandbox = subject.create()
    try:
        for language in subject.languages:
            has_value(await sandbox.run("1 + 1", language=language), 2)
    finally:
        await sandbox.dispose()


@promise(904)
async def runs_in_flight_end_as_disposed(subject: Subject) -> None:
    """Those that run and those that wait end at once, as results.

    "SANDBOX_DISPOSED: … in flight at dispose; result."
    """
    spin = SPIN["python" if subject.language == "python" else "javascript"]
    sandbox = subject.create(timeout_ms=30_000)
    runs = [asyncio.ensure_future(sandbox.run(spin)) for _ in range(24)]
    await asyncio.sleep(0.6)
    started = time.monotonic()
    await sandbox.dispose()
    holds(time.monotonic() - started < 4, "dispose took too long")
    for result in await asyncio.gather(*runs):
        has_code(result, SandboxErrorCode.DISPOSED)
        try:
            result.raise_for_error()
        except DisposedInFlightError:
            continue
        raise AssertionError("nothing was raised")


@promise(905)
async def dispose_may_come_at_any_instant(subject: Subject) -> None:
    """From the first moment of a run on, it ends as disposed.

    "SANDBOX_DISPOSED: run after dispose (raised); in flight at dispose; raised / result."
    """
    spin = SPIN["python" if subject.language == "python" else "javascript"]
    for delay_s in (0, 0.001, 0.02, 0.1):
        sandbox = subject.create(timeout_ms=30_000)
        running = asyncio.ensure_future(sandbox.run(spin))
        await asyncio.sleep(delay_s)
        await sandbox.dispose()
        try:
            code = (await running).error_code
        except ClocheError as error:
            code = error.code
        holds(code is SandboxErrorCode.DISPOSED, f"after {delay_s} s: {code}")


@promise(906)
async def several_may_dispose_at_once(subject: Subject) -> None:
    """Each of them returns when the sandbox is gone.

    "`sandbox.dispose()`: idempotent, ends runs in flight, leaves nothing."
    """
    spin = SPIN["python" if subject.language == "python" else "javascript"]
    sandbox = subject.create(timeout_ms=30_000)
    running = asyncio.ensure_future(sandbox.run(spin))
    await asyncio.sleep(0.4)
    await asyncio.gather(*(sandbox.dispose() for _ in range(3)))
    has_code(await running, SandboxErrorCode.DISPOSED)


@promise(907)
async def leaving_the_block_by_an_error_disposes(subject: Subject) -> None:
    """`async with` disposes whatever happens in its body.

    "`sandbox.dispose()`: idempotent, ends runs in flight, leaves nothing."
    """
    spin = SPIN["python" if subject.language == "python" else "javascript"]
    sandbox = subject.create(timeout_ms=30_000)
    running: asyncio.Future[SandboxResult] | None = None
    try:
        async with sandbox:
            running = asyncio.ensure_future(sandbox.run(spin))
            await asyncio.sleep(0.3)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    holds(running is not None and running.done(), "the run went on")
    with refused(code=SandboxErrorCode.DISPOSED):
        await sandbox.run("1")
