"""What both sandboxes share: one bounded queue, runs in flight, disposal, the shape of a result."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, Unpack

from cloche import telemetry
from cloche.errors import DisposedError, InternalError, InvalidRequestError, SandboxErrorCode
from cloche.linux.probe import probe_host
from cloche.model.outcome import Cause, Outcome, Usage
from cloche.model.plan import Isolation
from cloche.model.snippet import RunOptions, RuntimeInfo, SandboxOptions, SandboxResult
from cloche.queue import SlotQueue
from cloche.snippets.output import OutputRecorder
from cloche.snippets.tools import ToolCalls
from cloche.snippets.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping

    from cloche.backends.base import Backend, Box
    from cloche.model.abort import AbortSignal
    from cloche.model.snippet import RunFields

_CODE_LIMIT_BYTES = 8 * 1024 * 1024
_CLOSING_LIMIT_S = 60.0


class Part(Protocol):
    """Something that a sandbox keeps between runs."""

    async def close(self) -> None:
        """Ends it. Idempotent."""


class Belongings:
    """What is to be closed with a sandbox, also when nobody holds that any more.

    Attributes:
        parts: Closed in this order, before the backend. None of them refers to the sandbox.
        loop: The sandbox's, once something was started on it.
    """

    def __init__(self, backend: Backend) -> None:
        """Of a sandbox that has started nothing."""
        self.parts: list[Part] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        self._backend = backend
        self._owner_pid = os.getpid()

    async def close(self) -> None:
        """Ends all of it. Requires: no run is in flight."""
        for part in self.parts:
            await part.close()
        await self._backend.close()

    def close_forgotten(self) -> None:
        """For the garbage collector, which may call it in any thread."""
        loop = self.loop
        if loop is None or os.getpid() != self._owner_pid:
            return  # nothing was started, or not by this process

        def begin() -> None:
            task = asyncio.ensure_future(self.close())
            # A loop refers to its tasks weakly, and to its timers as long as it lives itself.
            held = loop.call_later(_CLOSING_LIMIT_S, lambda _: None, task)
            task.add_done_callback(lambda _: held.cancel())

        with contextlib.suppress(RuntimeError):  # a loop that was closed has taken all along
            loop.call_soon_threadsafe(begin)
        warnings.warn(
            "a sandbox was not disposed of; use `with`, `async with` or `dispose()`",
            ResourceWarning,
            stacklevel=2,
        )


class Sandbox(ABC):
    """Runs snippets. Belongs to one event loop.

    Attributes:
        kind: `process` or `worker`.
    """

    kind: ClassVar[str]

    def __init__(self, options: SandboxOptions, backend: Backend, *, slots_count: int) -> None:
        """Starts nothing yet."""
        self.options = options
        self.backend = backend
        self.facts = probe_host()
        self.queue = SlotQueue(slots_count, options.max_pending)
        self.boxes: set[Box] = set()  # of runs in flight
        self.disposed = False
        self._in_flight: set[asyncio.Future[None]] = set()
        self._clearing: set[asyncio.Future[None]] = set()
        self._waiting: set[Callable[[], None]] = set()  # ends the wait of a run
        self._owner_pid = os.getpid()
        self.belongings = Belongings(backend)
        self._forgotten = weakref.finalize(self, self.belongings.close_forgotten)
        self._forgotten.atexit = False  # the end of the process ends its boxes

    @abstractmethod
    async def _start(self) -> None:
        """Makes ready what every run needs."""

    @abstractmethod
    def _make_run(
        self, code: str, context: Mapping[str, Any] | None, options: SandboxOptions
    ) -> Run:
        """Checks everything that can be checked before a slot is taken."""

    async def __aenter__(self) -> Self:
        """Makes ready what every run needs: a first run is then as fast as the next ones."""
        self._refuse_when_disposed()
        self.belongings.loop = asyncio.get_running_loop()
        try:
            await self._start()
        except BaseException:
            await self.dispose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disposes."""
        await self.dispose()

    async def dispose(self) -> None:
        """Ends the runs in flight (as SANDBOX_DISPOSED), leaves nothing. Idempotent."""
        if self.is_foreign:
            return
        self.disposed = True
        for end in list(self._waiting):
            end()
        for box in list(self.boxes):
            box.kill(Cause.DISPOSED)
        while self._in_flight or self._clearing:
            await asyncio.wait([*self._in_flight, *self._clearing])
        self._forgotten.detach()
        await self.belongings.close()

    async def run(
        self,
        code: str,
        context: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
        **fields: Unpack[RunFields],
    ) -> SandboxResult:
        """Runs code to its result.

        Args:
            code: A snippet, or a program's main module (`mode`).
            context: JSON values by name: globals of a snippet.
            options: Fields that differ from the sandbox's.
            **fields: The same by keyword; these win.

        Returns:
            What became of it: what the code did is never raised.

        Raises:
            InvalidRequestError: a field, the context or the language; nothing was started.
            UnavailableError: this host cannot enforce what was asked.
            OverloadedError: the queue is full or the wait in it too long.
            DisposedError: the sandbox is disposed.
            InternalError: Cloche's own failure.

        Ensures: no process of the run exists and nothing that it wrote is left, also when the
            awaiting task is cancelled.
        """
        self._refuse_when_disposed()
        given = merge_fields(options, fields)
        resolved = self.options.override(given)
        if resolved.mounts:  # their folders are searched, which can take a while
            run = await asyncio.to_thread(self._make_run, code, context, resolved)
        else:
            run = self._make_run(code, context, resolved)
        loop = self.belongings.loop = asyncio.get_running_loop()
        ended = loop.create_future()
        self._in_flight.add(ended)
        try:
            return await run.finish()
        finally:
            self._in_flight.discard(ended)
            ended.set_result(None)

    @contextlib.asynccontextmanager
    async def waiting(self, signal: AbortSignal | None) -> AsyncIterator[None]:
        """Ends its body with TimeoutError when the signal fires, or the sandbox is disposed."""
        loop = asyncio.get_running_loop()
        is_open = True
        async with asyncio.timeout(None) as scope:

            def expire() -> None:
                if is_open:
                    scope.reschedule(loop.time())

            def fire() -> None:
                loop.call_soon_threadsafe(expire)

            self._waiting.add(expire)
            if signal is not None:
                signal.subscribe(fire)
            try:
                yield
            finally:
                is_open = False
                self._waiting.discard(expire)
                if signal is not None:
                    signal.unsubscribe(fire)

    async def put_away(self, box: Box, destroy: Coroutine[Any, Any, None]) -> None:
        """Destroys a box: returns when nothing in it lives.

        What a dead one leaves (its cgroup, descriptors of Cloche's) is cleared away meanwhile.
        """
        task = asyncio.ensure_future(destroy)
        self._clearing.add(task)
        task.add_done_callback(self._cleared)
        if not box.is_dead:
            await asyncio.shield(task)

    def _cleared(self, task: asyncio.Future[None]) -> None:
        self._clearing.discard(task)
        if not task.cancelled() and task.exception() is not None and self.options.logger:
            self.options.logger.warning("a box was not cleared away", exc_info=task.exception())

    @property
    def is_foreign(self) -> bool:
        """True in a fork of the process that made it: there it is of no use, and left alone."""
        return os.getpid() != self._owner_pid

    def _refuse_when_disposed(self) -> None:
        if self.is_foreign:
            raise InvalidRequestError(
                "the sandbox belongs to the process that this one was forked from; create another",
                retry_safe=True,
            )
        if self.disposed:
            raise DisposedError("the sandbox is disposed; create another one", retry_safe=True)


def check_options(options: Any, kind: type) -> None:
    """Raises InvalidRequestError when the options are neither None nor of their kind."""
    if options is not None and not isinstance(options, kind):
        told = f"options: must be {kind.__name__}, not {type(options).__name__}"
        raise InvalidRequestError(told, retry_safe=True)


def merge_fields(options: RunOptions | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run, from its options and its keywords; these win."""
    check_options(options, RunOptions)
    return {**(options.given if options is not None else {}), **fields}


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, beside its output.

    Attributes:
        files: What `collect` matched.
        denied: Refused egress.
        warm: What ran it was ready before the run was asked for.
    """

    verdict: Verdict
    outcome: Outcome
    isolation: Isolation
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    denied: tuple[str, ...] = ()
    warm: bool = False


class Run(ABC):
    """One run, from its request to its result.

    Attributes:
        runtime: What runs it. Set by the subclass.
    """

    runtime: RuntimeInfo

    def __init__(self, sandbox: Sandbox, code: str, options: SandboxOptions) -> None:
        """Checks the code."""
        self.sandbox = sandbox
        self.options = options
        self.code = _check_code(code)
        self.run_id = secrets.token_hex(16)
        self.queue_ms = 0.0
        self.started_at = time.monotonic()
        self.output = OutputRecorder(
            options.output_limit_bytes,
            options.on_output,
            lambda: time.monotonic() - self.started_at,
        )

    @abstractmethod
    async def _execute(self) -> Ending:
        """Runs it, with a slot in hand.

        Raises:
            InternalError: with `retry_safe` when no code has started: it is tried once more.
        """

    async def finish(self) -> SandboxResult:
        """Waits for a slot, runs, and says what became of it."""
        with telemetry.run_span(
            language=self.options.language,
            runtime=self.runtime.name,
            sandbox=self.sandbox.kind,
            backend=self.sandbox.backend.name,
            code=self.code,
        ) as span:
            result = await self._finish()
            span.end(result)
        if self.options.logger is not None:
            told = result.error_code or "ok"
            self.options.logger.info(
                "run %s: %s after %s ms", result.run_id, told, result.duration_ms
            )
        return result

    async def _finish(self) -> SandboxResult:
        signal = self.options.signal
        queued_at = time.monotonic()
        if signal is not None and signal.aborted:
            return self._result(nothing(Cause.ABORTED, "the signal had fired already"))
        queue = self.sandbox.queue
        has_slot = queue.try_acquire() or await self._wait_for_slot()
        self.queue_ms = round((time.monotonic() - queued_at) * 1000, 3)
        try:
            ending = self.stopped() or await self._execute_once_more()
        finally:
            if has_slot:
                queue.release()
        self.output.finish()
        if self.output.callback_error is not None:
            raise self.output.callback_error
        if ending.outcome.cause not in (Cause.EXITED, Cause.SIGNALLED):
            telemetry.count_kill(ending.outcome.cause)
        return self._result(ending)

    def stopped(self) -> Ending | None:
        """What a run that has not started comes to, when it must not start any more."""
        signal = self.options.signal
        if self.sandbox.disposed:
            return nothing(Cause.DISPOSED, "the sandbox was disposed")
        if signal is not None and signal.aborted:
            return nothing(Cause.ABORTED, "the signal fired before the start")
        return None

    async def _wait_for_slot(self) -> bool:
        """False when the signal fired, or the sandbox was disposed, first."""
        got = False
        with contextlib.suppress(TimeoutError):
            async with self.sandbox.waiting(self.options.signal):
                await self.sandbox.queue.acquire(self.options.queue_timeout_ms)
                got = True
        return got

    async def _execute_once_more(self) -> Ending:
        """Once more where the first box was lost before the code started, as by a dead launcher."""
        try:
            return await self._execute()
        except InternalError as error:
            if not error.retry_safe:
                raise
            return self.stopped() or await self._execute()

    @contextlib.contextmanager
    def holding(self, box: Box) -> Iterator[None]:
        """Lets the caller's signal, and disposal, end the box while the body runs."""
        loop, signal = asyncio.get_running_loop(), self.options.signal
        is_held = True

        def kill() -> None:
            if is_held:  # else the box may be another run's by now
                box.kill(Cause.ABORTED)

        def abort() -> None:
            loop.call_soon_threadsafe(kill)

        self.sandbox.boxes.add(box)
        if signal is not None:
            signal.subscribe(abort)
        if self.sandbox.disposed:
            box.kill(Cause.DISPOSED)
        try:
            yield
        finally:
            is_held = False
            if signal is not None:
                signal.unsubscribe(abort)
            self.sandbox.boxes.discard(box)

    def tool_calls(self, answer: Callable[[bytes], None]) -> ToolCalls | None:
        """Answers this run's calls of tools; None where it has none."""
        if not self.options.tools:
            return None
        return ToolCalls(
            self.options.tools,
            answer,
            value_limit_bytes=self.options.value_limit_bytes,
            logger=self.options.logger,
        )

    def _result(self, ending: Ending) -> SandboxResult:
        verdict, outcome, output = ending.verdict, ending.outcome, self.output
        return SandboxResult(
            ok=verdict.code is None,
            value=verdict.value,
            stdout=output.text("stdout"),
            stderr=output.text("stderr"),
            output=output.interleaved(),
            duration_ms=outcome.duration_ms,
            queue_ms=self.queue_ms,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            error=verdict.error,
            error_code=verdict.code,
            error_line=verdict.line,
            error_column=verdict.column,
            error_stack=verdict.stack,
            stdout_bytes=output.total_bytes("stdout"),
            stderr_bytes=output.total_bytes("stderr"),
            stdout_truncated=output.truncated("stdout"),
            stderr_truncated=output.truncated("stderr"),
            files=MappingProxyType(dict(ending.files)),
            denied=ending.denied,
            usage=outcome.usage,
            runtime=self.runtime,
            isolation=ending.isolation,
            warm=ending.warm,
            run_id=self.run_id,
        )


def nothing(cause: Cause, error: str) -> Ending:
    """Of a run that was not started."""
    codes = {Cause.ABORTED: SandboxErrorCode.ABORTED, Cause.DISPOSED: SandboxErrorCode.DISPOSED}
    return Ending(Verdict(codes[cause], error), not_started(cause), no_isolation())


def not_started(cause: Cause) -> Outcome:
    """Of a run that used nothing."""
    return Outcome(cause, None, None, 0.0, Usage(0.0, 0))


def no_isolation() -> Isolation:
    """Of a run for which no box was made."""
    return Isolation("none", MappingProxyType({}))


def _check_code(code: Any) -> str:
    if not isinstance(code, str):
        raise InvalidRequestError(f"code: must be str, not {type(code).__name__}", retry_safe=True)
    try:
        size = len(code.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError("code: has a lone surrogate", retry_safe=True) from None
    if size > _CODE_LIMIT_BYTES:
        raise InvalidRequestError(
            f"code: {size} bytes, over the limit of {_CODE_LIMIT_BYTES}", retry_safe=True
        )
    return code
