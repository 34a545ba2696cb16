"""``cloche doctor`` as a user runs it, on this machine and on made-up ones."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cloche.cli import doctor as doctor_module
from cloche.cli.doctor import doctor
from cloche.cli.enforcement import CONTROLS, REQUIRED_FACTS
from cloche.environments.runtimes import runtime_probes
from cloche.linux.host import Host
from cloche.linux.probe import probe_host
from cloche.linux.probe_kernel import NEEDS
from cloche.linux.seccomp import default_filter

COMMAND = [sys.executable, "-c", "from cloche.cli.doctor import doctor; doctor()"]
INSTALLER = Path(__file__).parent.parent / "programs" / "run_under_seccomp.py"
WORKING = {name: (0, "works") for name in NEEDS}


def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=os.environ | environment,
    )


def made_up(monkeypatch, root, **failures: tuple[int, str]) -> None:
    trials = WORKING | {name.replace("_", "-"): failure for name, failure in failures.items()}
    host = Host(root, 1000, lambda: trials, find_program=lambda name: None)
    facts = probe_host(host).including(runtime_probes(lambda name: None))
    monkeypatch.setattr(doctor_module, "gather_facts", lambda: facts)


def as_json(monkeypatch, root, **failures):
    made_up(monkeypatch, root, **failures)
    result = CliRunner().invoke(doctor, ["--json"])
    return result.exit_code, json.loads(result.stdout)


def test_doctor_reports_every_fact_as_json_and_its_exit_code_agrees():
    done = run(*COMMAND, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 69)
    assert done.stderr == ""
    facts = {fact["name"]: fact for fact in found["facts"]}
    assert found["ok"] == all(facts[name]["verdict"] == "ok" for name in REQUIRED_FACTS)
    assert {"cgroup-memory", "kvm", "docker", "runsc", "qemu", "overlay", "landlock"} <= set(facts)
    assert {"runtime-bun", "runtime-deno", "runtime-node", "runtime-python"} <= set(facts)
    for fact in facts.values():
        assert set(fact) == {"name", "verdict", "evidence", "fix", "needed_by"}
        assert fact["evidence"]
        assert (fact["verdict"] == "ok") == (fact["fix"] == ""), fact
    assert set(found["backends"]) == {"namespaces", "docker", "qemu"}


def test_doctor_is_readable_in_80_columns_and_has_no_colour_codes_in_a_pipe():
    done = run(*COMMAND, COLUMNS="80")
    assert "\x1b" not in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    for name in (*REQUIRED_FACTS, "cgroup-memory", "runtime-bun"):
        assert any(line.startswith(name) for line in done.stdout.splitlines()), name


def test_a_host_without_user_namespaces_exits_69_and_names_fact_and_fix(monkeypatch, tmp_path):
    (tmp_path / "proc/sys/user").mkdir(parents=True)
    (tmp_path / "proc/sys/user/max_user_namespaces").write_text("0\n")
    failure = (errno.ENOSPC, "unshare user namespace")
    made_up(monkeypatch, tmp_path, user_namespaces=failure)
    result = CliRunner().invoke(doctor, [])
    assert result.exit_code == 69
    assert "sysctl -w user.max_user_namespaces=" in result.stdout
    assert "missing: user-namespaces." in result.stdout
    code, found = as_json(monkeypatch, tmp_path, user_namespaces=failure)
    assert code == 69
    assert not found["ok"]
    backend = found["backends"]["namespaces"]
    assert backend["missing"] == ["user-namespaces"]
    for name in CONTROLS:
        assert backend["controls"][name]["mechanism"] is None
        assert "user-namespaces" in backend["controls"][name]["missing"]


@pytest.mark.parametrize("name", REQUIRED_FACTS)
def test_each_required_fact_alone_decides_the_exit_code(monkeypatch, tmp_path, name):
    code, found = as_json(monkeypatch, tmp_path)
    assert (code, found["ok"]) == (0, True)
    code, found = as_json(monkeypatch, tmp_path, **{name: (errno.ENOSYS, "tried")})
    assert (code, found["ok"]) == (69, False)


def test_a_host_without_cgroups_refuses_cpu_limits_and_calls_memory_best_effort(
    monkeypatch, tmp_path
):
    code, found = as_json(monkeypatch, tmp_path)
    assert code == 0
    controls = found["backends"]["namespaces"]["controls"]
    assert controls["cpu"] == {"mechanism": None, "exact": False, "missing": ["cgroup-cpu"]}
    assert controls["memory"]["mechanism"]
    assert controls["memory"]["exact"] is False
    assert controls["memory"]["missing"] == ["cgroup-memory"]
    assert controls["uid"]["missing"] == ["root"]
    assert controls["seccomp"]["missing"] == []


def test_under_a_container_s_system_call_filter_doctor_exits_69_and_names_it(tmp_path):
    if not probe_host()["user-namespaces"].ok:
        pytest.skip("missing fact: user-namespaces, so that the filter would not be what forbids")
    (tmp_path / "filter").write_bytes(default_filter())
    done = run(sys.executable, str(INSTALLER), str(tmp_path / "filter"), *COMMAND, "--json")
    assert done.returncode == 69, done.stderr
    facts = {fact["name"]: fact for fact in json.loads(done.stdout)["facts"]}
    assert facts["user-namespaces"]["verdict"] == "missing"
    assert "ENOSYS" in facts["user-namespaces"]["evidence"]
    assert "seccomp=unconfined" in facts["user-namespaces"]["fix"]
    assert facts["pidfd"]["verdict"] == "ok"


def test_doctor_works_as_a_plain_user_and_says_what_that_costs():
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("missing fact: setpriv is not installed, so no plain user can be had")
        # The one capability lets that user read an interpreter that lies in root's home.
        as_user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"]
        may_read = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
        done = run(setpriv, *as_user, *may_read, *COMMAND, "--json")
    else:
        done = run(*COMMAND, "--json")
    facts = {fact["name"]: fact for fact in json.loads(done.stdout)["facts"]}
    assert facts["root"]["verdict"] == "missing"
    assert facts["seccomp"]["verdict"] == "ok"
    if facts["cgroup-memory"]["verdict"] == "missing":
        assert (
            "root" in facts["cgroup-memory"]["fix"] or "Delegate" in facts["cgroup-memory"]["fix"]
        )
