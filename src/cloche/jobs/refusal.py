"""How the parts of a job say that it must not go on."""

from __future__ import annotations

from cloche.model.job import Reason, ReasonCode


class JobRefusedError(Exception):
    """The project is at fault: the job ends with this reason. Never leaves `jobs`."""

    def __init__(self, code: ReasonCode, message: str) -> None:
        super().__init__(message)
        self.reason = Reason(code, message)
