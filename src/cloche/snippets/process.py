"""The process sandbox: a fresh box for every run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, Unpack

from cloche.admission import admit
from cloche.backends.base import Box, Sinks
from cloche.errors import (
    DisposedError,
    InternalError,
    InvalidRequestError,
    SandboxErrorCode,
)
from cloche.frames import NONCE_BYTES, ResultReader
from cloche.linux.probe import probe_host
from cloche.model.outcome import Cause, Outcome, Usage
from cloche.model.plan import Isolation
from cloche.model.snippet import RunOptions, RuntimeInfo, SandboxOptions, SandboxResult
from cloche.queue import SlotQueue
from cloche.snippets import commands
from cloche.snippets.context import check_context
from cloche.snippets.output import OutputRecorder
from cloche.snippets.transformer import Module, Refusal, Transformer
from cloche.snippets.verdict import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from cloche.backends.base import Backend, CollectedFiles
    from cloche.environments.runtimes import Runtime
    from cloche.model.abort import AbortSignal
    from cloche.model.plan import BoxPlan
    from cloche.model.snippet import RunFields

_CODE_LIMIT_BYTES = 8 * 1024 * 1024
_COLLECT_LIMIT_BYTES = 64 * 1024 * 1024
_COLLECT_LIMIT_COUNT = 1_000
# Two runs per CPU: one computes while the other is set up or torn down.
_SLOTS_COUNT = 2 * (os.cpu_count() or 1)


class ProcessSandbox:
    """Runs each snippet or program in a box of its own. Belongs to one event loop."""

    def __init__(self, options: SandboxOptions, backend: Backend) -> None:
        """Starts nothing yet; see `cloche.create_process_sandbox`."""
        self._options = options
        self._backend = backend
        self._facts = probe_host()
        self._queue = SlotQueue(_SLOTS_COUNT, options.max_pending)
        self._transformer = Transformer(backend)
        self._boxes: set[Box] = set()
        self._in_flight: set[asyncio.Future[None]] = set()
        self._disposed = False
        self._owner_pid = os.getpid()

    async def __aenter__(self) -> Self:
        """Makes ready what every run needs: a first run is then as fast as the next ones."""
        self._refuse_when_disposed()
        try:
            runtime = commands.choose_runtime(self._options)
            await self._backend.prepare(commands.environment_of(runtime))
            if self._options.language != "python" and self._options.mode == "snippet":
                await self._transformer.start()
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
        self._disposed = True
        for box in list(self._boxes):
            box.kill(Cause.DISPOSED)
        while self._in_flight:
            await asyncio.wait(list(self._in_flight))
        await self._transformer.close()
        await self._backend.close()

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
        resolved = self._options.override(given)
        if resolved.mounts:  # their folders are searched, which can take a while
            run = await asyncio.to_thread(_Run, self, code, context, resolved)
        else:
            run = _Run(self, code, context, resolved)
        ended = asyncio.get_running_loop().create_future()
        self._in_flight.add(ended)
        try:
            return await run.finish()
        finally:
            self._in_flight.discard(ended)
            ended.set_result(None)

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
        if self._disposed:
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


class _Run:
    """One run, from its request to its result."""

    def __init__(
        self,
        sandbox: ProcessSandbox,
        code: str,
        context: Mapping[str, Any] | None,
        options: SandboxOptions,
    ) -> None:
        """Checks everything that can be checked before a slot is taken."""
        self._sandbox = sandbox
        self._options = options
        self._code = _check_code(code)
        if context and options.mode == "program":
            raise InvalidRequestError(
                "context: a program has none; use stdin, args or files", retry_safe=True
            )
        if options.args and options.mode == "snippet":
            raise InvalidRequestError("args: a snippet has none; use the context", retry_safe=True)
        self._context = check_context(context, options.language)
        self._runtime: Runtime = commands.choose_runtime(options)
        self._plan: BoxPlan = admit(
            options,
            commands.environment_of(self._runtime),
            commands.files_of(self._code, options),
            sandbox._facts,
        )
        self._run_id = secrets.token_hex(16)
        self._queue_ms = 0.0
        self._started_at = time.monotonic()
        self._output = OutputRecorder(
            options.output_limit_bytes,
            options.on_output,
            lambda: time.monotonic() - self._started_at,
        )

    async def finish(self) -> SandboxResult:
        """Waits for a slot, runs, and says what became of it."""
        signal = self._options.signal
        queued_at = time.monotonic()
        if signal is not None and signal.aborted:
            return self._nothing(SandboxErrorCode.ABORTED, "the signal had fired already")
        async with contextlib.AsyncExitStack() as held:
            with contextlib.suppress(TimeoutError):
                async with _ended_by(signal):
                    slot = self._sandbox._queue.slot(self._options.queue_timeout_ms)
                    await held.enter_async_context(slot)
            self._queue_ms = round((time.monotonic() - queued_at) * 1000, 3)
            if self._sandbox._disposed:
                return self._nothing(SandboxErrorCode.DISPOSED, "the sandbox was disposed")
            if signal is not None and signal.aborted:
                return self._nothing(SandboxErrorCode.ABORTED, "the signal fired before the start")
            try:
                return await self._run_in_fresh_box()
            except _RefusedError as error:
                return self._refused(error.refusal)

    async def _run_in_fresh_box(self) -> SandboxResult:
        """Once more where the first box was lost before the code started, as by a dead launcher."""
        try:
            return await self._run_in_box()
        except InternalError as error:
            if not error.retry_safe or self._sandbox._disposed:
                raise
            return await self._run_in_box()

    async def _run_in_box(self) -> SandboxResult:
        options = self._options
        nonce = secrets.token_bytes(NONCE_BYTES)
        reader = ResultReader(nonce, options.value_limit_bytes)
        stdin = options.stdin.encode() if isinstance(options.stdin, str) else options.stdin
        sinks = Sinks(self._output.stdout, self._output.stderr, reader.feed)
        box = await self._sandbox._backend.create(self._plan)
        self._sandbox._boxes.add(box)
        loop = asyncio.get_running_loop()

        def abort() -> None:
            loop.call_soon_threadsafe(box.kill, Cause.ABORTED)

        if options.signal is not None:
            options.signal.subscribe(abort)
        if self._sandbox._disposed:
            box.kill(Cause.DISPOSED)
        collected: CollectedFiles | None = None
        try:
            outcome = await box.exec(
                commands.command_of(options), stdin=stdin, control=self._request(nonce), sinks=sinks
            )
            isolation = box.isolation
            if options.collect:
                collected = await box.collect(
                    options.collect,
                    limit_bytes=_COLLECT_LIMIT_BYTES,
                    limit_count=_COLLECT_LIMIT_COUNT,
                )
        finally:
            if options.signal is not None:
                options.signal.unsubscribe(abort)
            self._sandbox._boxes.discard(box)
            await asyncio.shield(box.destroy())
        self._output.finish()
        if self._output.callback_error is not None:
            raise self._output.callback_error
        files = {} if collected is None else collected.files
        result = self._result(judge(outcome, reader, options), outcome, isolation, files)
        if options.logger is not None:
            told = result.error_code or "ok"
            options.logger.info("run %s: %s after %s ms", result.run_id, told, result.duration_ms)
        return result

    async def _request(self, nonce: bytes) -> bytes:
        """What the harness reads; the box is being set up meanwhile, and starts after it."""
        options = self._options
        if options.mode == "program":
            request = commands.request_for_program(options, nonce)
        else:
            code: str | Module = self._code
            if options.language != "python":
                answer = await self._sandbox._transformer.transform(self._code, options.language)
                if isinstance(answer, Refusal):
                    raise _RefusedError(answer)
                code = answer
            request = commands.request_for_snippet(code, self._context, options, nonce)
        self._started_at = time.monotonic()
        return request

    def _nothing(self, code: SandboxErrorCode, error: str) -> SandboxResult:
        """A result of a run that was not started."""
        cause = Cause.ABORTED if code is SandboxErrorCode.ABORTED else Cause.DISPOSED
        outcome = Outcome(cause, None, None, 0.0, Usage(0.0, 0))
        return self._result(Verdict(code, error), outcome, _no_isolation(), {})

    def _refused(self, refusal: Refusal) -> SandboxResult:
        verdict = Verdict(
            SandboxErrorCode.INVALID_CODE, refusal.message, line=refusal.line, column=refusal.column
        )
        outcome = Outcome(Cause.EXITED, None, None, 0.0, Usage(0.0, 0))
        return self._result(verdict, outcome, _no_isolation(), {})

    def _result(
        self,
        verdict: Verdict,
        outcome: Outcome,
        isolation: Isolation,
        files: Mapping[str, bytes],
    ) -> SandboxResult:
        output = self._output
        return SandboxResult(
            ok=verdict.code is None,
            value=verdict.value,
            stdout=output.text("stdout"),
            stderr=output.text("stderr"),
            output=output.interleaved(),
            duration_ms=outcome.duration_ms,
            queue_ms=self._queue_ms,
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
            files=MappingProxyType(dict(files)),
            denied=(),
            usage=outcome.usage,
            runtime=RuntimeInfo(self._runtime.name, self._runtime.version),
            isolation=isolation,
            warm=False,
            run_id=self._run_id,
        )


class _RefusedError(Exception):
    """The transformer refused the code: the run ends before it starts."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@contextlib.asynccontextmanager
async def _ended_by(signal: AbortSignal | None) -> AsyncIterator[None]:
    """Ends its body with TimeoutError when the signal fires."""
    if signal is None:
        yield
        return
    loop = asyncio.get_running_loop()
    is_open = True
    async with asyncio.timeout(None) as scope:

        def expire() -> None:
            if is_open:
                scope.reschedule(loop.time())

        def fire() -> None:
            loop.call_soon_threadsafe(expire)

        signal.subscribe(fire)
        try:
            yield
        finally:
            is_open = False
            signal.unsubscribe(fire)


def _no_isolation() -> Isolation:
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
