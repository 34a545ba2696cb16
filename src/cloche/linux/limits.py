"""The kernel's per-process limits for a guest.

Source: man 2 setrlimit. RLIMIT_AS and RLIMIT_DATA are left alone: JavaScript engines
reserve address space far beyond what they use.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloche.model.policy import Limits

LOW_PRIORITY = 10  # nice, where no cgroup gives guests a low CPU weight
_PENDING_SIGNALS_COUNT = 1024
_MIB = 1024 * 1024


def set_resource_limits(pid: int, limits: Limits, *, uid_is_shared: bool) -> None:
    """Replaces the limits of a running process that has not started others.

    Raises:
        OSError: it is gone, or the kernel refused: raising one takes CAP_SYS_RESOURCE.

    Source: man 2 prlimit.
    """
    for kind, limit in resource_limits(limits, uid_is_shared=uid_is_shared):
        if resource.prlimit(pid, kind) != (limit, limit):
            resource.prlimit(pid, kind, (limit, limit))


def resource_limits(limits: Limits, *, uid_is_shared: bool) -> list[tuple[int, int]]:
    """(resource, hard and soft limit) to set inside the box's user namespace.

    Args:
        limits: Of the run.
        uid_is_shared: The box's init runs under the guest's uid, and counts as one of its
            processes.
    """
    cpu_s = None if limits.cpu_time_ms is None else -(-limits.cpu_time_ms // 1000) + 1
    return [
        (resource.RLIMIT_NPROC, limits.pids_count + (1 if uid_is_shared else 0)),
        (resource.RLIMIT_NOFILE, limits.open_files_count),
        (resource.RLIMIT_FSIZE, limits.scratch_mb * _MIB),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 64 * 1024),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS_COUNT),
        *([] if cpu_s is None else [(resource.RLIMIT_CPU, cpu_s)]),
    ]
