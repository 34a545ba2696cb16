"""The functions that callers start with."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloche import telemetry
from cloche.backends.namespaces import NamespacesBackend
from cloche.egress.pypi import Index
from cloche.egress.registry import Registry
from cloche.environments.runtimes import find_npm
from cloche.jobs.installers.base import ADDRESS
from cloche.jobs.named_packages import ORIGIN as NAMED
from cloche.jobs.named_packages import NamedPackages
from cloche.jobs.pipeline import JobRun
from cloche.jobs.work import JobHost
from cloche.linux.probe import probe_host
from cloche.model.abort import AbortController
from cloche.model.job import JobSpec
from cloche.model.job_fields import check_spec, make_spec
from cloche.settings import read_settings
from cloche.store.packages import PackageStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloche.model.abort import AbortSignal
    from cloche.model.events import Event
    from cloche.model.job import JobResult


async def run_job(
    spec: JobSpec | Mapping[str, Any],
    *,
    out: Path | str | None = None,
    on_event: Callable[[Event], None] | None = None,
    signal: AbortSignal | None = None,
) -> JobResult:
    """Takes a generated project to verified artifacts: install, test, build, each in a box.

    Args:
        spec: What to do, as a `JobSpec` or its fields (the shape of a `cloche.yaml`).
        out: A new or empty folder for `artifacts/`, `manifest.json`, `log.ndjson` and
            `audit.json`. None: nothing is written; artifacts are hashed and not kept.
        on_event: Called with each event as it happens, on the event loop; must not block.
        signal: Aborts the job.

    Returns:
        What became of it: what the project did is never raised.

    Raises:
        InvalidRequestError: a field of the spec, or `out`; nothing was started.
        UnavailableError: this host cannot enforce what was asked, or lacks a tool.

    Ensures: no process of the job exists and nothing but `out` and Cloche's cache was written,
        also when the awaiting task is cancelled.
    """
    checked = spec if isinstance(spec, JobSpec) else make_spec(spec)
    check_spec(checked)
    # A job is stopped, never cancelled: what it has begun to write and to clear away, it finishes.
    controller = AbortController()
    signals = (controller.signal,) if signal is None else (controller.signal, signal)
    work = asyncio.ensure_future(_run_job(checked, out, on_event, signals))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        controller.abort()
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        work.cancelled() or work.exception()  # told to nobody: the caller is gone
        raise


async def _run_job(
    spec: JobSpec,
    out: Path | str | None,
    on_event: Callable[[Event], None] | None,
    signals: tuple[AbortSignal, ...],
) -> JobResult:
    settings = await asyncio.to_thread(read_settings)
    store = await asyncio.to_thread(PackageStore, settings.cache_folder / "packages")
    backend = NamespacesBackend()
    try:
        async with (
            Registry(settings.npm, store, npm_command=find_npm()) as registry,
            Index(settings.pip, store, mirror=ADDRESS) as index,
        ):
            host = JobHost(
                backend,
                probe_host(),
                settings.cache_folder,
                registry,
                {"npm": registry, NAMED: NamedPackages(registry), "pypi": index},
                settings.cache_limit_bytes,
            )
            run_id = secrets.token_hex(8)
            folder = None if out is None else Path(out)
            run = JobRun(host, spec, run_id, out=folder, on_event=on_event)
            with telemetry.job_span(run_id) as span:
                result = await run.run(signals)
                span.end(result.verdict, None if result.reason is None else result.reason.code)
            return result
    finally:
        await backend.close()
        await asyncio.to_thread(store.prune, settings.cache_limit_bytes)
