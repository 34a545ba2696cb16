"""Names of spans and metrics, and the hooks that tell them to OpenTelemetry's API.

Whoever embeds Cloche sets the providers (the command line does it in `cloche.cli.telemetry`).
Where nobody has imported OpenTelemetry, nobody can have set one: then a hook is a look into
`sys.modules`. Code, values, output, variables and hosts are never told: of code, its SHA-256.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from typing import TYPE_CHECKING, Final, Protocol, Self

from cloche.errors import ClocheError

if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

RUN_SPAN: Final = "cloche.run"
JOB_SPAN: Final = "cloche.job"
STEP_SPAN: Final = "cloche.job.step"
RUNS: Final = "cloche.runs"
KILLS: Final = "cloche.kills"
RUN_DURATION: Final = "cloche.run.duration"
QUEUE_DURATION: Final = "cloche.queue.duration"
POOL_WAIT: Final = "cloche.pool.wait"

LANGUAGE: Final = "cloche.language"
RUNTIME: Final = "cloche.runtime"
SANDBOX: Final = "cloche.sandbox"
BACKEND: Final = "cloche.backend"
CODE_HASH: Final = "cloche.code.sha256"
OUTCOME: Final = "cloche.outcome"
CAUSE: Final = "cloche.cause"
RUN_ID: Final = "cloche.run_id"
STEP: Final = "cloche.step"
VERDICT: Final = "cloche.verdict"
REASON: Final = "cloche.reason"
EXIT_CODE: Final = "cloche.exit_code"

OK, CANCELLED, RAISED = "ok", "cancelled", "raised"
# From a warm worker's tenth of a millisecond to the longest run that anyone waits for.
_BOUNDARIES_MS = (
    *(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500),
    *(1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000),
)
# The API's own providers, which stand in until another one is set, and do nothing.
_IDLE_MODULES = ("opentelemetry.trace", "opentelemetry.metrics")


class EndedRun(Protocol):
    """What is told of a run's end; a `SandboxResult` is one."""

    @property
    def error_code(self) -> str | None:
        """None when it is ok."""

    @property
    def duration_ms(self) -> float:
        """From the start of the code to its result."""

    @property
    def queue_ms(self) -> float:
        """The wait for a slot."""


class RunSpan:
    """A run that is being told of; this one is told to nobody."""

    __slots__ = ()

    def __enter__(self) -> Self:
        """Starts; the span is the current one of the task until the exit."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends and counts the run, as what was given to `end`, else as what was raised."""

    def end(self, result: EndedRun) -> None:
        """Takes the result of a run that was not raised."""


class JobSpan:
    """A job or one of its steps, being told of; this one is told to nobody."""

    __slots__ = ()

    def __enter__(self) -> Self:
        """Makes the span the current one of the task until the exit."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the span, unless `end` was called, as what was raised."""

    def end(self, verdict: str, reason: str | None, exit_code: int | None = None) -> None:
        """Ends the span with the codes of what became of the job or the step."""


_SILENT_RUN, _SILENT_JOB = RunSpan(), JobSpan()


class Instruments:
    """What the spans and metrics of this process are made with."""

    def __init__(self, tracer_provider: TracerProvider, meter_provider: MeterProvider) -> None:
        """Instruments of these providers.

        Raises:
            TypeError: the API is older than 1.30.
        """
        self.tracer = tracer_provider.get_tracer("cloche")
        meter = meter_provider.get_meter("cloche")
        self.runs = meter.create_counter(RUNS, "{run}", "Runs that have ended.")
        self.kills = meter.create_counter(KILLS, "{kill}", "Runs that Cloche has ended.")
        self.run_duration, self.queue_duration, self.pool_wait = (
            meter.create_histogram(
                name, "ms", description, explicit_bucket_boundaries_advisory=_BOUNDARIES_MS
            )
            for name, description in (
                (RUN_DURATION, "From the start of the code to its result."),
                (QUEUE_DURATION, "Waiting for a free slot."),
                (POOL_WAIT, "Waiting for a box that is ready."),
            )
        )


_instruments: Instruments | None = None


def run_span(*, language: str, runtime: str, sandbox: str, backend: str, code: str) -> RunSpan:
    """The span `cloche.run`, for a `with` around a run; it also counts and measures the run.

    Args:
        language, runtime, sandbox, backend: Checked names, never a caller's own words.
        code: Hashed where somebody listens; not kept.
    """
    instruments = _find_instruments()
    if instruments is None:
        return _SILENT_RUN
    return _ToldRunSpan(instruments, language, runtime, sandbox, backend, code)


def job_span(run_id: str) -> JobSpan:
    """The span `cloche.job`, for a `with` around a job."""
    instruments = _find_instruments()
    return (
        _SILENT_JOB if instruments is None else _ToldJobSpan(instruments, JOB_SPAN, RUN_ID, run_id)
    )


def step_span(step: str) -> JobSpan:
    """The span `cloche.job.step`, below the current one; `end` ends it.

    Args:
        step: The step's name, as the spec gives it.
    """
    instruments = _find_instruments()
    return _SILENT_JOB if instruments is None else _ToldJobSpan(instruments, STEP_SPAN, STEP, step)


def count_kill(cause: str) -> None:
    """Counts a run that Cloche has ended, such as for a limit; `cause` is one of few words."""
    instruments = _find_instruments()
    if instruments is not None:
        instruments.kills.add(1, {CAUSE: str(cause)})


def record_pool_wait(wait_ms: float) -> None:
    """Measures how long a run has waited for a box that was ready, or nearly so."""
    instruments = _find_instruments()
    if instruments is not None:
        instruments.pool_wait.record(wait_ms)


def _find_instruments() -> Instruments | None:
    """None until a provider is set, which can happen at any time; from then on the same ones."""
    global _instruments
    if _instruments is not None:
        return _instruments
    if "opentelemetry.context" not in sys.modules:  # both parts of the API load it
        return None
    from opentelemetry import metrics, trace

    providers = trace.get_tracer_provider(), metrics.get_meter_provider()
    if all(type(each).__module__.startswith(_IDLE_MODULES) for each in providers):
        return None
    try:
        _instruments = Instruments(*providers)
    except TypeError:  # an API that is too old: see `Instruments`
        return None
    return _instruments


def _outcome_of(error: BaseException | None) -> str:
    """The one word for what was raised: a stable code, or that it was not Cloche's to name."""
    if isinstance(error, ClocheError):
        return str(error.code)
    return CANCELLED if isinstance(error, asyncio.CancelledError) else RAISED


def _enter(span: Span) -> Token[Context]:
    """Makes a span the current one: what is traced from now on in this task lies below it."""
    from opentelemetry import context, trace

    return context.attach(trace.set_span_in_context(span))


def _leave(token: Token[Context]) -> None:
    from opentelemetry import context

    context.detach(token)


def _fail(span: Span, word: str) -> None:
    """The status of a span that did not end well. An exception's text may hold anything."""
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, word)


class _ToldRunSpan(RunSpan):
    __slots__ = ("_instruments", "_labels", "_result", "_span", "_token")

    def __init__(
        self,
        instruments: Instruments,
        language: str,
        runtime: str,
        sandbox: str,
        backend: str,
        code: str,
    ) -> None:
        self._instruments = instruments
        self._labels = {LANGUAGE: language, SANDBOX: sandbox}
        self._result: EndedRun | None = None
        attributes = {**self._labels, RUNTIME: runtime, BACKEND: backend}
        self._span = instruments.tracer.start_span(RUN_SPAN, attributes=attributes)
        if self._span.is_recording():
            data = code.encode(errors="surrogatepass")
            self._span.set_attribute(CODE_HASH, hashlib.sha256(data).hexdigest())

    def __enter__(self) -> Self:
        self._token = _enter(self._span)
        return self

    def end(self, result: EndedRun) -> None:
        self._result = result

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _leave(self._token)
        result = self._result
        outcome = _outcome_of(error) if result is None else str(result.error_code or OK)
        self._span.set_attribute(OUTCOME, outcome)
        if outcome != OK:
            _fail(self._span, outcome)
        self._span.end()
        labels = {**self._labels, OUTCOME: outcome}
        self._instruments.runs.add(1, labels)
        if result is not None:
            self._instruments.run_duration.record(result.duration_ms, labels)
            self._instruments.queue_duration.record(result.queue_ms, self._labels)


class _ToldJobSpan(JobSpan):
    __slots__ = ("_has_ended", "_span", "_token")

    def __init__(self, instruments: Instruments, name: str, attribute: str, value: str) -> None:
        self._has_ended = False
        self._span = instruments.tracer.start_span(name, attributes={attribute: value})

    def __enter__(self) -> Self:
        self._token = _enter(self._span)
        return self

    def end(self, verdict: str, reason: str | None, exit_code: int | None = None) -> None:
        self._span.set_attribute(VERDICT, str(verdict))
        if reason is not None:
            self._span.set_attribute(REASON, str(reason))
            _fail(self._span, str(reason))
        if exit_code is not None:
            self._span.set_attribute(EXIT_CODE, exit_code)
        self._span.end()
        self._has_ended = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _leave(self._token)
        if not self._has_ended:
            outcome = _outcome_of(error)
            self._span.set_attribute(OUTCOME, outcome)
            _fail(self._span, outcome)
            self._span.end()
