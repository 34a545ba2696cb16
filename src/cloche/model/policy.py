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


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What a job may use: each box of it, and the whole.

    Attributes:
        memory_mb, pids_count, cpu_count, scratch_mb, scratch_inodes_count: Of each step's box, as
            in `Limits`; the memory includes the scratch.
        timeout_ms: Of the whole job, from its admission to its last artifact.
        log_mb: MiB of log; past it the middle is left out.
        artifacts_mb, artifacts_count: MiB and number of delivered files.
        egress_mb, connections_count: MiB that the box may fetch; connections at a time.
    """

    memory_mb: int = 2_048
    pids_count: int = 512
    cpu_count: float | None = None
    scratch_mb: int = 2_048
    scratch_inodes_count: int = 200_000
    timeout_ms: int = 900_000
    log_mb: int = 64
    artifacts_mb: int = 256
    artifacts_count: int = 10_000
    egress_mb: int = 1_024
    connections_count: int = 64

    def of_step(self, timeout_ms: int) -> Limits:
        """The limits of one step's box."""
        return Limits(
            timeout_ms=timeout_ms,
            memory_mb=self.memory_mb,
            pids_count=self.pids_count,
            cpu_count=self.cpu_count,
            scratch_mb=self.scratch_mb,
            scratch_inodes_count=self.scratch_inodes_count,
            open_files_count=8_192,
        )
