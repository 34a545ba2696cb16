"""Warm boxes: the runtime is up and waits for the one run that it will ever serve.

A pool keeps a shelf for each kind of box that was asked for lately. A shelf that was found empty
grows, one that is never emptied shrinks, one that nobody asks for goes; and when there are too many
boxes in all, those that were asked for longest ago go first. Boxes are made ahead at the lowest CPU
weight, a moment after one was taken and only while a CPU is free: making a box warm takes more CPU
time than a cold run, so a host that has its hands full runs cold.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cloche import telemetry
from cloche.backends.base import Sinks, require_mechanisms
from cloche.errors import ClocheError, InternalError
from cloche.model.outcome import Cause
from cloche.model.policy import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Mapping

    from cloche.backends.base import Backend, Box, ControlFeed
    from cloche.model.outcome import Outcome
    from cloche.model.plan import BoxPlan, Command

_REFILL_DELAY_S: Final = 0.005
_BUSY_DELAY_S: Final = 0.05
_TICK_S: Final = 15.0
_IDLE_TICKS_COUNT: Final = 4
SHELVES_COUNT: Final = 4  # full ones: whoever varies what makes a kind gets no more boxes than that


class WarmBox:
    """A box with a runtime in it that waits. Serves one run."""

    def __init__(self, box: Box, command: Command) -> None:
        """Starts the command; see `wait`."""
        self.box = box
        self._sinks: Sinks | None = None
        self._request: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting = asyncio.Event()
        self._exec = asyncio.ensure_future(
            box.exec(
                command,
                stdin=b"",
                control=self._request,
                sinks=Sinks(self._stdout, self._stderr, self._result, self._control),
                on_waiting=self._waiting.set,
            )
        )
        self._exec.add_done_callback(lambda _: self._waiting.set())

    # What comes before the run belongs to nobody.
    def _stdout(self, chunk: bytes) -> None:
        if self._sinks is not None:
            self._sinks.stdout(chunk)

    def _stderr(self, chunk: bytes) -> None:
        if self._sinks is not None:
            self._sinks.stderr(chunk)

    def _result(self, chunk: bytes) -> None:
        if self._sinks is not None:
            self._sinks.result(chunk)

    def _control(self, feed: ControlFeed) -> None:
        if self._sinks is not None and self._sinks.control is not None:
            self._sinks.control(feed)

    async def wait(self) -> bool:
        """Waits until the runtime has been started; False when that failed or it has ended."""
        await self._waiting.wait()
        return self.is_usable

    @property
    def is_usable(self) -> bool:
        """False once it has ended, or was killed and is about to."""
        return not self._exec.done() and self.box.killed is None and not self.box.is_lost

    async def run(
        self,
        request: bytes,
        limits: Limits,
        sinks: Sinks,
        require: Mapping[str, str] = MappingProxyType({}),
    ) -> Outcome:
        """Runs what it was made for; see `backends.base.Box.exec`. Once.

        Args:
            request: What the runtime waits for.
            limits, require: Of the run.
            sinks: Where its output goes.

        Raises:
            UnavailableError: a control is not enforced by the mechanism that it must have.
            InternalError: it has ended before the run began, or does not take the limits; another
                box can serve the run (`retry_safe`).
        """
        asked_at = time.monotonic()
        try:
            usable = await self.wait()
            telemetry.record_pool_wait((time.monotonic() - asked_at) * 1000)
            if not usable:
                raise InternalError("a warm box ended before its run", retry_safe=True)
            self.box.limit(limits)
            require_mechanisms(self.box.isolation, require)
            self._sinks = sinks
            self._request.set_result(request)
            return await self._exec
        except BaseException:
            # Cancelled, or not usable: nothing of it may outlive this call.
            self.box.kill(Cause.ABORTED)
            self._exec.cancel()
            await asyncio.wait([self._exec])
            raise

    async def destroy(self) -> None:
        """Ends it. Idempotent."""
        self._exec.cancel()
        await asyncio.wait([self._exec])
        if not self._exec.cancelled():
            self._exec.exception()  # seen: it is nobody's
        await self.box.destroy()


@dataclasses.dataclass(slots=True)
class _Shelf:
    """The boxes of one kind.

    Attributes:
        plan, command: What they are made of.
        ready: Oldest first.
        wanted_count: How many it should hold.
        making_count: How many are on their way.
        least_count: The fewest that were ready since the last tick.
        idle_ticks_count: Ticks since one was taken.
        is_due: It will be filled up in a moment.
    """

    plan: BoxPlan
    command: Command
    ready: deque[WarmBox] = dataclasses.field(default_factory=deque)
    wanted_count: int = 1
    making_count: int = 0
    least_count: int = 0
    idle_ticks_count: int = 0
    is_due: bool = False


class WarmPool:
    """Keeps boxes warm. Belongs to one event loop."""

    def __init__(
        self, backend: Backend, size: int, is_busy: Callable[[], bool] = lambda: False
    ) -> None:
        """Makes none yet.

        Args:
            backend: Makes the boxes.
            size: The most that a shelf may hold; 0 for no pool.
            is_busy: Tells whether every CPU has a run; no box is made meanwhile.
        """
        self._backend = backend
        self._is_busy = is_busy
        self._size = size
        self._shelves: dict[Hashable, _Shelf] = {}  # those asked for last come last
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._ticking: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self, plan: BoxPlan, command: Command) -> WarmBox | None:
        """A box for a run of this plan, or None: it was the first, or they are used up.

        The plan's limits need not be those that the box was made with. Whoever takes it runs it
        and destroys it.
        """
        if self._size == 0 or self._closed or not _is_general(plan):
            return None
        shelf = self._shelf(plan, command)
        shelf.plan = _generalise(plan)  # the next ones have the limits that are asked for now
        shelf.idle_ticks_count = 0
        self._later(_REFILL_DELAY_S, shelf)
        while shelf.ready:
            box = shelf.ready.popleft()
            shelf.least_count = min(shelf.least_count, len(shelf.ready))
            if box.is_usable:
                return box
            self._spawn(box.destroy())
        shelf.wanted_count = min(self._size, shelf.wanted_count + 1)
        return None

    async def start(self, plan: BoxPlan, command: Command) -> None:
        """Makes the first box of a kind, and waits for it.

        Raises:
            UnavailableError, InternalError: as `Backend.create`.
        """
        if self._size == 0:
            return
        shelf = self._shelf(plan, command)
        shelf.making_count += 1
        await self._make(shelf)
        shelf.wanted_count = min(self._size, 2)
        self._later(_REFILL_DELAY_S, shelf)

    def _shelf(self, plan: BoxPlan, command: Command) -> _Shelf:
        limits = plan.limits
        key = (
            plan.environment.name,
            command.argv,
            tuple(sorted(command.env.items())),
            plan.scratch,
            plan.catch_ports,
            limits.scratch_mb,
            limits.scratch_inodes_count,
            limits.open_files_count,
        )
        shelf = self._shelves.pop(key, None)
        if shelf is None:
            shelf = _Shelf(_generalise(plan), command, wanted_count=min(self._size, 1))
            if self._ticking is None:
                self._ticking = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
        self._shelves[key] = shelf
        return shelf

    def _later(self, delay_s: float, shelf: _Shelf) -> None:
        if shelf.is_due:
            return

        def fill() -> None:
            self._timers.discard(timer)
            shelf.is_due = False
            if self._is_busy():
                self._later(_BUSY_DELAY_S, shelf)
            else:
                self._fill(shelf)

        shelf.is_due = True
        timer = asyncio.get_running_loop().call_later(delay_s, fill)
        self._timers.add(timer)

    def _fill(self, shelf: _Shelf) -> None:
        if self._closed:
            return
        while len(shelf.ready) + shelf.making_count < shelf.wanted_count and self._make_room():
            shelf.making_count += 1
            self._spawn(self._try_make(shelf))

    def _make_room(self) -> bool:
        """Whether another box may be kept; the one that was asked for longest ago goes for it."""
        shelves = list(self._shelves.values())
        count = sum(len(each.ready) + each.making_count for each in shelves)
        if count < SHELVES_COUNT * self._size:
            return True
        for oldest in shelves[:-1]:
            if oldest.ready:
                self._spawn(oldest.ready.popleft().destroy())
                oldest.wanted_count = len(oldest.ready)
                return True
        return False

    async def _try_make(self, shelf: _Shelf) -> None:
        # The next run is cold, and tells what is wrong.
        with contextlib.suppress(ClocheError, OSError):
            await self._make(shelf)

    async def _make(self, shelf: _Shelf) -> None:
        box: WarmBox | None = None
        try:
            box = WarmBox(await self._backend.create(shelf.plan), shelf.command)
            if await box.wait() and not self._closed and shelf.wanted_count > 0:
                shelf.ready.append(box)
                box = None
        finally:
            shelf.making_count -= 1
            if box is not None:
                await asyncio.shield(box.destroy())

    def _tick(self) -> None:
        """Lets go of what was not needed since the last tick."""
        for key, shelf in list(self._shelves.items()):
            shelf.idle_ticks_count += 1
            surplus = shelf.least_count
            if shelf.idle_ticks_count > _IDLE_TICKS_COUNT:
                del self._shelves[key]
                shelf.wanted_count, surplus = 0, len(shelf.ready)
            shelf.wanted_count = max(shelf.wanted_count - surplus, min(shelf.wanted_count, 1))
            while len(shelf.ready) > shelf.wanted_count:
                self._spawn(shelf.ready.popleft().destroy())
            shelf.least_count = len(shelf.ready)
        loop = asyncio.get_running_loop()
        self._ticking = loop.call_later(_TICK_S, self._tick) if self._shelves else None

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends every box. Idempotent."""
        self._closed = True
        for timer in (*self._timers, *([self._ticking] if self._ticking else [])):
            timer.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        shelves, self._shelves = list(self._shelves.values()), {}
        for shelf in shelves:
            for box in shelf.ready:
                await box.destroy()
            shelf.ready.clear()


def _generalise(plan: BoxPlan) -> BoxPlan:
    """Without what can be added to a box that waits, and not be taken away from it."""
    limits = dataclasses.replace(plan.limits, cpu_time_ms=None, cpu_count=None)
    return dataclasses.replace(plan, limits=limits, require=MappingProxyType({}))


def _is_general(plan: BoxPlan) -> bool:
    """Whether a box can be made before it is known what is in it."""
    return not (plan.files or plan.mounts or plan.layers or plan.listen_ports)
