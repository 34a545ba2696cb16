"""What the box of a step holds beside the project: libraries of native addons, pnpm for others."""

import json
from pathlib import Path

import pytest

import cloche
from cloche.environments.toolchain import PNPM_STARTER
from cloche.jobs.project.inputs import RUN_ENVIRONMENT
from cloche.model.events import LogEvent
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

# Source: PEP 599.
ADDON_LIBRARIES = (
    "libc.so.6 libdl.so.2 libgcc_s.so.1 libm.so.6 libpthread.so.0 libresolv.so.2 librt.so.1"
    " libstdc++.so.6 libutil.so.1"
).split()


def run_line(line: str, **fields: object) -> tuple[str | None, list[str]]:
    """The verdict of a job of one shell line, and what the line wrote."""
    told: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, LogEvent):
            told.append(event.text)

    manifest = {"name": "made", "version": "1.0.0", "scripts": {"say": "echo said"}, **fields}
    spec = {
        "bundle": {"package.json": json.dumps(manifest)},
        "steps": [{"name": "look", "shell": line, "timeout_ms": 60_000}],
    }
    return cloche.sync.run_job(spec, on_event=listen).verdict, told


def test_libraries_that_prebuilt_addons_take_for_granted_can_be_loaded() -> None:
    if not Path("/lib64/ld-linux-x86-64.so.2").exists():
        pytest.skip("missing fact: glibc on x86_64 (the names are those of its libraries)")
    line = "for name in {}; do LD_PRELOAD=$name /usr/bin/true; done 2>&1"
    verdict, told = run_line(line.format(" ".join(ADDON_LIBRARIES)))
    assert (verdict, told) == ("passed", [])
    verdict, told = run_line(line.format("libnone.so.1"))
    assert "libnone.so.1" in told[0]  # the control: a missing one is told


def test_pnpm_stays_the_same_for_a_program_that_hands_on_no_variables() -> None:
    bare = "env -i PATH=$PATH HOME=$HOME"
    verdict, told = run_line(f"{bare} pnpm run say", packageManager="pnpm@9.0.0")
    assert (verdict, told[-1]) == ("passed", "said")
    # The control: the project's wish is seen where nothing says that it is not to be.
    line = f"{bare} pnpm_config_pm_on_fail=error pnpm run say"
    verdict, told = run_line(line, packageManager="pnpm@9.0.0")
    assert verdict == "failed"
    assert "said" not in told


def test_pnpm_starts_with_the_variables_that_a_step_has() -> None:
    stated = {}
    for line in PNPM_STARTER.read_text().splitlines():
        before, mark, value = line.removeprefix("export ").partition("=")
        if line.startswith("export ") and mark:
            stated[before] = value.removeprefix(f'"${{{before}-').removesuffix('}"')
    ours = {name: value for name, value in RUN_ENVIRONMENT.items() if name.startswith("pnpm_")}
    assert stated == ours
