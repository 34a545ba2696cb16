"""Facts about control groups, on made-up hosts of both versions."""

import os

import pytest

from cloche.linux.facts import Verdict
from cloche.linux.host import Host
from cloche.linux.probe import probe_host
from cloche.linux.probe_cgroups import own_groups

V1_MOUNT = "3{n} 31 0:3{n} / /sys/fs/cgroup/{c} rw,relatime - cgroup cgroup rw,{c}"


class FakeHost:
    def __init__(self, root) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)

    def memberships(self, *lines: str) -> None:
        (self.root / "proc/self/cgroup").write_text("\n".join(lines) + "\n")

    def mounts(self, *lines: str) -> None:
        (self.root / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")

    def group(self, path: str, **files: str):
        folder = self.root / "sys/fs/cgroup" / path
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / f"cgroup.{name}").write_text(text)
        return folder

    def facts(self):
        return probe_host(Host(root=self.root, user_id=os.geteuid(), run_trials=dict))


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path)


def unified(host, group="user.slice/x", controllers="cpu memory pids", subtree=""):
    host.memberships(f"0::/{group}")
    host.mounts("30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate")
    return host.group(group, controllers=controllers, subtree_control=subtree, procs="")


def test_writable_controllers_of_version_1_are_ok(host):
    host.memberships("3:memory:/mine", "2:cpu,cpuacct:/", "1:name=systemd:/", "0::/")
    host.mounts(
        V1_MOUNT.format(n=1, c="memory"),
        V1_MOUNT.format(n=2, c="cpu,cpuacct"),
        "39 31 0:39 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    )
    memory = host.group("memory/mine")
    host.group("cpu,cpuacct")
    host.group("unified", controllers="", procs="")
    facts = host.facts()
    assert [facts[f"cgroup-{name}"].ok for name in ("memory", "cpu", "cpuacct")] == [True] * 3
    assert str(memory) in facts["cgroup-memory"].evidence
    assert list(memory.iterdir()) == []  # the group that was made for the probe is gone
    assert facts["cgroup-pids"].verdict is Verdict.MISSING
    assert "cgroup_enable=pids" in facts["cgroup-pids"].fix
    assert "version 2: no controllers" in facts["cgroup-version"].evidence
    assert facts["cgroup-delegation"].verdict is Verdict.MISSING


def test_a_version_1_group_that_cannot_be_divided_is_missing_with_its_fix(host):
    host.memberships("3:memory:/gone")
    host.mounts(V1_MOUNT.format(n=1, c="memory"))
    fact = host.facts()["cgroup-memory"]
    assert fact.verdict is Verdict.MISSING
    assert "ENOENT" in fact.evidence
    assert "chown" in fact.fix
    assert "gone/cloche" in fact.fix


def test_writable_controllers_of_version_2_are_ok(host):
    folder = unified(host)
    facts = host.facts()
    for name in ("memory", "pids", "cpu", "cpuacct", "delegation"):
        assert facts[f"cgroup-{name}"].ok, name
    assert sorted(p.name for p in folder.iterdir()) == [
        "cgroup.controllers",
        "cgroup.procs",
        "cgroup.subtree_control",
    ]


def test_a_controller_that_was_not_delegated_is_missing_with_the_delegation_as_fix(host):
    unified(host, controllers="memory pids")
    facts = host.facts()
    assert facts["cgroup-memory"].ok
    assert facts["cgroup-cpu"].verdict is Verdict.MISSING
    assert "Delegate=yes" in facts["cgroup-cpu"].fix


@pytest.mark.parametrize("name", ["cgroup-memory", "cgroup-delegation"])
def test_a_version_2_group_of_someone_else_is_missing_with_the_delegation_as_fix(
    host, name, monkeypatch
):
    unified(host)
    # Root may write everything, so the kernel's answer to another user is put in its place.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    fact = host.facts()[name]
    assert fact.verdict is Verdict.MISSING
    assert "not writable" in fact.evidence
    assert "systemd-run --user --scope -p Delegate=yes" in fact.fix


def test_a_container_sees_its_group_at_the_root_of_the_mount(host):
    host.memberships("3:memory:/docker/abc/inner")
    host.mounts("31 30 0:31 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory")
    (group,) = own_groups(Host(root=host.root))
    assert group.folder == host.root / "sys/fs/cgroup/memory/inner"


def test_a_group_outside_of_the_mount_is_taken_at_the_root_of_the_mount(host):
    host.memberships("3:memory:/elsewhere")
    host.mounts("31 30 0:31 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory")
    (group,) = own_groups(Host(root=host.root))
    assert group.folder == host.root / "sys/fs/cgroup/memory"


def test_without_any_hierarchy_the_fix_is_to_mount_one(host):
    fact = host.facts()["cgroup-version"]
    assert fact.verdict is Verdict.MISSING
    assert fact.fix.startswith("mount -t cgroup2")
