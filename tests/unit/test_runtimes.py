"""Finding runtimes, and refusing versions with known flaws."""

import sys
from pathlib import Path

import pytest

from cloche.environments import runtimes
from cloche.environments.runtimes import (
    KNOWN_FLAWS,
    RUNTIME_NAMES,
    Runtime,
    find_runtime,
    known_flaw,
    require_runtime,
    runtime_probes,
)
from cloche.errors import UnavailableError
from cloche.linux.facts import Verdict
from cloche.linux.host import CommandResult, run_command


@pytest.mark.parametrize("name", RUNTIME_NAMES)
def test_an_installed_runtime_is_found_with_the_version_that_it_reports(name):
    runtime = find_runtime(name)
    if runtime is None:
        pytest.skip(f"missing fact: runtime-{name}")
    result = run_command(str(runtime.host_path), "--version")
    assert result.exit_code == 0
    assert runtime.version in result.output
    assert not runtime.host_path.is_symlink()


def test_python_is_the_interpreter_itself_and_not_the_environment_s_link():
    runtime = find_runtime("python")
    assert runtime is not None
    assert runtime.host_path == Path(sys.executable).resolve()


def test_an_unknown_runtime_is_refused_by_name():
    with pytest.raises(ValueError, match="'perl'"):
        find_runtime("perl")


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("1.4.2", "1.4.2"),
        ("v24.19.0", "24.19.0"),
        ("deno 2.9.8 (stable, release, x86_64-unknown-linux-gnu)\nv8 14.1", "2.9.8"),
        ("usage: thing", None),
    ],
)
def test_a_runtime_on_the_path_is_asked_for_its_version(monkeypatch, tmp_path, output, version):
    monkeypatch.setattr(runtimes.shutil, "which", lambda name: str(tmp_path / name))
    monkeypatch.setattr(runtimes, "run_command", lambda *argv: CommandResult(0, output))
    found = runtimes._from_path("bun")
    assert found == (Runtime("bun", version, tmp_path / "bun") if version else None)


@pytest.mark.parametrize(
    ("name", "version", "refused"),
    [
        ("node", "24.12.9", True),
        ("node", "24.13.0", False),
        ("node", "24.19.0", False),
        ("node", "22.21.1", True),
        ("node", "22.22.0", False),
        ("node", "18.20.8", True),  # a line that got no fix
        ("node", "23.11.0", True),
        ("node", "26.0.0", False),
        ("bun", "1.1.29", True),
        ("bun", "1.3.5-canary.1", False),
        ("bun", "1.4.2", False),
        ("deno", "0.1.0", False),
    ],
)
def test_a_version_is_refused_exactly_when_it_lacks_a_fix(name, version, refused):
    assert (known_flaw(Runtime(name, version, Path("/x"))) is not None) is refused


def test_every_known_flaw_says_when_and_where_it_was_published():
    for flaw in KNOWN_FLAWS:
        assert flaw.runtime in RUNTIME_NAMES
        assert flaw.fixed_in
        assert flaw.advisory.startswith(("CVE-", "GHSA-"))
        assert flaw.published.year >= 2024


def test_a_missing_runtime_names_the_extra_that_installs_it():
    fact = runtime_probes(lambda name: None)["runtime-bun"]()
    assert fact.verdict is Verdict.MISSING
    assert 'pip install --upgrade "cloche[bun]"' in fact.fix


def test_a_refused_version_is_a_missing_fact_that_names_the_advisory():
    fact = runtime_probes(lambda name: Runtime(name, "24.0.0", Path("/x")))["runtime-node"]()
    assert fact.verdict is Verdict.MISSING
    assert "CVE-2025-55131" in fact.evidence
    assert "2026-01-13" in fact.evidence
    assert "cloche[node]" in fact.fix


@pytest.mark.parametrize("found", [None, Runtime("node", "24.0.0", Path("/x"))])
def test_a_runtime_that_is_missing_or_refused_is_unavailable_with_its_fix(monkeypatch, found):
    monkeypatch.setattr(runtimes, "find_runtime", lambda name: found)
    with pytest.raises(UnavailableError) as caught:
        require_runtime("node")
    assert caught.value.fact == "runtime-node"
    assert "cloche[node]" in caught.value.fix


def test_a_runtime_that_may_be_used_is_returned(monkeypatch):
    runtime = Runtime("node", "24.13.0", Path("/x"))
    monkeypatch.setattr(runtimes, "find_runtime", lambda name: runtime)
    assert require_runtime("node") is runtime


def test_npm_is_the_hosts_and_where_there_is_none_that_of_nodes_wheel(monkeypatch):
    find = runtimes.find_npm.__wrapped__
    monkeypatch.setattr(runtimes.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert find() == ("npm",)
    monkeypatch.setattr(runtimes.shutil, "which", lambda name: None)
    node, program = find()
    assert Path(node).name == "node"
    assert Path(program).is_file()
    monkeypatch.setattr(runtimes, "_from_wheel", lambda name: None)
    assert find() == ("npm",)
