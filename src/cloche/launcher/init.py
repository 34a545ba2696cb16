"""PID 1 of a box: builds the box from inside, then runs one command after another in it.

It is a fork of the launcher, never runs guest text, and holds the only capabilities of the box's
user namespace. A guest cannot trace it (undumpable, other credentials), cannot see it in /proc
(hidepid) and cannot signal it (PID 1). When it ends, the kernel kills all that is in its pid
namespace.

Talks with Cloche over `channel`: `ready` (where there is scratch, or a socket to serve), `failed`,
`held` (sent by the guest's process itself, so that the kernel vouches for its pid), `ended`; takes
`build` once. `exec` is read by the fork that will be the command.
"""

from __future__ import annotations

import os
import select
import socket

import commands
import environment
import network
import scratch
import syscalls
import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# hidepid=ptraceable: a process sees only those it may trace, so never PID 1.
# Source: Documentation/filesystems/proc.rst, "Mount options".
_PROC_OPTIONS = "hidepid=4"
# World-readable files of /proc that tell about the host rather than the box.
_PROC_MASKED = ("cmdline", "kallsyms", "keys", "key-users", "modules")


def run(
    channel: socket.socket, lifeline: int, init_id: int | None, groups: list[int], program: bytes
) -> None:
    """Makes the box and serves it until Cloche or the launcher goes. Never returns.

    Args:
        channel: To Cloche.
        lifeline: Ends with the launcher.
        init_id: The id inside that init takes; None where the box has but one.
        groups: `cgroup.procs` of every cgroup to join.
        program: The guests' seccomp filter.
    """
    step = "cgroup"
    try:
        for group in groups:
            os.write(group, b"0")
            os.close(group)
        step = "credentials"
        _take_credentials(init_id)
        step = "namespaces"
        syscalls.unshare(syscalls.CLONE_NEWCGROUP)
        socket.sethostname("cloche")
        network.raise_loopback()
        syscalls.empty_bounding_set()
        syscalls.forbid_new_privileges()
        step = "fork"
        guests = commands.Commands(channel, lifeline, program)
        step = "wait"
        plan, descriptors = _wait_for_plan(channel, lifeline)
        step = "root"
        _enter_root(plan["environment"])
        step = "scratch"
        workspace = scratch.mount(plan, descriptors)
        step = "listen"
        passed = [workspace, *map(network.open_listener, plan["listen_ports"])]
        step = "network"
        passed += network.catch(plan["catch_ports"])
        step = "proc"
        _seal_proc(plan["sysctls"])
        if plan["scratch"] is not None or len(passed) > 1:
            commands.tell(channel, {"event": "ready"}, passed)
        for descriptor in passed:
            os.close(descriptor)
        guests.serve()
    except OSError as error:
        commands.tell(channel, wire.failure(step, error))
    finally:
        os._exit(0)


def _take_credentials(init_id: int | None) -> None:
    if init_id is not None:
        os.setgroups([])
        os.setresgid(init_id, init_id, init_id)
        os.setresuid(init_id, init_id, init_id)
    syscalls.die_with_parent()  # after the change of uid, which clears it
    syscalls.forbid_inspection()


def _wait_for_plan(channel: socket.socket, lifeline: int) -> tuple[dict[str, Any], list[int]]:
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    poller.register(lifeline, select.POLLIN)
    if lifeline in [descriptor for descriptor, _ in poller.poll()]:
        os._exit(0)
    plan, descriptors = wire.receive(channel)
    if plan is None:
        os._exit(0)
    return plan, descriptors


def _enter_root(name: str) -> None:
    """Enters the base tree `name`; the host's is gone from here on."""
    tree = syscalls.open_tree(f"{environment.ENVIRONMENTS}/{name}", recursive=True)
    syscalls.move_mount(tree, environment.ENVIRONMENTS)
    os.close(tree)
    os.chdir(environment.ENVIRONMENTS)
    hidden = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", "proc", "proc", hidden, _PROC_OPTIONS)
    syscalls.pivot_root(".", ".")
    syscalls.unmount(".")
    os.chdir("/")


def _seal_proc(sysctls: dict[str, int]) -> None:
    """Lowers what the box may hold of kernel objects, then closes /proc/sys and what tells much.

    Comes last: with no mount namespaces allowed, `open_tree` fails, since a detached tree is one.
    """
    for name, value in sysctls.items():
        _write_sysctl(name, value)
    hidden = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("/proc/sys", "/proc/sys", "", syscalls.MS_BIND)
    syscalls.mount(
        "none",
        "/proc/sys",
        "",
        syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | hidden,
    )
    for name in _PROC_MASKED:
        if os.path.exists(f"/proc/{name}"):
            syscalls.mount("/dev/null", f"/proc/{name}", "", syscalls.MS_BIND)


def _write_sysctl(name: str, value: int) -> None:
    try:
        descriptor = os.open(f"/proc/sys/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # this kernel lacks the feature that it bounds
        return
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)
