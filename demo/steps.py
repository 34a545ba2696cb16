"""A step of the walk: a command line that is shown, run, and held against how it should end."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

ROOT = Path(__file__).parent.parent
_IS_TERMINAL = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


@dataclass(frozen=True, slots=True)
class Step:
    """One command and how it should end.

    Attributes:
        title: What it shows, in a sentence.
        command: As typed into a shell, in the project's folder; no more than words and quotes.
        exit_code: The only right one.
        says: Texts that its output must hold; their order does not matter.
        hides: Texts that it must not hold.
        has_view: It draws on a terminal where there is one; its output is not looked at then.
        log_parts: Of what a job's steps write, the lines with one of these are shown on a pipe.
        check: What else must be so, looked at afterwards; returns what is not.
        patience_s: It is killed after this time.
    """

    title: str
    command: str
    exit_code: int = 0
    says: Sequence[str] = ()
    hides: Sequence[str] = ()
    has_view: bool = False
    log_parts: Sequence[str] = ()
    check: Callable[[], list[str]] = list
    patience_s: int = 30


def run(step: Step, number: str = "") -> list[str]:
    """Shows and runs a step; returns what was not as it should be."""
    print(f"\n{_bold(f'{number}{step.title}')}\n$ {step.command}", flush=True)
    on_terminal = step.has_view and _IS_TERMINAL
    try:
        exit_code, output = _run_command(step, on_terminal)
    except OSError as error:
        return [str(error)]
    print(_dim(f"(exit code {exit_code})"), flush=True)
    wrong = []
    if exit_code != step.exit_code:
        wrong.append(f"its exit code is {exit_code}, not {step.exit_code}")
    if not on_terminal:
        wrong += [f"it does not say {text!r}" for text in step.says if text not in output]
        wrong += [f"it says {text!r}" for text in step.hides if text in output]
    return wrong + (step.check() if not wrong else [])


def _run_command(step: Step, on_terminal: bool) -> tuple[int, str]:
    """Runs the command with this environment's programs first; shows what it writes as it comes."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    with subprocess.Popen(
        shlex.split(step.command),
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=None if on_terminal else subprocess.PIPE,
        stderr=None if on_terminal else subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        timer = Timer(step.patience_s, process.kill)
        timer.start()
        lines: list[str] = []
        try:
            _show(process.stdout or (), step.log_parts, lines)
            return process.wait(), "\n".join(lines)
        finally:
            timer.cancel()
            timer.join()


def _show(output: Iterable[str], log_parts: Sequence[str], lines: list[str]) -> None:
    """Shows what a command writes, and appends it to `lines`.

    What the steps of a job wrote (`[test] | …`) is only counted, but for lines with one of
    `log_parts`: the job's log holds it all.
    """
    left_out_count = 0
    for text in output:
        line = text.rstrip("\n")
        lines.append(line)
        is_log = line.startswith("[") and "] |" in line
        if is_log and not any(part in line for part in log_parts):
            left_out_count += 1
        else:
            print(line, flush=True)
    if left_out_count:
        print(_dim(f"(… and {left_out_count} lines that its steps wrote: they are in its log)"))


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if _IS_TERMINAL else text


def _dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m" if _IS_TERMINAL else text
