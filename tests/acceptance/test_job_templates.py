"""Well-known templates as jobs: what their create-tools make is installed, tested and built.

Each is a file of `tests/data/templates`, a mapping from path to text with its pnpm-lock.yaml:
the template as it came, with a small test where it had none; its pictures are empty ones, its
texts for readers are left out. They rest on the real registry; `docs/jobs.md` says how they fare.
Those that keep two cores busy for long run with CLOCHE_TEST_TEMPLATES=all in the environment alone.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

import cloche
from cloche.errors import UnavailableError
from cloche.model.events import LogEvent
from cloche.model.job import JobResult, ReasonCode, TestCounts, Verdict
from needs import BOX, JOB, needs

FOLDER = Path(__file__).parents[1] / "data/templates"
SLOW = ("next-app",)
RUNS_ALL = os.environ.get("CLOCHE_TEST_TEMPLATES") == "all"
pytestmark = [
    needs(*BOX, *JOB),
    # One at a time: each keeps both cores of a small machine busy.
    pytest.mark.xdist_group("job-templates"),
    # The first job of a template fetches its packages.
    pytest.mark.timeout(300),
]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a template comes to.

    Attributes:
        tests: Of its test step: runner and how many pass.
        artifacts: Globs; None: what a job delivers by itself.
        delivered: Beginnings of paths, of each of which there is a file.
    """

    tests: tuple[str, int]
    artifacts: tuple[str, ...] | None = None
    delivered: tuple[str, ...] = ()


VITE = ("dist/index.html", "dist/assets/index-")
TEMPLATES = {
    "vite-vanilla": Expected(("vitest", 1), delivered=VITE),
    "vite-react": Expected(("vitest", 1), delivered=VITE),
    "vite-vue": Expected(("vitest", 1), delivered=VITE),
    "vite-svelte": Expected(("vitest", 1), delivered=VITE),
    "sveltekit": Expected(
        ("vitest", 1),
        (".svelte-kit/output/**",),
        (".svelte-kit/output/server/index.js", ".svelte-kit/output/client/_app/"),
    ),
    "next-app": Expected(
        ("vitest", 1),
        (".next/server/**", ".next/static/**", ".next/BUILD_ID"),
        (".next/BUILD_ID", ".next/server/app/index.html", ".next/static/chunks/"),
    ),
    "astro-minimal": Expected(("vitest", 1), delivered=("dist/index.html",)),
    "express-jest": Expected(("jest", 2), delivered=("dist/app.js",)),
    "fastify-app": Expected(("node:test", 3)),  # it has no build
    "workspace": Expected(
        ("node:test", 3),
        ("*/*/dist/**",),
        ("apps/shop/dist/index.js", "packages/money/dist/index.d.ts"),
    ),
    "turborepo": Expected(
        ("node:test", 3),
        ("*/*/dist/**",),
        ("apps/shop/dist/index.js", "packages/format/dist/index.d.ts"),
    ),
    "catalogs": Expected(
        ("vitest", 2),
        ("packages/*/dist/**",),
        ("packages/schema/dist/index.d.ts", "packages/web/dist/assets/index-"),
    ),
}


def run_template(name: str, out: Path, lines: list[str]) -> JobResult:
    """Runs it with everything that a job of it takes by itself; skips without a registry."""

    def listen(event: object) -> None:
        if isinstance(event, LogEvent):
            lines.append(f"[{event.step}] {event.text}")

    spec = {"bundle": json.loads((FOLDER / f"{name}.json").read_text())}
    if TEMPLATES[name].artifacts is not None:
        spec["artifacts"] = list(TEMPLATES[name].artifacts or ())
    try:
        result = cloche.sync.run_job(spec, out=out, on_event=listen)
    except UnavailableError as error:
        if error.fact != "toolchain-pnpm":
            raise
        pytest.skip(f"missing fact: {error.fact} ({error.message})")
    if result.reason is not None and result.reason.code is ReasonCode.REGISTRY_FAILED:
        pytest.skip(f"missing fact: npm-registry (it does not answer: {result.reason.message})")
    return result


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_installed_tested_and_built_as_it_is(name: str, tmp_path: Path) -> None:
    if name in SLOW and not RUNS_ALL:
        pytest.skip("it takes long; CLOCHE_TEST_TEMPLATES=all runs it too")
    expected, lines = TEMPLATES[name], list[str]()
    result = run_template(name, tmp_path / "out", lines)
    assert (result.verdict, result.reason) == (Verdict.PASSED, None), "\n".join(lines)
    runner, count = expected.tests
    tests = {step.name: step.tests for step in result.steps}
    assert tests["test"] == TestCounts(runner, count, 0, 0)
    assert ("build" in tests) == bool(expected.delivered)
    artifacts = tmp_path / "out/artifacts"
    assert {each.path for each in result.artifacts} == {
        str(path.relative_to(artifacts)) for path in artifacts.rglob("*") if path.is_file()
    }
    paths = [each.path for each in result.artifacts]
    for start in expected.delivered:
        assert any(path.startswith(start) for path in paths), paths
    assert result.denied == ()


def test_each_template_is_there_and_names_no_place_to_fetch_from() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == TEMPLATES.keys()
    for name in TEMPLATES:
        files = json.loads((FOLDER / f"{name}.json").read_text())
        assert {"package.json", "pnpm-lock.yaml"} <= files.keys()
        assert "://" not in files["pnpm-lock.yaml"]
