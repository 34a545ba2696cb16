"""Cloche runs code that nobody has read yet, safely.

    result = await cloche.run("price * (1 + rate)", {"price": 80, "rate": 0.25})
    result.value  # 100

Names are loaded when they are first used: importing Cloche costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloche import sync
    from cloche.errors import (
        AbortedError,
        ClocheError,
        DisposedError,
        DisposedInFlightError,
        ExecutionError,
        HostError,
        InternalError,
        InvalidCodeError,
        InvalidRequestError,
        MemoryExceededError,
        OverloadedError,
        RequestError,
        RunError,
        RunTimeoutError,
        SandboxErrorCode,
        ToolError,
        UnavailableError,
        ValueTooLargeError,
        register_sandbox_error_codes,
    )
    from cloche.jobs.entry import run_job
    from cloche.model.abort import AbortController, AbortSignal
    from cloche.model.events import Event, LogEvent, StateEvent, StepEvent
    from cloche.model.job import (
        Artifact,
        Egress,
        JobResult,
        JobSpec,
        Reason,
        ReasonCode,
        Step,
        StepResult,
        StepStatus,
        TestCounts,
        Verdict,
    )
    from cloche.model.plan import Control, Isolation, Mount, Strength
    from cloche.model.policy import JobLimits
    from cloche.model.snippet import OutputChunk, RunOptions, SandboxOptions, SandboxResult
    from cloche.snippets.entry import create_process_sandbox, create_worker_sandbox, run
    from cloche.snippets.process import ProcessSandbox
    from cloche.snippets.worker import WorkerSandbox

__version__ = "0.1.0"

_HOME_OF = {
    "AbortController": "cloche.model.abort",
    "AbortSignal": "cloche.model.abort",
    "AbortedError": "cloche.errors",
    "Artifact": "cloche.model.job",
    "ClocheError": "cloche.errors",
    "Control": "cloche.model.plan",
    "DisposedError": "cloche.errors",
    "DisposedInFlightError": "cloche.errors",
    "Egress": "cloche.model.job",
    "Event": "cloche.model.events",
    "ExecutionError": "cloche.errors",
    "HostError": "cloche.errors",
    "InternalError": "cloche.errors",
    "InvalidCodeError": "cloche.errors",
    "InvalidRequestError": "cloche.errors",
    "Isolation": "cloche.model.plan",
    "JobLimits": "cloche.model.policy",
    "JobResult": "cloche.model.job",
    "JobSpec": "cloche.model.job",
    "LogEvent": "cloche.model.events",
    "MemoryExceededError": "cloche.errors",
    "Mount": "cloche.model.plan",
    "OutputChunk": "cloche.model.snippet",
    "OverloadedError": "cloche.errors",
    "ProcessSandbox": "cloche.snippets.process",
    "Reason": "cloche.model.job",
    "ReasonCode": "cloche.model.job",
    "RequestError": "cloche.errors",
    "RunError": "cloche.errors",
    "RunOptions": "cloche.model.snippet",
    "RunTimeoutError": "cloche.errors",
    "SandboxErrorCode": "cloche.errors",
    "SandboxOptions": "cloche.model.snippet",
    "SandboxResult": "cloche.model.snippet",
    "StateEvent": "cloche.model.events",
    "Step": "cloche.model.job",
    "StepEvent": "cloche.model.events",
    "StepResult": "cloche.model.job",
    "StepStatus": "cloche.model.job",
    "Strength": "cloche.model.plan",
    "TestCounts": "cloche.model.job",
    "ToolError": "cloche.errors",
    "UnavailableError": "cloche.errors",
    "ValueTooLargeError": "cloche.errors",
    "Verdict": "cloche.model.job",
    "WorkerSandbox": "cloche.snippets.worker",
    "create_process_sandbox": "cloche.snippets.entry",
    "create_worker_sandbox": "cloche.snippets.entry",
    "register_sandbox_error_codes": "cloche.errors",
    "run": "cloche.snippets.entry",
    "run_job": "cloche.jobs.entry",
}

__all__ = [
    "AbortController",
    "AbortSignal",
    "AbortedError",
    "Artifact",
    "ClocheError",
    "Control",
    "DisposedError",
    "DisposedInFlightError",
    "Egress",
    "Event",
    "ExecutionError",
    "HostError",
    "InternalError",
    "InvalidCodeError",
    "InvalidRequestError",
    "Isolation",
    "JobLimits",
    "JobResult",
    "JobSpec",
    "LogEvent",
    "MemoryExceededError",
    "Mount",
    "OutputChunk",
    "OverloadedError",
    "ProcessSandbox",
    "Reason",
    "ReasonCode",
    "RequestError",
    "RunError",
    "RunOptions",
    "RunTimeoutError",
    "SandboxErrorCode",
    "SandboxOptions",
    "SandboxResult",
    "StateEvent",
    "Step",
    "StepEvent",
    "StepResult",
    "StepStatus",
    "Strength",
    "TestCounts",
    "ToolError",
    "UnavailableError",
    "ValueTooLargeError",
    "Verdict",
    "WorkerSandbox",
    "create_process_sandbox",
    "create_worker_sandbox",
    "register_sandbox_error_codes",
    "run",
    "run_job",
    "sync",
]


def __getattr__(name: str) -> Any:
    if name == "sync":
        return import_module("cloche.sync")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cloche' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
