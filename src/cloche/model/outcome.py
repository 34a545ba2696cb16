"""What became of a command in a box; decided by the kernel and the supervisor alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a command ended: the one enum behind codes and verdicts."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    WALL_TIMEOUT = "wall_timeout"
    CPU_TIMEOUT = "cpu_timeout"
    MEMORY = "memory"
    ABORTED = "aborted"
    DISPOSED = "disposed"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run used.

    Attributes:
        cpu_ms: CPU time of all its processes.
        peak_memory_bytes: The highest amount it held (by the cgroup; without one, the
            largest single process).
    """

    cpu_ms: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended.

    Ensures: when an Outcome exists, no process of the command does.
    """

    cause: Cause
    exit_code: int | None
    signal: int | None
    duration_ms: float
    usage: Usage
