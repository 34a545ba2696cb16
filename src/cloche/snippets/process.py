"""The process sandbox: a fresh box for every run, made for it or kept warm."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from cloche.admission import admit
from cloche.backends.base import Sinks
from cloche.egress.rules import read_rules
from cloche.egress.transparent import open_egress
from cloche.errors import InternalError, InvalidRequestError, SandboxErrorCode
from cloche.frames import NONCE_BYTES, ResultReader
from cloche.model.outcome import Cause
from cloche.model.snippet import RuntimeInfo, SandboxOptions
from cloche.pool import WarmBox, WarmPool
from cloche.snippets import commands
from cloche.snippets.context import check_context
from cloche.snippets.sandbox import (
    Ending,
    Run,
    Sandbox,
    no_isolation,
    not_started,
    nothing,
)
from cloche.snippets.transformer import Module, Refusal, Transformer
from cloche.snippets.verdict import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from cloche.backends.base import Backend, Box, CollectedFiles, ControlFeed
    from cloche.egress.rules import EgressRules
    from cloche.egress.transparent import TransparentEgress
    from cloche.model.outcome import Outcome
    from cloche.model.plan import BoxPlan, Command
    from cloche.snippets.tools import ToolCalls

_COLLECT_LIMIT_BYTES = 64 * 1024 * 1024
_COLLECT_LIMIT_COUNT = 1_000
_CPUS_COUNT = os.cpu_count() or 1
# Variables that a runtime or its libraries read when they start: a warm one has started.
_START_VARIABLES: Final = (
    "BUN_", "DENO_", "GLIBC_", "HOME", "JSC_", "LANG", "LC_", "LD_", "MALLOC_", "NODE_",
    "OPENSSL_", "PATH", "PYTHON", "SSL_", "TMPDIR", "TZ", "UV_", "V8_", "FORCE_COLOR", "NO_COLOR",
)  # fmt: skip


class ProcessSandbox(Sandbox):
    """Runs each snippet or program in a box of its own. Belongs to one event loop."""

    kind = "process"

    def __init__(
        self,
        options: SandboxOptions,
        backend: Backend,
        *,
        open_egress: Callable[[Box, EgressRules], Awaitable[TransparentEgress]] = open_egress,
    ) -> None:
        """Starts nothing yet; see `cloche.create_process_sandbox`."""
        self.open_egress = open_egress
        # Two runs per CPU: one computes while the other is set up or torn down.
        super().__init__(options, backend, slots_count=2 * _CPUS_COUNT)
        self.transformer = Transformer(backend)
        size = _CPUS_COUNT if options.pool_size is None else options.pool_size
        queue = self.queue  # the run that takes a box still counts when the next is to be made
        self.pool = WarmPool(backend, size, lambda: queue.taken_count >= _CPUS_COUNT)
        self.belongings.parts += [self.pool, self.transformer]

    async def _start(self) -> None:
        options = self.options
        runtime = commands.choose_runtime(options)
        await self.backend.prepare(commands.environment_of(runtime))
        if options.mode != "snippet":
            return
        if options.language != "python":
            await self.transformer.start()
        run = self._make_run("", None, options)
        if run.may_be_warm:
            await self.pool.start(run.plan, run.warm_command)

    def _make_run(
        self, code: str, context: Mapping[str, Any] | None, options: SandboxOptions
    ) -> ProcessRun:
        return ProcessRun(self, code, context, options)


class ProcessRun(Run):
    """One run in a box.

    Attributes:
        plan: Of its box.
    """

    sandbox: ProcessSandbox

    def __init__(
        self,
        sandbox: ProcessSandbox,
        code: str,
        context: Mapping[str, Any] | None,
        options: SandboxOptions,
    ) -> None:
        """Checks everything that can be checked before a slot is taken."""
        super().__init__(sandbox, code, options)
        if options.mode == "program":
            _refuse_in_program(context, options)
        elif options.args:
            raise InvalidRequestError("args: a snippet has none; use the context", retry_safe=True)
        self._context = check_context(context, options.language)
        if "tools" in self._context and options.tools:
            raise InvalidRequestError("context: tools is the name of the tools", retry_safe=True)
        runtime = commands.choose_runtime(options)
        self.runtime = RuntimeInfo(runtime.name, runtime.version)
        self.plan: BoxPlan = admit(
            options,
            commands.environment_of(runtime),
            commands.files_of(self.code, options),
            sandbox.facts,
        )

    @property
    def may_be_warm(self) -> bool:
        """False where something of it must be there when the runtime starts."""
        options = self.options
        return (
            options.mode == "snippet"
            and not options.stdin
            and not any(name.startswith(_START_VARIABLES) for name in options.env)
        )

    @property
    def warm_command(self) -> Command:
        """What a warm box runs: it gets the variables with its request."""
        options = self.options
        if options.env:
            options = dataclasses.replace(options, env={})
        return commands.command_of(options, stream=True)

    async def _execute(self) -> Ending:
        try:
            if self.may_be_warm:
                warm = self.sandbox.pool.take(self.plan, self.warm_command)
                if warm is not None:
                    try:
                        return await self._execute_warm(warm)
                    except InternalError as error:
                        if not error.retry_safe or self.sandbox.disposed:
                            raise  # to whom it is told that the sandbox is disposed
            return await self._execute_cold()
        except _RefusedError as error:
            return error.ending

    async def _execute_warm(self, warm: WarmBox) -> Ending:
        talk = _Talk(self, warm.box)
        try:
            with self.holding(warm.box):
                await talk.open_egress()
                request = await self._request_unless_stopped(talk.nonce)
                if request is None:
                    return self.stopped() or nothing(Cause.ABORTED, "the run was aborted")
                outcome = await warm.run(request, self.plan.limits, talk.sinks, self.plan.require)
                return await talk.end(outcome, warm=True)
        finally:
            await talk.close()
            await self.sandbox.put_away(warm.box, warm.destroy())

    async def _execute_cold(self) -> Ending:
        options = self.options
        box = await self.sandbox.backend.create(self.plan)
        talk = _Talk(self, box)
        stdin = options.stdin.encode() if isinstance(options.stdin, str) else options.stdin
        command = commands.command_of(options, stream=bool(options.tools))
        try:
            with self.holding(box):
                # The box is being set up meanwhile, and starts after it.
                request = self._cold_request(talk)
                outcome = await box.exec(command, stdin=stdin, control=request, sinks=talk.sinks)
                return await talk.end(outcome, warm=False)
        finally:
            await talk.close()
            await self.sandbox.put_away(box, box.destroy())

    async def _request_unless_stopped(self, nonce: bytes) -> bytes | None:
        """What a warm box is to read; None when the run must not start any more."""
        with contextlib.suppress(TimeoutError):
            async with self.sandbox.waiting(self.options.signal):
                return await self._request(nonce, env=self.options.env)
        return None

    async def _cold_request(self, talk: _Talk) -> bytes:
        request = await self._request(talk.nonce)
        await talk.open_egress()
        self.started_at = time.monotonic()
        return request

    async def _request(self, nonce: bytes, env: Mapping[str, str] | None = None) -> bytes:
        """What the harness reads.

        Raises:
            _RefusedError: the transformer refuses the code.
        """
        options = self.options
        if options.mode == "program":
            request = commands.request_for_program(options, nonce)
        else:
            code: str | Module = self.code
            if options.language != "python":
                answer = await self.sandbox.transformer.transform(self.code, options.language)
                if isinstance(answer, Refusal):
                    raise _RefusedError(answer)
                code = answer
            request = commands.request_for_snippet(
                code, self._context, options, nonce, tools=tuple(options.tools), env=env
            )
        self.started_at = time.monotonic()
        return request


class _Talk:
    """What a box and a run have to say to each other."""

    def __init__(self, run: ProcessRun, box: Box) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._run = run
        self._box = box
        self._feed: ControlFeed | None = None
        self._egress: TransparentEgress | None = None
        options = run.options
        self._tools: ToolCalls | None = run.tool_calls(self._answer)
        # A result is a snippet's last word, unless it has files to close.
        is_last = options.mode == "snippet" and not options.collect
        self._reader = ResultReader(
            self.nonce,
            options.value_limit_bytes,
            on_call=None if self._tools is None else self._tools.take,
            on_result=box.finish if is_last else None,
        )
        connect = self._connect if self._tools else None
        self.sinks = Sinks(run.output.stdout, run.output.stderr, self._reader.feed, connect)

    def _connect(self, feed: ControlFeed) -> None:
        self._feed = feed

    async def open_egress(self) -> None:
        """Serves the box's network, where it has any."""
        options = self._run.options
        if self._run.plan.catch_ports:
            rules = read_rules(options.allow_hosts, any_public=options.allow_network)
            self._egress = await self._run.sandbox.open_egress(self._box, rules)

    def _answer(self, frame: bytes) -> None:
        if self._feed is not None:
            self._feed.write(frame)

    async def end(self, outcome: Outcome, *, warm: bool) -> Ending:
        """What became of the run; the box still is there."""
        options = self._run.options
        if outcome.cause is Cause.EXITED and outcome.exit_code is None:
            # It was ended after its last word, of which it would have made this exit code.
            code = 0 if self._reader.succeeded else 1
            outcome = dataclasses.replace(outcome, exit_code=code, signal=None)
        isolation = self._box.isolation
        collected: CollectedFiles | None = None
        if options.collect:
            collected = await self._box.collect(
                options.collect, limit_bytes=_COLLECT_LIMIT_BYTES, limit_count=_COLLECT_LIMIT_COUNT
            )
        return Ending(
            judge(outcome, self._reader, options),
            outcome,
            isolation,
            files={} if collected is None else collected.files,
            denied=() if self._egress is None else self._egress.denied,
            warm=warm,
        )

    async def close(self) -> None:
        """Ends what still answers. Idempotent."""
        if self._tools is not None:
            await self._tools.close()
        if self._egress is not None:
            await self._egress.close()


class _RefusedError(Exception):
    """The transformer refused the code: the run ends before it starts."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        verdict = Verdict(
            SandboxErrorCode.INVALID_CODE, refusal.message, line=refusal.line, column=refusal.column
        )
        self.ending = Ending(verdict, not_started(Cause.EXITED), no_isolation())


def _refuse_in_program(context: Any, options: SandboxOptions) -> None:
    if context:
        raise InvalidRequestError(
            "context: a program has none; use stdin, args or files", retry_safe=True
        )
    if options.tools:
        raise InvalidRequestError("tools: a program has none; use a snippet", retry_safe=True)
