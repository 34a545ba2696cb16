"""The projects in `examples/`, as the command line and Python take them: what each is there for."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import cloche
from cloche.environments.runtimes import require_runtime
from cloche.model.events import LogEvent, StateEvent
from needs import BOX, JOB, needs
from observer import descendants

CLOCHE = str(Path(sys.executable).with_name("cloche"))
EXAMPLES = Path(__file__).parents[2] / "examples"
VITE_REACT, FAILING, HOSTILE = (
    EXAMPLES / name for name in ("vite-react", "failing-tests", "hostile")
)
HELPER = Path("packages/test-helper/index.js")
PLANTED = "PLANTED-BY-THE-TEST"
SECRET = "the-host-alone-knows-it"
pytestmark = [
    needs(*BOX, *JOB),
    pytest.mark.xdist_group("job-examples"),
    # The first jobs of a fresh machine fetch pnpm and the packages; later ones take seconds.
    pytest.mark.timeout(240),
]


@dataclass(frozen=True, slots=True)
class Ended:
    """A job as its user meets it.

    Attributes:
        lines: What the steps wrote.
        result: The last line of `--json`.
        out: Where everything went.
    """

    exit_code: int
    lines: list[str]
    result: dict[str, Any]
    out: Path

    def statuses(self) -> dict[str, str]:
        return {step["name"]: step["status"] for step in self.result["steps"]}

    def artifacts(self) -> dict[str, bytes]:
        return contents(self.out / "artifacts")


def contents(folder: Path) -> dict[str, bytes]:
    """Path → bytes of every file in a folder."""
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def command(project: Path, *args: str) -> list[str]:
    return [CLOCHE, "job", "run", str(project), *args]


def run_job(project: Path, out: Path, **env: str) -> Ended:
    done = subprocess.run(
        command(project, "--json", "--out", str(out)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=200,
        check=False,
    )
    assert done.stderr == ""
    *events, result = map(json.loads, done.stdout.splitlines())
    assert result["type"] == "result"
    lines = [event["text"] for event in events if event["type"] == "log"]
    return Ended(done.returncode, lines, result, out)


def assert_manifest_matches(out: Path, artifacts: Mapping[str, bytes]) -> None:
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["skipped"] == {}
    assert {
        each["path"]: (each["size_bytes"], each["sha256"]) for each in manifest["artifacts"]
    } == {path: (len(content), sha256(content).hexdigest()) for path, content in artifacts.items()}


def test_vite_react_passes_its_tests_and_delivers_a_site_whose_hashes_match(tmp_path: Path) -> None:
    job = run_job(VITE_REACT, tmp_path / "out")
    assert (job.exit_code, job.result["verdict"]) == (0, "passed"), job.lines
    assert job.statuses() == dict.fromkeys(("install", "test", "build"), "passed")
    tests = {step["name"]: step["tests"] for step in job.result["steps"]}["test"]
    assert tests == {"runner": "vitest", "passed": 10, "failed": 0, "skipped": 0}
    artifacts = job.artifacts()
    assert_manifest_matches(job.out, artifacts)
    assert job.result["artifacts"] == job.result["manifest"]["artifacts"]
    page = artifacts["dist/index.html"].decode()
    linked = [piece.partition('"')[0] for piece in page.split('="./')[1:]]
    assert len(linked) == 3  # script, style and icon
    assert {f"dist/{path}" for path in linked} == artifacts.keys() - {"dist/index.html"}
    audit = json.loads((job.out / "audit.json").read_text())
    assert audit["verdict"] == "passed"
    log = (job.out / "log.ndjson").read_text().splitlines()
    assert [json.loads(line)["text"] for line in log] == job.lines


def test_vite_react_passes_from_python_and_what_it_delivers_is_always_the_same(
    tmp_path: Path,
) -> None:
    events: list[Any] = []
    results = [
        cloche.sync.run_job(
            {"bundle": str(VITE_REACT)}, out=tmp_path / name, on_event=events.append
        )
        for name in ("first", "second")
    ]
    for result, name in zip(results, ("first", "second"), strict=True):
        assert (result.verdict, result.reason) == (cloche.Verdict.PASSED, None)
        assert_manifest_matches(tmp_path / name, contents(tmp_path / name / "artifacts"))
    assert results[0].artifacts == results[1].artifacts != ()
    states = [event.state for event in events if isinstance(event, StateEvent)]
    assert states == ["started", "ended"] * 2


def test_failing_tests_ends_the_job_with_the_runner_s_own_message_and_no_build(
    tmp_path: Path,
) -> None:
    job = run_job(FAILING, tmp_path / "out")
    assert (job.exit_code, job.result["verdict"]) == (1, "failed")
    assert (job.result["failed_step"], job.result["reason"]["code"]) == ("test", "tests_failed")
    assert job.statuses() == {"install": "passed", "test": "failed", "build": "skipped"}
    assert job.result["retry_safe"] is False
    assert job.result["artifacts"] == []
    assert job.artifacts() == {}
    said = "\n".join(job.lines)
    for text in ("knows centuries", "AssertionError", "expected true to be false"):
        assert text in said
    assert "vite build" not in said


def test_failing_tests_shows_people_why_and_where(tmp_path: Path) -> None:
    done = subprocess.run(
        command(FAILING), capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    for text in ("AssertionError: expected true to be false", "leap.test.ts:10:24", "tests_failed"):
        assert text in done.stdout
    assert "[build] skipped" in done.stdout


def test_failing_tests_is_data_in_python_and_no_exception() -> None:
    told: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, LogEvent):
            told.append(event.text)

    result = cloche.sync.run_job({"bundle": str(FAILING)}, on_event=listen)
    assert (result.verdict, result.failed_step) == (cloche.Verdict.FAILED, "test")
    assert result.reason is not None
    assert result.reason.code == "tests_failed"
    assert any("expected true to be false" in text for text in told)


# The hostile one. Each of its attempts reports itself; what it changes in its own tree it may.


def attempts(lines: list[str]) -> dict[str, str]:
    """What was attempted → `blocked` or `SUCCEEDED`."""
    found = {}
    for line in lines:
        _, mark, attempt = line.partition("ATTEMPT ")
        if mark:
            name, _, outcome = attempt.rpartition(": ")
            found[name] = outcome.strip()
    return found


def daemons() -> list[str]:
    """Processes that write what only the example's daemon writes."""
    return [each.command for each in descendants().values() if "late.txt" in each.command]


def test_hostile_gets_nothing_of_the_host_and_changes_nothing_of_the_build(tmp_path: Path) -> None:
    innocent = tmp_path / "innocent"
    shutil.copytree(HOSTILE, innocent)
    (innocent / HELPER).write_text("export async function attack() {}\n")
    expected = run_job(innocent, tmp_path / "expected")
    assert (expected.exit_code, len(expected.artifacts())) == (0, 2)

    job = run_job(HOSTILE, tmp_path / "out", HOST_SECRET=SECRET)
    assert daemons() == []
    assert (job.exit_code, job.result["verdict"]) == (0, "passed"), job.lines
    tried = attempts(job.lines)
    assert len(tried) == 14
    assert [name for name, outcome in tried.items() if outcome != "blocked"] == []
    assert job.artifacts() == expected.artifacts()
    assert_manifest_matches(job.out, job.artifacts())
    written = contents(job.out)
    for forbidden in (SECRET, PLANTED, "RAN-"):
        assert [path for path, content in written.items() if forbidden.encode() in content] == []


def test_outside_a_box_the_same_module_does_see_the_host(tmp_path: Path) -> None:
    module = shutil.copytree(HOSTILE / HELPER.parent, tmp_path / "helper") / HELPER.name
    done = subprocess.run(
        [
            str(require_runtime("node").host_path),
            *("--input-type=module", "--eval"),
            f"import {{ readHost }} from {json.dumps(module.as_uri())}; readHost();",
        ],
        capture_output=True,
        text=True,
        env={"HOST_SECRET": SECRET},
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tried = attempts(done.stdout.splitlines())
    assert len(tried) == 7
    for name in ("/etc/shadow", "/home", "/var/run", "/sys"):
        assert tried[f"read {name}"] == "SUCCEEDED"
    assert tried["read the host's environment"] == "SUCCEEDED"


def test_what_hostile_changes_and_leaves_would_do_harm_without_a_fresh_box_for_each_step(
    tmp_path: Path,
) -> None:
    """The same attack, with its daemon looked for in its own step and its changes kept."""
    told: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, LogEvent):
            told.append(event.text)

    look = "pnpm run test; for _ in $(seq 100); do [ -e dist/late.txt ] && break; sleep 0.05; done"
    spec = {
        "bundle": str(HOSTILE),
        "steps": [
            {"name": "test", "shell": f"{look}; cat dist/late.txt", "keeps": ["src/main.ts"]},
            {"name": "build", "argv": ["pnpm", "run", "build"]},
        ],
        "artifacts": ["dist/**"],
    }
    result = cloche.sync.run_job(spec, out=tmp_path / "out", on_event=listen)
    assert result.verdict == cloche.Verdict.PASSED, told
    assert PLANTED in told  # the daemon wrote it
    built = contents(tmp_path / "out/artifacts")
    assert any(PLANTED.encode() in content for content in built.values())
    assert daemons() == []
