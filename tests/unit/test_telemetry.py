"""What is told to OpenTelemetry, and that nothing is where nobody listens."""

import asyncio
import hashlib
import subprocess
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cloche.sync
from cloche import telemetry
from cloche.errors import (
    DisposedError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    SandboxErrorCode,
    UnavailableError,
)
from cloche.model.job import ReasonCode, Verdict
from cloche.model.outcome import Cause
from cloche.settings import read_telemetry

pytest.importorskip("opentelemetry.sdk", reason="missing: the extra cloche[telemetry]")

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

ROOT = Path(__file__).parents[2]
CANARY = "canary-4711"
CODE = f"'{CANARY}'"
FIELDS = {
    "language": "python",
    "runtime": "monty",
    "sandbox": "worker",
    "backend": "namespaces",
}
LABELS = {"cloche.language": "python", "cloche.sandbox": "worker"}


def ended(error_code: SandboxErrorCode | None = None) -> Any:
    """Of a `SandboxResult`, what matters here, and something that must not be told."""
    return SimpleNamespace(
        error_code=error_code, duration_ms=3.5, queue_ms=0.25, value=CANARY, error=CANARY
    )


class Listener:
    """An embedding program's providers, in memory."""

    def __init__(self, **fields: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False, **fields)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    @property
    def span(self) -> ReadableSpan:
        (span,) = self.spans
        return span

    def points(self, name: str) -> list[Any]:
        """The points of a metric."""
        data = self._reader.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        return [point for each in found if each.name == name for point in each.data.data_points]

    def counts(self, name: str) -> dict[tuple[Any, ...], float]:
        """The values of a counter by those of its labels, in the order of their names."""
        return {
            tuple(value for _, value in sorted(point.attributes.items())): point.value
            for point in self.points(name)
        }

    def everything(self) -> str:
        data = self._reader.get_metrics_data()
        return "".join([*(span.to_json() for span in self.spans), data.to_json() if data else ""])


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    listener = Listener()
    instruments = telemetry.Instruments(listener.tracers, listener.meters)
    monkeypatch.setattr(telemetry, "_instruments", instruments)
    return listener


def tell(result: Any = None, error: BaseException | None = None, code: str = CODE) -> None:
    with telemetry.run_span(**FIELDS, code=code) as span:
        if error is not None:
            raise error
        span.end(result)


# A run


def test_a_run_is_a_span_with_six_attributes_and_no_more(listener: Listener) -> None:
    tell(ended())
    assert listener.span.name == "cloche.run"
    assert listener.span.attributes == {
        **LABELS,
        "cloche.runtime": "monty",
        "cloche.backend": "namespaces",
        "cloche.code.sha256": hashlib.sha256(CODE.encode()).hexdigest(),
        "cloche.outcome": "ok",
    }
    assert listener.span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("code", SandboxErrorCode)
def test_the_outcome_of_a_run_that_failed_is_its_code(
    code: SandboxErrorCode, listener: Listener
) -> None:
    tell(ended(code))
    assert listener.span.attributes is not None
    assert listener.span.attributes["cloche.outcome"] == code.value
    assert type(listener.span.attributes["cloche.outcome"]) is str
    assert listener.span.status.status_code is StatusCode.ERROR
    assert listener.span.status.description == code.value
    assert listener.counts("cloche.runs") == {("python", code.value, "worker"): 1}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (InvalidRequestError(CANARY), "SANDBOX_INVALID_REQUEST"),
        (UnavailableError(CANARY, fact="f", fix="g"), "SANDBOX_UNAVAILABLE"),
        (OverloadedError(CANARY), "SANDBOX_OVERLOADED"),
        (DisposedError(CANARY), "SANDBOX_DISPOSED"),
        (InternalError(CANARY), "SANDBOX_INTERNAL_ERROR"),
        (asyncio.CancelledError(CANARY), "cancelled"),
        (KeyError(CANARY), "raised"),
        (KeyboardInterrupt(), "raised"),
    ],
)
def test_what_is_raised_passes_through_and_is_told_as_one_word(
    error: BaseException, outcome: str, listener: Listener
) -> None:
    with pytest.raises(type(error)) as raised:
        tell(error=error)
    assert raised.value is error
    assert listener.span.attributes is not None
    assert listener.span.attributes["cloche.outcome"] == outcome
    assert listener.span.events == ()
    assert listener.counts("cloche.runs") == {("python", outcome, "worker"): 1}
    assert listener.points("cloche.run.duration") == []
    assert CANARY not in listener.everything()


def test_neither_code_nor_values_nor_messages_are_told(listener: Listener) -> None:
    tell(ended())
    tell(ended(SandboxErrorCode.EXECUTION_ERROR))
    assert CANARY not in listener.everything()
    # The control: what is told is seen.
    with listener.tracers.get_tracer("test").start_as_current_span(CANARY):
        pass
    assert CANARY in listener.everything()


def test_runs_are_counted_by_language_sandbox_and_outcome(listener: Listener) -> None:
    tell(ended())
    tell(ended())
    tell(ended(SandboxErrorCode.TIMEOUT))
    assert listener.counts("cloche.runs") == {
        ("python", "ok", "worker"): 2,
        ("python", "SANDBOX_TIMEOUT", "worker"): 1,
    }


def test_durations_are_measured_in_milliseconds(listener: Listener) -> None:
    tell(ended())
    telemetry.record_pool_wait(7.0)
    for name, value, labels in (
        ("cloche.run.duration", 3.5, {**LABELS, "cloche.outcome": "ok"}),
        ("cloche.queue.duration", 0.25, LABELS),
        ("cloche.pool.wait", 7.0, {}),
    ):
        (point,) = listener.points(name)
        assert (point.count, point.sum, dict(point.attributes)) == (1, value, labels)
        # A warm worker's run and an hour are not of one bucket with what lies next to them.
        assert point.explicit_bounds[0] < 1 < 60_000 < point.explicit_bounds[-1]
    assert listener.everything().count('"unit": "ms"') == 3


def test_kills_are_counted_by_cause(listener: Listener) -> None:
    for cause in (Cause.MEMORY, Cause.WALL_TIMEOUT, Cause.MEMORY):
        telemetry.count_kill(cause)
    assert listener.counts("cloche.kills") == {("memory",): 2, ("wall_timeout",): 1}


def test_a_run_lies_below_the_span_of_its_caller_and_above_those_of_its_tools(
    listener: Listener,
) -> None:
    tracer = listener.tracers.get_tracer("test")
    with tracer.start_as_current_span("caller") as caller:
        with telemetry.run_span(**FIELDS, code="") as span:
            with tracer.start_as_current_span("tool"):
                pass
            span.end(ended())
        assert trace.get_current_span() is caller
    tool, run, top = listener.spans
    assert tool.parent is not None and run.parent is not None
    assert [tool.parent.span_id, run.parent.span_id, top.parent] == [
        run.context.span_id,
        top.context.span_id,
        None,
    ]


def test_runs_of_several_tasks_keep_to_their_own_callers(listener: Listener) -> None:
    tracer = listener.tracers.get_tracer("test")

    async def call(name: str) -> None:
        with tracer.start_as_current_span(name):
            with telemetry.run_span(**FIELDS, code=name) as span:
                await asyncio.sleep(0)
                span.end(ended())

    async def call_all() -> None:
        await asyncio.gather(*(call(str(each)) for each in range(5)))

    asyncio.run(call_all())
    callers = {span.context.span_id: span.name for span in listener.spans if span.parent is None}
    found = {
        callers[span.parent.span_id]: (span.attributes or {})["cloche.code.sha256"]
        for span in listener.spans
        if span.parent is not None
    }
    assert found == {str(n): hashlib.sha256(str(n).encode()).hexdigest() for n in range(5)}


def test_the_span_of_a_caller_without_await_reaches_the_background_loop(
    listener: Listener,
) -> None:
    async def current() -> Any:
        return await asyncio.create_task(_current())

    async def _current() -> Any:
        return trace.get_current_span()

    with listener.tracers.get_tracer("test").start_as_current_span("caller") as caller:
        assert cloche.sync._wait(current()) is caller
    assert cloche.sync._wait(current()) is not caller


def test_code_of_a_span_that_nobody_keeps_is_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(sampler=ALWAYS_OFF)
    instruments = telemetry.Instruments(listener.tracers, listener.meters)
    monkeypatch.setattr(telemetry, "_instruments", instruments)
    monkeypatch.delattr(hashlib, "sha256")
    tell(ended())
    assert listener.spans == []
    assert listener.counts("cloche.runs") == {("python", "ok", "worker"): 1}


def test_any_text_has_a_hash(listener: Listener) -> None:
    tell(ended(), code="'\ud800'")
    tell(ended(), code="")
    hashes = [(span.attributes or {})["cloche.code.sha256"] for span in listener.spans]
    assert hashes == [hashlib.sha256(data).hexdigest() for data in (b"'\xed\xa0\x80'", b"")]


# A job


def test_a_job_is_a_span_with_one_below_it_for_each_step(listener: Listener) -> None:
    with telemetry.job_span("0123abcd") as job:
        telemetry.step_span("install").end(Verdict.PASSED, None, 0)
        step = telemetry.step_span("test")
        step.end(Verdict.FAILED, ReasonCode.EXIT_CODE, 3)
        job.end(Verdict.FAILED, ReasonCode.EXIT_CODE)
    install, test, whole = listener.spans
    assert [install.name, test.name, whole.name] == [*["cloche.job.step"] * 2, "cloche.job"]
    assert install.attributes == {
        "cloche.step": "install",
        "cloche.verdict": "passed",
        "cloche.exit_code": 0,
    }
    assert test.attributes == {
        "cloche.step": "test",
        "cloche.verdict": "failed",
        "cloche.reason": "exit_code",
        "cloche.exit_code": 3,
    }
    assert whole.attributes == {
        "cloche.run_id": "0123abcd",
        "cloche.verdict": "failed",
        "cloche.reason": "exit_code",
    }
    assert [each.status.status_code for each in (install, test, whole)] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
        StatusCode.ERROR,
    ]
    assert install.parent == test.parent == whole.context
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_job_that_raised_is_told_as_one_word(listener: Listener) -> None:
    with pytest.raises(InvalidRequestError), telemetry.job_span("0123abcd"):
        raise InvalidRequestError(CANARY)
    assert listener.span.attributes == {
        "cloche.run_id": "0123abcd",
        "cloche.outcome": "SANDBOX_INVALID_REQUEST",
    }
    assert CANARY not in listener.everything()


# Nobody listens


def use_every_hook() -> None:
    tell(ended(), code="\ud800")
    with telemetry.job_span("0123abcd") as job:
        telemetry.step_span("test").end(Verdict.PASSED, None, 0)
        job.end(Verdict.PASSED, None)
    telemetry.count_kill("memory")
    telemetry.record_pool_wait(1.0)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delattr(hashlib, "sha256")
    yield
    assert telemetry._instruments is None


def test_nothing_is_done_where_only_the_api_was_imported(nobody: None) -> None:
    assert "opentelemetry.trace" in sys.modules
    use_every_hook()
    with telemetry.run_span(**FIELDS, code="") as span:
        assert type(span) is telemetry.RunSpan


def test_what_is_raised_passes_through_where_nobody_listens(nobody: None) -> None:
    with pytest.raises(KeyError, match="it"):
        tell(error=KeyError("it"))


@pytest.mark.live
def test_opentelemetry_is_never_imported_on_behalf_of_nobody() -> None:
    script = (
        "import sys, cloche.telemetry as t, cloche.cli.main, cloche.sync, cloche.jobs.entry\n"
        "with t.run_span(language='', runtime='', sandbox='', backend='', code=''): pass\n"
        "t.step_span('s').end('passed', None); t.count_kill('memory'); t.record_pool_wait(1)\n"
        "assert not [name for name in sys.modules if 'opentelemetry' in name], sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)


def test_a_provider_that_is_set_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_instruments", None)
    tell(ended())
    listener = Listener()
    with monkeypatch.context() as patch:
        patch.setattr(trace, "get_tracer_provider", lambda: listener.tracers)
        tell(ended())
    assert listener.span.name == "cloche.run"


def test_measures_alone_can_be_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_instruments", None)
    listener = Listener()
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: listener.meters)
    tell(ended())
    assert listener.counts("cloche.runs") == {("python", "ok", "worker"): 1}


def test_an_api_that_is_too_old_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_histogram(name: str, unit: str = "", description: str = "") -> None:
        raise AssertionError

    old = SimpleNamespace(create_counter=lambda *_: None, create_histogram=create_histogram)
    monkeypatch.setattr(telemetry, "_instruments", None)
    monkeypatch.setattr(
        metrics, "get_meter_provider", lambda: SimpleNamespace(get_meter=lambda _: old)
    )
    use_every_hook()
    assert telemetry._instruments is None


def test_a_run_costs_less_than_a_microsecond_where_nobody_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.context")
    result = ended()

    def run() -> None:
        with telemetry.run_span(
            language="python", runtime="python", sandbox="process", backend="namespaces", code=CODE
        ) as span:
            span.end(result)

    # The fastest of many short rounds: the others have met what else this machine does.
    assert min(timeit.repeat(run, number=200, repeat=200)) / 200 < 1e-6


# What the standard variables ask for

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
BOTH = {"traces", "metrics"}


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, set()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, set()),
        (ENDPOINT, BOTH),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1/v1/traces"}, {"traces"}),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1/m"}, {"metrics"}),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "True"}, set()),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "false"}, BOTH),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, {"traces"}),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "console, otlp"}, BOTH),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, BOTH),
        (
            {
                **ENDPOINT,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
                "OTEL_METRICS_EXPORTER": "none",
            },
            {"traces"},
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, set()),
    ],
)
def test_the_standard_variables_say_what_is_exported(
    variables: dict[str, str], wanted: set[str]
) -> None:
    assert read_telemetry(variables) == wanted


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"]
)
def test_a_protocol_that_is_not_spoken_is_refused_by_the_name_of_its_variable(name: str) -> None:
    with pytest.raises(UnavailableError, match=f"{name} names a protocol") as refusal:
        read_telemetry({**ENDPOINT, name: CANARY})
    assert "http/protobuf" in refusal.value.fix
    assert CANARY not in str(refusal.value)


# The document


def test_every_name_that_is_told_is_in_the_document() -> None:
    text = (ROOT / "docs/telemetry.md").read_text()
    names = {
        value
        for name, value in vars(telemetry).items()
        if name.isupper() and isinstance(value, str)
    }
    assert len(names) >= 23
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []
    told = {piece for piece in text.split("`") if piece.startswith("cloche.") and " " not in piece}
    assert told <= {*names, "cloche.telemetry", "cloche.sync"}
