"""Tarballs and wheels of packages on disk, each under a key that no other package can have.

The folder holds one read-only file per package, and `incoming/`, where a file stays until its
hash is known to be right. Any number of processes may use one folder; each holds a lock on what
it is writing, so that what a killed one has left is told from what is still being written.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol

from cloche.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IN_USE_S: Final = 3600.0
_KEY_SCHEME: Final = "cloche package 1"
# Locks are a process's, not a thread's: a process knows its own files by their names.
_PROCESS = secrets.token_hex(8)


def _rename_process() -> None:
    global _PROCESS
    _PROCESS = secrets.token_hex(8)


os.register_at_fork(after_in_child=_rename_process)


class DamagedError(Exception):
    """The bytes are not those that the lockfile names."""


class Stored(Protocol):
    """Something that a lockfile names with its hash: `Package` and `Wheel` are such."""

    @property
    def digest(self) -> tuple[str, bytes]:
        """The hash of its file, and by which algorithm of `hashlib`."""

    @property
    def key(self) -> tuple[str, ...]:
        """What nothing else of its registry shares; the hash is part of it."""


class PackageStore:
    """Verified files in one folder; threads may share it.

    Raises:
        UnavailableError: The folder cannot be made, or others could write into it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._incoming = folder / "incoming"
        for each in (self._folder, self._incoming):
            _claim(each)
        self._remove_leftovers()

    def find(self, registry: str, package: Stored) -> Path | None:
        """The package's file, its hash checked just now; None when it has to be fetched.

        A damaged file is removed.

        Args:
            registry: The address that the package comes from.
            package: Which one.

        Raises:
            OSError: The disk fails.
        """
        path = self._path(registry, package)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                raise
            path.unlink(missing_ok=True)
            return None
        with open(descriptor, "rb", buffering=0) as reader:
            status = os.fstat(descriptor)
            is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            algorithm, digest = package.digest
            if is_ours and hashlib.file_digest(reader, algorithm).digest() == digest:
                os.utime(descriptor)
                return path
        path.unlink(missing_ok=True)
        return None

    @contextmanager
    def receive(self, registry: str, package: Stored) -> Iterator[Incoming]:
        """A file to write the package into; unless it is kept, nothing of it stays.

        Raises:
            OSError: The disk fails, or is full; also from what is done with the file.
        """
        path = self._incoming / f"{_PROCESS}-{secrets.token_hex(8)}"
        descriptor = _create_locked(path)
        try:
            yield Incoming(descriptor, path, self._path(registry, package), *package.digest)
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def size_bytes(self) -> int:
        """Of all packages that are kept. Blocks."""
        return sum(status.st_size for _, status in self._each())

    def prune(self, limit_bytes: int) -> tuple[int, int]:
        """Removes packages until the others are within a size: those used longest ago. Blocks.

        One that was used within `IN_USE_S` stays: an install may be about to read it.

        Returns:
            How many were removed, and their bytes.
        """
        kept = sorted(self._each(), key=lambda found: found[1].st_mtime)
        total_bytes = sum(status.st_size for _, status in kept)
        removed_count = removed_bytes = 0
        newest = time.time() - IN_USE_S
        for path, status in kept:
            if total_bytes - removed_bytes <= limit_bytes or status.st_mtime > newest:
                break
            path.unlink(missing_ok=True)
            removed_count += 1
            removed_bytes += status.st_size
        return removed_count, removed_bytes

    def _each(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in list(self._folder.glob("*.tgz")):
            with suppress(FileNotFoundError):
                yield path, path.lstat()

    def _path(self, registry: str, package: Stored) -> Path:
        parts = (_KEY_SCHEME, registry, *package.key)
        framed = b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in parts)
        return self._folder / f"{hashlib.sha256(framed).hexdigest()}.tgz"

    def _remove_leftovers(self) -> None:
        """Removes what processes have left that are no more."""
        for path in list(self._incoming.iterdir()):
            if path.name.startswith(_PROCESS):
                continue
            with suppress(OSError):  # another process was faster, or still holds its lock
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.lockf(descriptor, os.F_TLOCK, 0)
                    path.unlink()
                finally:
                    os.close(descriptor)


class Incoming:
    """A package on its way into the store; hashed as it is written."""

    def __init__(
        self, descriptor: int, path: Path, place: Path, algorithm: str, digest: bytes
    ) -> None:
        self._descriptor = descriptor
        self._path = path
        self._place = place
        self._digest = digest
        self._hash = hashlib.new(algorithm)
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Appends to it."""
        self._hash.update(data)
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self.size_bytes += len(data)

    def keep(self) -> Path:
        """Gives it its name in the store, at once and whole.

        Raises:
            DamagedError: What was written is something else; it is not kept.
        """
        if self._hash.digest() != self._digest:
            raise DamagedError
        os.fchmod(self._descriptor, 0o444)
        self._path.rename(self._place)
        return self._place


def _claim(folder: Path) -> None:
    """Makes a folder that is this user's alone, or makes sure that it is."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise _unusable(folder, "is a link, not a folder")
        if status.st_uid != os.geteuid():
            raise _unusable(folder, f"belongs to user {status.st_uid}, not to {os.geteuid()}")
        if status.st_mode & 0o022:
            raise _unusable(folder, "may be written by others")
        folder.chmod(0o700)
    except OSError as error:
        raise _unusable(folder, f"cannot be used: {error.strerror}") from error


def _unusable(folder: Path, why: str) -> UnavailableError:
    return UnavailableError(
        f"the cache folder {folder} {why}",
        fact="cache-folder",
        fix="set CLOCHE_CACHE_DIR to a folder of your own with mode 0700",
    )


def _create_locked(path: Path) -> int:
    """Creates a file and locks it; the lock ends with the process, however that ends."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.lockf(descriptor, os.F_LOCK, 0)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        # Another process took it for a leftover before it was locked.
        os.close(descriptor)
