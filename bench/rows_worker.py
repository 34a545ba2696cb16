"""The worker sandbox: a fresh engine instance per run, beside engines inside of a process."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import cloche
from bench import peers
from bench.pairs import Action, Row, Scale, Target, interleave
from bench.rows_load import runs_per_second

_CONCURRENCIES = (2, 4)
_NAMES = {"price": 80, "rate": 0.25}
_CODE = "price * (1 + rate)"


def _run(sandbox: cloche.WorkerSandbox, *, new_texts: bool = False, **fields: Any) -> Action:
    numbers = itertools.count()
    comment = {"python": "#"}.get(fields.get("language", ""), "//")

    async def run() -> None:
        code = f"{_CODE} {comment} {next(numbers)}" if new_texts else _CODE
        result = await sandbox.run(code, _NAMES, **fields)
        if result.value != peers.VALUE:
            raise RuntimeError(f"the run failed: {result.error}")

    return run


async def measure(scale: Scale) -> AsyncIterator[Row]:
    """One run after another, then as many as go."""
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(cloche.create_worker_sandbox())
        run_monty = await stack.enter_async_context(peers.open_monty())
        took = await interleave(
            {
                "JavaScript, a new text": _run(sandbox, new_texts=True),
                "JavaScript, one text": _run(sandbox),
                "TypeScript, a new text": _run(sandbox, new_texts=True, language="typescript"),
                "Python, a new text": _run(sandbox, new_texts=True, language="python"),
                "quickjs-rs": peers.run_quickjs,
                "mini-racer": peers.run_mini_racer,
                "pydantic-monty": run_monty,
            },
            scale.snippets_count,
            scale.warmups_count,
        )
        for name, samples in took.items():
            if not name.startswith(("JavaScript", "TypeScript", "Python")):
                continue
            peer = "pydantic-monty" if name.startswith("Python") else "quickjs-rs"
            row = f"worker, {name}"
            yield Row(row, samples, "ms", peer, took[peer], Target("median", 1.0))
            if peer == "quickjs-rs":
                yield Row(row, samples, "ms", "mini-racer", took["mini-racer"], Target("p99", 5))
        for concurrency in _CONCURRENCIES:
            for language in ("javascript", "python"):
                action = _run(sandbox, new_texts=True, language=language)
                await runs_per_second(action, concurrency, 0.2)
                rates = [
                    await runs_per_second(action, concurrency, scale.load_seconds)
                    for _ in range(scale.load_rounds_count)
                ]
                name = f"worker, {language}, new texts, {concurrency} at once"
                target = Target("rate", 800) if language == "javascript" else None
                yield Row(name, rates, "runs/s", target=target)
