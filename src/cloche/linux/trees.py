"""A folder of the host that others may be changing, read by descriptor and never through a link."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Self

from cloche.linux.files import open_beneath

if TYPE_CHECKING:
    from types import TracebackType


@dataclass(frozen=True, slots=True)
class Entry:
    """What a listing says of one name.

    Attributes:
        path: From the tree's root; bytes that are no UTF-8 are lone surrogates (`os.fsdecode`).
        mode: Kind and permissions, as in `st_mode`; a link's own.
        size_bytes: Of a file's content, as it appears: a sparse file counts in full.
    """

    path: str
    mode: int
    size_bytes: int


class Tree:
    """An open folder. Every access starts at its descriptor and stays beneath it."""

    def __init__(self, host_path: str) -> None:
        """Opens the folder; the path to it may lead through links.

        Raises:
            OSError: It is not there, no folder, or not to be read; EINVAL when the text is no path.
        """
        try:
            self._root = os.open(host_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except ValueError as error:  # a NUL, a lone surrogate
            raise OSError(errno.EINVAL, "Not a path", host_path) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._root)

    def list_folder(self, path: str, limit_count: int) -> list[Entry]:
        """What lies in a folder, in no order; at most the first `limit_count` entries.

        Args:
            path: From the root; empty for the root itself.
            limit_count: The rest of a larger folder is not even listed.

        Raises:
            OSError: It cannot be opened or listed; ELOOP when there is a link on the way, ENOTDIR
                when it is one itself or no folder, EXDEV when it is on another file system.
        """
        prefix = f"{path}/" if path else ""
        descriptor = open_beneath(self._root, path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as listing:
                found = [
                    (each.name, each.stat(follow_symlinks=False))
                    for each in islice(listing, limit_count)
                ]
        finally:
            os.close(descriptor)
        return [Entry(prefix + name, status.st_mode, status.st_size) for name, status in found]

    def read_file(self, entry: Entry) -> bytes:
        """The content of a regular file, if it still is what the listing said.

        Returns:
            Exactly `entry.size_bytes` bytes.

        Raises:
            OSError: It cannot be opened; ELOOP when it is a link or there is one on the way, ESTALE
                when kind, permissions, size or content changed since.
        """
        # Without O_NONBLOCK (see `open_beneath`) a FIFO put there meanwhile would wait for a writer
        # and a leased file for its holder.
        descriptor = open_beneath(self._root, entry.path, os.O_RDONLY)
        try:
            before = os.fstat(descriptor)
            if (before.st_mode, before.st_size) != (entry.mode, entry.size_bytes):
                raise _changed(entry)
            if not stat.S_ISREG(before.st_mode):
                raise OSError(errno.EINVAL, "Not a regular file", entry.path)
            with open(descriptor, "rb", closefd=False) as reader:
                # The byte too many shows a file that grows, and is all that is read of its growth.
                content = reader.read(entry.size_bytes + 1)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if len(content) != entry.size_bytes or after.st_mtime_ns != before.st_mtime_ns:
            raise _changed(entry)
        return content


def _changed(entry: Entry) -> OSError:
    return OSError(errno.ESTALE, "Changed while it was read", entry.path)
