"""`make demo` as a user runs it."""

import subprocess
import sys
from pathlib import Path

from needs import BOX, needs

ROOT = Path(__file__).parent.parent.parent
pytestmark = needs(*BOX, "runtime-bun", "runtime-python")


def test_the_demo_shows_each_command_and_all_steps_end_as_they_should():
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    shown = [line for line in lines if line.startswith("$ ")]
    assert len(shown) == 8
    assert shown[0] == "$ cloche doctor"
    assert lines[-1] == "All 8 steps ended as they should."


def test_the_demo_tells_a_step_that_did_not_end_as_it_should(monkeypatch, tmp_path, capfd):
    monkeypatch.syspath_prepend(ROOT)
    from demo.__main__ import Step, run

    here = tmp_path / "here"
    here.write_text("a secret\n")
    command = f"cat {here}"
    assert run(Step("as it should be", command, 0, ["a secret"])) == []
    assert run(Step("", command, 3)) == ["its exit code is 0, not 3"]
    assert run(Step("", command, 0, ["a value"])) == ["it does not say 'a value'"]
    assert run(Step("", command, 0, [], ["secret"])) == ["it says 'secret'"]
    assert run(Step("", "no-such-command-here", 0)) != []
    assert f"$ cat {here}\na secret\n(exit code 0)" in capfd.readouterr().out
