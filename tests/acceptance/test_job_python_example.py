"""The project in `examples/python-package`, with what the index of this host's pip really has."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from index_server import provide_uv
from needs import BOX, JOB, needs

CLOCHE = str(Path(sys.executable).with_name("cloche"))
EXAMPLE = Path(__file__).parents[2] / "examples/python-package"
pytestmark = [
    needs(*BOX, *JOB, "pip-index", "toolchain-uv"),
    # The first job of a fresh machine fetches uv and the packages; later ones take seconds.
    pytest.mark.timeout(240),
]


def test_the_package_is_tested_and_built_and_what_it_delivers_is_always_the_same(
    tmp_path: Path,
) -> None:
    provide_uv()
    manifests = []
    for name in ("first", "second"):
        out = tmp_path / name
        command = [CLOCHE, "job", "run", str(EXAMPLE), "--out", str(out), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        result = json.loads(done.stdout.splitlines()[-1])
        if "registry_failed" in done.stdout:
            pytest.skip(f"missing fact: an index that answers ({result['reason']['message']})")
        assert done.returncode == 0, done.stdout
        manifests.append(json.loads((out / "manifest.json").read_text())["artifacts"])
    assert manifests[0] == manifests[1]
    counts = next(step["tests"] for step in result["steps"] if step["name"] == "test")
    assert counts["passed"] == 16
    dist = tmp_path / "first/artifacts/dist"
    assert sorted(path.name for path in dist.iterdir()) == [
        "timespan-1.0.0-py3-none-any.whl",
        "timespan-1.0.0.tar.gz",
    ]
    with zipfile.ZipFile(dist / "timespan-1.0.0-py3-none-any.whl") as wheel:
        assert "timespan/spans.py" in wheel.namelist()


def test_its_lockfile_has_hashes_and_no_addresses() -> None:
    lines = (EXAMPLE / "requirements.txt").read_text().splitlines()
    assert "://" not in "".join(lines)
    named = [line for line in lines if line and not line.startswith(("#", " "))]
    assert named and all("==" in line and line.endswith("\\") for line in named)
