"""A job from its spec to its result: reading → work → artifacts → record."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloche.errors import ClocheError, InternalError, InvalidRequestError, UnavailableError
from cloche.jobs.artifacts import ArtifactCollector
from cloche.jobs.audit import AuditRecord
from cloche.jobs.delivery import Delivery
from cloche.jobs.egress import EgressAccount
from cloche.jobs.ledger import Ledger
from cloche.jobs.log import JobLog
from cloche.jobs.project.reading import Project, read_project
from cloche.jobs.refusal import JobRefusedError
from cloche.jobs.verdict import verdict_of
from cloche.jobs.work import JobWork
from cloche.model.events import LogEvent, StateEvent
from cloche.model.job import JobResult, Reason, ReasonCode, StepStatus, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cloche.jobs.work import JobHost
    from cloche.model.abort import AbortSignal
    from cloche.model.events import Event
    from cloche.model.job import Artifact, JobSpec

_MIB = 1024 * 1024
# What follows a step (collecting, removing its box) still ends on its own after the job's limit.
_GRACE_S = 1.0
_ABORT_INTERVAL_S = 0.25


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
        self._ledger = Ledger(self._tell, host.clock)
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
            self._work = asyncio.ensure_future(self._do(project))
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

    async def _do(self, project: Project | JobRefusedError) -> None:
        if isinstance(project, JobRefusedError):
            raise project
        self._collector = ArtifactCollector(
            project.steps.artifacts, self._spec.limits, self._delivery.copies
        )
        work = JobWork(
            self._host,
            self._spec,
            self._ledger,
            self._log,
            self._audit,
            self._collector,
            self._egress,
            self._tell,
        )
        await work.run(project)

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
        if self._ledger.end_current(status, reason):
            return
        if status is StepStatus.FAILED:
            self._early = (Verdict.REJECTED, reason)
        else:
            self._early = (verdict_of(status), reason)

    def _judge(self) -> tuple[Verdict, str | None, Reason | None]:
        if self._early is not None:
            return self._early[0], None, self._early[1]
        for result in self._ledger.results:
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
        results = self._ledger.all_results()

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
        isolations = [each.isolation for each in self._ledger.results if each.isolation is not None]
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


def _host_reason(error: OSError) -> Reason:
    return Reason(ReasonCode.HOST_FAILED, f"this host failed the job: {error}")
