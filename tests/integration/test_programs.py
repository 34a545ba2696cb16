"""Real programs with a known verdict, in program mode: each gets the verdict of its oracle."""

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import cloche
from needs import BOX, needs

PROGRAMS = Path(__file__).parents[3] / "shared/data/programs.jsonl"
CHUNKS = 8

pytestmark = [
    needs(*BOX, "runtime-bun", "runtime-python"),
    pytest.mark.skipif(
        not PROGRAMS.is_file(), reason="missing fact: ../shared/data/programs.jsonl"
    ),
]


@cache
def programs() -> list[dict[str, Any]]:
    return [json.loads(line) for line in PROGRAMS.read_text().splitlines()]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_program_gets_the_verdict_of_its_oracle(chunk: int) -> None:
    mine = programs()[chunk::CHUNKS]

    async def run_all() -> list[cloche.SandboxResult]:
        async with cloche.create_process_sandbox(mode="program", timeout_ms=15_000) as sandbox:
            return await asyncio.gather(
                *(sandbox.run(each["program"], language=each["language"]) for each in mine)
            )

    wrong = {}
    for each, result in zip(mine, asyncio.run(run_all()), strict=True):
        if result.ok is not (each["oracle"] == "pass"):
            wrong[each["id"]] = (each["oracle"], result.error_code, result.error)
    assert wrong == {}


def test_the_programs_are_of_every_language_and_of_both_verdicts() -> None:
    assert len(programs()) == 480
    assert {each["language"] for each in programs()} == {"javascript", "typescript", "python"}
    assert {each["oracle"] for each in programs()} == {"pass", "fail"}
