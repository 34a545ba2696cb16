"""A cold run: launcher and transformer up, the box fresh, no pool."""

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cloche
from bench import bare
from bench.pairs import Action, Row, Scale, Target, interleave
from cloche.backends.namespaces import NamespacesBackend
from cloche.snippets.transformer import Module, Transformer

_CODE = "1+1"
_TARGET = Target("ratio", 1.3)
_PAUSE_S = 0.005
_SMALL = "const price = 80;\nconst rate = 0.25;\nprice * (1 + rate)"


def _run(sandbox: cloche.ProcessSandbox, code: str, value: object, **fields: Any) -> Action:
    async def run() -> None:
        result = await sandbox.run(code, **fields)
        if not result.ok or result.value != value:
            raise RuntimeError(f"the run failed: {result.error}")

    return run


def _run_new_texts(sandbox: cloche.ProcessSandbox) -> Action:
    """Each time another text, so that the transformer has to read it."""
    numbers = itertools.count()

    async def run() -> None:
        result = await sandbox.run(f"{_CODE} // {next(numbers)}")
        if result.value != 2:
            raise RuntimeError(f"the run failed: {result.error}")

    return run


def _bare(*command: str) -> Action:
    return lambda: bare.spawn(list(command))


async def measure(scale: Scale) -> AsyncIterator[Row]:
    """Snippets and programs, on Bun and CPython."""
    bun, python = str(bare.runtime_path("bun")), str(bare.runtime_path("python"))
    isolated = ("-I", "-S", "-B")
    with tempfile.TemporaryDirectory(prefix="cloche-bench-") as folder:
        script, module = Path(folder, "main.js"), Path(folder, "main.py")
        script.write_text(_CODE)
        module.write_text(_CODE)
        js_main, py_main = "/workspace/main.js", "/workspace/main.py"
        async with cloche.create_process_sandbox(pool_size=0) as sandbox:
            for name, action, confined, alone in (
                (
                    "Bun snippet, a new text",
                    _run_new_texts(sandbox),
                    bare.in_bwrap("bun", "-e", _CODE),
                    (bun, "-e", _CODE),
                ),
                (
                    "Bun snippet, a text seen before",
                    _run(sandbox, _CODE, 2),
                    bare.in_bwrap("bun", "-e", _CODE),
                    (bun, "-e", _CODE),
                ),
                (
                    "Bun program",
                    _run(sandbox, _CODE, None, mode="program"),
                    bare.in_bwrap("bun", js_main, main=(str(script), js_main)),
                    (bun, str(script)),
                ),
                (
                    "Python snippet",
                    _run(sandbox, _CODE, 2, language="python"),
                    bare.in_bwrap("python", "-I", "-S", "-c", _CODE),
                    (python, "-I", "-S", "-c", _CODE),
                ),
                (
                    "Python program",
                    _run(sandbox, _CODE, None, language="python", mode="program"),
                    bare.in_bwrap("python", *isolated, py_main, main=(str(module), py_main)),
                    (python, *isolated, str(module)),
                ),
            ):
                took = await interleave(
                    {"cloche": action, "bwrap": _bare(*confined), "bare": _bare(*alone)},
                    scale.rounds_count,
                    scale.warmups_count,
                )
                ours = took["cloche"]
                yield Row(f"cold run, {name}", ours, "ms", "bwrap", took["bwrap"], _TARGET)
                yield Row(f"cold run, {name}", ours, "ms", "bare runtime", took["bare"])


async def measure_transformer(scale: Scale) -> AsyncIterator[Row]:
    """A small snippet through the transformer's box, there and back; each time another text.

    With a pause between, as runs have it: the next text's fork is made in that time.
    """
    backend = NamespacesBackend()
    transformer = Transformer(backend)

    took: list[float] = []
    try:
        await transformer.start()
        for number in range(-scale.warmups_count, scale.snippets_count):
            await asyncio.sleep(_PAUSE_S)
            text = f"{_SMALL} // {number}"
            started_at = time.perf_counter()
            answer = await transformer.transform(text, "typescript")
            if not isinstance(answer, Module):
                raise RuntimeError("the transformer refused the snippet")
            if number >= 0:
                took.append((time.perf_counter() - started_at) * 1000)
    finally:
        await transformer.close()
        await backend.close()
    yield Row("transformer, warm, 3 lines of TypeScript", took, target=Target("median", 1.0))
