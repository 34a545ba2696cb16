"""What each backend can enforce with the facts of a host: control by control, by what mechanism."""

from dataclasses import dataclass
from typing import Final

from cloche.linux.facts import HostFacts

DEFAULT_BACKEND: Final = "namespaces"

REQUIRED_FACTS: Final = ("user-namespaces", "proc-mount", "mount-api", "seccomp", "pidfd")
"""Without any of these the namespaces backend makes no box."""

UNBUILT_BACKENDS: Final = ("docker", "qemu")


@dataclass(frozen=True, slots=True)
class Means:
    """One way to enforce a control.

    Attributes:
        mechanism: in a few words.
        facts: what it needs beside REQUIRED_FACTS.
        exact: False where it is best effort, and results say so.
    """

    mechanism: str
    facts: tuple[str, ...] = ()
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Enforcement:
    """How a control is met on this host.

    Attributes:
        mechanism: empty when the control is refused.
        exact: False where the mechanism is best effort.
        missing: the facts that the best means lacks; none when it is the one in use.
    """

    mechanism: str
    exact: bool
    missing: tuple[str, ...]


CONTROLS: Final[dict[str, tuple[Means, ...]]] = {
    "memory": (
        Means("cgroup memory, swap 0", ("cgroup-memory",)),
        Means("resident size polled, killed above it", exact=False),
    ),
    "pids": (
        Means("cgroup pids", ("cgroup-pids",)),
        Means("RLIMIT_NPROC in the box's user namespace"),
    ),
    "cpu": (Means("cgroup cpu quota and weight", ("cgroup-cpu",)),),
    "cpu_time": (Means("cgroup cpu accounting", ("cgroup-cpuacct",)),),
    "network": (Means("network namespace with loopback only"),),
    "files": (Means("private read-only root, capped scratch"),),
    "seccomp": (Means("allowlist of system calls"),),
    "uid": (
        Means("a user id per run that owns nothing", ("root",)),
        Means("the caller's user id, alone in its user namespace"),
    ),
}
"""The means of the namespaces backend, best first. A control is refused when it has none left."""


def missing_facts(facts: HostFacts) -> tuple[str, ...]:
    """What keeps the default backend from running; empty when it can."""
    return tuple(name for name in REQUIRED_FACTS if not facts[name].ok)


def enforce(facts: HostFacts, control: str) -> Enforcement:
    """The best means for a control of the namespaces backend, or a refusal."""
    lacking = missing_facts(facts)
    best = CONTROLS[control][0]
    best_lacks = tuple(name for name in best.facts if not facts[name].ok)
    if not lacking:
        for means in CONTROLS[control]:
            if all(facts[name].ok for name in means.facts):
                return Enforcement(means.mechanism, means.exact, best_lacks)
    return Enforcement("", False, lacking + best_lacks)
