"""Control groups, v1 and v2: one group per box, limits written and read back.

v1 has a hierarchy per controller (`memory`, `pids`, `cpu`, `cpuacct`); v2 one for all. Groups are
made below Cloche's own group, so that limits set on Cloche hold for its boxes. v2 does not
allow processes beside child groups, so there Cloche moves itself into a leaf first, which
needs delegation (systemd: `Delegate=yes`).

Source: Documentation/admin-guide/cgroup-v1/{memory,pids}.rst, cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloche.model.policy import Limits

CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_PERIOD_US = 100_000
# Guests yield to everything of default weight on the host (v1 1024, v2 100).
_LOW_SHARES = 64
_LOW_WEIGHT = 6
# The least there is: for what is made ahead, while nobody waits for it.
_LEAST_SHARES = 2
_LEAST_WEIGHT = 1
_SWEEP_AGE_S = 60
# Where Cloche itself goes on v2, for good: nothing may be beside groups that have controllers.
_LEAF_SUFFIX = "-self"


@dataclass(frozen=True, slots=True)
class CgroupParents:
    """Where groups can be made: controller → folder. Empty when nowhere.

    `version` is 1 or 2; with 2 every controller has the same folder.
    """

    version: int
    folders: Mapping[str, Path]


def _own_paths(proc: Path) -> dict[str, str]:
    """Controller → path of this process's group; key "" is the v2 hierarchy."""
    paths: dict[str, str] = {}
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    return paths


def find_parents(
    token: str, *, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")
) -> CgroupParents:
    """Makes a parent group named `token` per controller and says which can be used.

    A controller whose group cannot be made is left out.
    """
    try:
        own = _own_paths(proc)
    except OSError:
        return CgroupParents(1, {})
    if (root / "cgroup.controllers").exists():
        return _find_parents_v2(token, own.get("", "/"), root)
    folders: dict[str, Path] = {}
    for name in CONTROLLERS:
        if name not in own:
            continue
        # Where `cpu` and `cpuacct` are one hierarchy, both names are links to its folder.
        folder = (root / name).resolve() / own[name].lstrip("/") / token
        with contextlib.suppress(OSError):
            if folder not in folders.values():
                folder.mkdir()
            folders[name] = folder
    return CgroupParents(1, folders)


def _find_parents_v2(token: str, own: str, root: Path) -> CgroupParents:
    group = root / own.lstrip("/")
    if group.name.endswith(_LEAF_SUFFIX):  # moved there by an earlier call in this process
        group = group.parent
    parent, leaf = group / token, group / f"cloche-{os.getpid()}{_LEAF_SUFFIX}"
    moved: list[str] = []
    try:
        available = set((group / "cgroup.controllers").read_text().split())
        wanted: list[str] = [name for name in ("memory", "pids", "cpu") if name in available]
        enable = " ".join(f"+{name}" for name in wanted)
        parent.mkdir()
        try:
            leaf.mkdir(exist_ok=True)
            # "No internal processes": controllers go to children of an empty group only.
            for pid in (group / "cgroup.procs").read_text().split():
                (leaf / "cgroup.procs").write_text(pid)
                moved.append(pid)
            (group / "cgroup.subtree_control").write_text(enable)
            (parent / "cgroup.subtree_control").write_text(enable)
        except OSError:
            parent.rmdir()
            for pid in moved:
                (group / "cgroup.procs").write_text(pid)
            leaf.rmdir()
            raise
    except OSError:
        return CgroupParents(2, {})
    folders = dict.fromkeys(wanted, parent)
    if "cpu" in folders:
        folders["cpuacct"] = parent  # cpu.stat
    return CgroupParents(2, folders)


def sweep(parents: CgroupParents, prefix: str, *, proc: Path = Path("/proc")) -> None:
    """Removes what a Cloche left that was killed together with its launcher.

    Only groups beside ours, named `PREFIX-PID-…`, without any process in them, whose owner is gone
    and which are older than a minute (their owner may live in another pid namespace).
    """
    for beside in {folder.parent for folder in parents.folders.values()}:
        for folder in beside.glob(f"{prefix}-*"):
            pid = folder.name.split("-")[1]
            with contextlib.suppress(OSError):
                old = time.time() - folder.stat().st_mtime > _SWEEP_AGE_S
                if old and not (proc / pid).exists():
                    _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    """Removes a group and its children; the kernel refuses where a process is in one."""
    for child in folder.iterdir():
        if child.is_dir():
            with contextlib.suppress(FileNotFoundError):  # its box removed it meanwhile
                child.rmdir()
    folder.rmdir()


def remove_parents(parents: CgroupParents) -> bool:
    """Removes what `find_parents` made, and any group left in it. Idempotent.

    Returns:
        False while a process is still in one of them.
    """
    gone = True
    for folder in set(parents.folders.values()):
        try:
            _remove_tree(folder)
        except FileNotFoundError:
            continue
        except OSError:
            gone = False
    return gone


class Cgroup:
    """The group of one box.

    Attributes:
        controllers: Which of CONTROLLERS hold here.
    """

    def __init__(self, parents: CgroupParents, name: str) -> None:
        """Makes the group, without limits yet.

        Raises:
            OSError: the kernel refused; nothing is left behind.
        """
        self._version = parents.version
        self._folders = {key: folder / name for key, folder in parents.folders.items()}
        self.controllers = frozenset(self._folders)
        self._memory_bytes: int | None = None  # the limit, once there is one
        try:
            for folder in set(self._folders.values()):
                folder.mkdir()
        except OSError:
            self.destroy()
            raise

    def _write(self, controller: str, name: str, value: object) -> None:
        # Not through pathlib: this is on the way of every run.
        descriptor = os.open(f"{self._folders[controller]}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)

    def _read(self, controller: str, name: str) -> str:
        descriptor = os.open(f"{self._folders[controller]}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 65536).decode().strip()
        finally:
            os.close(descriptor)

    def apply(self, limits: Limits, *, waiting: bool = False) -> None:
        """Writes the limits, once or again; raises OSError where the kernel refuses one.

        Args:
            limits: Of the box.
            waiting: What runs in it is started ahead, and yields to everything.
        """
        if "memory" in self.controllers:
            self._limit_memory(limits.memory_mb * 1024 * 1024)
        if "pids" in self.controllers:
            self._write("pids", "pids.max", limits.pids_count + 1)  # the box's init
        if "cpu" in self.controllers:
            self.weigh(waiting=waiting)
            if limits.cpu_count is not None:
                quota_us = int(limits.cpu_count * _PERIOD_US)
                if self._version == 1:
                    self._write("cpu", "cpu.cfs_quota_us", quota_us)
                else:
                    self._write("cpu", "cpu.max", f"{quota_us} {_PERIOD_US}")

    def _limit_memory(self, limit_bytes: int) -> None:
        if self._version == 2:
            self._write("memory", "memory.max", limit_bytes)
            with contextlib.suppress(FileNotFoundError):
                self._write("memory", "memory.swap.max", 0)
            return
        # The second is never below the first: which comes first depends on the way.
        raises = self._memory_bytes is not None and self._memory_bytes < limit_bytes
        if raises:
            self._limit_swap(limit_bytes)
        self._write("memory", "memory.limit_in_bytes", limit_bytes)
        if not raises:
            self._limit_swap(limit_bytes)
        self._memory_bytes = limit_bytes

    def _limit_swap(self, limit_bytes: int) -> None:
        try:
            self._write("memory", "memory.memsw.limit_in_bytes", limit_bytes)
        except FileNotFoundError:  # no swap accounting: do not swap at all
            self._write("memory", "memory.swappiness", 0)

    def weigh(self, *, waiting: bool) -> None:
        """Gives the group its CPU weight: low, or while it waits the least there is."""
        if "cpu" not in self.controllers:
            return
        if self._version == 1:
            self._write("cpu", "cpu.shares", _LEAST_SHARES if waiting else _LOW_SHARES)
        else:
            self._write("cpu", "cpu.weight", _LEAST_WEIGHT if waiting else _LOW_WEIGHT)

    def open_procs(self) -> list[int]:
        """Descriptors to write a pid to, one per hierarchy; the caller closes them."""
        return [
            os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            for folder in dict.fromkeys(self._folders.values())
        ]

    def holds(self, pid: int, *, proc: Path = Path("/proc")) -> bool:
        """True when the kernel says that `pid` is in this group, in every hierarchy of it.

        Groups are told by the last two names of their path, both made at random.
        """
        descriptor = os.open(f"{proc}/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
        try:
            lines = os.read(descriptor, 65536).decode().splitlines()
        finally:
            os.close(descriptor)
        found = 0
        for line in lines:
            _, names, path = line.split(":", 2)
            # The v2 line names no controller, and all of them have one folder there.
            ours = CONTROLLERS if self._version == 2 and not names else names.split(",")
            folders = {self._folders[name] for name in ours if name in self._folders}
            found += sum(path.endswith(f"/{each.parent.name}/{each.name}") for each in folders)
        return found == len(set(self._folders.values()))

    def memory_limit(self) -> tuple[str, int]:
        """(file name, bytes) as the kernel has it; bytes is -1 for none."""
        name = "memory.limit_in_bytes" if self._version == 1 else "memory.max"
        text = self._read("memory", name)
        return name, -1 if text == "max" else int(text)

    def pids_limit(self) -> tuple[str, int]:
        """(file name, count) as the kernel has it; -1 for none."""
        text = self._read("pids", "pids.max")
        return "pids.max", -1 if text == "max" else int(text)

    def cpu_weight(self) -> tuple[str, int]:
        """(file name, weight) as the kernel has it."""
        name = "cpu.shares" if self._version == 1 else "cpu.weight"
        return name, int(self._read("cpu", name))

    def cpu_quota(self) -> tuple[str, float | None]:
        """(file name, CPUs) as the kernel has it; None for no quota."""
        if self._version == 1:
            quota = int(self._read("cpu", "cpu.cfs_quota_us"))
            return "cpu.cfs_quota_us", None if quota < 0 else quota / _PERIOD_US
        quota_text, period = self._read("cpu", "cpu.max").split()
        return "cpu.max", None if quota_text == "max" else int(quota_text) / int(period)

    def oom_kills_count(self) -> int:
        """How many processes the kernel killed at the memory limit."""
        name = "memory.oom_control" if self._version == 1 else "memory.events"
        for line in self._read("memory", name).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
        return 0

    def cpu_ms(self) -> float:
        """CPU time of all that ever ran in the group."""
        if self._version == 1:
            return int(self._read("cpuacct", "cpuacct.usage")) / 1e6
        for line in self._read("cpuacct", "cpu.stat").splitlines():
            key, _, value = line.partition(" ")
            if key == "usage_usec":
                return int(value) / 1e3
        return 0.0

    def peak_memory_bytes(self) -> int:
        """The most that the group held; 0 where the kernel does not say."""
        name = "memory.max_usage_in_bytes" if self._version == 1 else "memory.peak"
        try:
            return int(self._read("memory", name))
        except FileNotFoundError:  # memory.peak: Linux 5.19
            return 0

    def destroy(self) -> bool:
        """Removes the group; False while a process is still in it. Idempotent."""
        gone = True
        for folder in set(self._folders.values()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone
