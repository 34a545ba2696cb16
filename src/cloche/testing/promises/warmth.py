"""Warm boxes: ready before the run was asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cloche.errors import SandboxErrorCode
from cloche.testing.claims import describe, has_code, has_value, holds
from cloche.testing.promises.limits import GROW, SPIN
from cloche.testing.subject import Subject, promise

if TYPE_CHECKING:
    from cloche.model.snippet import SandboxResult
    from cloche.testing.subject import AnySandbox

_PATIENCE_COUNT = 60


async def _warm(sandbox: AnySandbox, code: str, *args: Any, **fields: Any) -> SandboxResult:
    """A warm run of the code; a box is on its way where none is there."""
    for _ in range(_PATIENCE_COUNT):
        result = await sandbox.run(code, *args, **fields)
        if result.warm:
            return result
        await asyncio.sleep(0.05)
    raise AssertionError(f"no run was warm: {describe(result)}")


@promise(1801)
async def a_sandbox_has_something_warm(subject: Subject) -> None:
    """Runs after the first find what is ready, and `warm` says so.

    "A pool starts with `async with` or the first run and grows with demand"; "… and `warm` says
    so."
    """
    async with subject.create() as sandbox:
        for language in subject.languages:
            has_value(await _warm(sandbox, "1 + 1", language=language), 2)


@promise(1802)
async def limits_and_context_apply_to_a_warm_box(subject: Subject) -> None:
    """What a run asks for holds, though its box was made before.

    "limits, context, variables and egress apply to a warm one."
    """
    kind = "python" if subject.language == "python" else "javascript"
    async with subject.create(timeout_ms=20_000) as sandbox:
        has_value(await _warm(sandbox, "x", {"x": [1, "é"]}), [1, "é"])
        stopped = await _warm(sandbox, SPIN[kind], timeout_ms=300)
        has_code(stopped, SandboxErrorCode.TIMEOUT, "timeout_ms=300")
        stopped = await _warm(sandbox, SPIN[kind], cpu_time_ms=200)
        has_code(stopped, SandboxErrorCode.TIMEOUT, "cpu_time_ms=200")
        if subject.kind == "process":
            stopped = await _warm(sandbox, GROW[kind], memory_limit_mb=64)
            has_code(stopped, SandboxErrorCode.MEMORY_EXCEEDED, "memory_limit_mb=64")
        has_value(await _warm(sandbox, "1 + 1"), 2)


@promise(1803, kinds=("process",))
async def variables_apply_to_a_warm_box(subject: Subject) -> None:
    """The variables of a run are there in a warm box, and not in the next one.

    "limits, context, variables and egress apply to a warm one."
    """
    codes = {
        "javascript": "import process from 'node:process'; process.env.MINE ?? null",
        "python": "import os\nos.environ.get('MINE')",
    }
    code = codes["python" if subject.language == "python" else "javascript"]
    async with subject.create() as sandbox:
        has_value(await _warm(sandbox, code, env={"MINE": "é="}), "é=")
        has_value(await _warm(sandbox, code), None)


@promise(1804, kinds=("process",), needs=("files",))
async def fields_of_the_start_bypass_the_pool(subject: Subject) -> None:
    """A run with files of its own has a box of its own, which is cold.

    "`mounts`, `runtime` and other start-time fields bypass it, and `warm` says so."
    """
    async with subject.create() as sandbox:
        await _warm(sandbox, "1")
        result = await sandbox.run("1 + 1", files={"a": "b"})
        has_value(result, 2)
        holds(not result.warm, "a run with files of its own was warm")
        await _warm(sandbox, "1")


@promise(1805, kinds=("process",))
async def a_pool_of_none_is_always_cold(subject: Subject) -> None:
    """With `pool_size=0` no box is made before its run.

    "`pool_size`, `max_pending`: grows to CPUs, 1000."
    """
    async with subject.create(pool_size=0) as sandbox:
        for _ in range(4):
            result = await sandbox.run("1 + 1")
            has_value(result, 2)
            holds(not result.warm, "a run was warm")


@promise(1806)
async def what_is_warm_has_seen_nothing(subject: Subject) -> None:
    """Warm runs, one after the other, are as fresh as the first.

    "A run never sees anything of an earlier run."
    """
    codes = {
        "javascript": "const seen = typeof globalThis.left; globalThis.left = 1;"
        " Object.prototype.mark = 1; seen",
        "python": "try:\n    seen = left\nexcept NameError:\n    seen = 'undefined'\n"
        "left = 1\nseen",
    }
    code = codes["python" if subject.language == "python" else "javascript"]
    async with subject.create() as sandbox:
        for _ in range(6):
            has_value(await _warm(sandbox, code), "undefined")
