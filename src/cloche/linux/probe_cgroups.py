"""Facts about control groups: which version, and which controllers this process may use."""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from cloche.linux.facts import Fact, Probe, Verdict
from cloche.linux.host import Host

NEEDED_BY: Final = {
    "memory": ("memory limit, exact",),
    "pids": ("pids limit, exact",),
    "cpu": ("cpu limit and low weight",),
    "cpuacct": ("cpu time of a whole box",),
}

_ALWAYS_IN_V2: Final = {"cpuacct"}  # cpu.stat

_DELEGATE_V2: Final = (
    "systemd-run --user --scope -p Delegate=yes cloche … (as a service: Delegate=yes in its unit)"
)
_DELEGATE_V1: Final = (
    "run Cloche as root, or as root: mkdir {group}; chown -R {user} {group}; "
    "echo PID-OF-YOUR-SHELL > {group}/cgroup.procs"
)


@dataclass(frozen=True, slots=True)
class OwnGroup:
    """The group of this process in one hierarchy.

    Attributes:
        folder: its folder on the host.
        version: 1 or 2.
        controllers: those that can be used in groups below it.
    """

    folder: Path
    version: int
    controllers: frozenset[str]


def own_groups(host: Host) -> list[OwnGroup]:
    """The groups of this process in all hierarchies that are mounted, version 1 first.

    Source: cgroups(7), proc_pid_mountinfo(5).
    """
    memberships = {}  # comma-separated controllers, empty for version 2 → path
    for line in host.read("proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        memberships[names] = path
    groups = []
    for line in host.read("proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        mount_root, mount_point = before.split()[3:5]
        names = "" if kind == "cgroup2" else _membership(options, memberships)
        if names not in memberships:
            continue
        # In a container the mount shows a part of the hierarchy only, and the path may be outside.
        inside = PurePosixPath(memberships[names])
        relative = (
            inside.relative_to(mount_root)
            if inside.is_relative_to(mount_root)
            else PurePosixPath(".")
        )
        folder = host.root / mount_point.lstrip("/") / relative
        if kind == "cgroup2":
            controllers = frozenset(_read(folder / "cgroup.controllers").split())
            groups.append(OwnGroup(folder, 2, controllers))
        else:
            groups.append(OwnGroup(folder, 1, frozenset(names.split(","))))
    return sorted(groups, key=lambda group: group.version)


def _membership(options: str, memberships: Mapping[str, str]) -> str:
    """The key of a version 1 hierarchy, whose controllers are among its mount options."""
    given = set(options.replace(" ", ",").split(","))
    return next((names for names in memberships if names and set(names.split(",")) <= given), "-")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def probes(host: Host) -> dict[str, Probe]:
    """The probes of this module by the names of their facts."""
    found: dict[str, Probe] = {
        "cgroup-version": partial(probe_version, host),
        "cgroup-delegation": partial(probe_delegation, host),
    }
    for controller in NEEDED_BY:
        found[f"cgroup-{controller}"] = partial(probe_controller, host, controller)
    return found


def probe_version(host: Host) -> Fact:
    """Which versions are mounted and have controllers."""
    name, needed_by = "cgroup-version", ("memory, pids and cpu limits",)
    groups = own_groups(host)
    if not groups:
        return Fact(
            name,
            Verdict.MISSING,
            "no cgroup hierarchy of this process is mounted",
            "mount -t cgroup2 none /sys/fs/cgroup",
            needed_by,
        )
    parts = []
    for version in (1, 2):
        of_version = [group for group in groups if group.version == version]
        names = sorted({c for g in of_version for c in g.controllers if not c.startswith("name=")})
        if of_version:
            parts.append(f"version {version}: {' '.join(names) or 'no controllers'}")
    return Fact(name, Verdict.OK, "; ".join(parts), needed_by=needed_by)


def probe_delegation(host: Host) -> Fact:
    """Whether this process's version 2 group is its own to divide, as systemd's Delegate= makes it.

    Source: https://systemd.io/CGROUP_DELEGATION
    """
    name, needed_by = "cgroup-delegation", ("limits for plain users on version 2",)
    groups = [group for group in own_groups(host) if group.version == 2 and _limits(group)]
    if not groups:
        evidence = "there is no version 2 hierarchy with the memory, pids or cpu controller"
        fix = "boot with systemd.unified_cgroup_hierarchy=1; root needs no delegation"
        return Fact(name, Verdict.MISSING, evidence, fix, needed_by)
    folder = groups[0].folder
    for path in (folder, folder / "cgroup.procs", folder / "cgroup.subtree_control"):
        if not os.access(path, os.W_OK):
            evidence = f"{path} is not writable by this user"
            return Fact(name, Verdict.MISSING, evidence, _DELEGATE_V2, needed_by)
    return Fact(name, Verdict.OK, f"{folder} is writable by this user", needed_by=needed_by)


def probe_controller(host: Host, controller: str) -> Fact:
    """Whether groups with this controller can be made below this process's own."""
    name, needed_by = f"cgroup-{controller}", NEEDED_BY[controller]
    groups = [group for group in own_groups(host) if _has(group, controller)]
    if not groups:
        evidence = f"no hierarchy of this process has the {controller} controller"
        fix = f"boot with cgroup_enable={controller}, or delegate it: {_DELEGATE_V2}"
        return Fact(name, Verdict.MISSING, evidence, fix, needed_by)
    group = groups[0]
    given = _DELEGATE_V1.format(group=group.folder / "cloche", user=host.user_id)
    fix = _DELEGATE_V2 if group.version == 2 else given
    attempt = group.folder / f"cloche-probe-{os.getpid()}"
    try:
        attempt.mkdir()
        attempt.rmdir()
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "error")
        return Fact(name, Verdict.MISSING, f"mkdir in {group.folder}: {code}", fix, needed_by)
    if group.version == 2 and controller not in _ALWAYS_IN_V2:
        control = group.folder / "cgroup.subtree_control"
        if controller not in _read(control).split() and not os.access(control, os.W_OK):
            evidence = f"{control} is not writable, so {controller} cannot be passed down"
            return Fact(name, Verdict.MISSING, evidence, fix, needed_by)
    evidence = f"version {group.version}: made and removed a group in {group.folder}"
    return Fact(name, Verdict.OK, evidence, needed_by=needed_by)


def _has(group: OwnGroup, controller: str) -> bool:
    if group.version == 2 and controller in _ALWAYS_IN_V2:
        return _limits(group)
    return controller in group.controllers


def _limits(group: OwnGroup) -> bool:
    """Whether boxes would have a group here; not in a hybrid host's version 2 tree."""
    return not group.controllers.isdisjoint(("memory", "pids", "cpu"))
