"""The mark of a job that is running, in its folder: by it, others see that, and can end the job.

`.running` is locked as long as the job runs, however its process ends. `.abort`, once it is there,
ends the job.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from cloche.errors import InvalidRequestError
from cloche.linux.locks import try_lock

if TYPE_CHECKING:
    from pathlib import Path

_MARK: Final = ".running"
_ABORT: Final = ".abort"
_TRY_S: Final = 0.001


class RunningMark:
    """Held by the job itself."""

    def __init__(self, out: Path) -> None:
        """Raises OSError: it cannot be made."""
        self._out = out
        self._held: int | None = None
        while (held := try_lock(out / _MARK)) is None:
            time.sleep(_TRY_S)  # somebody looks just now whether a job runs
        self._held = held

    def is_abort_asked(self) -> bool:
        """Whether somebody wants the job to end."""
        return (self._out / _ABORT).exists()

    def close(self) -> None:
        """Removes it. Idempotent."""
        if self._held is not None:
            for name in (_ABORT, _MARK):
                (self._out / name).unlink(missing_ok=True)
            os.close(self._held)
            self._held = None


def is_running(out: Path) -> bool:
    """Whether a job runs now whose folder this is."""
    if not (out / _MARK).exists():
        return False
    try:
        held = try_lock(out / _MARK)
    except OSError:
        return False
    if held is None:
        return True
    (out / _MARK).unlink(missing_ok=True)  # left by one that was killed
    os.close(held)
    return False


def ask_abort(out: Path) -> None:
    """Asks the job whose folder this is to end; `is_running` tells when it has.

    Raises:
        InvalidRequestError: none runs there.
    """
    if not is_running(out):
        raise InvalidRequestError(f"no job runs in {out}; name its --out", retry_safe=True)
    (out / _ABORT).touch()
    if not is_running(out):  # it has ended just now, and does not remove it any more
        (out / _ABORT).unlink(missing_ok=True)
