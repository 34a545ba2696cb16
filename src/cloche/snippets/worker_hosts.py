"""Worker hosts: boxes in which a language engine lives, one run at a time (`guest/worker.py`).

A host serves many runs of one trust domain, each in an engine instance of its own, until it has
served enough of them, has grown, or had to be killed. A kill costs the run that was in it, and
nothing else: another host is there, or on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from typing import TYPE_CHECKING, Final

from cloche.backends.base import Sinks
from cloche.environments import workers
from cloche.errors import ClocheError, InternalError
from cloche.frames import NONCE_BYTES, FrameError, ResultReader
from cloche.model.outcome import Cause, Outcome, Usage
from cloche.model.plan import BoxPlan, Command
from cloche.model.policy import MAX_TIMEOUT_MS, Limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloche.backends.base import Backend, Box, ControlFeed
    from cloche.linux.netns import CaughtSockets
    from cloche.model.plan import Environment

RUNS_LIMIT_COUNT: Final = 1_000
# What a host holds beside an engine's heap: CPython, the compiled engine, the parser. Measured
# 60 to 110 MiB; the rest is room for reading a request and making a value of it.
BASELINE_MB: Final = 192
# Grown by more than this a host is replaced: WebAssembly memory never shrinks.
_GROWTH_LIMIT_BYTES = 96 * 1024 * 1024
_START_TIMEOUT_S = 20.0
_PIDS_COUNT = 64


def host_limits(memory_mb: int, cpu_count: float | None = None) -> Limits:
    """The kernel's limits of a host whose engine may have a heap of `memory_mb` MiB."""
    return Limits(
        timeout_ms=MAX_TIMEOUT_MS,
        memory_mb=BASELINE_MB + memory_mb,
        pids_count=_PIDS_COUNT,
        cpu_count=cpu_count,
    )


class WorkerHost:
    """One box with an engine. Serves one run at a time.

    Attributes:
        engine: Its name, such as `quickjs-ng`.
        version: Of the engine.
    """

    def __init__(self, box: Box, language: str, *, networked: bool) -> None:
        """Starts it; see `start`."""
        self.box = box
        self._networked = networked
        self._sockets: CaughtSockets | None = None
        self.engine = self.version = ""
        self._limits: Limits | None = None
        self._runs_count = 0
        self._grown = False
        self._first_peak_bytes = 0
        self._cpu_ms = self._seen_cpu_ms = 0.0
        self._feed: ControlFeed | None = None
        self._reader: ResultReader | None = None
        # Set at the end of the run in flight, or of the host.
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._exec = asyncio.ensure_future(
            box.exec(
                Command((*workers.ARGV, language), workers.ENV),
                stdin=b"",
                control=b"",
                sinks=Sinks(_drop, _drop, self._take, self._connect),
            )
        )
        self._exec.add_done_callback(lambda _: self._finish())

    def _connect(self, feed: ControlFeed) -> None:
        self._feed = feed

    def _take(self, chunk: bytes) -> None:
        if self._reader is None:  # nothing was asked: whoever speaks now is not our program
            self.box.kill(Cause.ABORTED)
        else:
            self._reader.feed(chunk)

    def _finish(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    async def start(self) -> None:
        """Waits until the engine is there.

        Raises:
            UnavailableError, InternalError: the box could not be made, or the engine not started.
        """
        reader = self._reader = ResultReader(bytes(NONCE_BYTES), 1024, on_result=self._finish)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._over
        except TimeoutError:
            self.box.kill(Cause.ABORTED)
        self._reader = None
        if self._exec.done():
            try:
                outcome = self._exec.result()
            except InternalError as error:  # no run was in it: another host can serve
                raise InternalError(error.message, retry_safe=True) from error
            told = f"{outcome.cause}, exit code {outcome.exit_code}, signal {outcome.signal}"
            raise InternalError(f"a worker host ended at its start ({told})", retry_safe=True)
        try:
            ready = reader.result() or {}
        except FrameError as error:
            self.box.kill(Cause.ABORTED)
            raise InternalError(f"a worker host did not start: {error}", retry_safe=True) from error
        self.engine, self.version = str(ready.get("engine")), str(ready.get("version"))
        if self._networked:
            self._sockets = await self.box.catch()
        used = self.box.usage()
        self._first_peak_bytes, self._cpu_ms = used.peak_memory_bytes, used.cpu_ms

    @property
    def is_usable(self) -> bool:
        """False once it has ended, or was killed and is about to."""
        return not self._exec.done() and self.box.killed is None and not self.box.is_lost

    @property
    def is_worn(self) -> bool:
        """True when it should serve no further run."""
        return not self.is_usable or self._runs_count >= RUNS_LIMIT_COUNT or self._grown

    def sockets(self) -> CaughtSockets | None:
        """Its network, for the run that is about to be in it; None where it has none."""
        return None if self._sockets is None else self._sockets.copy()

    async def run(
        self, request: bytes, limits: Limits, timeout_ms: int, cpu_time_ms: int | None, talk: Talk
    ) -> Outcome:
        """Serves a run.

        Args:
            request: The frame that the host reads.
            limits: Of the host while this run is in it.
            timeout_ms, cpu_time_ms: Of the run.
            talk: Takes its frames; `talk.connect` is called with the feed that takes answers.

        Raises:
            InternalError: the host had ended, or was lost (`retry_safe` tells when).
        """
        loop = asyncio.get_running_loop()
        if not self.is_usable or self._feed is None:
            raise InternalError("a worker host ended before its run", retry_safe=True)
        if limits != self._limits:
            self.box.limit(limits)
            self._limits = limits
        self._over = loop.create_future()
        self._reader = talk.listen(self._finish, self._feed)
        started_at = time.monotonic()
        deadline = loop.call_later(timeout_ms / 1000, self.box.kill, Cause.WALL_TIMEOUT)
        watch = None if cpu_time_ms is None else loop.create_task(self._watch_cpu(cpu_time_ms))
        self._feed.write(request)
        try:
            await self._over
        except BaseException:
            self.box.kill(Cause.ABORTED)
            raise
        finally:
            deadline.cancel()
            if watch is not None:
                watch.cancel()
            self._reader = None
        duration_ms = round((time.monotonic() - started_at) * 1000, 3)
        self._runs_count += 1
        if self._exec.done():
            outcome = self._exec.result()
            return dataclasses.replace(
                outcome, duration_ms=duration_ms, usage=self._usage_since(outcome.usage)
            )
        usage = self._usage_since(self.box.usage())
        self._grown = usage.peak_memory_bytes - self._first_peak_bytes > _GROWTH_LIMIT_BYTES
        return Outcome(Cause.EXITED, None, None, duration_ms, usage)

    def _usage_since(self, now: Usage) -> Usage:
        seen_ms = max(now.cpu_ms, self._seen_cpu_ms)
        cpu_ms, self._cpu_ms = seen_ms - self._cpu_ms, seen_ms
        return Usage(round(max(cpu_ms, 0.0), 3), now.peak_memory_bytes)

    def _look(self) -> float:
        """CPU time up to now; where no cgroup keeps it, it is gone with the process."""
        self._seen_cpu_ms = self.box.usage().cpu_ms
        return self._seen_cpu_ms

    async def _watch_cpu(self, limit_ms: int) -> None:
        start_ms = self.box.usage().cpu_ms
        while (left_ms := limit_ms - (self._look() - start_ms)) > 0:
            await asyncio.sleep(max(0.002, left_ms / (os.cpu_count() or 1) / 1000))
        self.box.kill(Cause.CPU_TIMEOUT)

    async def destroy(self) -> None:
        """Ends it. Idempotent."""
        self._exec.cancel()
        await asyncio.wait([self._exec])
        if not self._exec.cancelled():
            self._exec.exception()  # seen: it is nobody's
        if self._sockets is not None:
            self._sockets.close()
        await self.box.destroy()


class Talk:
    """What a run takes from its host. Overridden by the run."""

    def listen(self, on_result: Callable[[], None], feed: ControlFeed) -> ResultReader:
        """A reader of the run's frames, which calls `on_result`; answers to calls go to `feed`."""
        raise NotImplementedError


class WorkerHosts:
    """The hosts of one language in one sandbox. Belongs to one event loop."""

    def __init__(
        self,
        backend: Backend,
        environment: Environment,
        language: str,
        *,
        spare_count: int,
        catch_ports: tuple[int, ...] = (),
    ) -> None:
        """Starts none yet.

        Args:
            backend: Makes the boxes.
            environment: Of the engine.
            language: `javascript` or `python`.
            spare_count: Hosts kept ready beside those in use.
            catch_ports: See `BoxPlan`; every run in them has egress of its own.
        """
        self._backend = backend
        self._catch_ports = catch_ports
        self._environment = environment
        self._language = language
        self._spare_count = spare_count
        self._idle: list[WorkerHost] = []
        self._starting: set[asyncio.Task[WorkerHost]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._has_served = False
        self._closed = False

    async def start(self) -> None:
        """Makes the first host ready.

        Raises:
            UnavailableError, InternalError: it cannot be made.
        """
        self.give_back(await self.take())

    async def take(self) -> WorkerHost:
        """A host that is ready; `give_back` it.

        Raises:
            UnavailableError, InternalError: none can be made.
        """
        while self._idle:
            host = self._idle.pop()  # the last used: its pages are in the caches
            if host.is_usable:
                self._fill()
                return host
            self._end(host)
        task = next(iter(self._starting), None) or self._begin()
        self._starting.discard(task)
        self._fill()
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._starting.add(task)
            elif task.exception() is None:
                self.give_back(task.result())
            raise

    def give_back(self, host: WorkerHost) -> None:
        """Takes a host back; one that is worn ends."""
        if host.is_worn or self._closed:
            self._end(host)
        else:
            self._idle.append(host)

    def note_run(self) -> None:
        """A run has ended: from now on spare hosts are kept, so that a kill costs nobody's time."""
        self._has_served = True
        self._fill()

    def _fill(self) -> None:
        if not self._has_served:
            return  # the first run has all the CPU, and may be the only one
        while len(self._idle) + len(self._starting) < self._spare_count and not self._closed:
            self._begin()

    def _begin(self) -> asyncio.Task[WorkerHost]:
        task = asyncio.ensure_future(self._make())
        self._starting.add(task)
        task.add_done_callback(self._begun)
        return task

    def _begun(self, task: asyncio.Task[WorkerHost]) -> None:
        if task not in self._starting:
            return  # somebody waits for it
        self._starting.discard(task)
        if not task.cancelled() and task.exception() is None:
            self.give_back(task.result())

    async def _make(self) -> WorkerHost:
        plan = BoxPlan(self._environment, host_limits(512), catch_ports=self._catch_ports)
        box = await self._backend.create(plan)
        host = WorkerHost(box, self._language, networked=bool(self._catch_ports))
        try:
            await host.start()
        except BaseException:
            await asyncio.shield(host.destroy())
            raise
        return host

    def _end(self, host: WorkerHost) -> None:
        task = asyncio.ensure_future(_destroy(host))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Ends every host. Idempotent."""
        self._closed = True
        for task in list(self._starting):
            task.cancel()
        while self._starting or self._ending:
            await asyncio.wait([*self._starting, *self._ending])
        idle, self._idle = self._idle, []
        for host in idle:
            await host.destroy()


async def _destroy(host: WorkerHost) -> None:
    with contextlib.suppress(ClocheError, OSError):
        await host.destroy()


def _drop(_: bytes) -> None:
    """The host itself prints nothing; a subverted one is not listened to."""
