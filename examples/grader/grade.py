"""A grader for `cloche map`: makes the lines for all submissions, and reads the results.

    python grade.py lines > lines.jsonl
    cloche map lines.jsonl --out results.jsonl --cpu-time-ms 1000 --timeout-ms 20000
    python grade.py results.jsonl

The task: print the median of the whole numbers on one line. The answers never enter a box.
"""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

CASES = [("3 1 2\n", 2), ("4 1 3 2\n", 2.5), ("10 9 100 2 -7\n", 9)]


def make_lines() -> None:
    """Prints a line for each submission and case."""
    folder = Path(__file__).parent
    for path in sorted((folder / "submissions").iterdir()):
        for case, (stdin, _) in enumerate(CASES):
            file = str(path.relative_to(folder))
            print(json.dumps({"id": [path.name, case], "file": file, "stdin": stdin}))


def judge(result: dict) -> str:
    """What became of one run: empty when it is right."""
    if result["error_code"]:
        return result["error_code"]
    _, case = result["id"]
    try:
        is_right = float(result["stdout"]) == CASES[case][1]
    except ValueError:
        is_right = False
    return "" if is_right else "wrong answer"


def show(path: str) -> None:
    """Prints a line for each submission."""
    found = defaultdict(list)
    with Path(path).open() as results:
        for line in results:
            result = json.loads(line)
            found[result["id"][0]].append(judge(result))
    for name, verdicts in found.items():
        faults = Counter(filter(None, verdicts))
        told = ", ".join(f"{count} {fault}" for fault, count in faults.items())
        print(f"{name:8}{verdicts.count('')} of {len(verdicts)}  {told}".rstrip())


if __name__ == "__main__":
    if sys.argv[1:] == ["lines"]:
        make_lines()
    else:
        show(sys.argv[1])
