"""`make demo` as a user runs it."""

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from needs import BOX, JOB, needs

ROOT = Path(__file__).parent.parent.parent
STEPS_COUNT = 12
pytestmark = needs(*BOX, *JOB, "runtime-bun", "runtime-python")


@pytest.fixture(autouse=True)
def _demo_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def run_module(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )


# The first jobs of a fresh machine fetch pnpm and the packages; later ones take seconds.
@pytest.mark.timeout(240)
def test_the_demo_shows_each_command_and_all_steps_end_as_they_should(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = run_module("demo", str(folder))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    shown = [line for line in lines if line.startswith("$ ")]
    assert len(shown) == STEPS_COUNT
    assert shown[0] == f"$ cloche job run examples/vite-react --out {folder}/vite-react"
    assert f"All {STEPS_COUNT} steps ended as they should." in done.stdout
    assert len(lines) < 140, "nobody reads so much"
    # It ends with a site that is there, and with the command that serves it.
    site = folder / "vite-react/artifacts/dist"
    assert lines[-1].endswith(f"-m http.server 8000 --bind 127.0.0.1 --directory {site}")
    assert "<title>Tip splitter</title>" in (site / "index.html").read_text()


def test_the_demo_tells_a_step_that_did_not_end_as_it_should(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from demo.steps import Step, run

    here = tmp_path / "here"
    here.write_text("a secret\n")
    command = f"cat {here}"
    assert run(Step("as it should be", command, 0, ["a secret"])) == []
    assert run(Step("", command, 3)) == ["its exit code is 0, not 3"]
    assert run(Step("", command, 0, ["a value"])) == ["it does not say 'a value'"]
    assert run(Step("", command, 0, [], ["secret"])) == ["it says 'secret'"]
    assert run(Step("", command, check=lambda: ["it is not so"])) == ["it is not so"]
    assert run(Step("", "sleep 60", patience_s=1)) == ["its exit code is -9, not 0"]
    assert run(Step("", "no-such-command-here", 0)) != []
    assert f"$ cat {here}\na secret\n(exit code 0)" in capfd.readouterr().out


def test_the_demo_shows_of_a_job_s_log_what_matters_and_counts_the_rest(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from demo.steps import Step, run

    text = "job started\\n[test] | quiet\\n[test] | it matters\\n[test] passed"
    step = Step("t", f"printf '{text}'", says=["quiet"], log_parts=["matters"])
    assert run(step) == []
    shown = capfd.readouterr().out.splitlines()[3:]
    assert shown[:3] == ["job started", "[test] | it matters", "[test] passed"]
    assert shown[3].startswith("(… and 1 lines")


def delivered(out: Path, **contents: bytes) -> None:
    """What a job's `--out` looks like."""
    (out / "artifacts").mkdir(parents=True)
    listed = []
    for name, content in contents.items():
        (out / "artifacts" / name).write_bytes(content)
        digest = sha256(content).hexdigest()
        listed.append({"path": name, "size_bytes": len(content), "sha256": digest})
    (out / "manifest.json").write_text(json.dumps({"artifacts": listed}))


def test_the_manifest_s_check_tells_what_is_other_missing_or_more(tmp_path: Path) -> None:
    from demo.verify import verify

    delivered(tmp_path, a=b"1", b=b"22")
    assert verify(tmp_path) == []
    done = run_module("demo.verify", str(tmp_path))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        "All of it is as the manifest says.",
    )
    artifacts = tmp_path / "artifacts"
    (artifacts / "a").write_bytes(b"2")
    assert verify(tmp_path) == ["a is another file than the manifest says"]
    (artifacts / "a").unlink()
    (artifacts / "a").symlink_to("b")
    (artifacts / "more\x1b").touch()
    assert verify(tmp_path) == [
        "a is another file than the manifest says",
        "'more\\x1b' is not in the manifest",
    ]
    assert run_module("demo.verify", str(tmp_path)).returncode == 1
    (tmp_path / "manifest.json").write_text('{"artifacts": []}')
    assert "the manifest names no file" in verify(tmp_path)
    assert "there is no such file" in run_module("demo.verify", str(artifacts)).stdout


def test_the_demo_replaces_what_an_earlier_one_made_and_nothing_else(tmp_path: Path) -> None:
    from demo.__main__ import clear

    earlier = tmp_path / "earlier"
    for name in ("vite-react", "hostile"):
        (earlier / name).mkdir(parents=True)
    assert clear(earlier) is None
    assert not earlier.exists()
    assert clear(earlier) is None
    (tmp_path / "mine").touch()
    assert "is not of this demo" in str(clear(tmp_path))
    done = run_module("demo", str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "")
    assert (tmp_path / "mine").exists()
