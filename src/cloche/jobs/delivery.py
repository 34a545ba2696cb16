"""A job's folder: what it writes there, and when artifacts appear in it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

from cloche.errors import InvalidRequestError
from cloche.jobs.audit import write_durably
from cloche.jobs.running import RunningMark

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cloche.jobs.log import JobLog

_COPIES: Final = ".artifacts"
_READY: Final = ".artifacts-ready"


class Delivery:
    """The folder of a job, or none where nothing is to be kept.

    Attributes:
        copies: Where artifacts are kept while the job runs; None for nowhere.
    """

    def __init__(self, out: Path | None) -> None:
        """Touches nothing."""
        self._out = out
        self._mark: RunningMark | None = None
        self.copies = None if out is None else out / _COPIES

    def open(self, log: JobLog) -> None:
        """Makes the folder, and the log in it. Blocks.

        Raises:
            InvalidRequestError: it is not empty.
            OSError: it cannot be made.
        """
        if self._out is None:
            return
        self._out.mkdir(parents=True, exist_ok=True)
        if any(self._out.iterdir()):
            raise InvalidRequestError(
                f"out: {self._out} is not empty; name a new folder, or remove what is in it",
                retry_safe=True,
            )
        log.open(self._out / "log.ndjson")  # of two jobs with one folder, one gets it
        self._mark = RunningMark(self._out)

    def is_abort_asked(self) -> bool:
        """Whether somebody wants the job to end: see `running.ask_abort`."""
        return self._mark is not None and self._mark.is_abort_asked()

    def make_ready(self) -> Path | None:
        """Where artifacts wait until the record says that the job passed."""
        if self._out is None:
            return None
        folder = self._out / _READY
        folder.mkdir()
        return folder

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Raises OSError: it could not be written."""
        if self._out is not None:
            write_durably(self._out / "manifest.json", manifest)

    def deliver(self) -> None:
        """Gives the artifacts their place. Raises OSError: it is not to be had."""
        if self._out is not None and (self._out / _READY).exists():
            (self._out / _READY).rename(self._out / "artifacts")

    def withdraw(self) -> None:
        """Removes the artifacts of a job that did not pass."""
        if self._out is not None:
            shutil.rmtree(self._out / _READY, ignore_errors=True)

    def close(self) -> None:
        """The job has ended. Idempotent."""
        if self._mark is not None:
            self._mark.close()
