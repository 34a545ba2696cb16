"""`python -m demo`: each step's command line, what it does, and whether it ended as it should.

Exit code 0 when all did; 1, naming the steps, when some did not.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_CLOCHE = str(Path(sys.executable).with_name("cloche"))
_PATIENCE_S = 30
_SECRET = "only-the-host-knows-this"

_PROGRAM = """\
interface Item { name: string; prices: number[] }
const bell: Item = JSON.parse('{ "name": "bell" }');

console.log(bell.prices.length);
"""
_BOMB = """\
import os
children_count = 0
try:
    while True:
        if os.fork() == 0:
            while True:
                pass
        children_count += 1
except OSError as error:
    print("stopped after", children_count, "forks:", error.strerror, flush=True)
    raise SystemExit(3)
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One command and how it should end.

    Attributes:
        title: What it shows, in a sentence.
        command: As typed into a shell; no more than words and quotes.
        exit_code: The only right one.
        says: Texts that its output must hold; their order does not matter.
        hides: Texts that it must not hold.
    """

    title: str
    command: str
    exit_code: int
    says: Sequence[str] = ()
    hides: Sequence[str] = ()


def steps_in(folder: Path) -> list[Step]:
    """The steps; their programs, and the secret that is not to be read, are files in `folder`."""
    program, bomb, secret = folder / "bell.ts", folder / "bomb.py", folder / "secret.txt"
    program.write_text(_PROGRAM)
    bomb.write_text(_BOMB)
    secret.write_text(_SECRET)
    read = shlex.quote(f'require("fs").readFileSync({json.dumps(str(secret))}, "utf8")')
    return [
        Step("What this host can enforce", "cloche doctor", 0, ["Boxes can be made on this host."]),
        Step(
            "A snippet has a value: that of its last statement",
            "cloche run -e 'const prices = [3, 4]; prices.map((price) => price ** 2)'",
            0,
            ["[\n  9,\n  16\n]"],
        ),
        Step(
            "A TypeScript program fails: the error points into its own text",
            f"cloche run {shlex.quote(str(program))}",
            1,
            [
                "TypeError",
                "bell.ts:4:18\n4 | console.log(bell.prices.length);\n  |" + " " * 18 + "^",
            ],
        ),
        Step(
            "A Python snippet gets values from outside, its context",
            """cloche run -l python --context '{"xs": [1, 2, 3]}' -e 'sum(xs) / len(xs)'""",
            0,
            ["2.0"],
        ),
        Step(
            "A fork bomb stops at the limit of processes",
            # With the default of 128 MiB it is the memory of 63 interpreters that ends it first.
            f"cloche run --memory-limit-mb 1024 {shlex.quote(str(bomb))}",
            1,
            ["stopped after", "exit code 3"],
        ),
        Step(
            "An endless loop ends at its deadline (exit code 124, as timeout(1) has it)",
            "cloche run --timeout-ms 500 -e 'for (;;);'",
            124,
            ["SANDBOX_TIMEOUT", "timeout_ms=500"],
        ),
        Step("This user can read a file", f"cat {shlex.quote(str(secret))}", 0, [_SECRET]),
        Step(
            "Code in a box cannot: there it does not exist",
            f"cloche run -e {read}",
            1,
            ["ENOENT"],
            [_SECRET],
        ),
    ]


def run(step: Step) -> list[str]:
    """Runs a step, shows its output, returns what was not as it should be."""
    print(f"\n# {step.title}\n$ {step.command}", flush=True)
    name, *arguments = shlex.split(step.command)
    try:
        done = subprocess.run(
            [_CLOCHE if name == "cloche" else name, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [str(error)]
    print(done.stdout.rstrip())
    print(f"(exit code {done.returncode})", flush=True)
    wrong = [f"it does not say {text!r}" for text in step.says if text not in done.stdout]
    wrong += [f"it says {text!r}" for text in step.hides if text in done.stdout]
    if done.returncode != step.exit_code:
        wrong.append(f"its exit code is {done.returncode}, not {step.exit_code}")
    return wrong


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="cloche-demo-") as folder:
        steps = steps_in(Path(folder))
        failures = {step.title: wrong for step in steps if (wrong := run(step))}
    for title, wrong in failures.items():
        print(f"\nNot as it should be: {title}: {'; '.join(wrong)}.")
    if not failures:
        print(f"\nAll {len(steps)} steps ended as they should.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
