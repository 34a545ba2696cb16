"""Warm boxes: the runtime is up, one run and the box is gone. And what one holds while it waits."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import cloche
from bench import floor, peers
from bench.pairs import QUICK, Action, Row, Scale, Target, take_ms

_CODE = "price * (1 + rate)"
_NAMES = {"price": 80, "rate": 0.25}
_RUNTIMES = ("bun", "deno", "node", "python")
# Long enough for the next box to be made: a pool is for runs that come now and then.
_PAUSE_S = 0.15
_TRIES_PER_SAMPLE = 3


def _run(sandbox: cloche.ProcessSandbox, runtime: str, *, new_texts: bool) -> Action:
    numbers = itertools.count()
    python = runtime == "python"
    fields: dict[str, Any] = {"language": "python" if python else "javascript", "runtime": runtime}

    async def run() -> bool:
        comment = "#" if python else "//"
        code = f"{_CODE} {comment} {next(numbers)}" if new_texts else _CODE
        result = await sandbox.run(code, _NAMES, **fields)
        if result.value != peers.VALUE:
            raise RuntimeError(f"the run failed: {result.error}")
        return result.warm

    return run


async def _take_warm(action: Action, count: int) -> list[float]:
    """Times of runs that had a warm box, with time between them for the next one."""
    samples: list[float] = []
    for _ in range(_TRIES_PER_SAMPLE * count):
        await asyncio.sleep(_PAUSE_S)
        was_warm = False

        async def run() -> None:
            nonlocal was_warm
            was_warm = bool(await action())

        took_ms = await take_ms(run)
        if was_warm:
            samples.append(took_ms)
        if len(samples) == count:
            return samples
    raise RuntimeError(f"only {len(samples)} of {count} runs had a warm box")


async def measure(scale: Scale) -> AsyncIterator[Row]:
    """Code in → result out, nothing alive any more, beside a fresh isolate in Node."""
    count = scale.rounds_count
    async with AsyncExitStack() as stack:
        beside: dict[str, Any] = {}
        if scale is not QUICK:  # it may have to be built first
            try:
                run_isolate = await stack.enter_async_context(peers.open_isolated_vm())
                isolates = [await take_ms(run_isolate) for _ in range(2 * count)][count:]
                beside = {"beside": "isolated-vm", "beside_samples": isolates}
            except RuntimeError as error:
                print(f"no isolated-vm: {error}")
        for runtime in _RUNTIMES:
            fields: dict[str, Any] = {"language": "python"} if runtime == "python" else {}
            async with cloche.create_process_sandbox(runtime=runtime, **fields) as sandbox:
                for new_texts in (False, True):
                    samples = await _take_warm(_run(sandbox, runtime, new_texts=new_texts), count)
                    name = f"warm run, {runtime}, {'new texts' if new_texts else 'one text'}"
                    own = runtime == "bun" and not new_texts
                    target = Target("median", 1.0) if own else None
                    yield Row(name, samples, "ms", target=target, **beside)
                    if own:
                        yield Row(name, samples, "ms", target=Target("p99", 20))
                        if beside:
                            yield Row(name, samples, "ms", target=Target("ratio", 1.0), **beside)
                if runtime == "bun":
                    answers, deaths = await floor.take_answers_and_deaths_ms(count)
                    yield Row("no box: the harness in a waiting Bun, request to answer", answers)
                    yield Row("no box: the same Bun, SIGKILL to its death", deaths)
                await asyncio.sleep(_PAUSE_S)
                held = [_held_mib(box.box._init.pid) for box in _idle_boxes(sandbox)]  # type: ignore[attr-defined]
                yield Row(f"an idle warm box, {runtime}: all it holds", held, "MiB")


def _idle_boxes(sandbox: cloche.ProcessSandbox) -> list[Any]:
    return [box for shelf in sandbox.pool._shelves.values() for box in shelf.ready]


def _held_mib(init: int) -> float:
    """What a box's processes hold; a page that others hold too counts by its share."""
    total_kib, pending = 0, [init]
    while pending:
        base = Path("/proc", str(pending.pop()))
        for line in (base / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total_kib += int(line.split()[1])
        for task in (base / "task").iterdir():
            pending.extend(map(int, (task / "children").read_text().split()))
    return total_kib / 1024
