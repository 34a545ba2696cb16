"""The outside observer: what a test has left behind, as the kernel tells it.

The test process makes itself the reaper of orphans, so everything that a test starts stays in
its tree, whoever dies in between. A sandbox that lives longer than one test holds its launcher,
the transformer's box, worker hosts, and a few empty or warm boxes for the runs to come; those are
residents. Anything else that is alive, mounted, open or on disk after a test and was not before is
a leftover.
"""

import ctypes
import gc
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_CGROUPS = Path("/sys/fs/cgroup")
_PATIENCE_S = 1.0
# As many as `NamespacesBackend` keeps ahead, and as many as a pool may be making warm.
_CPUS_COUNT = os.cpu_count() or 1
EMPTY_COUNT = 2 + _CPUS_COUNT
# A pool has up to four shelves of one per CPU; a worker sandbox one per run at a time, and a spare.
_KINDS_OF_BOXES = ("pipe:", "socket:", "anon_inode:[pidfd", "/workspace", "/memfd:")
_KEPT_COUNTS = {"warm": 4 * _CPUS_COUNT, "worker": _CPUS_COUNT + 1, "transformer": 1}


def adopt_orphans() -> None:
    """Makes this process the parent of every orphan below it.

    Source: man 2 prctl, PR_SET_CHILD_SUBREAPER.
    """
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as /proc shows it."""

    pid: int
    parent: int
    session: int
    state: str

    @property
    def command(self) -> str:
        with suppress(OSError):
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
            return b" ".join(words).decode(errors="replace")[:300]
        return ""

    @property
    def launches(self) -> bool:
        """Whether it is a launcher, or a fork of one: a box's init, a command before its exec."""
        return "/cloche/launcher" in self.command

    @property
    def is_launcher(self) -> bool:
        return self.parent == os.getpid() and self.launches


def _all_processes() -> Iterator[Seen]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            state, parent, _, session = fields[:4]
            yield Seen(int(folder.name), int(parent), int(session), state)


def _reap_orphans() -> None:
    """Takes the exit status of dead orphans: those that another process had started."""
    own = os.getpid()
    for process in list(_all_processes()):
        orphan = process.session not in (process.pid, os.getsid(0))
        if process.parent == own and process.state == "Z" and orphan:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def descendants(root: int | None = None) -> dict[int, Seen]:
    """Every live process below `root` (this one if None) by pid; the dead are left out."""
    children: dict[int, list[Seen]] = {}
    for process in _all_processes():
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Seen] = {}
    pending = [os.getpid() if root is None else root]
    while pending:
        for process in children.get(pending.pop(), ()):
            pending.append(process.pid)
            if process.state not in "ZX":
                found[process.pid] = process
    return found


def residents(processes: dict[int, Seen]) -> set[int]:
    """What a sandbox may hold between runs.

    The launchers of this process; for each, the box that holds a transformer, worker hosts, boxes
    with one runtime that waits, and at most EMPTY_COUNT boxes that hold nothing but their init and
    the fork that waits for a command.
    """
    found = {pid for pid, process in processes.items() if process.is_launcher}
    for launcher in list(found):
        empty_count = 0
        kept: Counter[str] = Counter()
        for init in [pid for pid, process in processes.items() if process.parent == launcher]:
            box = {pid for pid in processes if _is_below(pid, init, processes)}
            waiting = all(processes[pid].launches for pid in box)
            if len(box) <= 1 and waiting and empty_count < EMPTY_COUNT:
                empty_count += 1
                found |= {init, *box}
                continue
            kinds = {kind for pid in box if (kind := kept_as(processes[pid]))}
            if len(kinds) == 1 and (len(box) == 1 or not kinds & {"warm"}):
                (kind,) = kinds
                kept[kind] += 1
                if kept[kind] <= _KEPT_COUNTS[kind.partition(" ")[0]]:
                    found |= {init, *box}
    return found


def _is_below(pid: int, root: int, processes: dict[int, Seen]) -> bool:
    while pid in processes:
        pid = processes[pid].parent
        if pid == root:
            return True
    return False


def kept_as(process: Seen) -> str:
    """What a process is that outlives runs, or none of them.

    A warm runtime waits on its fd 3 for the one run of its life: it has not heard of it yet.
    """
    command = process.command
    if "/opt/cloche/transformer.py" in command:
        return "transformer"
    if "/opt/cloche/worker.py" in command:
        return "worker " + command.split()[-1]
    if "/opt/cloche/" in command and command.split()[-1] in ("stream", "/opt/cloche/deno.mjs"):
        return "warm"
    return ""


def cgroup_folders(owner: int | None = None) -> set[Path]:
    """Groups that Cloche made in a process (this one if None), and those below them."""
    prefix = f"cloche-{os.getpid() if owner is None else owner}-"
    found: set[Path] = set()
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            group = _CGROUPS / name / path.lstrip("/")
            with suppress(OSError):
                for folder in group.iterdir():
                    if folder.name.startswith(prefix):
                        found |= {folder, *(each for each in folder.iterdir() if each.is_dir())}
    return found


def open_descriptors() -> Counter[str]:
    """How many descriptors of each kind this process has; a file's kind is its path.

    Counted rather than named: the boxes that are kept for the runs to come change with each run.
    """
    found: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that iterdir itself used
            # All of socket:[4711] are of one kind, whatever the number.
            found[str(link.readlink()).rstrip("0123456789]")] += 1
    return found


def _is_in_use(folder: Path, pids: set[int]) -> bool:
    """True for the group of a process in `pids`, and for the parent of such a group."""
    with suppress(OSError):
        groups = [folder, *(each for each in folder.iterdir() if each.is_dir())]
        held = " ".join((each / "cgroup.procs").read_text() for each in groups).split()
        return bool(pids & set(map(int, held)))
    return False


def _mounts() -> set[str]:
    """All mounts, but for those that another test process makes in its own temporary folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    own = str(Path(tempfile.gettempdir()).parent)
    return {line for line in lines if own in line or "/pytest-of-" not in line}


def _temporary_files() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).iterdir()}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there is at one moment."""

    processes: dict[int, Seen]
    residents: set[int]
    cgroups: set[Path]
    descriptors: Counter[str]
    mounts: set[str]
    temporary_files: set[str]

    @classmethod
    def take(cls) -> "Snapshot":
        _reap_orphans()
        processes = descendants()
        return cls(
            processes,
            residents(processes),
            cgroup_folders(),
            open_descriptors(),
            _mounts(),
            _temporary_files(),
        )


def settled() -> Snapshot:
    """A snapshot between tests: every box that is kept for the runs to come has been heard of."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        snapshot = Snapshot.take()
        launchers = {pid for pid, each in snapshot.processes.items() if each.is_launcher}
        boxes_count = sum(each.parent in launchers for each in snapshot.processes.values())
        heard = snapshot.descriptors["anon_inode:[pidfd"] >= boxes_count
        if heard or time.monotonic() > deadline:
            return snapshot
        time.sleep(0.002)


def _compare(before: Snapshot, after: Snapshot, *, allow_residents: bool) -> list[str]:
    kept = after.residents if allow_residents else set()
    left = [
        f"process {pid}: {process.command or process.state}"
        for pid, process in after.processes.items()
        if pid not in before.processes and pid not in kept
    ]
    left += [f"mount: {line}" for line in after.mounts - before.mounts]
    left += [f"temporary file: {name}" for name in after.temporary_files - before.temporary_files]
    left += [
        f"cgroup: {folder}"
        for folder in after.cgroups - before.cgroups
        if not _is_in_use(folder, kept)
    ]
    more = after.descriptors - before.descriptors
    left += [
        f"descriptor: {count} more of {kind}"
        for kind, count in more.items()
        # Boxes that are kept come and go with theirs; the end of the module counts them all.
        if not kept or not kind.startswith(_KINDS_OF_BOXES)
    ]
    return left


def _guests(before: Snapshot, after: Snapshot) -> list[str]:
    """Processes in boxes that are no part of what is kept for runs to come, nor becoming one."""
    return [
        f"process {pid} of a run: {process.command}"
        for pid, process in after.processes.items()
        if pid not in before.processes and process.command and _is_guest(pid, after.processes)
    ]


def _is_guest(pid: int, processes: dict[int, Seen]) -> bool:
    chain: list[Seen] = []  # up to its box's init
    while (process := processes.get(pid)) is not None and not process.is_launcher:
        chain.append(process)
        pid = process.parent
    in_box = process is not None and bool(chain) and not chain[0].launches
    # A worker's engine may be a process below it.
    return in_box and not any(map(kept_as, chain))


def leftovers(before: Snapshot, *, allow_residents: bool) -> list[str]:
    """What is left since `before`, one line each.

    A process of a run may not be there for a moment: `run` has returned. (In a warm box it looks as
    one that waits: `test_warm_attacks.py` looks after these.) What is on its way gets a second:
    boxes that a pool makes ready or lets go, descriptors of objects that wait for the garbage
    collector, groups that the launcher is removing.
    """
    after = Snapshot.take()
    if guests := _guests(before, after):
        return guests
    left = _compare(before, after, allow_residents=allow_residents)
    deadline = time.monotonic() + _PATIENCE_S
    while left and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
        left = _compare(before, Snapshot.take(), allow_residents=allow_residents)
    return left
