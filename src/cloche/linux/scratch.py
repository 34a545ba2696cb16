"""Folders for a while: gone when they are no longer needed, or soon after their owner was killed.

Each is locked by its owner. Whoever makes one removes those of this user that nobody holds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloche.linux.locks import try_hold

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX: Final = "cloche-scratch-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder of this user's alone. Blocks.

    Raises:
        OSError: it cannot be made.
    """
    _remove_leftovers()
    folder, lock = _make_locked()
    try:
        yield folder
    finally:
        try:
            with suppress(FileNotFoundError):
                shutil.rmtree(folder)
        finally:
            os.close(lock)


def _make_locked() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Another process may have taken it for a leftover before it is locked.
        with suppress(FileNotFoundError):
            lock = _open(folder)
            if try_hold(lock) and os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)


def _remove_leftovers() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another's, or another process was faster
            lock = _open(folder)
            try:
                if os.fstat(lock).st_uid == os.geteuid() and try_hold(lock):
                    shutil.rmtree(folder)
            finally:
                os.close(lock)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
