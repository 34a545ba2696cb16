"""The isolation report of a box: what the kernel says, held against what was asked."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING

from cloche.backends.base import require_mechanisms
from cloche.errors import InternalError
from cloche.linux import inspection
from cloche.model.plan import BoxPlan, Control, Isolation, Scratch, Strength

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloche.linux.cgroup import Cgroup

_WRITABLE_PLACES = frozenset({"/workspace", "/tmp", "/dev/shm"})


def read_back(
    plan: BoxPlan,
    guest_pid: int,
    *,
    host_uid: int | None,
    group: Cgroup | None,
    inspect: Callable[[int], inspection.ProcessFacts] = inspection.inspect_process,
) -> Isolation:
    """Reads what holds for the guest's process while it is held before its exec.

    Args:
        plan: What was asked.
        guest_pid: As the host counts, vouched for by the kernel.
        host_uid: The uid range that the box was given, or None for the caller's own.
        group: The box's cgroup, if any.
        inspect: Replaced in tests by one that lies.

    Raises:
        InternalError: the box is not what was asked for; the guest must not start.
        UnavailableError: a mechanism that `plan.require` names is not in force.
    """
    try:
        facts = inspect(guest_pid)
        controls = _process_controls(facts, host_uid) | {"network": _network_control(plan)}
        controls |= _file_controls(plan, facts)
        controls |= _resource_controls(plan, facts, group, guest_pid)
    except OSError as error:
        raise InternalError(f"a box could not be inspected: {error}", retry_safe=True) from error
    isolation = Isolation(backend="namespaces", controls=MappingProxyType(controls))
    require_mechanisms(isolation, plan.require)
    return isolation


def read_again(
    isolation: Isolation,
    plan: BoxPlan,
    guest_pid: int,
    group: Cgroup | None,
    *,
    limits_changed: bool,
) -> Isolation:
    """The report of a box whose command waited, and now has a run's limits.

    What does not depend on limits cannot have changed: the guest's process has run nothing yet.

    Raises:
        InternalError: the new limits do not hold.
    """
    controls = dict(isolation.controls)
    try:
        if limits_changed:
            facts = inspection.inspect_process(guest_pid)
            controls.pop("cpu_time", None)
            controls |= _resource_controls(plan, facts, group, guest_pid)
        elif group is not None and "cpu" in group.controllers:
            controls["cpu"] = _cpu_control(plan, group)
    except OSError as error:
        raise InternalError(f"a box could not be inspected: {error}", retry_safe=True) from error
    return Isolation(isolation.backend, MappingProxyType(controls))


def _cpu_control(plan: BoxPlan, group: Cgroup) -> Control:
    name, weight = group.cpu_weight()
    quota_name, quota = group.cpu_quota()
    wanted = plan.limits.cpu_count
    same = quota == wanted if quota is None or wanted is None else abs(quota - wanted) < 1e-4
    _demand(same, f"{quota_name} is {quota} CPUs")
    evidence = f"{name} {weight}" + ("" if quota is None else f", {quota_name} {quota:g} CPUs")
    return _enforced("cgroup", evidence)


def _demand(condition: bool, what: str) -> None:
    if not condition:
        raise InternalError(f"a box is not what was asked for: {what}", retry_safe=True)


def _enforced(mechanism: str, evidence: str) -> Control:
    return Control(mechanism, Strength.ENFORCED, evidence)


def _process_controls(facts: inspection.ProcessFacts, host_uid: int | None) -> dict[str, Control]:
    _demand(facts.capabilities == 0, f"capabilities {facts.capabilities:#x} are left")
    _demand(facts.no_new_privs, "no_new_privs is off")
    _demand(facts.seccomp == 2, "no seccomp filter is installed")
    _demand(facts.pid_depth > 1, "it is not in a pid namespace of its own")
    _demand(facts.interfaces == ("lo",), f"network interfaces: {', '.join(facts.interfaces)}")
    uid = os.geteuid() if host_uid is None else host_uid + 1
    _demand(set(facts.uid) == {uid}, f"uids {facts.uid}")
    if host_uid is not None:
        _demand(facts.groups == (), f"supplementary groups {facts.groups}")
    mechanism = "own-uid" if host_uid is not None else "caller-uid"
    return {
        "uid": _enforced(mechanism, f"status: Uid {facts.uid[0]}, Groups {len(facts.groups)}"),
        "capabilities": _enforced("none", "status: CapEff, CapPrm, CapInh, CapAmb, CapBnd 0"),
        "no_new_privs": _enforced("prctl", "status: NoNewPrivs 1"),
        "seccomp": _enforced("filter", "status: Seccomp 2"),
        "processes": _enforced("pid-namespace", f"status: NSpid depth {facts.pid_depth}"),
    }


def _network_control(plan: BoxPlan) -> Control:
    """The interfaces are looked at by `_process_controls`."""
    if not plan.catch_ports:
        return _enforced("net-namespace", "net/dev: lo alone")
    ports = ", ".join(map(str, plan.catch_ports))
    return _enforced(
        "net-namespace", f"net/dev: lo alone; connects to TCP ports {ports} arrive at Cloche"
    )


def _file_controls(plan: BoxPlan, facts: inspection.ProcessFacts) -> dict[str, Control]:
    by_path = {mount.path: mount for mount in facts.mounts}
    _demand("/" in by_path and by_path["/"].read_only, "the root is writable")
    _demand("/proc/sys" in by_path and by_path["/proc/sys"].read_only, "/proc/sys is writable")
    allowed = {"/proc"}
    if plan.scratch is Scratch.WRITABLE:
        allowed |= _WRITABLE_PLACES
    allowed |= {f"/workspace/{m.box_path}" for m in plan.mounts if m.unsafe_writable}
    for mount in facts.mounts:
        _demand(mount.read_only or mount.path in allowed, f"{mount.path} is writable")
    controls = {"root": _enforced("read-only-tmpfs", f"mountinfo: {len(facts.mounts)} mounts")}
    if plan.scratch is Scratch.WRITABLE:
        size = f"{plan.limits.scratch_mb * 1024}k"
        options: dict[str, str] = {}
        for place in sorted(_WRITABLE_PLACES):
            # One tmpfs for all places; with layers, /workspace is an overlay that writes to it.
            kind = "overlay" if plan.layers and place == "/workspace" else "tmpfs"
            _demand(place in by_path and by_path[place].kind == kind, f"{place} is no {kind}")
            if kind == "tmpfs":
                options = _parse_options(by_path[place].options)
                _demand(options.get("size") == size, f"{place} has size {options.get('size')}")
        evidence = f"mountinfo: size={options['size']},nr_inodes={options.get('nr_inodes')}"
        controls["scratch"] = _enforced("sized-tmpfs", evidence)
    else:
        controls["scratch"] = _enforced("nothing-writable", "mountinfo: every mount ro but /proc")
    return controls


def _parse_options(text: str) -> dict[str, str]:
    return dict(option.partition("=")[::2] for option in text.split(","))


def _resource_controls(
    plan: BoxPlan, facts: inspection.ProcessFacts, group: Cgroup | None, guest_pid: int
) -> dict[str, Control]:
    limits = plan.limits
    held = frozenset() if group is None else group.controllers
    if group is not None:
        _demand(group.holds(guest_pid), "it is not in its cgroup")
    controls: dict[str, Control] = {}
    if group is not None and "memory" in held:
        name, limit_bytes = group.memory_limit()
        _demand(limit_bytes == limits.memory_mb * 1024 * 1024, f"{name} is {limit_bytes}")
        controls["memory"] = _enforced("cgroup", f"{name} {limit_bytes}")
    else:
        evidence = f"looked at every 20 ms, against {limits.memory_mb} MiB"
        controls["memory"] = Control("watchdog", Strength.BEST_EFFORT, evidence)
    processes = facts.limits.get("Max processes")
    _demand(processes is not None and processes <= limits.pids_count + 1, "RLIMIT_NPROC is off")
    if group is not None and "pids" in held:
        name, count = group.pids_limit()
        _demand(count == limits.pids_count + 1, f"{name} is {count}")
        controls["pids"] = _enforced("cgroup", f"{name} {count}, the box's init among them")
    else:
        controls["pids"] = _enforced("rlimit", f"limits: Max processes {processes}")
    if group is not None and "cpu" in held:
        controls["cpu"] = _cpu_control(plan, group)
    else:
        controls["cpu"] = Control("nice", Strength.BEST_EFFORT, "a low priority, no quota")
    mechanism, strength = (
        ("cgroup", Strength.ENFORCED) if "cpuacct" in held else ("proc", Strength.BEST_EFFORT)
    )
    if limits.cpu_time_ms is not None:
        evidence = f"killed past {limits.cpu_time_ms} ms, read from {mechanism}"
        controls["cpu_time"] = Control(mechanism, strength, evidence)
    files = facts.limits.get("Max open files")
    _demand(files == limits.open_files_count, f"RLIMIT_NOFILE is {files}")
    controls["open_files"] = _enforced("rlimit", f"limits: Max open files {files}")
    core = facts.limits.get("Max core file size")
    _demand(core == 0, f"RLIMIT_CORE is {core}")
    controls["core_dumps"] = _enforced("rlimit", "limits: Max core file size 0")
    return controls
