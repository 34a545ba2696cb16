"""Work in threads: waited for to its end, and what it gave is let go where nobody waits."""

import asyncio
import threading

import pytest

from cloche.linux.threads import finish_in_thread


async def cancelled_at_work(function, **more):
    """Starts it, cancels the wait twice while it works; returns once nobody waits."""
    started, go_on = threading.Event(), threading.Event()

    def work():
        started.set()
        go_on.wait(5)
        return function()

    task = asyncio.ensure_future(finish_in_thread(work, **more))
    await asyncio.to_thread(started.wait, 5)
    for _ in range(2):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()  # it is still at work
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_it_gives_what_the_function_gives_and_raises_what_it_raises():
    def fail():
        raise KeyError("no")

    assert asyncio.run(finish_in_thread(lambda a: a + 1, 1)) == 2
    with pytest.raises(KeyError):
        asyncio.run(finish_in_thread(fail))


def test_cancellation_waits_for_the_thread_and_lets_go_of_what_it_gave():
    told, given = [], []
    asyncio.run(
        cancelled_at_work(
            lambda: "layer", on_cancel=lambda: told.append("cancelled"), let_go=given.append
        )
    )
    assert (told, given) == (["cancelled"], ["layer"])


def test_nothing_is_let_go_that_was_handed_over_or_never_was():
    given = []
    assert asyncio.run(finish_in_thread(lambda: 1, let_go=given.append)) == 1

    def fail():
        raise OSError("no")

    asyncio.run(cancelled_at_work(fail, let_go=given.append))
    assert given == []
