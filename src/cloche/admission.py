"""From what a caller asks to a plan for a box, or a refusal that names the missing fact."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from cloche.egress.rules import read_rules
from cloche.errors import InvalidRequestError, UnavailableError
from cloche.model.plan import BoxPlan, Mount, Scratch
from cloche.model.policy import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cloche.egress.rules import EgressRules
    from cloche.linux.facts import HostFacts
    from cloche.model.plan import Environment
    from cloche.model.snippet import SandboxOptions

# How far a mounted folder is searched for what would be a way out of the box.
_MOUNT_ENTRIES_LIMIT = 200_000
# Control → mechanism → the host fact behind it. The report of each run has the same names.
_MECHANISMS: dict[str, dict[str, str]] = {
    "memory": {"cgroup": "cgroup-memory", "watchdog": ""},
    "pids": {"cgroup": "cgroup-pids", "rlimit": ""},
    "cpu": {"cgroup": "cgroup-cpu", "nice": ""},
    "cpu_time": {"cgroup": "cgroup-cpuacct", "proc": ""},
    "uid": {"own-uid": "root", "caller-uid": ""},
    "capabilities": {"none": ""},
    "no_new_privs": {"prctl": ""},
    "seccomp": {"filter": ""},
    "processes": {"pid-namespace": ""},
    "network": {"net-namespace": ""},
    "root": {"read-only-tmpfs": ""},
    "scratch": {"sized-tmpfs": "", "nothing-writable": ""},
    "open_files": {"rlimit": ""},
    "core_dumps": {"rlimit": ""},
}


def admit(
    options: SandboxOptions,
    environment: Environment,
    files: Mapping[str, bytes],
    facts: HostFacts,
) -> BoxPlan:
    """Makes the plan of a run.

    Args:
        options: Checked field by field already.
        environment: Of the runtime.
        files: What is laid into /workspace: the caller's files and, for a program, its code.
        facts: Of this host; only those are found out that the request rests on.

    Raises:
        InvalidRequestError: fields that are right alone do not fit together.
        UnavailableError: a control that was asked for cannot be enforced here.
    """
    egress = _read_egress(options)
    if options.cpu_limit is not None:
        _demand(facts, "cpu_limit", "cgroup-cpu")
    _check_requirements(options.require, facts)
    writable = options.wants_scratch
    limits = Limits(
        timeout_ms=options.timeout_ms,
        cpu_time_ms=options.cpu_time_ms,
        memory_mb=options.memory_limit_mb,
        pids_count=options.pids_limit,
        cpu_count=options.cpu_limit,
        scratch_mb=options.scratch_limit_mb,
    )
    if writable:
        _check_room(files, limits)
    if options.mounts:
        _check_places(options.mounts, files)
        _check_mounts(options.mounts)
    if writable:
        scratch = Scratch.WRITABLE
    else:
        scratch = Scratch.SEALED if files or options.mounts else Scratch.NONE
    return BoxPlan(
        environment=environment,
        limits=limits,
        scratch=scratch,
        files=files,
        mounts=tuple(options.mounts),
        catch_ports=egress.ports,
        require=options.require,
    )


def admit_worker(options: SandboxOptions, facts: HostFacts) -> EgressRules:
    """Checks what a run in a worker host asks of this host; its box is made already.

    Returns:
        What it may connect to.

    Raises:
        InvalidRequestError: `require` names what is not known.
        UnavailableError: a control that was asked for cannot be enforced here.
    """
    rules = _read_egress(options)
    if options.cpu_limit is not None:
        _demand(facts, "cpu_limit", "cgroup-cpu")
    _check_requirements(options.require, facts)
    return rules


def _read_egress(options: SandboxOptions) -> EgressRules:
    try:
        return read_rules(options.allow_hosts, any_public=options.allow_network)
    except ValueError as error:
        raise InvalidRequestError(f"allow_hosts: {error}", retry_safe=True) from error


def admit_step(
    limits: Limits,
    environment: Environment,
    facts: HostFacts,
    *,
    files: Mapping[str, bytes],
    executables: frozenset[str] = frozenset(),
    layers: tuple[str, ...] = (),
    listen_ports: tuple[int, ...] = (),
    catch_ports: tuple[int, ...] = (),
) -> BoxPlan:
    """Makes the plan of a job's step: a writable copy of its inputs; no network of its own.

    Raises:
        UnavailableError: a control that was asked for cannot be enforced here.
    """
    if limits.cpu_count is not None:
        _demand(facts, "cpu_count", "cgroup-cpu")
    return BoxPlan(
        environment=environment,
        limits=limits,
        scratch=Scratch.WRITABLE,
        files=files,
        executables=executables,
        layers=layers,
        listen_ports=listen_ports,
        catch_ports=catch_ports,
    )


def _demand(facts: HostFacts, field: str, name: str) -> None:
    fact = facts[name]
    if not fact.ok:
        raise UnavailableError(f"{field}: {fact.evidence}", fact=name, fix=fact.fix)


def _check_requirements(require: Mapping[str, str], facts: HostFacts) -> None:
    for control, mechanism in require.items():
        mechanisms = _MECHANISMS.get(control)
        if mechanisms is None:
            raise InvalidRequestError(
                f"require: no control is called {control!r}; known: {', '.join(_MECHANISMS)}",
                retry_safe=True,
            )
        if mechanism not in mechanisms:
            raise InvalidRequestError(
                f"require: {control} is never enforced by {mechanism!r};"
                f" known: {', '.join(mechanisms)}",
                retry_safe=True,
            )
        if mechanisms[mechanism]:
            _demand(facts, f"require: {control} by {mechanism}", mechanisms[mechanism])


def _check_room(files: Mapping[str, bytes], limits: Limits) -> None:
    needed = sum(-(-len(content) // 4096) * 4096 for content in files.values())
    if needed > limits.scratch_mb * 1024 * 1024:
        raise InvalidRequestError(
            f"files: {needed} bytes do not fit into scratch_limit_mb={limits.scratch_mb}",
            retry_safe=True,
        )


def _check_places(mounts: Iterable[Mount], files: Iterable[str]) -> None:
    """No mount lies on or below a file or another mount, and no file below a mount."""
    taken = [(f"files: {path!r}", f"{path}/") for path in files]
    for mount in mounts:
        place = f"{mount.box_path}/"
        for what, other in taken:
            if place.startswith(other) or other.startswith(place):
                raise InvalidRequestError(
                    f"mounts: {mount.box_path!r} is in the way of {what}", retry_safe=True
                )
        taken.append((f"mounts: {mount.box_path!r}", place))


def _check_mounts(mounts: Iterable[Mount]) -> None:
    for mount in mounts:
        try:
            status = Path(mount.host_path).stat()
        except OSError as error:
            raise InvalidRequestError(
                f"mounts: {mount.host_path}: {error.strerror}", retry_safe=True
            ) from error
        if not stat.S_ISDIR(status.st_mode):
            raise InvalidRequestError(f"mounts: {mount.host_path} is no folder", retry_safe=True)
        _refuse_ways_out(mount.host_path)


def _refuse_ways_out(folder: str) -> None:
    """A socket or FIFO in a mounted folder talks with the host, read-only or not."""
    seen = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            seen += 1
            if seen > _MOUNT_ENTRIES_LIMIT:
                raise InvalidRequestError(
                    f"mounts: {folder} has over {_MOUNT_ENTRIES_LIMIT} files, too many to search"
                    " for sockets",
                    retry_safe=True,
                )
            path = os.path.join(parent, name)  # noqa: PTH118 — a hot loop
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                continue
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                kind = "socket" if stat.S_ISSOCK(mode) else "FIFO"
                raise InvalidRequestError(
                    f"mounts: {path} is a {kind}, a way out of the box", retry_safe=True
                )
