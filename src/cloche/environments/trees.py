"""Two hashes of a folder of Cloche's own: of what it holds, and of what the disk says of it."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class TreeDigest:
    """What a tree holds.

    Attributes:
        sha256: Of names, kinds, x bits and contents, lower-case hex; the same on every host.
        files: The same of each regular file's content, by its path (as `os.fsdecode` reads it).
    """

    sha256: str
    files: dict[str, str]


def digest_tree(folder: Path, known: Mapping[str, str] = MappingProxyType({})) -> TreeDigest:
    """Reads a tree.

    The whole is hashed over the entries in the order of their paths: path, kind (`d`, `f`, `x` or
    `l`) and the SHA-256 of a file's content, or a link's target; each part followed by a zero byte.

    Args:
        folder: Of Cloche's own.
        known: The hashes of files whose content is known, by path; they are not read.
    """
    digest = hashlib.sha256(b"cloche-tree-1\0")
    files: dict[str, str] = {}
    for path, status in sorted(_walk(folder), key=lambda found: found[0]):
        place = os.fsencode(folder) + b"/" + path
        if stat.S_ISDIR(status.st_mode):
            kind, content = b"d", b""
        elif stat.S_ISLNK(status.st_mode):
            kind, content = b"l", os.readlink(place)  # noqa: PTH115 (a name need not be text)
        else:
            kind = b"x" if status.st_mode & 0o100 else b"f"
            name = os.fsdecode(path)
            files[name] = known.get(name) or _digest_file(place)
            content = bytes.fromhex(files[name])
        digest.update(b"\0".join((path, kind, content, b"")))
    return TreeDigest(digest.hexdigest(), files)


def _digest_file(place: bytes) -> str:
    with open(place, "rb", buffering=0) as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


def stamp_tree(folder: Path) -> str:
    """A hash of names, modes, sizes and times of change, without a look into any file.

    It differs once anything was changed, added or removed; some 6 µs for each entry.
    """
    try:
        lines = [
            b"%b\0%d %d %d\n" % (path, status.st_mode, status.st_size, status.st_mtime_ns)
            for path, status in _walk(folder)
        ]
    except OSError:
        return ""
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def _walk(folder: Path) -> Iterator[tuple[bytes, os.stat_result]]:
    """All below a folder: path from it, and its own status."""
    root = os.fsencode(folder)
    start = len(root) + 1
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                path = entry.path
                yield path[start:], entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
