"""PID 1 of a box: builds the box from inside, then runs one command after another in it.

It is a fork of the launcher, never runs guest text, and holds the only capabilities of the box's
user namespace. A guest cannot trace it (undumpable, other credentials), cannot see it in /proc
(hidepid) and cannot signal it (PID 1). When it ends, the kernel kills all that is in its pid
namespace.

Talks with Cloche over `channel`: `ready` (where there is scratch), `failed`, `held` (sent by the
guest's process itself, so that the kernel vouches for its pid), `ended`; takes `build` once. `exec`
is read by the fork that will be the command.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct

import commands
import environment
import syscalls
import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
# hidepid=ptraceable: a process sees only those it may trace, so never PID 1.
# Source: Documentation/filesystems/proc.rst, "Mount options".
_PROC_OPTIONS = "hidepid=4"
# World-readable files of /proc that tell about the host rather than the box.
_PROC_MASKED = ("cmdline", "kallsyms", "keys", "key-users", "modules")
_SCRATCH_PLACES = (("workspace", "/workspace"), ("tmp", "/tmp"), ("shm", "/dev/shm"))


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
        _raise_loopback()
        syscalls.empty_bounding_set()
        syscalls.forbid_new_privileges()
        step = "fork"
        guests = commands.Commands(channel, lifeline, program)
        step = "wait"
        plan, descriptors = _wait_for_plan(channel, lifeline)
        step = "root"
        _enter_root(plan["environment"])
        step = "scratch"
        files = descriptors.pop(0) if plan["has_files"] else None
        workspace = _mount_scratch(plan, files, descriptors)
        step = "proc"
        _seal_proc(plan["sysctls"])
        if plan["scratch"] is not None:
            commands.tell(channel, {"event": "ready"}, [workspace])
        os.close(workspace)
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


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as handle:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack_from("16sH", fcntl.ioctl(handle, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


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


def _mount_scratch(plan: dict[str, Any], files: int | None, clones: list[int]) -> int:
    """Mounts what is writable, lays the files and the host folders in; returns /workspace.

    `clones` are detached mounts, in the order of the plan's `mounts` (their box paths).
    """
    scratch = plan["scratch"]
    if scratch is not None:
        owner = f"uid={commands.GUEST_ID},gid={commands.GUEST_ID}"
        options = f"size={scratch['bytes']},nr_inodes={scratch['inodes']},{owner}"
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        if scratch["sealed"]:
            syscalls.mount("scratch", "/workspace", "tmpfs", flags, f"{options},mode=0755")
        else:
            _mount_writable(f"{options},mode=0711", flags)
    workspace = os.open("/workspace", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if files is not None:
        _lay_files(workspace, files)
        os.close(files)
    for clone, box_path in zip(clones, plan["mounts"], strict=True):
        target = _make_folder(workspace, box_path)
        syscalls.move_mount(clone, target)
        os.close(target)
        os.close(clone)
    if scratch is not None and scratch["sealed"]:
        syscalls.mount(
            "none",
            "/workspace",
            "",
            syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | flags,
        )
    return workspace


def _mount_writable(options: str, flags: int) -> None:
    """One tmpfs, so one quota, seen at three places."""
    syscalls.mount("scratch", "/workspace", "tmpfs", flags, options)
    trees = []
    for name, place in _SCRATCH_PLACES:
        os.mkdir(f"/workspace/{name}", 0o755)
        os.chmod(f"/workspace/{name}", 0o755 if name == "workspace" else 0o1777)
        os.chown(f"/workspace/{name}", commands.GUEST_ID, commands.GUEST_ID)
        trees.append((syscalls.open_tree(f"/workspace/{name}"), place))
    syscalls.unmount("/workspace")
    for tree, place in trees:
        syscalls.move_mount(tree, place)
        os.close(tree)


def _make_folder(at: int, path: str) -> int:
    """Opens `path` below `at`, making what is missing; follows nothing."""
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
    current = os.dup(at)
    for part in path.split("/") if path else []:
        try:
            os.mkdir(part, 0o755, dir_fd=current)
            os.chown(
                part, commands.GUEST_ID, commands.GUEST_ID, dir_fd=current, follow_symlinks=False
            )
        except FileExistsError:
            pass
        following = syscalls.open_beneath(
            current, part, os.O_RDONLY | os.O_DIRECTORY, resolve=resolve
        )
        os.close(current)
        current = following
    return current


def _lay_files(workspace: int, files: int) -> None:
    """Writes the caller's files.

    `files` is a memory file: 4 bytes big-endian length, that much JSON (a list of
    [path, size in bytes], paths checked by Cloche), then the contents one after another.
    """
    with open(files, "rb", closefd=False) as reader:
        reader.seek(0)
        (length,) = struct.unpack(">I", reader.read(4))
        for path, size in json.loads(reader.read(length)):
            folder, _, name = path.rpartition("/")
            parent = _make_folder(workspace, folder)
            descriptor = os.open(
                name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o644, dir_fd=parent
            )
            with open(descriptor, "wb") as writer:
                writer.write(reader.read(size))
                os.fchown(descriptor, commands.GUEST_ID, commands.GUEST_ID)
            os.close(parent)
