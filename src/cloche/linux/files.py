"""Files of a guest, reached by directory descriptor alone and never through a link."""

from __future__ import annotations

import ctypes
import fcntl
import fnmatch
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OPENAT2 = 437
_RESOLVE_NO_XDEV, _RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 1, 2, 4, 8
_RESOLVE = _RESOLVE_NO_XDEV | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH
_DEPTH_LIMIT = 64
_libc = ctypes.CDLL(None, use_errno=True)


def make_memory_file(name: str) -> int:
    """An empty file that is nowhere but in memory; the caller closes it."""
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def fill_memory_file(descriptor: int, data: bytes) -> None:
    """Writes all of it, leaves the position at the start, and lets nobody change it any more.

    Source: man 2 memfd_create, "File sealing".
    """
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, memoryview(data)[done:], done)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


class _OpenHow(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


def open_beneath(folder: int, name: str, flags: int) -> int:
    """Opens `name` below `folder`: no link, no other file system, no way up.

    Raises:
        OSError: ELOOP for a link, EXDEV for another file system, and what open(2) raises.

    Source: man 2 openat2.
    """
    how = _OpenHow(flags=flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, resolve=_RESOLVE)
    descriptor = _libc.syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_long(folder),
        os.fsencode(name),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if descriptor < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), name)
    return int(descriptor)


def matches(path: str, glob: str) -> bool:
    """True when a relative path matches; `**` stands for any number of folders."""
    # Which beginnings of the path the glob's beginning matches, one part of the glob at a time.
    parts = path.split("/")
    reached = {0}
    for pattern in glob.split("/"):
        if pattern == "**":
            reached = set(range(min(reached), len(parts) + 1)) if reached else reached
        else:
            reached = {
                at + 1
                for at in reached
                if at < len(parts) and fnmatch.fnmatchcase(parts[at], pattern)
            }
    return len(parts) in reached


def _walk(folder: int, prefix: str, skipped: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """Yields (folder's descriptor, name, relative path) of everything that is no folder."""
    if prefix.count("/") > _DEPTH_LIMIT:
        skipped[printable(prefix)] = f"deeper than {_DEPTH_LIMIT} folders"
        return
    with os.scandir(folder) as entries:
        listed = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    for name, is_folder in listed:
        path = prefix + name
        if not is_folder:
            yield folder, name, path
            continue
        try:
            below = open_beneath(folder, name, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            skipped[printable(path)] = error.strerror or "cannot be opened"
            continue
        try:
            yield from _walk(below, f"{path}/", skipped)
        finally:
            os.close(below)


def printable(path: str) -> str:
    """A guest's path as text: bytes that are no UTF-8 are shown as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def collect(
    workspace: int, globs: Sequence[str], *, limit_bytes: int, limit_count: int
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Copies the regular files that match.

    Args:
        workspace: A descriptor of the folder to look in.
        globs: Relative to it.
        limit_bytes: For all contents together; a file that would pass it is skipped.
        limit_count: Of files.

    Returns:
        (contents by path, reason by path of what matched but was left or could not be looked at).

    Requires: every process that could write there is dead.
    """
    found: dict[str, bytes] = {}
    skipped: dict[str, str] = {}
    left_bytes = limit_bytes
    for folder, name, path in _walk(workspace, "", skipped):
        if not any(matches(path, glob) for glob in globs):
            continue
        shown = printable(path)
        if shown != path:
            skipped[shown] = "its name is not UTF-8"
            continue
        if len(found) >= limit_count:
            skipped[shown] = f"over the limit of {limit_count} files"
            continue
        content = _read_regular(folder, name, left_bytes)
        if isinstance(content, str):
            skipped[shown] = content
        else:
            found[path] = content
            left_bytes -= len(content)
    return found, skipped


def _read_regular(folder: int, name: str, limit_bytes: int) -> bytes | str:
    """The file's bytes, or why not."""
    try:
        kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(kind):
            return "a link"
        if not stat.S_ISREG(kind):
            return "not a regular file"
        descriptor = open_beneath(folder, name, os.O_RDONLY)
    except OSError as error:
        return error.strerror or "cannot be opened"
    with open(descriptor, "rb") as reader:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file"
        if status.st_size > limit_bytes:
            return f"its {status.st_size} bytes pass the limit"
        return reader.read(limit_bytes)
