"""`make bench`: every row gets a figure. Times are not tested: machines differ, and are busy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from needs import BOX, needs

ROOT = Path(__file__).parent.parent.parent
EXPECTED_ROWS = {
    "import cloche": 1,
    "cloche --help": 1,
    "cloche run -e 1": 1,
    "worker, JavaScript": 4,
    "worker, TypeScript": 2,
    "worker, Python": 1,
    "worker, javascript": 2,
    "worker, python": 2,
    "warm run, bun": 3,
    "warm run, deno": 2,
    "warm run, node": 2,
    "warm run, python": 2,
    "no box": 3,
    "an idle warm box": 4,
    "cold run, Bun snippet, a new text": 2,
    "cold run, Bun snippet, a text seen before": 2,
    "cold run, Bun program": 2,
    "cold run, Python snippet": 2,
    "cold run, Python program": 2,
    "transformer, warm": 1,
    "single-use Bun boxes, program": 2,
    "single-use Bun boxes, snippet, new texts": 2,
    "single-use Bun boxes, snippet, one text": 2,
    "deadline → nothing alive: Python": 2,
    "deadline → nothing alive: Bun": 2,
    "abort → nothing alive": 3,
    "job, cold install through the mirror": 2,
    "job, install step with one package more": 1,
    "job, layer present": 3,
    "job, install step with a layer hit": 1,
}


@pytest.mark.timeout(300)
@needs(
    *BOX,
    *("runtime-bun", "runtime-deno", "runtime-node", "runtime-python"),
    *("npm-registry", "worker-engines"),
)
def test_a_quick_bench_has_a_figure_in_every_row(tmp_path):
    target = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--json", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(target.read_text())["rows"]
    found = {start: sum(row["name"].startswith(start) for row in rows) for start in EXPECTED_ROWS}
    assert found == EXPECTED_ROWS
    assert len(rows) == sum(EXPECTED_ROWS.values())
    for row in rows:
        assert row["samples_count"] > 0
        # A deadline that is counted from the guest's own start can be met early.
        assert row["median"] > 0 or "from its start" in row["name"], row
        assert (row["target"] is None) == (row["met"] is None), row
        assert row["name"] in done.stdout


@pytest.fixture
def pairs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from bench import pairs

    return pairs


def test_a_ratio_is_that_of_the_medians(pairs):
    row = pairs.Row("", [10, 12, 99], "ms", "bwrap", [8, 10, 11], pairs.Target("ratio", 1.2))
    assert row.ratio == 1.2
    assert row.met is True
    assert pairs.Row("", [13], "ms", "bwrap", [10], pairs.Target("ratio", 1.2)).met is False


def test_the_p99_is_taken_at_the_slow_end(pairs):
    hundred = [float(number) for number in range(1, 101)]
    assert pairs.Row("", hundred, "ms", target=pairs.Target("p99", 99)).met is True
    assert pairs.Row("", hundred, "ms", target=pairs.Target("p99", 98)).met is False
    assert pairs.Row("", hundred, "runs/s").p99 == 2


def test_a_rate_has_to_reach_its_target_in_the_median(pairs):
    assert pairs.Row("", [119, 120, 130], "runs/s", target=pairs.Target("rate", 120)).met is True
    assert pairs.Row("", [119, 119, 130], "runs/s", target=pairs.Target("rate", 120)).met is False
