"""Limits: the same fields for snippets, programs and job steps."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TIMEOUT_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may use. None means: not limited by this field.

    Attributes:
        timeout_ms: Wall clock, from the start of the code.
        cpu_time_ms: CPU time of everything the run starts.
        memory_mb: MiB that the run may hold, its scratch included.
        pids_count: Processes and threads.
        cpu_count: CPUs, as a quota.
        scratch_mb: MiB of private files; also bounds one file's size.
        scratch_inodes_count: Files and folders.
        open_files_count: Descriptors per process.
    """

    timeout_ms: int = 5_000
    cpu_time_ms: int | None = None
    memory_mb: int = 128
    pids_count: int = 64
    cpu_count: float | None = None
    scratch_mb: int = 64
    scratch_inodes_count: int = 16_384
    open_files_count: int = 1_024
