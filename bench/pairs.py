"""Interleaved measurements and what is made of them.

A machine is never as quiet as one would like, so no figure stands alone: contestants take turns,
and what is compared with a target of the form "n times" is two medians of one run.
"""

import math
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Action = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: a long run for figures, a quick one to see that all rows work."""

    rounds_count: int = 100
    warmups_count: int = 5
    starts_count: int = 20
    snippets_count: int = 500
    load_rounds_count: int = 5
    load_seconds: float = 2.0
    kills_count: int = 200
    deadline_ms: int = 250
    jobs_count: int = 10
    installs_count: int = 5
    jobs_at_once_count: int = 10
    crowds_count: int = 3


QUICK = Scale(
    rounds_count=3,
    warmups_count=1,
    starts_count=2,
    snippets_count=20,
    load_rounds_count=1,
    load_seconds=0.3,
    kills_count=3,
    jobs_count=1,
    installs_count=1,
    jobs_at_once_count=2,
    crowds_count=1,
    deadline_ms=1000,  # a machine busy with tests must still get its guests to hold their memory
)


@dataclass(frozen=True, slots=True)
class Target:
    """The most (`rate`: the least) that a figure may be.

    `ratio` is held against median by median, `median` and `p99` against that of the row itself.
    """

    kind: Literal["ratio", "median", "p99", "rate"]
    limit: float

    def __str__(self) -> str:
        return {"ratio": "≤ {:g} x", "median": "≤ {:g}", "p99": "p99 ≤ {:g}", "rate": "≥ {:g}"}[
            self.kind
        ].format(self.limit)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: Cloche's samples beside those of something else.

    Attributes:
        samples: In `unit`, at least one.
        beside: What it is compared with; empty for nothing.
    """

    name: str
    samples: Sequence[float]
    unit: Literal["ms", "runs/s", "MiB"] = "ms"
    beside: str = ""
    beside_samples: Sequence[float] = ()
    target: Target | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p99(self) -> float:
        """Of a rate, the slow end is the low one."""
        ordered = sorted(self.samples, reverse=self.unit == "runs/s")
        return ordered[math.ceil(0.99 * len(ordered)) - 1]

    @property
    def ratio(self) -> float | None:
        return self.median / statistics.median(self.beside_samples) if self.beside else None

    @property
    def met(self) -> bool | None:
        match self.target:
            case None:
                return None
            case Target("ratio", limit):
                return self.ratio is not None and self.ratio <= limit
            case Target("rate", limit):
                return self.median >= limit
            case Target("p99", limit):
                return self.p99 <= limit
            case Target(_, limit):
                return self.median <= limit

    def as_json(self) -> dict[str, Any]:
        beside = statistics.median(self.beside_samples) if self.beside else None
        return {
            "name": self.name,
            "unit": self.unit,
            "median": round(self.median, 3),
            "p99": round(self.p99, 3),
            "samples_count": len(self.samples),
            "beside": self.beside or None,
            "beside_median": None if beside is None else round(beside, 3),
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "target": None if self.target is None else str(self.target),
            "met": self.met,
        }


async def take_ms(action: Action) -> float:
    """How long one go takes."""
    started_at = time.perf_counter()
    await action()
    return (time.perf_counter() - started_at) * 1000


async def interleave(
    actions: Mapping[str, Action],
    rounds_count: int,
    warmups_count: int,
    prepare: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Lets all take turns, one after another; the first `warmups_count` rounds do not count.

    Before each turn `prepare` is called, which takes no part in its time.

    Each round has its own order: what one leaves to the kernel (the end of a network namespace
    costs some milliseconds on another CPU) is not always at the expense of the same next one.
    """
    samples: dict[str, list[float]] = {name: [] for name in actions}
    order = list(actions.items())
    generator = random.Random(1)
    for round_number in range(-warmups_count, rounds_count):
        generator.shuffle(order)
        for name, action in order:
            prepare()
            took_ms = await take_ms(action)
            if round_number >= 0:
                samples[name].append(took_ms)
    return samples
