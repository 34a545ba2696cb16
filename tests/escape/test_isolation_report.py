"""Threat: a box is not what was asked for, and nobody notices.

The report is what the kernel says of the guest's process before it starts. Here the kernel's
word is replaced by a lie in one field at a time; each has to stop the run.
"""

import dataclasses
import os
from types import MappingProxyType

import pytest

from cloche.backends import namespaces_report
from cloche.backends.namespaces_report import read_back
from cloche.errors import InternalError, InvalidRequestError, UnavailableError
from cloche.linux import inspection
from cloche.linux.inspection import MountEntry, ProcessFacts
from cloche.model.plan import BoxPlan, Environment, Mount, Scratch, Strength
from cloche.model.policy import Limits

UID = 1_900_000_000
PLAN = BoxPlan(Environment("none", ()), Limits(memory_mb=128, pids_count=64))
TRUTH = ProcessFacts(
    uid=(UID + 1,) * 4,
    groups=(),
    capabilities=0,
    no_new_privs=True,
    seccomp=2,
    pid_depth=2,
    limits={"Max processes": 64, "Max open files": 1024, "Max core file size": 0},
    mounts=(
        MountEntry("/", "tmpfs", True, "rw,size=262144k"),
        MountEntry("/proc", "proc", False, "rw,hidepid=ptraceable"),
        MountEntry("/proc/sys", "proc", True, "rw"),
        MountEntry("/usr/bin/bun", "ext4", True, "rw"),
    ),
    interfaces=("lo",),
)
SCRATCH = tuple(
    MountEntry(place, "tmpfs", False, "rw,size=65536k,nr_inodes=16384")
    for place in ("/workspace", "/tmp", "/dev/shm")
)


def with_limit(name, value):
    return {"limits": {**TRUTH.limits, name: value}}


def with_mounts(*mounts):
    kept = [each for each in TRUTH.mounts if each.path not in {mount.path for mount in mounts}]
    return {"mounts": (*kept, *mounts)}


class Group:
    """A cgroup that says what it is told to say."""

    controllers = frozenset({"memory", "pids", "cpu", "cpuacct"})

    def __init__(self, *, member=True, memory=128 << 20, pids=65, weight=64, quota=None):
        self.member, self.memory, self.pids, self.weight = member, memory, pids, weight
        self.quota = quota

    def holds(self, pid):
        return self.member

    def memory_limit(self):
        return "memory.max", self.memory

    def pids_limit(self):
        return "pids.max", self.pids

    def cpu_weight(self):
        return "cpu.weight", self.weight

    def cpu_quota(self):
        return "cpu.max", self.quota


def report(facts=TRUTH, plan=PLAN, *, group=None, host_uid=UID):
    return read_back(plan, 4321, host_uid=host_uid, group=group, inspect=lambda _: facts)


LIES = {
    "no seccomp filter": {"seccomp": 0},
    "strict seccomp is no filter": {"seccomp": 1},
    "one capability left": {"capabilities": 1 << 21},
    "new privileges": {"no_new_privs": False},
    "the host's pid namespace": {"pid_depth": 1},
    "an interface": {"interfaces": ("lo", "eth0")},
    "no loopback": {"interfaces": ()},
    "root": {"uid": (0, 0, 0, 0)},
    "a saved uid of root": {"uid": (UID + 1, UID + 1, 0, UID + 1)},
    "the uid of the box's init": {"uid": (UID,) * 4},
    "a group": {"groups": (4,)},
    "unlimited processes": with_limit("Max processes", None),
    "too many processes": with_limit("Max processes", 4096),
    "unlimited files": with_limit("Max open files", None),
    "core dumps": with_limit("Max core file size", None),
    "small core dumps": with_limit("Max core file size", 4096),
    "a missing limit": {"limits": {}},
    "a writable root": with_mounts(MountEntry("/", "tmpfs", False, "rw")),
    "no root": {"mounts": TRUTH.mounts[1:]},
    "a writable /proc/sys": with_mounts(MountEntry("/proc/sys", "proc", False, "rw")),
    "an open /proc/sys": {"mounts": TRUTH.mounts[:2]},
    "a writable folder": with_mounts(MountEntry("/workspace", "tmpfs", False, "rw")),
    "a host mount": with_mounts(MountEntry("/home", "ext4", False, "rw")),
    "a second root": {"mounts": (*TRUTH.mounts, MountEntry("/", "ext4", False, "rw"))},
}
GROUP_LIES = {
    "outside its cgroup": {"member": False},
    "no memory limit": {"memory": -1},
    "a larger memory limit": {"memory": 256 << 20},
    "no pids limit": {"pids": -1},
    "a larger pids limit": {"pids": 66},
    "a quota that nobody asked for": {"quota": 1.0},
}


def test_the_truth_is_believed_and_reported():
    controls = report(group=Group()).controls
    assert {name: control.mechanism for name, control in controls.items()} == {
        "uid": "own-uid",
        "capabilities": "none",
        "no_new_privs": "prctl",
        "seccomp": "filter",
        "processes": "pid-namespace",
        "network": "net-namespace",
        "root": "read-only-tmpfs",
        "scratch": "nothing-writable",
        "memory": "cgroup",
        "pids": "cgroup",
        "cpu": "cgroup",
        "open_files": "rlimit",
        "core_dumps": "rlimit",
    }
    assert {control.strength for control in controls.values()} == {Strength.ENFORCED}


@pytest.mark.parametrize("lie", LIES)
def test_a_process_that_lacks_a_control_does_not_start(lie):
    with pytest.raises(InternalError) as caught:
        report(dataclasses.replace(TRUTH, **LIES[lie]), group=Group())
    assert caught.value.retry_safe


@pytest.mark.parametrize("lie", GROUP_LIES)
def test_a_group_that_does_not_hold_the_limit_stops_the_run(lie):
    with pytest.raises(InternalError):
        report(group=Group(**GROUP_LIES[lie]))


@pytest.mark.parametrize("quota", [None, 4.0])
def test_a_cpu_quota_is_the_one_that_was_asked_for(quota):
    limits = dataclasses.replace(PLAN.limits, cpu_count=0.5)
    plan = dataclasses.replace(PLAN, limits=limits)
    assert "0.5" in report(plan=plan, group=Group(quota=0.5)).controls["cpu"].evidence
    with pytest.raises(InternalError):
        report(plan=plan, group=Group(quota=quota))


@pytest.mark.parametrize(
    "scratch",
    [
        (),
        SCRATCH[:2],
        (MountEntry("/workspace", "tmpfs", False, "rw,size=1048576k"), *SCRATCH[1:]),
        (MountEntry("/workspace", "tmpfs", False, "rw"), *SCRATCH[1:]),
        (*SCRATCH[:2], MountEntry("/dev/shm", "ext4", False, "rw")),
        (*SCRATCH, MountEntry("/workspace/data", "ext4", False, "rw")),
    ],
    ids=["none", "a place missing", "larger", "unbounded", "no tmpfs", "a writable host folder"],
)
def test_the_scratch_is_the_one_that_was_asked_for(scratch):
    plan = dataclasses.replace(PLAN, scratch=Scratch.WRITABLE, mounts=(Mount("/srv", "data"),))
    honest = dataclasses.replace(TRUTH, mounts=TRUTH.mounts + SCRATCH)
    assert report(honest, plan).controls["scratch"].mechanism == "sized-tmpfs"
    with pytest.raises(InternalError):
        report(dataclasses.replace(TRUTH, mounts=TRUTH.mounts + scratch), plan)


def test_a_process_that_is_gone_is_not_reported_on():
    def gone(pid):
        raise ProcessLookupError(pid)

    with pytest.raises(InternalError):
        read_back(PLAN, 4321, host_uid=UID, group=None, inspect=gone)


def test_what_is_not_enforced_by_the_kernel_says_so():
    controls = report(dataclasses.replace(TRUTH, uid=(os.geteuid(),) * 4), host_uid=None).controls
    assert controls["uid"].mechanism == "caller-uid"
    assert (controls["memory"].mechanism, controls["memory"].strength) == (
        "watchdog",
        Strength.BEST_EFFORT,
    )
    assert controls["cpu"].strength is Strength.BEST_EFFORT
    assert controls["pids"].mechanism == "rlimit"


def test_without_a_uid_of_its_own_a_box_has_the_callers_and_no_other():
    stranger = dataclasses.replace(TRUTH, uid=(os.geteuid() + 1,) * 4)
    with pytest.raises(InternalError):
        report(stranger, host_uid=None)


def test_a_mechanism_that_is_required_and_there_is_reported():
    plan = dataclasses.replace(PLAN, require=MappingProxyType({"memory": "cgroup"}))
    assert report(plan=plan, group=Group()).controls["memory"].mechanism == "cgroup"


def test_a_mechanism_that_is_required_and_missing_refuses_the_run_by_its_name():
    plan = dataclasses.replace(PLAN, require=MappingProxyType({"memory": "cgroup"}))
    with pytest.raises(UnavailableError) as caught:
        report(plan=plan)
    assert caught.value.fact == "cgroup-memory"
    assert caught.value.fix


def test_a_guest_of_a_box_that_lies_never_starts(shared_sandbox, monkeypatch):
    """The whole way: the run fails as Cloche's own failure, and prints nothing."""
    code = "print('started')"
    assert shared_sandbox.run(code, language="python").stdout == "started\n"
    told = []

    def lie(pid):
        return dataclasses.replace(inspection.inspect_process(pid), seccomp=0)

    honest = namespaces_report.read_back
    monkeypatch.setattr(
        namespaces_report,
        "read_back",
        lambda plan, pid, **given: honest(plan, pid, **given, inspect=lie),
    )
    with pytest.raises(InternalError) as caught:
        # With a stdin it is not run warm: a warm box was looked at before.
        shared_sandbox.run(
            code, language="python", stdin="x", on_output=lambda *each: told.append(each)
        )
    assert "seccomp" in str(caught.value)
    assert told == []


def test_the_report_of_a_run_is_read_from_the_kernel(shared_sandbox):
    result = shared_sandbox.run("1", language="python", memory_limit_mb=96, pids_limit=17)
    controls = result.isolation.controls
    assert controls["seccomp"].evidence == "status: Seccomp 2"
    if controls["memory"].mechanism == "cgroup":
        assert str(96 << 20) in controls["memory"].evidence
        assert "18" in controls["pids"].evidence  # the box's init is one of them


def test_a_requirement_that_no_backend_knows_is_refused(shared_sandbox):
    for require in ({"memory": "prayer"}, {"telepathy": "off"}):
        with pytest.raises(InvalidRequestError):
            shared_sandbox.run("1", language="python", require=require)
