"""Locks between processes, by files: they end with whoever holds them, however it dies."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_INTERVAL_S = 0.05


def try_lock(path: Path) -> int | None:
    """Takes the lock of a file, which is made where it is missing; None when another has it.

    The lock is held until the descriptor is closed. Source: man 2 flock.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have removed the file: then the lock is that of nothing.
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def try_share(descriptor: int) -> bool:
    """Shares the lock of an open file until it is closed; False when another has it alone."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_hold(descriptor: int) -> bool:
    """Takes the lock of an open file alone until it is closed; False when anyone else has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@asynccontextmanager
async def hold_lock(path: Path) -> AsyncIterator[None]:
    """Waits for the lock of a file and holds it; among other processes and within this one."""
    while (descriptor := try_lock(path)) is None:
        await asyncio.sleep(_INTERVAL_S)
    try:
        yield
    finally:
        os.close(descriptor)
