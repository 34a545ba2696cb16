"""A job from its spec to its result: bundle check → install → steps → artifacts → record."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloche import telemetry
from cloche.egress.transparent import open_egress
from cloche.environments.toolchain import find_toolchain, job_environment
from cloche.errors import ClocheError, InternalError, InvalidRequestError, UnavailableError
from cloche.jobs import build_scripts, install, resolve
from cloche.jobs.artifacts import ArtifactCollector
from cloche.jobs.audit import AuditRecord
from cloche.jobs.delivery import Delivery
from cloche.jobs.egress import EgressAccount
from cloche.jobs.installers import yarn
from cloche.jobs.installers.choice import read_installation
from cloche.jobs.log import JobLog
from cloche.jobs.project.lockfile import LOCKFILE
from cloche.jobs.project.reading import Project, read_project
from cloche.jobs.refusal import JobRefusedError
from cloche.jobs.steps import Site, Tree, refused, run_step
from cloche.jobs.verdict import verdict_of
from cloche.model.events import LogEvent, StateEvent, StepEvent
from cloche.model.job import (
    Denial,
    JobResult,
    Reason,
    ReasonCode,
    RegistryRule,
    StepResult,
    StepStatus,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloche.backends.base import Backend
    from cloche.egress.registry import Registry
    from cloche.jobs.installers.base import Installation, Source
    from cloche.jobs.project.spec import JobSteps
    from cloche.jobs.resolve import Resolution
    from cloche.jobs.steps import OpenEgress
    from cloche.linux.facts import HostFacts
    from cloche.model.abort import AbortSignal
    from cloche.model.events import Event
    from cloche.model.job import Artifact, JobSpec

_MIB = 1024 * 1024
_DENIALS_LIMIT_COUNT = 100
# What follows a step (collecting, removing its box) still ends on its own after the job's limit.
_GRACE_S = 1.0
_ABORT_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class JobHost:
    """What this host lends to its jobs.

    Attributes:
        backend: Makes boxes.
        facts: What can be enforced here.
        cache_folder: Packages, layers and tools; Cloche's own.
        registry: npm's.
        sources: By origin (`npm`, `npm-named`, `pypi`), where packages come from.
        cache_limit_bytes: Of layers that nobody uses.
        clock: Seconds since the epoch.
        open_egress: Serves the network of a box.
    """

    backend: Backend
    facts: HostFacts
    cache_folder: Path
    registry: Registry
    sources: Mapping[str, Source]
    cache_limit_bytes: int = 10 * 1024**3
    clock: Callable[[], float] = time.time
    open_egress: OpenEgress = open_egress


@dataclass(frozen=True, slots=True)
class _Current:
    """The step that is running, and since when: by the calendar, and to measure."""

    name: str
    started_at: float
    monotonic: float
    span: telemetry.JobSpan


class JobRun:
    """One run of a job; use it once."""

    def __init__(
        self,
        host: JobHost,
        spec: JobSpec,
        run_id: str,
        *,
        out: Path | None,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        """Starts nothing; see `entry.run_job` for the arguments."""
        self._host = host
        self._spec = spec
        self._run_id = run_id
        self._out = out
        self._on_event = on_event
        self._callback_error: Exception | None = None
        self._started_at = time.monotonic()
        self._work: asyncio.Future[None] | None = None
        self._stopped: tuple[StepStatus, Reason] | None = None
        self._names: tuple[str, ...] = ()
        self._current: _Current | None = None
        self._results: list[StepResult] = []
        self._early: tuple[Verdict, Reason] | None = None  # before the first step
        self._error: BaseException | None = None
        self._egress = EgressAccount()
        self._collector: ArtifactCollector | None = None
        self._delivery = Delivery(out)
        self._log = JobLog(spec.limits.log_mb * _MIB, self._tell, host.clock)
        self._audit = AuditRecord(
            run_id, spec, host.clock(), None if out is None else out / "audit.json"
        )

    async def run(self, signals: Sequence[AbortSignal] = ()) -> JobResult:
        """Runs the job to its result; each of the signals ends it.

        Raises:
            InvalidRequestError: the bundle is not there, `out` is not empty; nothing was written.
            UnavailableError: this host cannot enforce what was asked, which the record says too;
                or there can be no record: no record, no run.
            Exception: what `on_event` raised.

        Requires: the awaiting task is not cancelled; a signal ends the job.

        Ensures: nothing of the job runs any more.
        """
        project: Project | JobRefusedError
        try:
            project = await asyncio.to_thread(read_project, self._spec)
        except JobRefusedError as refusal:
            project = refusal
        try:
            await asyncio.to_thread(self._open_records, project)
            self._work = asyncio.ensure_future(self._run_project(project))
            await self._wait(self._work, signals)
            self._take_outcome(self._work)
            result = await asyncio.to_thread(self._finish)
        finally:
            self._delivery.close()
        self._tell(StateEvent(self._host.clock(), "ended", verdict=result.verdict))
        if self._callback_error is not None:
            raise self._callback_error
        if self._error is not None:
            raise self._error
        return result

    def _open_records(self, project: Project | JobRefusedError) -> None:
        """Makes durable what is intended. Blocks."""
        if isinstance(project, Project):
            self._audit.state_inputs(
                project.bundle, project.sources, project.steps.steps, project.steps.artifacts
            )
        if self._out is None:
            return
        try:
            self._delivery.open(self._log)
            self._audit.write()
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise InvalidRequestError(
                f"out: {self._out} cannot be used: {error.strerror}; name a new folder",
                retry_safe=True,
            ) from error
        except OSError as error:
            with contextlib.suppress(OSError):
                self._log.close()
            raise UnavailableError(
                f"the record of the run could not be written: {error}",
                fact="output",
                fix="free some space, or write somewhere else",
            ) from error

    async def _wait(self, work: asyncio.Future[None], signals: Sequence[AbortSignal]) -> None:
        """Waits for the end of the work, or brings it about: by a signal or the deadline."""
        loop = asyncio.get_running_loop()
        limit_ms = self._spec.limits.timeout_ms
        deadline = loop.call_later(
            limit_ms / 1000 + _GRACE_S,
            self._stop,
            StepStatus.TIMED_OUT,
            Reason(ReasonCode.JOB_TIMEOUT, f"the job's limit of {limit_ms} ms passed"),
        )
        aborted = Reason(ReasonCode.ABORTED, "the job was aborted")

        def on_abort() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(self._stop, StepStatus.ABORTED, aborted)

        for signal in signals:
            signal.subscribe(on_abort)
        try:
            while not work.done():
                await asyncio.wait([work], timeout=_ABORT_INTERVAL_S)
                if self._delivery.is_abort_asked():
                    self._stop(StepStatus.ABORTED, aborted)
        finally:
            deadline.cancel()
            for signal in signals:
                signal.unsubscribe(on_abort)

    def _stop(self, status: StepStatus, reason: Reason) -> None:
        """Ends the job where it is; the first call decides."""
        if self._stopped is None and self._work is not None and not self._work.done():
            self._stopped = (status, reason)
            self._work.cancel()

    def _tell(self, event: Event) -> None:
        if isinstance(event, LogEvent) and self._log.failure is not None:
            self._stop(StepStatus.INFRA_FAILED, _host_reason(self._log.failure))
        if self._on_event is None or self._callback_error is not None:
            return
        try:
            self._on_event(event)
        except Exception as error:
            self._callback_error = error
            self._stop(
                StepStatus.ABORTED, Reason(ReasonCode.ABORTED, "a listener of the job failed")
            )

    def _note(self, message: str) -> None:
        self._tell(StateEvent(self._host.clock(), "note", message=message))

    async def _run_project(self, project: Project | JobRefusedError) -> None:
        if isinstance(project, JobRefusedError):
            raise project
        bundle, installation = project.bundle, project.installation
        first = [] if installation is None else [install.NAME]
        if project.resolution is not None:
            first = [resolve.NAME, install.NAME]
        if first and self._spec.build_scripts:
            first.append(build_scripts.NAME)
        self._names = (*first, *(step.name for step in project.steps.steps))
        self._tell(StateEvent(self._host.clock(), "started", steps=self._names))
        for path, why in bundle.left_out.items():
            self._note(f"left out: {path} ({why})")
        for line in installation.ignored if installation is not None else ():
            self._note(line)
        is_python = installation is not None and installation.origin == "pypi"
        toolchain = await find_toolchain(
            self._host.cache_folder,
            self._host.sources["npm"].fetch,
            self._host.sources["pypi"].fetch if is_python else None,
            with_yarn=installation is not None and installation.tool == yarn.TOOL,
        )
        self._audit.state_toolchain(toolchain.describe())
        await asyncio.to_thread(self._audit.write)  # the last word before anything starts
        environment = await asyncio.to_thread(job_environment, toolchain)
        host = self._host
        site = Site(
            host.backend,
            host.facts,
            environment,
            self._log,
            self._spec,
            self._egress,
            host.open_egress,
            host.registry if self._spec.registry is RegistryRule.OPEN else None,
        )
        self._collector = ArtifactCollector(
            project.steps.artifacts, self._spec.limits, self._delivery.copies
        )
        files = bundle.files
        if project.resolution is not None:
            lockfile = await self._resolve(site, project.resolution)
            if lockfile is None:
                return
            files = {**files, LOCKFILE: lockfile}
            installation = read_installation(files)
            self._collector.add(LOCKFILE, lockfile)
        tree = Tree(files, bundle.executables)
        if installation is not None:
            tree.env = installation.step_env
            tree.add(installation.step_files, frozenset())
        installer = install.Installer(
            site,
            toolchain,
            host.sources,
            host.cache_folder,
            host.cache_limit_bytes,
            self._tell,
            host.clock,
        )
        try:
            if installation is None or await self._install(installer, installation, tree):
                await self._run_steps(site, project.steps, tree)
        finally:
            installer.close()

    async def _resolve(self, site: Site, resolution: Resolution) -> bytes | None:
        """The lockfile that is made anew; None when that failed."""
        self._begin(resolve.NAME)
        resolver = resolve.Resolver(site, self._host.registry, self._host.clock)
        try:
            result = await resolver.run(resolution, timeout_ms=self._left_ms())
        finally:
            self._deny(resolve.NAME, resolver.denials)
        self._end(result)
        if result.status is not StepStatus.PASSED:
            return None
        return resolver.lockfile

    def _deny(self, step: str, denials: Sequence[tuple[str, str]]) -> None:
        for what, why in denials[:_DENIALS_LIMIT_COUNT]:
            self._egress.denied.append(Denial(step, what, why))

    async def _run_steps(self, site: Site, steps: JobSteps, tree: Tree) -> None:
        assert self._collector is not None
        has_failed = False
        for step in steps.steps:
            if has_failed and not step.always:
                continue
            self._begin(step.name)
            if step.is_test and steps.missing_test is not None:
                result = refused(step.name, StepStatus.NO_TESTS, steps.missing_test, 0.0)
            else:
                timeout_ms = min(step.timeout_ms, self._left_ms())
                result = await run_step(site, step, tree, self._collector, timeout_ms=timeout_ms)
            result = replace(result, allowed=step.allow_failure and _may_be_allowed(result))
            self._end(result)
            has_failed |= result.status is not StepStatus.PASSED and not result.allowed

    async def _install(
        self, installer: install.Installer, installation: Installation, tree: Tree
    ) -> bool:
        self._begin(install.NAME)
        try:
            result = await installer.run(installation, timeout_ms=self._left_ms())
        finally:
            self._deny(install.NAME, installer.denials)
        if installer.layer is not None:
            tree.layers = (str(installer.layer.tree),)
            self._audit.state_layer(
                installer.layer.key,
                installer.layer.sha256,
                cached=result.cached,
                base=installer.base,
                packages_count=installer.fetched.packages_count,
                fetched_bytes=installer.fetched.size_bytes,
                signatures=installer.signatures,
            )
        self._end(result)
        if result.status is StepStatus.PASSED and self._spec.build_scripts:
            self._begin(build_scripts.NAME)
            result = await installer.build(installation, timeout_ms=self._left_ms())
            assert installer.layer is not None, "it is there after the install at the latest"
            tree.layers = (str(installer.layer.tree),)
            self._audit.state_builds(installer.layer, installer.built_folders)
            self._end(result)
        return result.status is StepStatus.PASSED

    def _left_ms(self) -> int:
        passed_ms = (time.monotonic() - self._started_at) * 1000
        return max(1, round(self._spec.limits.timeout_ms - passed_ms))

    def _begin(self, name: str) -> None:
        now = self._host.clock()
        self._current = _Current(name, now, time.monotonic(), telemetry.step_span(name))
        self._tell(StepEvent(now, name, "started"))

    def _end(self, result: StepResult) -> None:
        assert self._current is not None
        result = replace(result, started_at=self._current.started_at)
        code = None if result.reason is None else result.reason.code
        self._current.span.end(result.status, code, result.exit_code)
        self._current = None
        self._results.append(result)
        self._tell(StepEvent(self._host.clock(), result.name, "ended", result=result))

    def _take_outcome(self, work: asyncio.Future[None]) -> None:
        """What the work came to, where that is not in its results yet."""
        if work.cancelled():
            assert self._stopped is not None
            self._end_early(*self._stopped)
            return
        error = work.exception()
        if error is None:
            return
        if isinstance(error, JobRefusedError):
            self._end_early(StepStatus.FAILED, error.reason)
        elif isinstance(error, OSError):
            self._end_early(StepStatus.INFRA_FAILED, _host_reason(error))
        else:
            # Whatever it is, the record says that the job has ended.
            ours = f"Cloche itself failed: {error!r}"
            message = error.message if isinstance(error, ClocheError) else ours
            self._end_early(StepStatus.INFRA_FAILED, Reason(ReasonCode.HOST_FAILED, message))
            if not isinstance(error, InternalError):
                self._error = error

    def _end_early(self, status: StepStatus, reason: Reason) -> None:
        if self._current is not None:
            duration_ms = round((time.monotonic() - self._current.monotonic) * 1000, 3)
            self._end(refused(self._current.name, status, reason, duration_ms))
        elif status is StepStatus.FAILED:
            self._early = (Verdict.REJECTED, reason)
        else:
            self._early = (verdict_of(status), reason)

    def _judge(self) -> tuple[Verdict, str | None, Reason | None]:
        if self._early is not None:
            return self._early[0], None, self._early[1]
        for result in self._results:
            if result.status is not StepStatus.PASSED and not result.allowed:
                return verdict_of(result.status), result.name, result.reason
        return Verdict.PASSED, None, None

    def _finish(self) -> JobResult:
        """Delivers the artifacts of a job that passed, closes log and record. Blocks."""
        verdict, failed_step, reason = self._judge()
        artifacts: tuple[Artifact, ...] = ()
        manifest: dict[str, Any] = {"artifacts": [], "skipped": {}, "skipped_count": 0}
        try:
            if verdict is Verdict.PASSED and self._collector is not None:
                artifacts, manifest = self._collector.finish(self._delivery.make_ready())
            self._delivery.write_manifest(manifest)
        except OSError as error:
            verdict, reason = Verdict.INFRA_FAILED, _host_reason(error)
        if self._collector is not None:
            self._collector.close()
        try:
            self._log.close()
        except OSError as error:
            verdict, reason = Verdict.INFRA_FAILED, _host_reason(error)
        done = {result.name for result in self._results}
        skipped = [StepResult(n, StepStatus.SKIPPED) for n in self._names if n not in done]
        results = (*self._results, *skipped)

        def end_record() -> None:
            self._audit.end(
                ended_at=self._host.clock(),
                verdict=verdict,
                reason=reason,
                results=results,
                denied=tuple(self._egress.denied),
                egress=self._egress.decisions,
                manifest=manifest,
            )
            self._audit.write()

        try:
            end_record()
            if verdict is Verdict.PASSED:
                self._delivery.deliver()
        except OSError as error:
            verdict, reason = Verdict.INFRA_FAILED, _host_reason(error)
            with contextlib.suppress(OSError):  # it may be the record that cannot be written
                end_record()
        if verdict is not Verdict.PASSED:
            artifacts = ()
            self._delivery.withdraw()
        isolations = [each.isolation for each in self._results if each.isolation is not None]
        return JobResult(
            run_id=self._run_id,
            verdict=verdict,
            failed_step=failed_step,
            reason=reason,
            retry_safe=verdict in (Verdict.INFRA_FAILED, Verdict.ABORTED),
            steps=results,
            artifacts=artifacts,
            manifest=manifest,
            audit=self._audit.document,
            denied=tuple(self._egress.denied),
            isolation=isolations[-1] if isolations else None,
            duration_ms=round((time.monotonic() - self._started_at) * 1000, 3),
        )


def _may_be_allowed(result: StepResult) -> bool:
    """Whether it is the step's own failure, and not the end of the whole job."""
    ended = result.status in (StepStatus.PASSED, StepStatus.ABORTED, StepStatus.INFRA_FAILED)
    timed_out = result.reason is not None and result.reason.code is ReasonCode.JOB_TIMEOUT
    return not ended and not timed_out


def _host_reason(error: OSError) -> Reason:
    return Reason(ReasonCode.HOST_FAILED, f"this host failed the job: {error}")
