"""Real programs with a known verdict: each gets it on every runtime and on both sandboxes.

On the process sandbox they are programs, as they are. The worker sandbox has no modules: there they
are snippets, JavaScript and TypeScript with `node_assert.js` in the place of `node:assert`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import cloche
from needs import BOX, needs

PROGRAMS = Path(__file__).parents[3] / "shared/data/programs.jsonl"
# How many there are, by language and oracle.
COUNTS = {
    ("javascript", "pass"): 136,
    ("javascript", "fail"): 23,
    ("typescript", "pass"): 140,
    ("typescript", "fail"): 17,
    ("python", "pass"): 164,
}
# Runtime → its languages, and in how many tests they are run: Node and Deno take longer to start.
RUNTIMES = {
    "bun": (("javascript", "typescript"), 2),
    "deno": (("javascript", "typescript"), 6),
    "node": (("javascript", "typescript"), 6),
    "python": (("python",), 2),
}
# How those fail that do not fail by an assertion.
FAILS_BY = {
    "javascript/HumanEval_39_prime_fib": "Error",
    "javascript/HumanEval_51_remove_vowels": "SyntaxError",
    "javascript/HumanEval_129_minPath": "TypeError",
    "javascript/HumanEval_160_do_algebra": "SyntaxError",
    "typescript/HumanEval_17_parse_music": "Error",
}
# How many run on the worker; and, for all others, the reason → how many it holds for.
RUN_BY_WORKER = {"javascript": 158, "typescript": 157, "python": 161}
REFUSED = {
    "javascript": {"require is not available": 1},  # node:crypto
    "typescript": {},
    "python": {"the module `string`": 2, "`eval`": 1},
}
USE_PROCESS = "use the process sandbox"
REQUIRE = "const assert = require('node:assert');"
ASSERT = Path(__file__).parent.parent / "programs/node_assert.js"

pytestmark = [
    needs(*BOX),
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        not PROGRAMS.is_file(), reason="missing fact: ../shared/data/programs.jsonl"
    ),
]


@cache
def programs(*languages: str) -> list[dict[str, Any]]:
    """Those of some languages; without any, all."""
    found = [json.loads(line) for line in PROGRAMS.read_text().splitlines()]
    return [each for each in found if not languages or each["language"] in languages]


def run_all(
    run: Callable[[dict[str, Any]], cloche.SandboxResult], some: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], cloche.SandboxResult]]:
    """Runs them, a few at a time: each program with its result."""
    with ThreadPoolExecutor(max_workers=4) as threads:
        return list(zip(some, threads.map(run, some), strict=True))


def difference(program: dict[str, Any], result: cloche.SandboxResult) -> str | None:
    """What the verdict is, where it is not that of the oracle.

    A program that should fail has to fail by itself: not for want of something, or of time.
    """
    if program["oracle"] == "pass":
        return None if result.ok else str(result.error)
    if result.ok:
        return "it passed"
    name = FAILS_BY.get(program["id"], "AssertionError")
    invalid = result.error_code is cloche.SandboxErrorCode.INVALID_CODE and name == "SyntaxError"
    failed = invalid or result.error_code is cloche.SandboxErrorCode.EXECUTION_ERROR
    told = str(result.error)
    return None if failed and told.startswith(f"{name}:") else told


def test_the_programs_are_of_every_language_and_of_both_verdicts() -> None:
    assert Counter((each["language"], each["oracle"]) for each in programs()) == COUNTS
    assert sum(COUNTS.values()) == 480
    assert {each["id"] for each in programs()} >= FAILS_BY.keys()


@pytest.fixture(scope="module")
def boxes() -> Iterator[cloche.sync.SyncSandbox]:
    """A process sandbox for programs."""
    with cloche.sync.create_process_sandbox(mode="program", timeout_ms=20_000) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    ("runtime", "part"),
    [
        pytest.param(name, part, marks=needs(f"runtime-{name}"))
        for name, (_, parts_count) in RUNTIMES.items()
        for part in range(parts_count)
    ],
)
def test_every_program_gets_the_verdict_of_its_oracle_from_every_runtime(
    runtime: str, part: int, boxes: cloche.sync.SyncSandbox
) -> None:
    languages, parts_count = RUNTIMES[runtime]

    def run(program: dict[str, Any]) -> cloche.SandboxResult:
        return boxes.run(program["program"], language=program["language"], runtime=runtime)

    ended = run_all(run, programs(*languages)[part::parts_count])
    assert {each["id"]: told for each, result in ended if (told := difference(each, result))} == {}
    assert {result.runtime.name for _, result in ended} == {runtime}


def test_all_runtimes_of_a_language_run_all_of_its_programs() -> None:
    runs_count = Counter({language: 0 for language, _ in COUNTS})
    for languages, _ in RUNTIMES.values():
        runs_count.update(languages)
    assert runs_count == {"javascript": 3, "typescript": 3, "python": 1}


@pytest.fixture(scope="module")
def engines() -> Iterator[cloche.sync.SyncSandbox]:
    """A worker sandbox."""
    for package in ("quickjs_rs", "pydantic_monty"):
        if find_spec(package) is None:
            pytest.skip(f"missing fact: worker-engines ({package} is not installed)")
    with cloche.sync.create_worker_sandbox(timeout_ms=10_000) as sandbox:
        yield sandbox


def as_snippet(program: dict[str, Any]) -> str:
    if program["language"] == "python":
        return str(program["program"])
    before, found, after = program["program"].partition(REQUIRE)
    assert found
    return f"{before}{ASSERT.read_text()}{after}"


def run_on_worker(
    engines: cloche.sync.SyncSandbox, program: dict[str, Any]
) -> cloche.SandboxResult:
    return engines.run(as_snippet(program), language=program["language"])


@pytest.mark.xdist_group("programs-on-worker")
@pytest.mark.parametrize("language", REFUSED)
def test_every_program_gets_the_verdict_of_its_oracle_from_the_worker_or_is_refused_by_reason(
    language: str, engines: cloche.sync.SyncSandbox
) -> None:
    ended = run_all(partial(run_on_worker, engines), programs(language))
    ran = [(each, result) for each, result in ended if USE_PROCESS not in str(result.error)]
    refusals = [str(result.error) for _, result in ended if USE_PROCESS in str(result.error)]
    assert {each["id"]: told for each, result in ran if (told := difference(each, result))} == {}
    reasons = REFUSED[language]
    assert {reason: sum(reason in told for told in refusals) for reason in reasons} == reasons
    assert (len(ran), len(refusals)) == (RUN_BY_WORKER[language], sum(reasons.values()))


@pytest.mark.xdist_group("programs-on-worker")
@pytest.mark.parametrize(
    ("left", "right", "name"),
    [
        ("[1, {a: 2}]", "['1', {a: 2}]", None),
        ("[NaN]", "[NaN]", None),
        ("null", "undefined", None),
        ("[1, 2]", "[2, 1]", "AssertionError"),
        ("[1]", "[1, undefined]", "AssertionError"),
        ("[, 1]", "[undefined, 1]", "AssertionError"),
        ("{a: undefined}", "{b: undefined}", "AssertionError"),
        ("[]", "{}", "AssertionError"),
        ("[]", "null", "AssertionError"),
        ("[]", "''", "AssertionError"),
        ("new Map()", "new Map([[1, 2]])", "TypeError"),
    ],
)
def test_the_assert_of_the_worker_is_as_strict_as_that_of_node(
    left: str, right: str, name: str | None, engines: cloche.sync.SyncSandbox
) -> None:
    check = f"assert.deepEqual({left}, {right})"
    ended = engines.run(f"{ASSERT.read_text()}\n{check}", language="javascript")
    assert (ended.error or ":").partition(":")[0] == (name or "")
    theirs = cloche.sync.run(f"import assert from 'node:assert'; {check}", runtime="node")
    assert theirs.ok is ended.ok
