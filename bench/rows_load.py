"""Sustained single-use boxes: how many a second, all controls on."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import cloche
from bench import bare
from bench.pairs import Action, Row, Scale, Target

_CODE = "1+1"
_CONCURRENCIES = (2, 4)
_TARGET = Target("rate", 140)
# What a run must report for its speed to count; root can have them all.
_WANTED = {
    "memory": "cgroup",
    "pids": "cgroup",
    "cpu": "cgroup",
    "seccomp": "filter",
    "uid": "own-uid",
}


async def runs_per_second(action: Action, concurrency: int, seconds: float) -> float:
    """Keeps `concurrency` goes in flight for a while; those that end late count, and so do they."""
    started_at = time.perf_counter()
    ended_count = 0

    async def repeat() -> None:
        nonlocal ended_count
        while time.perf_counter() - started_at < seconds:
            await action()
            ended_count += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(repeat())
    return ended_count / (time.perf_counter() - started_at)


def controls_off(isolation: cloche.Isolation) -> list[str]:
    """Which of the wanted controls a run went without, as it was read back from the kernel."""
    return sorted(
        name
        for name, mechanism in _WANTED.items()
        if name not in isolation.controls
        or isolation.controls[name].mechanism != mechanism
        or isolation.controls[name].strength != cloche.Strength.ENFORCED
    )


async def measure(scale: Scale) -> AsyncIterator[Row]:
    """Bun in a box of its own per run, beside Bun in bwrap.

    Raises:
        RuntimeError: as root, a run went without one of the controls, or not the same everywhere.
    """
    command = bare.in_bwrap("bun", "-e", _CODE)
    off: set[str] = set()
    async with cloche.create_process_sandbox() as sandbox:
        numbers = itertools.count()

        async def run(code: str, value: object, **fields: Any) -> None:
            result = await sandbox.run(code, **fields)
            if not result.ok or result.value != value:
                raise RuntimeError(f"the run failed: {result.error}")
            off.update(controls_off(result.isolation))
            if off and os.geteuid() == 0:
                raise RuntimeError(f"a run went without {', '.join(sorted(off))}")

        kinds: dict[str, Action] = {
            "program": lambda: run(_CODE, None, mode="program"),
            "snippet, new texts": lambda: run(f"{_CODE} // {next(numbers)}", 2),
            "snippet, one text": lambda: run(_CODE, 2),
        }
        for kind, concurrency in itertools.product(kinds, _CONCURRENCIES):
            ours, theirs = [], []
            for round_number in range(-1, scale.load_rounds_count):
                seconds = scale.load_seconds if round_number >= 0 else 0.2
                ours.append(await runs_per_second(kinds[kind], concurrency, seconds))
                rate = await runs_per_second(lambda: bare.spawn(command), concurrency, seconds)
                theirs.append(rate)
            name = f"single-use Bun boxes, {kind}, {concurrency} at once"
            if off:
                name += f" (without {', '.join(sorted(off))})"
            yield Row(name, ours[1:], "runs/s", "bwrap", theirs[1:], _TARGET)
