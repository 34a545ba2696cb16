"""What this host can enforce: the probes behind ``cloche doctor`` and behind admission.

Nothing is read when this module is imported or ``probe_host`` called; a fact is found out when it
is asked for. The kernel's abilities are tried for real, all in one run of ``trials.py`` (tens of
milliseconds, once); cgroups are tried by making and removing a group; everything else is read.
"""

import os
from functools import cache, partial

from cloche.linux import probe_cgroups, probe_kernel, probe_programs
from cloche.linux.facts import Fact, HostFacts, Probe, Verdict
from cloche.linux.host import Host


def probe_host(host: Host | None = None) -> HostFacts:
    """The facts of this machine, none of them found out yet."""
    host = host or Host(user_id=os.geteuid())
    trials = cache(host.run_trials)
    probes: dict[str, Probe] = {"root": partial(probe_root, host)}
    for name, need in probe_kernel.NEEDS.items():
        probes[name] = partial(probe_kernel.probe_trial, host, trials, name, need)
    probes |= probe_cgroups.probes(host)
    probes |= probe_programs.probes(host)
    return HostFacts(probes)


def probe_root(host: Host) -> Fact:
    """Whether boxes can get a user id of their own each."""
    needed_by = ("a user id per run",)
    if host.user_id == 0:
        return Fact("root", Verdict.OK, "the effective user id is 0", needed_by=needed_by)
    return Fact(
        "root",
        Verdict.MISSING,
        f"the effective user id is {host.user_id}: boxes run as that user",
        "run Cloche as root where boxes have to differ in their user ids",
        needed_by,
    )
