"""One command in a box of the `namespaces` backend, from its pipes to its Outcome."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from cloche.errors import InternalError, UnavailableError
from cloche.linux import files, inspection, processes
from cloche.linux import limits as kernel_limits
from cloche.model.outcome import Cause, Outcome, Usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cloche.backends.base import Sinks
    from cloche.backends.namespaces_box import NamespacesBox
    from cloche.model.plan import Command

_SETUP_TIMEOUT_S = 20.0
_WATCH_INTERVAL_S = 0.02
_GRACE_S = 1.0


class CommandRun:
    """The pipes, the handshake and the deadlines of one command."""

    def __init__(
        self,
        box: NamespacesBox,
        command: Command,
        stdin: bytes,
        control: bytes | Awaitable[bytes],
        sinks: Sinks,
        on_waiting: Callable[[], None] | None,
    ) -> None:
        """Asks the box's init to hold the command ready."""
        self._box = box
        self._on_waiting = on_waiting
        self._cpu_ms_before = 0.0  # used while it waited for its request
        self._loop = asyncio.get_running_loop()
        self._started_at: float | None = None
        # As last watched; where no cgroup keeps it, it is gone with the processes.
        self._watched = inspection.TreeUsage(0, 0.0)
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._ooms_before = self._oom_kills_count()
        streams = sinks.control is not None or on_waiting is not None
        pipes = processes.open_guest_pipes(control_is_pipe=streams)
        self._let_go = pipes.let_go
        self._request_file = -1 if streams else pipes.control
        self._control = processes.Feeder(pipes.control) if streams else None
        self._pumps = [
            processes.Pump(pipes.stdout, sinks.stdout),
            processes.Pump(pipes.stderr, sinks.stderr),
            processes.Pump(pipes.result, sinks.result),
        ]
        self._stdin = processes.Feeder(pipes.stdin)
        self._stdin.finish(stdin)
        self._sinks = sinks
        self._request: bytes | asyncio.Future[bytes] = (
            control if isinstance(control, bytes) else asyncio.ensure_future(control)
        )
        limits = box.plan.limits
        weighted = box.cgroup is not None and "cpu" in box.cgroup.controllers
        try:
            if on_waiting is not None and box.cgroup is not None:
                box.cgroup.weigh(waiting=True)
            box.send(
                {
                    "op": "exec",
                    "argv": command.argv,
                    "env": dict(command.env),
                    "cwd": command.cwd,
                    "rlimits": kernel_limits.resource_limits(
                        limits, uid_is_shared=box.uid_is_shared
                    ),
                    "nice": 0 if weighted else kernel_limits.LOW_PRIORITY,
                },
                pipes.guest,
            )
        except BaseException:
            self.close()
            raise
        finally:
            pipes.close_guest()

    def _oom_kills_count(self) -> int:
        group = self._box.cgroup
        if group is None or "memory" not in group.controllers:
            return 0
        return group.oom_kills_count()

    async def finish(self) -> Outcome:
        """Lets the command go once it is what was asked, and waits for its end."""
        event, pid = await self._next(_SETUP_TIMEOUT_S)
        if event["event"] == "held":
            if self._box.killed is None:  # of a dying process /proc tells nothing
                self._box.report(pid)
                if self._on_waiting is not None:
                    self._let_run()
                    self._on_waiting()
                request = await self._request_or_end()
                if request is not None:
                    self._start(request)
            event, _ = await self._next(None)
        if event["event"] == "failed":
            raise self._setup_error(event)
        if event["event"] == "ended" and self._started_at is None and self._box.killed is None:
            raise InternalError("a command ended while it waited", retry_safe=True)
        ended_at = time.monotonic()
        if event["event"] == "lost":
            self._box.events.put_nowait((event, 0))  # for whoever asks a dead box again
            await self._box.wait_dead()
        for pump in self._pumps:
            pump.drain()
        return self._outcome(event, ended_at)

    async def _request_or_end(self) -> bytes | None:
        """What the command is to read, or None when it has ended before that was known."""
        if isinstance(self._request, bytes):
            return self._request
        end = asyncio.ensure_future(self._box.events.get())
        try:
            both: list[asyncio.Future[Any]] = [self._request, end]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not end.cancel() and not end.cancelled():
                self._box.events.put_nowait(end.result())  # `finish` takes it
        return self._request.result() if self._request.done() else None

    def _start(self, request: bytes) -> None:
        if self._on_waiting is not None:
            self._cpu_ms_before = self._box.measure().cpu_ms
        if self._control is None:
            files.fill_memory_file(self._request_file, request)
        else:
            self._control.write(request)
            if self._sinks.control is not None:
                self._sinks.control(self._control)
        self._arm()
        if self._on_waiting is None:
            self._let_run()

    def _let_run(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # killed this instant: its event follows
            os.write(self._let_go, b"g")
        self._box.on_started()

    async def _next(self, timeout_s: float | None) -> tuple[dict[str, Any], int]:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._box.events.get()
        except TimeoutError:
            raise InternalError("a box was not ready in time", retry_safe=True) from None

    def _setup_error(self, event: dict[str, Any]) -> Exception:
        if self._started_at is not None or event["step"] in ("exec", "working directory"):
            return InternalError(
                f"the command could not start: {event['message']} ({event['step']})",
                retry_safe=True,
            )
        if event["step"] == "scratch" and self._box.plan.layers:
            return UnavailableError(
                f"this host refused to mount a layer copy-on-write: {event['message']}",
                fact="overlay",
                fix="run `cloche doctor`, which tries it and names what forbids it",
            )
        return UnavailableError(
            f"this host refused a step of the box's set-up, `{event['step']}`: {event['message']}",
            fact="user-namespaces",
            fix="run `cloche doctor`, which tries each step and names what forbids it",
        )

    def _arm(self) -> None:
        limits = self._box.plan.limits
        self._started_at = time.monotonic()
        self._timers.append(
            self._loop.call_later(limits.timeout_ms / 1000, self._box.kill, Cause.WALL_TIMEOUT)
        )
        group = self._box.cgroup
        if limits.cpu_time_ms is not None:
            self._tasks.append(self._loop.create_task(self._watch_cpu(limits.cpu_time_ms)))
        if group is None or "memory" not in group.controllers:
            self._tasks.append(self._loop.create_task(self._watch_memory(limits.memory_mb)))

    async def _watch_cpu(self, limit_ms: int) -> None:
        cpus_count = os.cpu_count() or 1
        start_ms = self._watch().cpu_ms
        while True:
            left_ms = limit_ms - (self._watch().cpu_ms - start_ms)
            if left_ms <= 0:
                self._box.kill(Cause.CPU_TIMEOUT)
                return
            # All CPUs at once cannot use up what is left in less than this.
            await asyncio.sleep(max(0.002, left_ms / cpus_count / 1000))

    async def _watch_memory(self, limit_mb: int) -> None:
        while True:
            if self._watch().memory_bytes > limit_mb * 1024 * 1024:
                self._box.kill(Cause.MEMORY)
                return
            await asyncio.sleep(_WATCH_INTERVAL_S)

    def _watch(self) -> inspection.TreeUsage:
        now, before = self._box.measure(), self._watched
        self._watched = inspection.TreeUsage(
            max(now.memory_bytes, before.memory_bytes), max(now.cpu_ms, before.cpu_ms)
        )
        return now

    def _outcome(self, event: dict[str, Any], ended_at: float) -> Outcome:
        self._watch()
        started_at = self._started_at if self._started_at is not None else ended_at
        cpu_ms = max(self._watched.cpu_ms, event.get("cpu_ms", 0.0)) - self._cpu_ms_before
        usage = Usage(
            cpu_ms=round(max(cpu_ms, 0.0), 3),
            peak_memory_bytes=max(self._watched.memory_bytes, event.get("peak_memory_bytes", 0)),
        )
        exit_code = signal_number = None
        if event["event"] == "ended":
            code = os.waitstatus_to_exitcode(event["status"])
            exit_code, signal_number = (code, None) if code >= 0 else (None, -code)
        if self._oom_kills_count() > self._ooms_before:
            cause = Cause.MEMORY
        elif self._box.killed is not None:
            cause = self._box.killed
        elif event["event"] == "lost":
            raise InternalError(
                "the box was lost: its launcher or its init was killed",
                retry_safe=self._started_at is None,
            )
        else:
            cause = Cause.EXITED if exit_code is not None else Cause.SIGNALLED
        if cause not in (Cause.EXITED, Cause.SIGNALLED) and exit_code is None:
            signal_number = signal_number or processes.SIGKILL
        return Outcome(
            cause=cause,
            exit_code=exit_code,
            signal=signal_number,
            duration_ms=round((ended_at - started_at) * 1000, 3),
            usage=usage,
        )

    def close(self) -> None:
        """Lets go of every pipe, timer and task. Idempotent."""
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        for pump in self._pumps:
            pump.close()
        self._stdin.close()
        if self._control is not None:
            self._control.close()
        if not isinstance(self._request, bytes):
            self._request.cancel()
        for descriptor in (self._let_go, self._request_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._let_go = self._request_file = -1
