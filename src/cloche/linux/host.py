"""Where facts about the host come from: its files, its programs and the trials."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TRIALS_TIMEOUT_S: Final = 20
COMMAND_TIMEOUT_S: Final = 5

Trials = Mapping[str, tuple[int, str]]
"""Trial → (errno, detail), as ``trials.py`` prints them; empty when they could not be run."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended: its exit code, None when it was not started or had to be killed."""

    exit_code: int | None
    output: str


def run_command(*argv: str) -> CommandResult:
    """Runs a command of the host for at most 5 s, with no input; its first 4 KiB of output."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return CommandResult(None, f"killed after {COMMAND_TIMEOUT_S} s")
    except OSError as error:
        return CommandResult(None, str(error))
    return CommandResult(done.returncode, done.stdout[:4096].decode(errors="replace").strip())


def run_trials() -> Trials:
    """Runs ``trials.py`` in a process of its own."""
    program = Path(__file__).with_name("trials.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(program)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TRIALS_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    trials: dict[str, list[int | str]] = json.loads(done.stdout)
    return {name: (int(errno), str(detail)) for name, (errno, detail) in trials.items()}


@dataclass(frozen=True, slots=True)
class Host:
    """Where facts come from; tests put their own folder and answers in its place."""

    root: Path = Path("/")
    user_id: int = 0
    run_trials: Callable[[], Trials] = run_trials
    run_command: Callable[..., CommandResult] = run_command
    find_program: Callable[[str], str | None] = shutil.which

    def read(self, path: str) -> str:
        """The text of a file below the root, stripped; empty when it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""
