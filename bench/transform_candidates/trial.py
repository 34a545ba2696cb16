"""Each candidate on each input: `python bench/transform_candidates/trial.py BUN [NAME…]`.

BUN is a Bun binary. The packages that the candidates need are read from `node_modules` here or in
a folder above (see README.md). Prints one row per candidate and what went wrong on stderr.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

from cloche.source import Transformed, transform

HERE = Path(__file__).resolve().parent
NAMES = (
    "tree-sitter",
    "bun replMode",
    "oxc",
    "swc wasm",
    "typescript",
    "esbuild wasm",
    "swc wasm-typescript",
)
POSITIONS = ("error", "syntax")


def main(bun: str, names: list[str]) -> None:
    inputs = json.loads((HERE / "inputs.json").read_text())
    positions = sum(1 for case in inputs if "value" not in case)
    print("| candidate | values and verdicts | exact positions | ms |\n|---|---|---|---|")
    for name in names or NAMES:
        outcomes = [(case, ask(bun, name, case)) for case in inputs]
        right = placed = 0
        for case, outcome in outcomes:
            kind = next(kind for kind in ("value", *POSITIONS) if kind in case)
            verdict = kind in outcome and (kind != "value" or outcome["value"] == case["value"])
            right += verdict
            placed += kind in POSITIONS and outcome.get(kind) == case[kind]
            if not verdict or (kind in POSITIONS and outcome.get(kind) != case[kind]):
                expected = {kind: case[kind]}
                print(f"{name}: {case['name']}: {outcome}, not {expected}", file=sys.stderr)
        print(f"| {name} | {right}/{len(inputs)} | {placed}/{positions} | {timed(bun, name)} |")


def ask(bun: str, name: str, case: dict[str, object]) -> dict[str, object]:
    if name == "tree-sitter":
        result = transform(str(case["code"]), case["language"])
        if not isinstance(result, Transformed):
            return {"syntax": [result.line, result.column]}
        case = {**case, "transformed": asdict(result)}
    done = subprocess.run(
        [bun, "--no-install", str(HERE / "candidates.mjs"), name],
        input=json.dumps(case),
        capture_output=True,
        text=True,
        timeout=60,
    )
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"crash": done.stderr[-300:]}


def timed(bun: str, name: str) -> str:
    if name != "tree-sitter":
        command = [bun, "--no-install", str(HERE / "candidates.mjs"), name, "time"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    code = (
        "const xs: number[] = [1, 2, 3];\nconst total = xs.reduce((a, b) => a + b, 0);\n"
        "console.log(total);\ntotal * 2"
    )
    times = []
    for _ in range(800):
        start = time.perf_counter()
        transform(code, "typescript")
        times.append((time.perf_counter() - start) * 1000)
    return f"{median(times[300:]):.3f}"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
