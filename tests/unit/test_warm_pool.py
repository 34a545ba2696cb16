"""Warm boxes: which are kept, for whom, and how they end."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from cloche import InternalError, UnavailableError, pool
from cloche.backends.base import Sinks
from cloche.frames import NONCE_BYTES, encode_request
from cloche.model.outcome import Cause, Outcome
from cloche.model.plan import BoxPlan, Command, Environment, Mount, Scratch
from cloche.model.policy import Limits
from cloche.pool import WarmBox, WarmPool
from cloche.testing.fake import FakeBackend, FakeBox, FakeProgram, answer_nothing, ended

PLAN = BoxPlan(Environment("one", ()), Limits())
COMMAND = Command(("/bin/program",), {"A": "b"})
REQUEST = encode_request({"nonce": bytes(NONCE_BYTES).hex()})


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refills come in the next turn of the loop, ticks only when a test calls for one."""
    monkeypatch.setattr(pool, "_REFILL_DELAY_S", 0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(bounded())


async def turns(count: int = 40) -> None:
    """Lets everything that is ready go on."""
    for _ in range(count):
        await asyncio.sleep(0)


def sinks(*, result: Callable[[bytes], None] = lambda _: None) -> Sinks:
    return Sinks(lambda _: None, lambda _: None, result)


async def use(box: WarmBox, limits: Limits | None = None) -> Outcome:
    try:
        return await box.run(REQUEST, limits or PLAN.limits, sinks())
    finally:
        await box.destroy()


async def empty(warm: WarmPool) -> None:
    """Takes boxes until there are none."""
    taken = []
    while box := warm.take(PLAN, COMMAND):
        taken.append(box)
    for box in taken:
        await use(box)


def box_of(warm: WarmBox | None) -> FakeBox:
    assert warm is not None
    assert isinstance(warm.box, FakeBox)
    return warm.box


def test_the_first_of_a_kind_finds_nothing_and_the_next_finds_a_box() -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 2)
        assert warm.take(PLAN, COMMAND) is None
        await turns()
        box = warm.take(PLAN, COMMAND)
        assert box is not None and box.is_usable
        assert (await use(box)).exit_code == 0
        await warm.close()
        assert backend.left == []

    run(test)


def test_a_start_makes_the_first_box_and_one_more() -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 4)
        await warm.start(PLAN, COMMAND)
        assert len(backend.boxes) == 1
        await turns()
        assert len(backend.boxes) == 2
        assert box_of(warm.take(PLAN, COMMAND)) is backend.boxes[0]  # the oldest
        await warm.close()

    run(test)


def test_a_start_that_fails_says_why_and_the_pool_still_works() -> None:
    async def test() -> None:
        backend = FakeBackend(create_errors=[UnavailableError("no", fact="x", fix="y")])
        warm = WarmPool(backend, 2)
        with pytest.raises(UnavailableError):
            await warm.start(PLAN, COMMAND)
        await warm.start(PLAN, COMMAND)
        assert warm.take(PLAN, COMMAND) is not None
        await warm.close()

    run(test)


def test_what_was_taken_is_made_again() -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 2)
        await warm.start(PLAN, COMMAND)
        await turns()
        for count in range(3, 8):
            box = warm.take(PLAN, COMMAND)
            assert box is not None
            await turns()
            assert len(backend.boxes) == count
            await use(box)
        await warm.close()
        assert backend.left == []

    run(test)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_shelf_grows_with_demand_and_no_further_than_its_size(size: int) -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, size)
        for _ in range(size + 3):  # each found nothing, so one more is wanted
            await empty(warm)
            await turns()
        assert len(backend.left) == size
        await warm.close()
        assert backend.left == []

    run(test)


def test_a_pool_of_none_makes_none() -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 0)
        await warm.start(PLAN, COMMAND)
        assert warm.take(PLAN, COMMAND) is None
        await turns()
        assert backend.boxes == []
        await warm.close()

    run(test)


OTHERS: Mapping[str, tuple[BoxPlan, Command]] = {
    "environment": (replace(PLAN, environment=Environment("two", ())), COMMAND),
    "scratch": (replace(PLAN, scratch=Scratch.WRITABLE), COMMAND),
    "scratch size": (replace(PLAN, limits=Limits(scratch_mb=1)), COMMAND),
    "inodes": (replace(PLAN, limits=Limits(scratch_inodes_count=5)), COMMAND),
    "open files": (replace(PLAN, limits=Limits(open_files_count=5)), COMMAND),
    "program": (PLAN, Command(("/bin/program", "x"), {"A": "b"})),
    "variables": (PLAN, Command(("/bin/program",), {"A": "c"})),
}


def test_what_cannot_be_taken_away_from_a_box_is_not_in_those_that_wait() -> None:
    """A CPU limit can be set on a box that waits, and not be lifted again."""

    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 2)
        limits = Limits(cpu_time_ms=5, cpu_count=0.5, memory_mb=64)
        await warm.start(replace(PLAN, limits=limits, require={"cpu": "cgroup"}), COMMAND)
        made = backend.boxes[0].plan
        assert (made.limits, dict(made.require)) == (Limits(memory_mb=64), {})
        await warm.close()

    run(test)


@pytest.mark.parametrize("name", OTHERS)
def test_a_box_of_another_kind_is_not_taken(name: str) -> None:
    async def test() -> None:
        warm = WarmPool(FakeBackend(), 2)
        await warm.start(PLAN, COMMAND)
        await turns()
        assert warm.take(*OTHERS[name]) is None
        assert warm.take(PLAN, COMMAND) is not None
        await warm.close()

    run(test)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(memory_mb=64),
        Limits(timeout_ms=1),
        Limits(cpu_time_ms=5),
        Limits(cpu_count=1.0),
        Limits(pids_count=5),
    ],
)
def test_a_box_is_taken_for_other_limits_and_has_those(limits: Limits) -> None:
    async def test() -> None:
        warm = WarmPool(FakeBackend(), 2)
        await warm.start(PLAN, COMMAND)
        box = warm.take(replace(PLAN, limits=limits), COMMAND)
        fake = box_of(box)
        assert box is not None
        await use(box, limits)
        assert fake.limits == [limits]
        await warm.close()

    run(test)


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, files={"a": b""}),
        replace(PLAN, mounts=(Mount("/data", "data"),)),
        replace(PLAN, layers=("/layer",)),
    ],
    ids=["files", "mounts", "layers"],
)
def test_what_must_be_there_at_the_start_bypasses_the_pool(plan: BoxPlan) -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 2)
        await warm.start(PLAN, COMMAND)
        await turns()
        count = len(backend.boxes)
        assert warm.take(plan, COMMAND) is None
        await turns()
        assert len(backend.boxes) == count
        await warm.close()

    run(test)


def test_plans_with_egress_never_share_a_box_with_those_without() -> None:
    async def test() -> None:
        warm = WarmPool(FakeBackend(), 2)
        await warm.start(PLAN, COMMAND)
        await turns()
        for plan in (replace(PLAN, catch_ports=(443,)), replace(PLAN, listen_ports=(80,))):
            assert warm.take(plan, COMMAND) is None
        await warm.close()

    run(test)


def test_a_box_that_died_on_the_shelf_is_replaced_and_never_handed_out() -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 2)
        await warm.start(PLAN, COMMAND)
        await turns()
        first, second = backend.boxes
        first.die()
        await turns()
        assert box_of(warm.take(PLAN, COMMAND)) is second
        await turns()
        assert first.is_destroyed
        assert len(backend.left) == 3  # the one in use, and two on the shelf
        for box in list(backend.left):
            box.die()
        await turns()
        assert warm.take(PLAN, COMMAND) is None
        await turns()
        fresh = warm.take(PLAN, COMMAND)
        assert fresh is not None
        await warm.close()
        assert [box for box in backend.left if box not in (second, box_of(fresh))] == []

    run(test)


def test_a_box_that_dies_in_the_instant_of_its_use_is_an_error_that_may_be_retried() -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 1)
        await warm.start(PLAN, COMMAND)
        box = warm.take(PLAN, COMMAND)
        box_of(box).die()
        await turns()
        assert box is not None
        with pytest.raises(InternalError) as caught:
            await use(box)
        assert caught.value.retry_safe
        assert backend.boxes[0].is_destroyed
        await warm.close()

    run(test)


def test_a_box_that_dies_before_it_is_ready_is_not_kept_and_holds_nobody() -> None:
    async def test() -> None:
        backend = FakeBackend()
        backend.starts.clear()
        warm = WarmPool(backend, 1)
        starting = asyncio.ensure_future(warm.start(PLAN, COMMAND))
        await turns()
        backend.boxes[0].die()
        await starting
        assert backend.boxes[0].is_destroyed
        assert warm.take(PLAN, COMMAND) is None
        backend.starts.set()
        await warm.close()
        assert backend.left == []

    run(test)


def test_limits_that_do_not_hold_are_raised_and_the_box_ends() -> None:
    async def test() -> None:
        backend = FakeBackend(limit_error=InternalError("does not hold"))
        warm = WarmPool(backend, 1)
        await warm.start(PLAN, COMMAND)
        box = warm.take(PLAN, COMMAND)
        assert box is not None
        with pytest.raises(InternalError, match="does not hold"):
            await use(box)
        assert box_of(box).is_destroyed
        await warm.close()

    run(test)


def test_nothing_that_comes_before_the_run_reaches_it() -> None:
    async def chatter(program: FakeProgram) -> Outcome:
        await program.receive()
        program.send({"ok": True})
        return ended()

    async def test() -> None:
        backend = FakeBackend(chatter)
        warm = WarmPool(backend, 1)
        await warm.start(PLAN, COMMAND)
        early = backend.boxes[0].programs[0]
        early.write_result(b"forged")
        early.print("forged")
        box = warm.take(PLAN, COMMAND)
        assert box is not None
        heard = bytearray()
        try:
            await box.run(REQUEST, PLAN.limits, sinks(result=heard.extend))
        finally:
            await box.destroy()
        assert b"ok" in heard and b"forged" not in heard
        await warm.close()

    run(test)


def test_a_cancelled_run_kills_its_box() -> None:
    async def test() -> None:
        backend = FakeBackend(lambda _: asyncio.Event().wait())
        warm = WarmPool(backend, 1)
        await warm.start(PLAN, COMMAND)
        box = warm.take(PLAN, COMMAND)
        assert box is not None
        running = asyncio.ensure_future(use(box))
        await turns()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert box_of(box).killed is Cause.ABORTED
        assert box_of(box).is_destroyed
        await warm.close()
        assert backend.left == []

    run(test)


def test_a_run_waits_for_a_box_that_is_still_starting() -> None:
    async def test() -> None:
        backend = FakeBackend()
        box = WarmBox(await backend.create(PLAN), COMMAND)
        backend.starts.clear()
        running = asyncio.ensure_future(use(box))
        await turns()
        assert not running.done()
        backend.starts.set()
        assert (await running).exit_code == 0

    run(test)


# Ageing.


def test_a_shelf_that_is_never_emptied_shrinks() -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 4)
        for _ in range(6):
            await empty(warm)
            await turns()
        assert len(backend.left) == 4
        warm._tick()  # since the last tick it had been empty: nothing to let go of
        await turns()
        assert len(backend.left) == 4
        box = warm.take(PLAN, COMMAND)
        assert box is not None
        await use(box)
        await turns()
        warm._tick()  # never fewer than three were ready
        await turns()
        assert len(backend.left) == 1
        assert (await use_next(warm)).exit_code == 0
        await warm.close()
        assert backend.left == []

    run(test)


async def use_next(warm: WarmPool) -> Outcome:
    box = warm.take(PLAN, COMMAND)
    assert box is not None
    return await use(box)


def test_a_shelf_that_nobody_asks_for_goes() -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 2)
        await warm.start(PLAN, COMMAND)
        await turns()
        for _ in range(pool._IDLE_TICKS_COUNT):
            warm._tick()
            await turns()
        assert len(backend.left) == 1
        warm._tick()
        await turns()
        assert backend.left == []
        # And comes again.
        assert warm.take(PLAN, COMMAND) is None
        await turns()
        assert warm.take(PLAN, COMMAND) is not None
        await warm.close()

    run(test)


def test_a_shelf_that_is_used_stays() -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 2)
        await warm.start(PLAN, COMMAND)
        await turns()
        for _ in range(3 * pool._IDLE_TICKS_COUNT):
            await use_next(warm)
            await turns()
            warm._tick()
            await turns()
        assert len(backend.left) >= 1
        await warm.close()

    run(test)


def test_a_box_that_was_being_made_for_a_shelf_that_went_is_not_left() -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 2)
        await warm.start(PLAN, COMMAND)
        await turns()
        backend.creates.clear()
        await use_next(warm)
        await turns()  # its refill is on the way
        for _ in range(pool._IDLE_TICKS_COUNT + 1):
            warm._tick()
        backend.creates.set()
        await turns()
        assert warm._shelves == {}
        await warm.close()
        assert backend.left == []

    run(test)


def test_the_clock_stops_when_there_is_nothing_to_age() -> None:
    async def test() -> None:
        warm = WarmPool(FakeBackend(), 1)
        assert warm._ticking is None
        await warm.start(PLAN, COMMAND)
        assert warm._ticking is not None
        for _ in range(pool._IDLE_TICKS_COUNT + 1):
            warm._ticking.cancel()
            warm._tick()
        assert warm._ticking is None
        await warm.start(PLAN, COMMAND)
        assert warm._ticking is not None
        await warm.close()

    run(test)


# The end.


def test_close_ends_every_box_those_on_their_way_included() -> None:
    async def test() -> None:
        backend = FakeBackend()
        warm = WarmPool(backend, 3)
        await warm.start(PLAN, COMMAND)
        await turns()
        backend.creates.clear()
        await empty(warm)
        await turns()
        closing = asyncio.ensure_future(warm.close())
        await turns()
        backend.creates.set()
        await closing
        assert backend.left == []
        await warm.close()
        assert warm.take(PLAN, COMMAND) is None
        await turns()
        assert backend.left == []

    run(test)


def test_close_leaves_what_is_in_use_to_its_run() -> None:
    go: list[asyncio.Event] = []

    async def script(program: FakeProgram) -> Outcome:
        await program.receive()
        await go[0].wait()
        return ended(5)

    async def test() -> None:
        go.append(asyncio.Event())
        backend = FakeBackend(script)
        warm = WarmPool(backend, 1)
        await warm.start(PLAN, COMMAND)
        box = warm.take(PLAN, COMMAND)
        assert box is not None
        running = asyncio.ensure_future(use(box))
        await turns()
        await warm.close()
        go[0].set()
        assert (await running).exit_code == 5
        assert backend.left == []

    run(test)


def test_boxes_that_cannot_be_made_are_not_tried_without_end() -> None:
    async def test() -> None:
        fault: Any = UnavailableError("no", fact="x", fix="y")
        backend = FakeBackend(create_errors=[fault] * 100)
        warm = WarmPool(backend, 2)
        for count in range(1, 4):
            assert warm.take(PLAN, COMMAND) is None
            await turns()
            assert 100 - len(backend.create_errors) <= 2 * count
        assert len(backend.create_errors) < 100, "it was not even tried"
        await warm.close()

    run(test)


@pytest.mark.parametrize("moment", range(0, 30, 3))
def test_a_close_at_any_moment_leaves_nothing(moment: int) -> None:
    async def test() -> None:
        backend = FakeBackend(answer_nothing)
        warm = WarmPool(backend, 3)
        warm.take(PLAN, COMMAND)
        for _ in range(moment):
            await asyncio.sleep(0)
            if (box := warm.take(PLAN, COMMAND)) is not None:
                await box.destroy()
        await warm.close()
        assert backend.left == []

    run(test)
