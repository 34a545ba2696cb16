"""The programs in `examples/` that run snippets: each says what its document shows."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from needs import BOX, needs

ROOT = Path(__file__).parents[2]
EXAMPLES = ("rule-engine", "template", "tool-call")

pytestmark = needs(*BOX, "runtime-python")


def shown(example: str) -> tuple[str, str]:
    """The command of its document, and the output below it."""
    text = (ROOT / "examples" / example / "README.md").read_text()
    block = text.partition("```console\n$ ")[2].partition("```")[0]
    command, _, output = block.partition("\n")
    return command, output


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_says_what_its_document_shows(example: str) -> None:
    command, output = shown(example)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        shlex.split(command),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        timeout=50,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)


def test_every_program_of_the_examples_is_tried() -> None:
    programs = {path.parent.name for path in (ROOT / "examples").glob("*/*.py")}
    assert programs == {*EXAMPLES, "grader"}  # which test_map.py runs
