"""Which facts of the host a test rests on: `pytestmark = needs("cgroup-memory")`.

A test whose fact is missing is skipped, and the skip prints the fact. Root, as on the build
machine, is expected to have the facts in EXPECTED_OF_ROOT: there a missing one is a failure.
"""

import os
from functools import cache

import pytest

from cloche.environments.runtimes import runtime_probes
from cloche.environments.toolchain import toolchain_probes
from cloche.environments.workers import worker_probes
from cloche.linux.facts import HostFacts
from cloche.linux.probe import probe_host
from cloche.settings import read_settings

# What every job rests on, beside what every box is made of.
JOB = ("overlay", "runtime-node", "npm-registry", "toolchain-pnpm", "job-tools")
BOX = ("user-namespaces", "proc-mount", "mount-api", "seccomp", "pidfd")
EXPECTED_OF_ROOT = frozenset(
    {
        *BOX,
        *JOB,
        "cgroup-memory",
        "cgroup-pids",
        "cgroup-cpu",
        "cgroup-cpuacct",
        "pip-index",
        "runtime-bun",
        "runtime-deno",
        "runtime-python",
        "root",
        "toolchain-uv",
        "worker-engines",
    }
)
needs = pytest.mark.needs


@cache
def host_facts() -> HostFacts:
    """The facts of this host, found out as they are asked for."""
    return probe_host().including(
        {**runtime_probes(), **worker_probes(), **toolchain_probes(read_settings())}
    )


def require_facts(*names: str) -> None:
    """Skips the current test (or, where the fact is expected, fails it) when one is missing."""
    for name in names:
        fact = host_facts()[name]
        if fact.ok:
            continue
        told = f"missing fact: {name} ({fact.evidence})"
        if os.geteuid() == 0 and name in EXPECTED_OF_ROOT:
            pytest.fail(f"{told}; root is expected to have it. Fix: {fact.fix}", pytrace=False)
        pytest.skip(told)
