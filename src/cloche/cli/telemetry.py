"""OpenTelemetry's SDK for the command line: set up where the standard variables ask for it."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cloche import __version__
from cloche.errors import UnavailableError
from cloche.settings import read_telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# An endpoint that does not answer delays the end of a command by this much, and no more.
_FLUSH_LIMIT_S = 1.0


@contextmanager
def exporting() -> Iterator[None]:
    """Exports what its body tells by OTLP over HTTP; does nothing where nobody asks for it.

    Raises:
        UnavailableError: the export is asked for and cannot be set up.

    Ensures: a failing export is one line on stderr; it changes no exit code.
    """
    wanted = read_telemetry()
    if not wanted:
        yield
        return
    failures = _Failures()
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(failures)
    logger.propagate = False  # else its lines would come between those of the command
    try:
        shutdowns = _set_up(wanted)
    except ImportError as error:
        raise UnavailableError(
            "OTEL_EXPORTER_OTLP_* ask for telemetry, and the SDK is not installed",
            fact="telemetry",
            fix="pip install 'cloche[telemetry]', or set OTEL_SDK_DISABLED=true",
        ) from error
    except Exception as error:  # of whatever kind: each setting has its own
        raise UnavailableError(
            f"an OTEL_* variable cannot be used ({type(error).__name__})",
            fact="telemetry",
            fix="correct it, or set OTEL_SDK_DISABLED=true",
        ) from error
    try:
        yield
    finally:
        if not _end_in_time(shutdowns) or failures.count:
            told = "cloche: telemetry could not be exported as the OTEL_* variables ask"
            click.echo(told, err=True)


class _Failures(logging.Handler):
    """Counts what goes wrong in the SDK, whose messages may name what is in an endpoint's URL."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def _set_up(wanted: frozenset[str]) -> list[Callable[[], object]]:
    """Sets the providers of this process; returns what exports their rest and ends them."""
    from opentelemetry import metrics, trace
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    own = {"service.name": "cloche", "service.version": __version__}
    found = Resource.create({**own, **OTELResourceDetector().detect().attributes}).attributes
    # A detector that the user has asked for may tell the command line: it can hold code.
    resource = Resource({k: v for k, v in found.items() if not k.startswith("process.command")})
    shutdowns: list[Callable[[], object]] = []
    if "traces" in wanted:
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(tracers)
        shutdowns.append(tracers.shutdown)
    if "metrics" in wanted:
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        meters = MeterProvider([reader], resource, shutdown_on_exit=False)
        metrics.set_meter_provider(meters)
        shutdowns.append(meters.shutdown)
    return shutdowns


def _end_in_time(shutdowns: list[Callable[[], object]]) -> bool:
    """Ends the providers side by side; False when one is not done within the limit."""
    threads = [threading.Thread(target=each, daemon=True) for each in shutdowns]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _FLUSH_LIMIT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
