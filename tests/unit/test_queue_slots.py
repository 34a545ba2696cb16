"""The queue in front of the slots: in order, bounded, and nothing is ever lost or hangs."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from cloche.errors import OverloadedError
from cloche.queue import SlotQueue


@asynccontextmanager
async def slot(queue: SlotQueue, timeout_ms: int) -> AsyncIterator[None]:
    await queue.acquire(timeout_ms)
    try:
        yield
    finally:
        queue.release()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(bounded())


async def hold(queue: SlotQueue, release: asyncio.Event, timeout_ms: int = 5000) -> None:
    async with slot(queue, timeout_ms):
        await release.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_slots_are_handed_out_in_order_of_arrival() -> None:
    async def test() -> None:
        queue, order = SlotQueue(1, 100), []

        async def take(number: int) -> None:
            async with slot(queue, 5000):
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(take(number) for number in range(20)))
        assert order == list(range(20))

    run(test)


def test_no_more_than_the_slots_are_ever_out() -> None:
    async def test() -> None:
        queue, out, most = SlotQueue(3, 100), 0, 0

        async def take() -> None:
            nonlocal out, most
            async with slot(queue, 5000):
                out += 1
                most = max(most, out)
                await asyncio.sleep(0)
                out -= 1

        await asyncio.gather(*(take() for _ in range(30)))
        assert (most, out) == (3, 0)

    run(test)


def test_a_full_queue_refuses_at_once() -> None:
    async def test() -> None:
        queue, release = SlotQueue(1, 2), asyncio.Event()
        held = [asyncio.create_task(hold(queue, release)) for _ in range(3)]
        await settle()
        with pytest.raises(OverloadedError, match="max_pending") as caught:
            await hold(queue, release)
        assert caught.value.retry_safe
        release.set()
        await asyncio.gather(*held)
        await hold(queue, release)

    run(test)


@pytest.mark.parametrize("timeout_ms", [0, 1, 20])
def test_a_wait_that_is_too_long_is_refused_and_leaves_no_trace(timeout_ms: int) -> None:
    async def test() -> None:
        queue, release = SlotQueue(1, 1), asyncio.Event()
        held = asyncio.create_task(hold(queue, release))
        await settle()
        for _ in range(3):  # the place in the queue is free again each time
            with pytest.raises(OverloadedError, match="queue_timeout_ms"):
                await hold(queue, release, timeout_ms)
        release.set()
        await held
        await hold(queue, release, 0)

    run(test)


def test_an_error_in_the_slot_gives_it_back() -> None:
    async def test() -> None:
        queue = SlotQueue(1, 0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with slot(queue, 0):
                    raise ZeroDivisionError

    run(test)


def test_a_wait_that_is_cancelled_in_the_instant_of_its_turn_is_cancelled() -> None:
    """Source: the swallowed cancellation of `asyncio.wait_for` before Python 3.12."""

    async def test() -> None:
        queue, release = SlotQueue(1, 10), asyncio.Event()
        first = asyncio.create_task(hold(queue, release))
        await settle()
        entered = False

        async def second() -> None:
            nonlocal entered
            async with slot(queue, 5000):
                entered = True

        waiting = asyncio.create_task(second())
        await settle()
        first.cancel()  # gives its slot back in its next step …
        await asyncio.sleep(0)
        waiting.cancel()  # … which is this one's turn
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not entered
        async with slot(queue, 0):
            pass

    run(test)


@pytest.mark.parametrize("seed", range(5))
def test_no_slot_is_lost_whatever_ends_the_waits(seed: int) -> None:
    async def test() -> None:
        chance = random.Random(seed)
        queue = SlotQueue(2, 5)

        async def take() -> None:
            async with slot(queue, chance.choice([0, 1, 5, 1000])):
                await asyncio.sleep(chance.choice([0, 0.0005, 0.002]))

        tasks = []
        for _ in range(150):
            tasks.append(asyncio.create_task(take()))
            await asyncio.sleep(chance.choice([0, 0, 0.001]))
            if chance.random() < 0.4:
                chance.choice(tasks[-4:]).cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(
                outcome, OverloadedError | asyncio.CancelledError
            ), outcome
        async with slot(queue, 0), slot(queue, 0):
            with pytest.raises(OverloadedError):
                async with slot(queue, 0):
                    pass

    run(test)
