"""Host program: loops, threads and forks around a sandbox."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any

from cloche.errors import InvalidRequestError, SandboxErrorCode
from cloche.testing.claims import has_code, has_value, holds
from cloche.testing.subject import Subject, promise

if TYPE_CHECKING:
    from collections.abc import Callable


async def _in_thread(work: Callable[[], Any]) -> Any:
    """What `work` returns or raises, in a thread of its own; cancelled, it is not waited for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result(value) if error is None else done.set_exception(error)

    def act() -> None:
        try:
            value, error = work(), None
        except BaseException as raised:
            value, error = None, raised
        loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=act, daemon=True).start()
    return await done


@promise(1701)
async def two_sandboxes_live_on_two_loops(subject: Subject) -> None:
    """Event loops in two threads have each a sandbox of their own, at the same time.

    "`cloche.sync` has the same names without `await`, on one background loop (works in a
    notebook)."
    """

    async def use(number: int) -> list[Any]:
        async with subject.create(timeout_ms=20_000) as sandbox:
            runs = (sandbox.run("me", {"me": [number, index]}) for index in range(4))
            return [result.value for result in await asyncio.gather(*runs)]

    def serve(number: int) -> Callable[[], list[Any]]:
        return lambda: asyncio.run(use(number))

    values = await asyncio.gather(*(_in_thread(serve(number)) for number in range(2)))
    expected = [[[number, index] for index in range(4)] for number in range(2)]
    holds(values == expected, f"{values}")


@promise(1702)
async def one_loop_may_follow_another(subject: Subject) -> None:
    """A sandbox on a new event loop works like the first.

    "`cloche.sync` has the same names without `await`, on one background loop."
    """

    async def once() -> Any:
        async with subject.create() as sandbox:
            return (await sandbox.run("1 + 1")).value

    for _ in range(2):
        holds(await _in_thread(lambda: asyncio.run(once())) == 2, "no value")


@promise(1703)
async def a_fork_of_the_host_breaks_nothing(subject: Subject) -> None:
    """A child that ends, or uses the sandbox of its parent, leaves that whole.

    "`sandbox.dispose()`: idempotent, ends runs in flight, leaves nothing" (of its own process).
    """
    async with subject.create() as sandbox:
        has_value(await sandbox.run("1 + 1"), 2)
        for use in (False, True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads, in Python 3.12
                child = os.fork()
            if child == 0:
                os._exit(_misuse(sandbox) if use else 0)
            while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
                await asyncio.sleep(0.01)
            holds(os.waitstatus_to_exitcode(done[1]) == 0, "the fork was not refused")
            has_value(await sandbox.run("1 + 1"), 2)


def _misuse(sandbox: Any) -> int:
    """In a fork: 0 when the parent's sandbox refuses to run."""
    try:
        sandbox.run("1 + 1").send(None)
    except InvalidRequestError:
        return 0
    except BaseException:
        return 2
    return 1


@promise(1704)
async def the_loop_is_free_while_code_runs(subject: Subject) -> None:
    """A run does not hold the event loop of its caller.

    "`cloche.sync` has the same names without `await`."
    """
    spin = "while True:\n    pass" if subject.language == "python" else "while (true);"
    await subject.run("1")
    running = asyncio.ensure_future(subject.run(spin, timeout_ms=600))
    loop = asyncio.get_running_loop()
    worst_s = 0.0
    while not running.done():
        before = loop.time()
        await asyncio.sleep(0.005)
        worst_s = max(worst_s, loop.time() - before)
    has_code(await running, SandboxErrorCode.TIMEOUT)
    holds(worst_s < 0.4, f"the loop was held for {worst_s:.2f} s")
