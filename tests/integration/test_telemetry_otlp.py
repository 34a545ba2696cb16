"""Telemetry as a collector on loopback receives it, and as an embedding program keeps it."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import cloche.sync
from cloche import telemetry
from job_site import GOOD_TEST, JobSite, manifest, open_site
from needs import BOX, JOB, needs

pytest.importorskip("opentelemetry.sdk", reason="missing: the extra cloche[telemetry]")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

ROOT = Path(__file__).parents[2]
CLOCHE = str(Path(sys.executable).with_name("cloche"))
CANARY = "canary-4711"
UNHEARD = "cloche: telemetry could not be exported as the OTEL_* variables ask\n"
# Of which the SDK's own export would take 10 seconds.
PATIENCE_S = 4.0
pytestmark = needs(*BOX, "runtime-bun", "runtime-python")


def plain(attributes: Any) -> dict[str, Any]:
    """Attributes on the wire as a mapping."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Collector:
    """An OTLP/HTTP endpoint that keeps what it receives, and answers with one status."""

    def __init__(self, status: int = 200) -> None:
        self.received: list[tuple[str, bytes, bytes]] = []  # path, head, body
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((self.path, bytes(self.headers), body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def everything(self) -> bytes:
        return b"\n".join(path.encode() + head + body for path, head, body in self.received)

    def _resources(self) -> Iterator[tuple[str, Any]]:
        for path, _, body in self.received:
            if path == "/v1/traces":
                for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                    yield "spans", each
            else:
                assert path == "/v1/metrics"
                for each in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    yield "metrics", each

    def _parts(self, kind: str) -> list[Any]:
        """Spans or metrics, whichever kind is asked for."""
        scopes = [
            scope
            for found, resource in self._resources()
            if found == kind
            for scope in getattr(resource, f"scope_{kind}")
        ]
        assert {scope.scope.name for scope in scopes} <= {"cloche"}
        return [part for scope in scopes for part in getattr(scope, kind)]

    @property
    def spans(self) -> list[Any]:
        return self._parts("spans")

    @property
    def metrics(self) -> dict[str, Any]:
        found = self._parts("metrics")
        assert len({each.name for each in found}) == len(found)
        return {each.name: each for each in found}

    @property
    def resource(self) -> dict[str, Any]:
        (first, *others) = [plain(each.resource.attributes) for _, each in self._resources()]
        assert all(each == first for each in others)
        return first


@pytest.fixture
def collector() -> Iterator[Collector]:
    with closing(Collector()) as collector:
        yield collector


def run(
    *args: str, url: str | None = None, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A command with the standard variables; without a URL: with none of them."""
    environment = {name: value for name, value in os.environ.items() if "OTEL" not in name}
    environment |= {"no_proxy": "127.0.0.1"} | variables
    if url is not None:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
    return subprocess.run(
        args, env=environment, cwd=cwd, capture_output=True, text=True, timeout=50, check=False
    )


def told(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


# The command line


@pytest.mark.parametrize(
    ("language", "runtime", "code"),
    [
        ("javascript", "bun", "console.error(secret + process.env.SECRET); [secret]"),
        ("python", "python", "import os, sys\nprint(secret + os.environ['SECRET'])\n[secret]"),
    ],
)
def test_a_run_arrives_at_the_collector_without_code_values_or_output(
    language: str, runtime: str, code: str, collector: Collector
) -> None:
    context = json.dumps({"secret": CANARY})
    options = ["--context", context, "--env", f"SECRET={CANARY}", "-l", language]
    code += f"  {'//' if language == 'javascript' else '#'} {CANARY}"
    done = run(CLOCHE, "run", "-e", code, *options, url=collector.url)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count(CANARY) == 3  # the control: it was all there
    (span,) = collector.spans
    found = plain(span.attributes)
    assert span.name == "cloche.run"
    assert len(found.pop("cloche.code.sha256")) == 64
    assert found == {
        "cloche.language": language,
        "cloche.runtime": runtime,
        "cloche.sandbox": "process",
        "cloche.backend": "namespaces",
        "cloche.outcome": "ok",
    }
    (runs,) = collector.metrics["cloche.runs"].sum.data_points
    assert runs.as_int == 1
    assert plain(runs.attributes) == {
        "cloche.language": language,
        "cloche.sandbox": "process",
        "cloche.outcome": "ok",
    }
    for name in ("cloche.run.duration", "cloche.queue.duration"):
        assert collector.metrics[name].unit == "ms"
        (point,) = collector.metrics[name].histogram.data_points
        assert point.count == 1
        assert 0 <= point.sum < 30_000
    assert collector.metrics["cloche.run.duration"].histogram.data_points[0].sum > 0
    assert CANARY.encode() not in collector.everything
    assert collector.resource["service.name"] == "cloche"


@pytest.mark.parametrize(
    ("code", "options", "outcome", "exit_code"),
    [
        (f"throw new Error('{CANARY}')", (), "SANDBOX_EXECUTION_ERROR", 1),
        (f"'{CANARY}' +", (), "SANDBOX_INVALID_CODE", 1),
        (f"for (;;); '{CANARY}'", ("--timeout-ms", "200"), "SANDBOX_TIMEOUT", 124),
    ],
)
def test_a_run_that_failed_arrives_with_its_code_and_without_its_words(
    code: str, options: Sequence[str], outcome: str, exit_code: int, collector: Collector
) -> None:
    done = run(CLOCHE, "run", "-e", code, *options, url=collector.url)
    assert done.returncode == exit_code
    (span,) = collector.spans
    assert plain(span.attributes)["cloche.outcome"] == outcome
    assert (span.status.message, list(span.events)) == (outcome, [])
    (runs,) = collector.metrics["cloche.runs"].sum.data_points
    assert plain(runs.attributes)["cloche.outcome"] == outcome
    if outcome == "SANDBOX_TIMEOUT":
        (kills,) = collector.metrics["cloche.kills"].sum.data_points
        assert (kills.as_int, plain(kills.attributes)) == (1, {"cloche.cause": "wall_timeout"})
    else:
        assert "cloche.kills" not in collector.metrics
    assert CANARY.encode() not in collector.everything


def test_the_command_line_is_not_told_even_where_a_detector_is_asked_for_it(
    collector: Collector,
) -> None:
    done = run(
        *(CLOCHE, "run", "-e", f"'{CANARY}'"),
        url=collector.url,
        OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="process",
        OTEL_SERVICE_NAME="mine",
    )
    assert done.returncode == 0, done.stderr
    assert collector.resource["service.name"] == "mine"
    assert "process.pid" in collector.resource  # the control: the detector was at work
    assert not any("command" in name for name in collector.resource)
    assert CANARY.encode() not in collector.everything


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobSite]:
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


SPEC = {
    "bundle": ".",
    "artifacts": [],
    "steps": [
        {"name": "first", "shell": f"echo {CANARY} $SECRET", "env": {"SECRET": CANARY}},
        {"name": "test", "argv": ["node", "--test"]},
        {"name": "last", "shell": f"echo {CANARY}; exit 7"},
        {"name": "never", "shell": "true"},
    ],
}


@needs(*JOB)
def test_a_job_and_its_steps_arrive_without_commands_or_logs(
    site: JobSite, collector: Collector
) -> None:
    folder = site.new_folder()
    files = {"package.json": manifest(), "a.test.js": GOOD_TEST, "cloche.yaml": json.dumps(SPEC)}
    for path, content in files.items():
        (folder / path).write_text(content)
    done = run(CLOCHE, "job", "run", "-f", "cloche.yaml", url=collector.url, cwd=folder)
    assert done.returncode == 1, done.stderr
    assert f"{CANARY} {CANARY}" in done.stdout + done.stderr  # the control
    *steps, job = collector.spans
    assert [each.name for each in (*steps, job)] == [*["cloche.job.step"] * 3, "cloche.job"]
    assert [plain(each.attributes) for each in steps] == [
        {"cloche.step": "first", "cloche.verdict": "passed", "cloche.exit_code": 0},
        {"cloche.step": "test", "cloche.verdict": "passed", "cloche.exit_code": 0},
        {
            "cloche.step": "last",
            "cloche.verdict": "failed",
            "cloche.reason": "exit_code",
            "cloche.exit_code": 7,
        },
    ]
    found = plain(job.attributes)
    assert len(found.pop("cloche.run_id")) == 16
    assert found == {"cloche.verdict": "failed", "cloche.reason": "exit_code"}
    assert {each.parent_span_id for each in steps} == {job.span_id}
    assert CANARY.encode() not in collector.everything


# An export that fails


def test_an_endpoint_that_does_not_answer_delays_no_command_by_much() -> None:
    started_at = time.monotonic()
    quiet = told(run(CLOCHE, "run", "-e", "6 * 7"))
    usual_s = time.monotonic() - started_at
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:  # it accepts, and that is all
        started_at = time.monotonic()
        done = run(CLOCHE, "run", "-e", "6 * 7", url=f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert time.monotonic() - started_at < usual_s + PATIENCE_S
    assert told(done) == (0, "42\n", UNHEARD)
    assert quiet == (0, "42\n", "")


@pytest.mark.parametrize("status", [302, 404, 429, 500, 503])
def test_an_endpoint_that_refuses_changes_neither_output_nor_exit_code(status: int) -> None:
    with closing(Collector(status)) as collector:
        started_at = time.monotonic()
        done = run(CLOCHE, "run", "-e", "throw 1", url=collector.url)
        assert time.monotonic() - started_at < 2 * PATIENCE_S
    assert (done.returncode, done.stdout) == (1, "")
    assert (UNHEARD in done.stderr) == (status >= 400)
    assert done.stderr.count("telemetry") == (status >= 400)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://name.test", "no url at all", "http://127.0.0.1:99999"]
)
def test_an_endpoint_that_is_not_there_changes_neither_output_nor_exit_code(url: str) -> None:
    assert told(run(CLOCHE, "run", "-e", "6 * 7", url=url)) == (0, "42\n", UNHEARD)


# A set-up that is refused

WITHOUT_SDK = (
    "import sys; sys.modules['opentelemetry.sdk'] = None\nfrom cloche.cli.main import main; main()"
)


def test_an_export_without_the_sdk_is_refused_with_the_way_to_install_it() -> None:
    command = (sys.executable, "-c", WITHOUT_SDK, "run", "-e", "6 * 7")
    done = run(*command, url="http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (69, "")
    assert "pip install 'cloche[telemetry]'" in done.stderr
    assert told(run(*command)) == (0, "42\n", "")
    off = run(*command, url="http://127.0.0.1:1", OTEL_SDK_DISABLED="true")
    assert told(off) == (0, "42\n", "")


@pytest.mark.parametrize(
    "name",
    ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER"],
)
def test_a_setting_that_cannot_be_used_is_refused_without_its_value(name: str) -> None:
    done = run(CLOCHE, "run", "-e", "1", url="http://127.0.0.1:1", **{name: CANARY})
    assert (done.returncode, done.stdout) == (69, "")
    assert "OTEL_" in done.stderr
    assert "OTEL_SDK_DISABLED=true" in done.stderr
    assert CANARY not in done.stderr


def test_the_doctor_is_there_whatever_telemetry_is_set_to() -> None:
    done = run(CLOCHE, "doctor", url="http://127.0.0.1:1", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert done.returncode == run(CLOCHE, "doctor").returncode
    assert "telemetry" not in done.stderr


# An embedding program


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where the spans of this process go."""
    exporter = InMemorySpanExporter()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    instruments = telemetry.Instruments(tracers, MeterProvider(shutdown_on_exit=False))
    monkeypatch.setattr(telemetry, "_instruments", instruments)
    return exporter


def below(exporter: InMemorySpanExporter, caller: ReadableSpan) -> list[str]:
    """The names of the spans right below a caller's."""
    return [
        span.name
        for span in exporter.get_finished_spans()
        if span.parent is not None and span.parent.span_id == caller.context.span_id
    ]


def test_a_run_lies_below_the_span_of_its_caller(kept: InMemorySpanExporter) -> None:
    async def run_it() -> None:
        await cloche.run("1")

    assert telemetry._instruments is not None
    tracer = telemetry._instruments.tracer
    for call in (lambda: cloche.sync.run("1"), lambda: asyncio.run(run_it())):
        kept.clear()
        with tracer.start_as_current_span("caller") as caller:
            call()
        assert below(kept, caller) == ["cloche.run"]


@needs(*JOB)
def test_a_job_lies_below_the_span_of_its_caller(site: JobSite, kept: InMemorySpanExporter) -> None:
    assert telemetry._instruments is not None
    with telemetry._instruments.tracer.start_as_current_span("caller") as caller:
        site.step("true")
    assert below(kept, caller) == ["cloche.job"]
    (job,) = [span for span in kept.get_finished_spans() if span.name == "cloche.job"]
    assert below(kept, job) == ["cloche.job.step"]


def test_the_program_of_the_document_prints_what_it_says() -> None:
    text = (ROOT / "docs/telemetry.md").read_text()
    program = text.split("```python\n")[1].partition("```")[0]
    shown = text.split("```text\n")[1].partition("```")[0]
    assert told(run(sys.executable, "-W", "error", "-c", program)) == (0, shown, "")
