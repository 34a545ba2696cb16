"""Facts about the kernel, from the trials, and what may forbid them."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cloche.linux.facts import Fact, Verdict
from cloche.linux.host import Host, Trials


@dataclass(frozen=True, slots=True)
class Need:
    """What rests on a trial, and what mends it when nothing is known to forbid it."""

    needed_by: tuple[str, ...]
    fix: str


NEEDS: Final = {
    "user-namespaces": Need(
        ("namespaces backend",), "use a kernel with CONFIG_USER_NS, outside of a chroot"
    ),
    "proc-mount": Need(
        ("namespaces backend",), "use a kernel with CONFIG_PID_NS; give this process a whole /proc"
    ),
    "mount-api": Need(("namespaces backend",), "use Linux 5.12 or later (mount_setattr)"),
    "seccomp": Need(("namespaces backend",), "use a kernel with CONFIG_SECCOMP_FILTER"),
    "pidfd": Need(("namespaces backend",), "use Linux 5.3 or later (pidfd_open)"),
    "overlay": Need(
        ("copy-on-write layers",), "modprobe overlay; in a user namespace it takes Linux 5.11"
    ),
    "landlock": Need(
        ("a second wall for files",), "boot with lsm=landlock,… on Linux 5.13 or later"
    ),
}

_IN_USER_NAMESPACE: Final = {"user-namespaces", "proc-mount", "mount-api", "overlay"}


def probe_trial(host: Host, trials: Callable[[], Trials], name: str, need: Need) -> Fact:
    """Turns a trial's outcome into a fact; a failed one with what forbids it and the fix."""
    if name not in trials():
        evidence = "the trials could not be run"
        return Fact(name, Verdict.UNKNOWN, evidence, needed_by=need.needed_by)
    number, detail = trials()[name]
    if number == 0:
        return Fact(name, Verdict.OK, _found(host, name, detail), needed_by=need.needed_by)
    code = errno.errorcode.get(number, "")
    reason = f"{detail}: {code} ({os.strerror(number)})" if code else detail
    obstacle, fix = _obstacle(host, name, detail, need)
    evidence = f"{reason}; {obstacle}" if obstacle else reason
    return Fact(name, Verdict.MISSING, evidence, fix, need.needed_by)


def _found(host: Host, name: str, detail: str) -> str:
    if name == "seccomp" and (actions := host.read("proc/sys/kernel/seccomp/actions_avail")):
        return f"{detail}; actions: {actions}"
    return detail


def _obstacle(host: Host, name: str, detail: str, need: Need) -> tuple[str, str]:
    """What is known to forbid a thing on this host, as (evidence, fix)."""
    if name in _IN_USER_NAMESPACE:
        for path, forbidding, fix in _USER_NAMESPACE_SETTINGS:
            if (value := host.read(path)) == forbidding:
                return f"/{path} is {value}", fix
    if name == "proc-mount" and (covered := _mounts_below_proc(host)):
        return (
            f"/proc is masked ({', '.join(covered[:3])}), as containers do",
            "docker run --security-opt systempaths=unconfined … "
            "(Kubernetes: securityContext.procMount: Unmasked)",
        )
    if _under_seccomp(host):
        return (
            "/proc/self/status has Seccomp: 2, a container's filter",
            "docker run --security-opt seccomp=unconfined … "
            "(Kubernetes: securityContext.seccompProfile.type: Unconfined)",
        )
    return "", need.fix


_USER_NAMESPACE_SETTINGS: Final = (
    (
        "proc/sys/user/max_user_namespaces",
        "0",
        "sysctl -w user.max_user_namespaces=15000",
    ),
    (
        "proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    (
        "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 "
        "(or an AppArmor profile with the rule `userns,` for this interpreter)",
    ),
)


def _under_seccomp(host: Host) -> bool:
    lines = host.read("proc/self/status").splitlines()
    return any(line.split() == ["Seccomp:", "2"] for line in lines)


def _mounts_below_proc(host: Host) -> list[str]:
    """Mount points below /proc: the kernel allows a new /proc only where the old one is whole."""
    points = [line.split()[4] for line in host.read("proc/self/mountinfo").splitlines()]
    # Automount of binfmt_misc covers nothing that the kernel counts (mount_too_revealing).
    return [p for p in points if p.startswith("/proc/") and p != "/proc/sys/fs/binfmt_misc"]
