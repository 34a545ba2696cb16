"""The steps of a job as they come: which one runs, and what became of those before it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cloche import telemetry
from cloche.jobs.steps import refused
from cloche.model.events import StepEvent
from cloche.model.job import StepResult, StepStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloche.model.events import Event
    from cloche.model.job import Reason


@dataclass(frozen=True, slots=True)
class _Current:
    """The step that is running, and since when: by the calendar, and to measure."""

    name: str
    started_at: float
    monotonic: float
    span: telemetry.JobSpan


class Ledger:
    """Keeps the results of a job's steps, and tells of each as it begins and ends.

    Attributes:
        names: Of all the steps there are to be.
        results: Of those that have ended, in their order.
    """

    def __init__(self, tell: Callable[[Event], None], clock: Callable[[], float]) -> None:
        """Has no step yet.

        Args:
            tell: Takes the events.
            clock: Seconds since the epoch.
        """
        self._tell = tell
        self._clock = clock
        self._current: _Current | None = None
        self.names: tuple[str, ...] = ()
        self.results: list[StepResult] = []

    def begin(self, name: str) -> None:
        """A step starts."""
        now = self._clock()
        self._current = _Current(name, now, time.monotonic(), telemetry.step_span(name))
        self._tell(StepEvent(now, name, "started"))

    def end(self, result: StepResult) -> None:
        """The step that is running has ended."""
        assert self._current is not None
        result = replace(result, started_at=self._current.started_at)
        code = None if result.reason is None else result.reason.code
        self._current.span.end(result.status, code, result.exit_code)
        self._current = None
        self.results.append(result)
        self._tell(StepEvent(self._clock(), result.name, "ended", result=result))

    def end_current(self, status: StepStatus, reason: Reason) -> bool:
        """Ends the step that is running, for a reason that is not its own; False without one."""
        if self._current is None:
            return False
        duration_ms = round((time.monotonic() - self._current.monotonic) * 1000, 3)
        self.end(refused(self._current.name, status, reason, duration_ms))
        return True

    def all_results(self) -> tuple[StepResult, ...]:
        """Of every step, those that never began among them."""
        done = {result.name for result in self.results}
        skipped = [StepResult(name, StepStatus.SKIPPED) for name in self.names if name not in done]
        return (*self.results, *skipped)
