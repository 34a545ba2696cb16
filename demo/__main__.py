"""`python -m demo [DIR]`: shows each command, what it does, and whether it ended as it should.

What the jobs deliver goes to DIR (./demo-out), in the place of an earlier walk's. Exit code 0 when
all steps ended as they should; 1, naming those that did not; 2 for a wrong DIR.
"""

import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from demo.jobs import job_steps, site_of
from demo.snippets import snippet_steps
from demo.steps import ROOT, run

_FOLDER = Path("demo-out")
_JOBS = {"vite-react", "failing-tests", "hostile"}


def clear(folder: Path) -> str | None:
    """Removes what an earlier walk left; returns why not, where `folder` holds anything else."""
    if not folder.exists():
        return None
    if not folder.is_dir() or not {path.name for path in folder.iterdir()} <= _JOBS:
        return f"{folder} is there already and is not of this demo: name another folder"
    shutil.rmtree(folder)
    return None


def walk(folder: Path) -> int:
    """Runs all steps. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="cloche-demo-") as programs:
        steps = job_steps(folder) + snippet_steps(Path(programs))
        failures = {}
        for number, step in enumerate(steps, 1):
            if wrong := run(step, f"{number}/{len(steps)}  "):
                failures[step.title] = wrong
    for title, wrong in failures.items():
        print(f"\nNot as it should be: {title}: {'; '.join(wrong)}.")
    if failures:
        print("\n`.venv/bin/cloche doctor` says what this host lacks, and how to mend it.")
        return 1
    site = shlex.quote(str(site_of(folder)))
    print(f"\nAll {len(steps)} steps ended as they should. The site that was built is in {site};")
    print("to look at it, run this and open http://127.0.0.1:8000:")
    print(f"  python3 -m http.server 8000 --bind 127.0.0.1 --directory {site}")
    return 0


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _FOLDER
    if problem := clear(ROOT / folder):
        print(problem)
        return 2
    try:
        return walk(folder)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())
