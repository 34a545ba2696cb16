"""Whether OpenTelemetry's standard variables ask for an export.

Source: opentelemetry.io, "Environment Variable Specification" and "OTLP Exporter Configuration".
What an exporter needs beside this (headers, timeouts, certificates, samplers), it reads itself.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cloche.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIGNALS = ("traces", "metrics")
_PROTOCOL = "http/protobuf"
_EXPORTERS = {"otlp", "otlp_proto_http"}


def read_telemetry(environment: Mapping[str, str] | None = None) -> frozenset[str]:
    """Reads what is to be exported by OTLP: "traces", "metrics", both or nothing.

    Args:
        environment: In place of this process's own.

    Raises:
        UnavailableError: A protocol that Cloche does not export by; names the variable.
    """
    environment = os.environ if environment is None else environment
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return frozenset()
    return frozenset(each for each in _SIGNALS if _is_wanted(environment, each.upper()))


def _is_wanted(environment: Mapping[str, str], signal: str) -> bool:
    exporters = environment.get(f"OTEL_{signal}_EXPORTER") or "otlp"
    if not _EXPORTERS & {each.strip() for each in exporters.split(",")}:
        return False
    own, general = f"OTEL_EXPORTER_OTLP_{signal}_", "OTEL_EXPORTER_OTLP_"
    if not (environment.get(f"{own}ENDPOINT") or environment.get(f"{general}ENDPOINT")):
        return False
    for prefix in (own, general):
        if protocol := environment.get(f"{prefix}PROTOCOL"):
            if protocol.strip() != _PROTOCOL:
                raise UnavailableError(
                    f"{prefix}PROTOCOL names a protocol that telemetry is not exported by",
                    fact="telemetry",
                    fix=f"set it to {_PROTOCOL} with an endpoint that speaks it (often port 4318),"
                    " or set OTEL_SDK_DISABLED=true",
                )
            break
    return True
