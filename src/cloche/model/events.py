"""What a running job tells, as it happens: one union, the same for the terminal and for `--json`.

Times are seconds since the epoch; `step` is the name of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cloche.model.job import StepResult, Verdict


@dataclass(frozen=True, slots=True)
class StateEvent:
    """The job as a whole: it has started, says a note, or has ended.

    Attributes:
        state: `started`, `note` (what Cloche left out or overrode) or `ended`.
        steps: The names of all steps, in order; at the start.
        message: For people.
        verdict: At the end.
    """

    time: float
    state: Literal["started", "note", "ended"]
    steps: tuple[str, ...] = ()
    message: str = ""
    verdict: Verdict | None = None
    type: Literal["state"] = "state"


@dataclass(frozen=True, slots=True)
class StepEvent:
    """A step has started, has come further (downloads), or has ended.

    Attributes:
        done_count, total_count, done_bytes: Of downloads; while the dependencies are fetched.
        result: At its end.
    """

    time: float
    step: str
    state: Literal["started", "progress", "ended"]
    done_count: int = 0
    total_count: int = 0
    done_bytes: int = 0
    result: StepResult | None = None
    type: Literal["step"] = "step"


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A line (or a part of a long one) that a step wrote, control characters and all.

    Attributes:
        offset_bytes: Where in the log it starts.
        stream: `cloche` for what Cloche itself has to say.
        text: Without the line's end; what is no UTF-8 has become U+FFFD.
    """

    time: float
    step: str
    stream: Literal["stdout", "stderr", "cloche"]
    text: str
    offset_bytes: int = 0
    type: Literal["log"] = "log"


Event = StateEvent | StepEvent | LogEvent
