"""Single pieces of code: one with a bug, two that would not end, one that is curious."""

import json
import shlex
from pathlib import Path

from demo.steps import Step

_SECRET = "only-this-user-may-read-it"
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


def snippet_steps(folder: Path) -> list[Step]:
    """The steps; their programs, and the secret that is not to be read, are files in `folder`."""
    program, bomb, secret = folder / "bell.ts", folder / "bomb.py", folder / "secret.txt"
    program.write_text(_PROGRAM)
    bomb.write_text(_BOMB)
    secret.write_text(f"{_SECRET}\n")
    read = shlex.quote(f'require("fs").readFileSync({json.dumps(str(secret))}, "utf8")')
    return [
        Step(
            "A snippet has a value, and gets others from outside",
            """cloche run -l py --context '{"xs": [1, 2, 3]}' -e 'sum(xs) / len(xs)'""",
            says=["2.0"],
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
        Step("This user can read a file", f"cat {shlex.quote(str(secret))}", says=[_SECRET]),
        Step(
            "Code in a box cannot: there it does not exist",
            f"cloche run -e {read}",
            1,
            ["ENOENT"],
            [_SECRET],
        ),
    ]
