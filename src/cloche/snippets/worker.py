"""The worker sandbox: a fresh engine instance for every run, in a host that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from cloche.admission import admit_worker
from cloche.backends.base import require_mechanisms
from cloche.egress.transparent import TransparentEgress
from cloche.environments import workers
from cloche.errors import InvalidRequestError, OverloadedError, UnavailableError
from cloche.frames import DEPTH_LIMIT, DIGITS_LIMIT, NONCE_BYTES, ResultReader, encode_request
from cloche.model.outcome import Cause
from cloche.model.plan import Control, Isolation, Strength
from cloche.model.snippet import RuntimeInfo, SandboxOptions
from cloche.settings import find_cache_folder
from cloche.snippets.context import check_context
from cloche.snippets.engine_code import find_engine_code
from cloche.snippets.sandbox import Ending, Run, Sandbox, nothing
from cloche.snippets.verdict import WORKER_CODES, judge
from cloche.snippets.worker_hosts import Talk, WorkerHosts, host_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloche.backends.base import Backend, ControlFeed
    from cloche.egress.rules import EgressRules
    from cloche.linux.netns import CaughtSockets
    from cloche.snippets.tools import ToolCalls
    from cloche.snippets.worker_hosts import WorkerHost

_CPUS_COUNT = os.cpu_count() or 1
_HOST_OF: Final = {"javascript": "javascript", "typescript": "javascript", "python": "python"}
_ENGINE_OF: Final = {"javascript": "quickjs-ng", "python": "monty"}
# Fields of a run that an engine has no use for, and why.
_NOT_HERE: Final = {
    "allow_fs": "a worker has no files",
    "mounts": "a worker has no files",
    "files": "a worker has no files",
    "collect": "a worker has no files",
    "runtime": "a worker has engines of its own",
    "stdin": "a worker's snippet has a context instead",
    "args": "a worker's snippet has a context instead",
    "env": "a worker's snippet has a context instead",
}


class WorkerSandbox(Sandbox):
    """Runs each snippet in an engine instance of its own. Belongs to one event loop."""

    kind = "worker"

    def __init__(
        self,
        options: SandboxOptions,
        backend: Backend,
        *,
        serve_egress: Callable[[EgressRules, CaughtSockets], TransparentEgress] = TransparentEgress,
    ) -> None:
        """Starts nothing yet; see `cloche.create_worker_sandbox`."""
        self.serve_egress = serve_egress
        super().__init__(options, backend, slots_count=options.pool_size or _CPUS_COUNT)
        _refuse_what_is_not_here(options)
        self._hosts: dict[tuple[str, tuple[int, ...]], WorkerHosts] = {}
        self._finding = asyncio.Lock()

    async def hosts_of(self, language: str, ports: tuple[int, ...] = ()) -> WorkerHosts:
        """The hosts for a language, and for egress on some ports.

        Raises:
            UnavailableError, InternalError: its engine is not there, or cannot be compiled.
        """
        key = _HOST_OF[language], ports
        if key not in self._hosts:
            async with self._finding:
                if key not in self._hosts:
                    self._hosts[key] = await self._make_hosts(*key)
        return self._hosts[key]

    async def _make_hosts(self, kind: str, ports: tuple[int, ...]) -> WorkerHosts:
        code = None
        if kind == "javascript":
            code = await find_engine_code(self.backend, find_cache_folder())
        environment = workers.worker_environment(kind, code)
        hosts = WorkerHosts(
            self.backend, environment, kind, spare_count=0 if ports else 1, catch_ports=ports
        )
        self.belongings.parts.append(hosts)
        return hosts

    async def _start(self) -> None:
        await (await self.hosts_of(self.options.language)).start()

    def _make_run(
        self, code: str, context: Mapping[str, Any] | None, options: SandboxOptions
    ) -> WorkerRun:
        return WorkerRun(self, code, context, options)


def _refuse_what_is_not_here(options: SandboxOptions) -> None:
    for field, why in _NOT_HERE.items():
        if getattr(options, field):
            raise InvalidRequestError(f"{field}: {why}; use the process sandbox", retry_safe=True)
    if options.mode == "program":
        raise InvalidRequestError(
            "mode: a worker runs snippets; use the process sandbox", retry_safe=True
        )


class WorkerRun(Run, Talk):
    """One run in a worker host."""

    sandbox: WorkerSandbox

    def __init__(
        self,
        sandbox: WorkerSandbox,
        code: str,
        context: Mapping[str, Any] | None,
        options: SandboxOptions,
    ) -> None:
        """Checks everything that can be checked before a slot is taken."""
        super().__init__(sandbox, code, options)
        _refuse_what_is_not_here(options)
        self._context = check_context(context, options.language)
        if "tools" in self._context and options.tools:
            raise InvalidRequestError("context: tools is the name of the tools", retry_safe=True)
        self._rules = admit_worker(options, sandbox.facts)
        if self._rules.ports and options.language == "python":
            asked = "allow_network" if options.allow_network else "allow_hosts"
            raise InvalidRequestError(
                f"{asked}: Monty has no network; use the process sandbox", retry_safe=True
            )
        self.runtime = RuntimeInfo(_ENGINE_OF[_HOST_OF[options.language]], "")
        self._limits = host_limits(options.memory_limit_mb, options.cpu_limit)
        self._nonce = b""
        self._tools: ToolCalls | None = None

    async def _execute(self) -> Ending:
        options = self.options
        hosts = await self.sandbox.hosts_of(options.language, self._rules.ports)
        host = await self._take_host(hosts)
        if host is None:
            return self.stopped() or nothing(Cause.ABORTED, "the signal fired before the start")
        self.runtime = RuntimeInfo(host.engine, host.version)
        try:
            isolation = _with_cpu_time(host.box.isolation, options.cpu_time_ms)
            require_mechanisms(isolation, options.require)
        except UnavailableError:
            hosts.give_back(host)
            raise
        egress: TransparentEgress | None = None
        try:
            with self.holding(host.box):
                sockets = host.sockets()
                if sockets is not None:
                    # What an earlier run left there is not this one's: its rules are others.
                    sockets.drain()
                    egress = self.sandbox.serve_egress(self._rules, sockets)
                    egress.start()
                self.started_at = time.monotonic()
                outcome = await host.run(
                    self._request(), self._limits, options.timeout_ms, options.cpu_time_ms, self
                )
            verdict = judge(outcome, self._reader, options, codes=WORKER_CODES)
            denied = () if egress is None else egress.denied
            isolation = _with_cpu_time(host.box.isolation, options.cpu_time_ms)
            return Ending(verdict, outcome, isolation, denied=denied, warm=True)
        finally:
            if egress is not None:
                await egress.close()
            if self._tools is not None:
                await self._tools.close()
            if host.is_usable:
                hosts.give_back(host)
            else:
                await asyncio.shield(host.destroy())
            hosts.note_run()

    async def _take_host(self, hosts: WorkerHosts) -> WorkerHost | None:
        """A host; None when the run must not start any more. The wait is part of the queue's.

        Raises:
            OverloadedError: none was ready in time.
        """
        left_ms = max(0.0, self.options.queue_timeout_ms - self.queue_ms)
        host: WorkerHost | None = None
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(left_ms / 1000):
                with contextlib.suppress(TimeoutError):
                    async with self.sandbox.waiting(self.options.signal):
                        host = await hosts.take()
        except TimeoutError:
            if host is None:
                raise OverloadedError(
                    f"no worker host was ready within {self.options.queue_timeout_ms} ms"
                    " (queue_timeout_ms); retry later",
                    retry_safe=True,
                ) from None
        self.queue_ms = round(self.queue_ms + (time.monotonic() - asked_at) * 1000, 3)
        if host is not None and self.stopped() is not None:
            hosts.give_back(host)
            return None
        return host

    def listen(self, on_result: Callable[[], None], feed: ControlFeed) -> ResultReader:
        """See `worker_hosts.Talk`."""
        self._tools = self.tool_calls(feed.write)
        self._reader = ResultReader(
            self._nonce,
            self.options.value_limit_bytes,
            on_call=None if self._tools is None else self._tools.take,
            on_output=self._print,
            on_result=on_result,
        )
        return self._reader

    def _print(self, frame: dict[str, Any]) -> None:
        text = frame.get("text")
        if isinstance(text, str):
            data = text.encode("utf-8", "replace")
            (self.output.stderr if frame["out"] == "stderr" else self.output.stdout)(data)

    def _request(self) -> bytes:
        options = self.options
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        return encode_request(
            {
                "nonce": self._nonce.hex(),
                "mode": "snippet",
                "language": options.language,
                "code": self.code,
                "context": self._context,
                "tools": list(options.tools),
                "value_limit_bytes": options.value_limit_bytes,
                "depth_limit": DEPTH_LIMIT,
                "digit_limit": DIGITS_LIMIT,
                "memory_limit_bytes": options.memory_limit_mb * 1024 * 1024,
                "network": bool(self._rules.ports),
            }
        )


def _with_cpu_time(isolation: Isolation, limit_ms: int | None) -> Isolation:
    """A host's report, with the control that watches over one run in it."""
    if limit_ms is None:
        return isolation
    exact = isolation.controls["memory"].mechanism == "cgroup"
    mechanism = "cgroup" if exact else "proc"
    control = Control(
        mechanism,
        Strength.ENFORCED if exact else Strength.BEST_EFFORT,
        f"killed past {limit_ms} ms, read from {mechanism}",
    )
    return Isolation(isolation.backend, {**isolation.controls, "cpu_time": control})
