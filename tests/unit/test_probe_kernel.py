"""Facts about the kernel: each thing that can forbid boxes is named, with its fix."""

import errno

import pytest

from cloche.linux.facts import Fact, HostFacts, Verdict
from cloche.linux.host import Host, run_trials
from cloche.linux.probe import probe_host
from cloche.linux.probe_kernel import NEEDS

WORKING = {name: (0, f"{name} works") for name in NEEDS}


def facts_of(root, **failures: tuple[int, str]) -> HostFacts:
    trials = WORKING | {name.replace("_", "-"): failure for name, failure in failures.items()}
    return probe_host(Host(root=root, run_trials=lambda: trials))


def put(root, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_a_trial_that_works_is_an_ok_fact_with_its_evidence(tmp_path, name):
    fact = facts_of(tmp_path)[name]
    assert fact.ok
    assert fact.evidence == f"{name} works"
    assert not fact.fix
    assert fact.needed_by


@pytest.mark.parametrize(
    ("path", "text", "number", "fix"),
    [
        (
            "proc/sys/user/max_user_namespaces",
            "0\n",
            errno.ENOSPC,
            "sysctl -w user.max_user_namespaces=",
        ),
        (
            "proc/sys/kernel/unprivileged_userns_clone",
            "0\n",
            errno.EPERM,
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1\n",
            errno.EACCES,
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("proc/self/status", "Name:\tx\nSeccomp:\t2\n", errno.EPERM, "seccomp=unconfined"),
    ],
)
def test_what_forbids_user_namespaces_is_named_with_its_fix(tmp_path, path, text, number, fix):
    put(tmp_path, path, text)
    fact = facts_of(tmp_path, user_namespaces=(number, "unshare user namespace"))["user-namespaces"]
    assert fact.verdict is Verdict.MISSING
    assert errno.errorcode[number] in fact.evidence
    assert path.rpartition("/")[2] in fact.evidence
    assert fix in fact.fix


def test_settings_that_allow_user_namespaces_are_not_blamed(tmp_path):
    put(tmp_path, "proc/sys/user/max_user_namespaces", "15000")
    put(tmp_path, "proc/sys/kernel/unprivileged_userns_clone", "1")
    put(tmp_path, "proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0")
    put(tmp_path, "proc/self/status", "Seccomp:\t0\n")
    fact = facts_of(tmp_path, user_namespaces=(errno.EINVAL, "unshare"))["user-namespaces"]
    assert "sysctl" not in fact.fix
    assert "CONFIG_USER_NS" in fact.fix


def test_a_masked_proc_is_named_with_its_fix(tmp_path):
    mounts = (
        "30 20 0:4 / /proc rw - proc proc rw\n"
        "31 30 0:5 / /proc/kcore rw - tmpfs tmpfs rw\n"
        "32 30 0:6 / /proc/sys ro - proc proc rw"
    )
    put(tmp_path, "proc/self/mountinfo", mounts)
    fact = facts_of(tmp_path, proc_mount=(errno.EPERM, "mount proc"))["proc-mount"]
    assert "/proc/kcore" in fact.evidence
    assert "systempaths=unconfined" in fact.fix


def test_trials_that_cannot_run_leave_the_facts_unknown(tmp_path):
    facts = probe_host(Host(root=tmp_path, run_trials=dict))
    assert {facts[name].verdict for name in NEEDS} == {Verdict.UNKNOWN}


def test_the_trials_run_once_and_only_when_a_fact_needs_them(tmp_path):
    runs = []

    def counted():
        runs.append(1)
        return WORKING

    facts = probe_host(Host(root=tmp_path, user_id=1000, run_trials=counted))
    assert facts["root"].verdict is Verdict.MISSING
    assert not runs
    assert all(facts[name].ok for name in NEEDS)
    assert len(runs) == 1


def test_the_trials_of_this_machine_answer_for_every_kernel_fact():
    trials = run_trials()
    assert set(trials) == set(NEEDS)
    number, detail = trials["seccomp"]
    assert (number, detail) == (0, "a filter refused getppid")


def test_a_probe_that_breaks_is_an_unknown_fact():
    def broken() -> Fact:
        raise OSError("disk on fire")

    fact = HostFacts({"thing": broken})["thing"]
    assert fact.verdict is Verdict.UNKNOWN
    assert "disk on fire" in fact.evidence


def test_more_facts_can_be_added_without_asking_again():
    asked = []

    def probe() -> Fact:
        asked.append(1)
        return Fact("one", Verdict.OK, "")

    facts = HostFacts({"one": probe})
    assert facts["one"].ok
    more = facts.including({"two": lambda: Fact("two", Verdict.MISSING, "")})
    assert list(more) == ["one", "two"]
    assert more["one"].ok
    assert len(asked) == 1
    with pytest.raises(KeyError):
        more["three"]
