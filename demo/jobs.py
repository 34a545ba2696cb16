"""The main job: a project that works, one that fails its tests, one that attacks."""

import json
import shlex
from pathlib import Path

from demo.steps import ROOT, Step

_SECRET = "only-the-host-knows-this"
_ATTEMPTS_COUNT = 14
# The first job of a machine fetches pnpm and the packages, however slow the line.
_PATIENCE_S = 900


def job_steps(folder: Path) -> list[Step]:
    """The steps; each job's results go to a folder of its own below `folder`."""
    works, fails, attacks = (folder / name for name in ("vite-react", "failing-tests", "hostile"))
    return [
        Step(
            "A React project, installed, tested and built: each step in a box of its own",
            f"cloche job run examples/vite-react --out {_quoted(works)}",
            has_view=True,
            log_parts=["  Tests  ", "built in"],
            check=lambda: _unlike(works, "passed", {"test": "passed", "build": "passed"}),
            patience_s=_PATIENCE_S,
        ),
        Step(
            "What it delivered is what its manifest says, byte for byte",
            f"python -m demo.verify {_quoted(works)}",
            says=["dist/index.html", "All of it is as the manifest says."],
        ),
        Step(
            "A project whose tests find its bug: nothing is built, and the runner says where",
            f"cloche job run examples/failing-tests --out {_quoted(fails)}",
            1,
            has_view=True,
            log_parts=["AssertionError", "src/leap.test.ts:", "isLeap(", "  ^", "  Tests  "],
            check=lambda: _unlike(fails, "failed", {"test": "failed", "build": "skipped"}),
            patience_s=_PATIENCE_S,
        ),
        Step(
            "A project whose test helper attacks: the host, the network, the build",
            f"env HOST_SECRET={_SECRET} cloche job run examples/hostile --out {_quoted(attacks)}",
            has_view=True,
            log_parts=["  Tests  ", "built in"],
            check=lambda: (
                _unlike(attacks, "passed", {"test": "passed", "build": "passed"})
                + _told(attacks, _SECRET)
            ),
            patience_s=_PATIENCE_S,
        ),
        Step(
            "What it tried, as it tells itself",
            f"""grep -o 'ATTEMPT [^"]*' {_quoted(attacks / "log.ndjson")}""",
            says=["ATTEMPT read /etc/shadow: blocked\n", "ATTEMPT resolve a name: blocked"],
            hides=["SUCCEEDED"],
            check=lambda: _uncounted(attacks),
        ),
        Step(
            "What it planted is not in what was built: grep finds nothing",
            f"grep -r PLANTED {_quoted(attacks / 'artifacts')}",
            1,
            hides=["PLANTED"],
        ),
    ]


def site_of(folder: Path) -> Path:
    """Where the site lies that the first job has built."""
    return folder / "vite-react/artifacts/dist"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _unlike(out: Path, verdict: str, statuses: dict[str, str]) -> list[str]:
    """What in a job's record is not as it should be."""
    record = json.loads((ROOT / out / "audit.json").read_text())
    wrong = []
    if record["verdict"] != verdict:
        wrong.append(f"its verdict is {record['verdict']}, not {verdict}")
    found = {step["name"]: step["status"] for step in record["results"]}
    for name, status in statuses.items():
        if found.get(name) != status:
            wrong.append(f"its step {name} is {found.get(name)}, not {status}")
    return wrong


def _told(out: Path, secret: str) -> list[str]:
    """Which files of a job's results hold the secret."""
    files = [path for path in (ROOT / out).rglob("*") if path.is_file()]
    holders = [path.name for path in files if secret.encode() in path.read_bytes()]
    return [f"{name} holds the host's secret" for name in holders]


def _uncounted(out: Path) -> list[str]:
    count = (ROOT / out / "log.ndjson").read_text().count("ATTEMPT ")
    return [] if count == _ATTEMPTS_COUNT else [f"it made {count} attempts, not {_ATTEMPTS_COUNT}"]
