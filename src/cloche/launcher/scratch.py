"""What a box may write: one tmpfs, so one quota, with the caller's files, layers and mounts.

Called by the box's init while nothing of the guest runs yet.
"""

from __future__ import annotations

import json
import os
import struct

import commands
import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PLACES = (("workspace", "/workspace"), ("tmp", "/tmp"), ("shm", "/dev/shm"))
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV


def mount(plan: dict[str, Any], descriptors: list[int]) -> int:
    """Mounts what is writable, lays the files and the host folders in; returns /workspace.

    Args:
        plan: `scratch` (None, or its `bytes`, `inodes` and whether it is `sealed`), `has_files`,
            `layers_count`, `mounts` (box paths).
        descriptors: The file bundle if there is one, then detached mounts: a clone of each layer,
            the first on top, and of each mount. All are closed.
    """
    files = descriptors.pop(0) if plan["has_files"] else None
    layers = descriptors[: plan["layers_count"]]
    clones = descriptors[plan["layers_count"] :]
    scratch = plan["scratch"]
    sealed = scratch is not None and scratch["sealed"]
    if scratch is not None:
        owner = f"uid={commands.GUEST_ID},gid={commands.GUEST_ID}"
        options = f"size={scratch['bytes']},nr_inodes={scratch['inodes']},{owner}"
        if sealed:
            syscalls.mount("scratch", "/workspace", "tmpfs", _FLAGS, f"{options},mode=0755")
        else:
            _mount_writable(f"{options},mode=0711", layers, files)
            files = None
    workspace = os.open("/workspace", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if files is not None:
        _lay_files(workspace, files)
    for clone, box_path in zip(clones, plan["mounts"], strict=True):
        target = _make_folder(workspace, box_path)
        syscalls.move_mount(clone, target)
        os.close(target)
        os.close(clone)
    if sealed:
        flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | _FLAGS
        syscalls.mount("none", "/workspace", "", flags)
    return workspace


def _mount_writable(options: str, layers: list[int], files: int | None) -> None:
    """One tmpfs, seen at three places; with layers, /workspace is an overlay that writes to it."""
    syscalls.mount("scratch", "/workspace", "tmpfs", _FLAGS, options)
    for name, _ in _PLACES:
        _make_own(f"/workspace/{name}", 0o755 if name == "workspace" else 0o1777)
    if files is not None:
        workspace = os.open("/workspace/workspace", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _lay_files(workspace, files)
        os.close(workspace)
    sources = {name: f"/workspace/{name}" for name, _ in _PLACES}
    if layers:
        sources["workspace"] = _mount_overlay(layers)
    trees = [(syscalls.open_tree(sources[name]), place) for name, place in _PLACES]
    syscalls.unmount("/workspace")
    for tree, place in trees:
        syscalls.move_mount(tree, place)
        os.close(tree)


def _mount_overlay(layers: list[int]) -> str:
    """Layers below, the scratch's own folder above: the layers are never written.

    Source: Documentation/filesystems/overlayfs.rst; `userxattr` is how a user namespace keeps its
    marks, `volatile` leaves out syncs that a tmpfs does not need.
    """
    lower = []
    for index, layer in enumerate(layers):
        place = f"/workspace/layer-{index}"
        os.mkdir(place)
        syscalls.move_mount(layer, place)
        os.close(layer)
        lower.append(place)
    for name in ("work", "merged"):
        os.mkdir(f"/workspace/{name}", 0o700)
    options = (
        f"lowerdir={':'.join(lower)},upperdir=/workspace/workspace,workdir=/workspace/work,"
        "userxattr,volatile"
    )
    syscalls.mount("overlay", "/workspace/merged", "overlay", _FLAGS, options)
    return "/workspace/merged"


def _make_own(path: str, mode: int) -> None:
    os.mkdir(path, 0o755)
    os.chmod(path, mode)
    os.chown(path, commands.GUEST_ID, commands.GUEST_ID)


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
    """Writes the caller's files and closes their bundle.

    `files` is a memory file: 4 bytes big-endian length, that much JSON (a list of
    [path, size in bytes, executable], paths checked by Cloche), then the contents one after
    another.
    """
    last, parent = "", os.dup(workspace)
    with open(files, "rb") as reader:
        reader.seek(0)
        (length,) = struct.unpack(">I", reader.read(4))
        for path, size, executable in json.loads(reader.read(length)):
            folder, _, name = path.rpartition("/")
            if folder != last:  # files of one folder come one after another
                os.close(parent)
                last, parent = folder, _make_folder(workspace, folder)
            descriptor = os.open(
                name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o644, dir_fd=parent
            )
            with open(descriptor, "wb") as writer:
                writer.write(reader.read(size))
                os.fchown(descriptor, commands.GUEST_ID, commands.GUEST_ID)
                os.fchmod(descriptor, 0o755 if executable else 0o644)
    os.close(parent)
