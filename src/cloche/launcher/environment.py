"""Base trees: the read-only part of a box's root, built once and cloned for every box.

A base tree is a tmpfs of the launcher's own at `/environments/ID`, holding small
files as copies and big ones as read-only binds. A box's init clones the whole
tree with one `open_tree`.
"""

import base64
import os
import stat

import syscalls

HOST = "/host"
ENVIRONMENTS = "/environments"
_EMPTY = "/empty"


def enter_private_root() -> None:
    """Gives the launcher a root of its own: the host's tree at /host, base trees beside it.

    Requires: a mount namespace of the launcher's own, and no thread but this one.
    """
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    # Any directory will do as the place: pivot_root lifts the new root off it again.
    place = "/tmp"
    syscalls.mount("tmpfs", place, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755")
    for name in (HOST, ENVIRONMENTS, _EMPTY):
        os.mkdir(place + name, 0o755)
    os.chdir(place)
    syscalls.pivot_root(".", "." + HOST)
    os.chdir("/")


def open_host(path: str) -> int:
    """Opens a host path by O_PATH, links followed as the host would."""
    root = os.open(HOST, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return syscalls.open_beneath(
            root, path.lstrip("/"), os.O_PATH, resolve=syscalls.RESOLVE_IN_ROOT
        )
    finally:
        os.close(root)


def clone_host(
    host_path: str, *, read_only: bool = True, devices: bool = False, owners: int | None = None
) -> int:
    """A detached clone of a host file or folder; the caller closes it. `owners`: see syscalls."""
    source = open_host(host_path)
    try:
        tree = syscalls.open_tree("", at=source)
    finally:
        os.close(source)
    try:
        syscalls.set_mount_attributes(tree, read_only=read_only, devices=devices, owners=owners)
    except OSError:
        os.close(tree)
        raise
    return tree


def bind(host_path: str, target: str, *, devices: bool = False) -> None:
    """Attaches a read-only clone of a host file or folder at `target`, which must exist."""
    tree = clone_host(host_path, devices=devices)
    try:
        syscalls.move_mount(tree, target)
    finally:
        os.close(tree)


def _is_folder(host_path: str) -> bool:
    descriptor = open_host(host_path)
    try:
        return stat.S_ISDIR(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _copy(host_path: str, target: str) -> None:
    source = open_host(host_path)
    try:
        readable = os.open(f"{HOST}/proc/self/fd/{source}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(source)
    with open(readable, "rb") as reader, open(target, "xb") as writer:
        while chunk := reader.read(1 << 20):
            writer.write(chunk)
    os.chmod(target, 0o755)


def build(identity: str, entries: list[list[str]]) -> None:
    """Builds the base tree `identity`.

    Args:
        identity: A file name, unique in this launcher.
        entries: In order, each `[kind, path, argument]`, parents before children:
            `directory` (no argument), `text` (content), `data` (base64), `copy` (host file),
            `bind` (host file or folder), `device` (host node), `link` (target), `hide` (no
            argument; covers a folder with an empty one).

    Raises:
        OSError: a step failed; the half-built tree is left detached.
    """
    base = f"{ENVIRONMENTS}/{identity}"
    os.mkdir(base, 0o755)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", base, "tmpfs", flags, "mode=0755,size=256m,nr_inodes=16k")
    for kind, path, argument in entries:
        target = base + path
        if kind == "directory":
            os.makedirs(target, 0o755, exist_ok=True)
        elif kind == "text":
            with open(target, "x", encoding="utf-8") as writer:
                writer.write(argument)
        elif kind == "data":
            with open(target, "xb") as writer:
                writer.write(base64.b64decode(argument))
        elif kind == "copy":
            _copy(argument, target)
        elif kind == "link":
            os.symlink(argument, target)
        elif kind == "hide":
            bind_empty(target)
        elif kind == "device":
            _touch(target)
            bind(argument, target, devices=True)
        elif kind == "bind":
            if _is_folder(argument):
                os.makedirs(target, 0o755, exist_ok=True)
            else:
                _touch(target)
            bind(argument, target)
        else:
            raise ValueError(f"unknown kind of entry: {kind}")
    remount = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY
    syscalls.mount("none", base, "", remount | flags)


def bind_empty(target: str) -> None:
    """Covers the folder `target` with an empty read-only one."""
    tree = syscalls.open_tree(_EMPTY)
    try:
        syscalls.set_mount_attributes(tree, read_only=True)
        syscalls.move_mount(tree, target)
    finally:
        os.close(tree)
