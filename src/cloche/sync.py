"""The same functions without `await`, on one background loop; works in a notebook too.

cloche.sync.run("sum(xs)", {"xs": [1, 2, 3]}, language="python").value  # 6
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from cloche.errors import InvalidRequestError
from cloche.model.snippet import RunOptions, SandboxOptions
from cloche.snippets import entry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from cloche.model.abort import AbortSignal
    from cloche.model.events import Event
    from cloche.model.job import JobResult, JobSpec
    from cloche.model.snippet import RunFields, SandboxFields, SandboxResult
    from cloche.snippets.sandbox import Sandbox

_T = TypeVar("_T")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def _forget_loop() -> None:
    """In a fork: the thread of the loop is not there."""
    global _loop, _thread, _lock
    _loop, _thread, _lock = None, None, threading.Lock()


os.register_at_fork(after_in_child=_forget_loop)


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_loop.run_forever, name="cloche-sync", daemon=True)
            _thread.start()
        return _loop


def _wait(work: Coroutine[Any, Any, _T]) -> _T:
    """Waits for work on the background loop; Ctrl-C cancels it and waits for its end.

    Raises:
        InvalidRequestError: called from the background loop itself, as from `on_output`.
    """
    loop = _background_loop()
    if threading.current_thread() is _thread:
        work.close()
        raise InvalidRequestError(
            "cloche.sync cannot be used from within a run, such as in on_output", retry_safe=True
        )
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        concurrent.futures.wait([future])
        raise


class SyncSandbox:
    """A sandbox without `await`; thread-safe."""

    def __init__(self, sandbox: Sandbox) -> None:
        """See `create_process_sandbox` and `create_worker_sandbox`."""
        self._sandbox = sandbox

    def __enter__(self) -> Self:
        """Starts what the sandbox needs beforehand."""
        _wait(self._sandbox.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        """Disposes."""
        self.dispose()

    def run(
        self,
        code: str,
        context: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
        **fields: Unpack[RunFields],
    ) -> SandboxResult:
        """See `cloche.snippets.sandbox.Sandbox.run`."""
        return _wait(self._sandbox.run(code, context, options, **fields))

    def dispose(self) -> None:
        """See `cloche.snippets.sandbox.Sandbox.dispose`."""
        if self._sandbox.is_foreign:
            return
        _wait(self._sandbox.dispose())


def create_process_sandbox(
    options: SandboxOptions | None = None, **fields: Unpack[SandboxFields]
) -> SyncSandbox:
    """See `cloche.create_process_sandbox`."""

    async def create() -> Sandbox:
        return entry.create_process_sandbox(options, **fields)

    return SyncSandbox(_wait(create()))


def create_worker_sandbox(
    options: SandboxOptions | None = None, **fields: Unpack[SandboxFields]
) -> SyncSandbox:
    """See `cloche.create_worker_sandbox`."""

    async def create() -> Sandbox:
        return entry.create_worker_sandbox(options, **fields)

    return SyncSandbox(_wait(create()))


def run(
    code: str,
    context: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
    **fields: Unpack[RunFields],
) -> SandboxResult:
    """See `cloche.run`."""
    return _wait(entry.run(code, context, options, **fields))


def run_job(
    spec: JobSpec | Mapping[str, Any],
    *,
    out: Path | str | None = None,
    on_event: Callable[[Event], None] | None = None,
    signal: AbortSignal | None = None,
) -> JobResult:
    """See `cloche.run_job`; `on_event` is called from the background thread."""
    from cloche.jobs import entry as jobs  # most callers run snippets: it takes time to load

    return _wait(jobs.run_job(spec, out=out, on_event=on_event, signal=signal))
