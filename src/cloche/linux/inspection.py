"""What the kernel says of a process in a box: the source of every isolation report.

Source: Documentation/filesystems/proc.rst; man 5 proc.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MountEntry:
    """A line of mountinfo."""

    path: str
    kind: str
    read_only: bool
    options: str


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process as /proc shows it from outside.

    Attributes:
        uid: Real, effective, saved and file-system uid, as the host counts.
        capabilities: Effective, permitted, inheritable, ambient and bounding sets, or'ed.
        seccomp: 2 when a filter is installed.
        pid_depth: In how many pid namespaces it has a pid; 1 on the host itself.
        limits: Soft limit by the name in /proc/PID/limits; None for unlimited.
        interfaces: Network interfaces of its network namespace.
    """

    uid: tuple[int, ...]
    groups: tuple[int, ...]
    capabilities: int
    no_new_privs: bool
    seccomp: int
    pid_depth: int
    limits: dict[str, int | None]
    mounts: tuple[MountEntry, ...]
    interfaces: tuple[str, ...]


def _parse_status(text: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def _parse_mounts(text: str) -> tuple[MountEntry, ...]:
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        options = fields[5].split(",")
        kind, _, rest = right.partition(" ")
        super_options = rest.rpartition(" ")[2]
        mounts.append(MountEntry(fields[4], kind, "ro" in options, super_options))
    return tuple(mounts)


def _parse_limits(text: str) -> dict[str, int | None]:
    limits: dict[str, int | None] = {}
    for line in text.splitlines()[1:]:
        name, soft = line[:26].strip(), line[26:47].strip()
        limits[name] = None if soft == "unlimited" else int(soft)
    return limits


def _read(path: str) -> str:
    """The whole of a /proc file; not through pathlib: this is on the way of every run."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
        return b"".join(chunks).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def inspect_process(pid: int, *, proc: Path = Path("/proc")) -> ProcessFacts:
    """Reads what the kernel says of `pid`.

    Raises:
        OSError: the process is gone.
    """
    base = f"{proc}/{pid}"
    status = _parse_status(_read(f"{base}/status"))
    capabilities = 0
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"):
        capabilities |= int(status[name], 16)
    devices = _read(f"{base}/net/dev").splitlines()[2:]
    return ProcessFacts(
        uid=tuple(map(int, status["Uid"].split())),
        groups=tuple(map(int, status["Groups"].split())),
        capabilities=capabilities,
        no_new_privs=status["NoNewPrivs"] == "1",
        seccomp=int(status["Seccomp"]),
        pid_depth=len(status["NSpid"].split()),
        limits=_parse_limits(_read(f"{base}/limits")),
        mounts=_parse_mounts(_read(f"{base}/mountinfo")),
        interfaces=tuple(line.partition(":")[0].strip() for line in devices),
    )


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """What a process and all its descendants use now (and, for CPU, used)."""

    memory_bytes: int
    cpu_ms: float


def _memory_of(base: Path) -> int:
    try:
        lines, names = (base / "smaps_rollup").read_text(), ("Pss_Anon:", "Pss_Shmem:")
    except PermissionError:
        lines, names = (base / "status").read_text(), ("RssAnon:", "RssShmem:")
    found = [line.split() for line in lines.splitlines() if line.startswith(names)]
    return sum(int(fields[1]) for fields in found) * 1024


_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def measure_tree(init: int, scratch: int | None, *, proc: Path = Path("/proc")) -> TreeUsage:
    """Measures a box from outside, for hosts without a cgroup to ask.

    Anonymous and shared memory of every process, a page that several hold divided among them, plus
    what the box's scratch holds. Where the kernel shows no shares (the init, undumpable), each
    process's own count is taken.

    Args:
        init: The box's init; orphans of the box are its children.
        scratch: A descriptor in the box's scratch, or None.
    """
    memory_bytes = 0
    cpu_ticks = 0
    pending = [init]
    while pending:
        pid = pending.pop()
        base = proc / str(pid)
        try:
            memory_bytes += _memory_of(base)
            fields = (base / "stat").read_text().rpartition(")")[2].split()
            for task in (base / "task").iterdir():
                pending.extend(map(int, (task / "children").read_text().split()))
        except (OSError, ValueError):
            continue  # it has just ended
        cpu_ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    if scratch is not None:
        held = os.fstatvfs(scratch)
        memory_bytes += (held.f_blocks - held.f_bfree) * held.f_frsize
        # A tmpfs inode costs about 1 KiB that no size limit counts.
        memory_bytes += (held.f_files - held.f_ffree) * 1024
    return TreeUsage(memory_bytes, cpu_ticks * _TICK_MS)
