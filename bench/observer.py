"""Watches boxes die, from outside: a process of its own, which shares nothing with Cloche.

Usage: `observer.py OWNER_PID`. For each line on stdin it takes a pidfd of every process of the box
that runs now below OWNER_PID (its init, the guest and all that the guest has started) and answers
with their number and the bytes they hold (PSS). Then it waits until all are dead and until /proc,
read anew, shows none of them, not even as a zombie, and no other guest, and answers with
CLOCK_MONOTONIC in nanoseconds, taken after that last look. Standard library only.
"""

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

_PATIENCE_MS = 10_000


def processes_of_box(owner: int) -> set[int]:
    """Inits with a guest below them, and all that is there.

    A box made ahead of need has only the launcher's own program in it: init, and the fork that
    will be its first command.
    """
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    launchers = children.get(owner, ())
    inits = {init for launcher in launchers for init in children.get(launcher, ())}
    found = {
        init
        for init in inits
        if any(program_of(child) != program_of(init) for child in children.get(init, ()))
    }
    pending = list(found)
    while pending:
        below = children.get(pending.pop(), ())
        found.update(below)
        pending += below
    return found


def program_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def held_bytes(pid: int) -> int:
    """What is shared counts once in the sum. A plain user may not look into the box's init: 0."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def open_pidfds(pids: set[int]) -> dict[int, int]:
    pidfds = {}
    for pid in pids:
        with suppress(ProcessLookupError):  # gone already: the caller sees that one is missing
            pidfds[os.pidfd_open(pid)] = pid
    return pidfds


def wait_dead(alive: dict[int, int]) -> None:
    poller = select.poll()
    for pidfd in alive:
        poller.register(pidfd, select.POLLIN)
    while alive:
        ready = poller.poll(_PATIENCE_MS)
        if not ready:
            sys.exit("observer: still alive: " + "; ".join(map(describe, alive.values())))
        for pidfd, _ in ready:
            poller.unregister(pidfd)
            os.close(pidfd)
            del alive[pidfd]


def describe(pid: int) -> str:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        told = [line for line in lines if line.startswith(("State", "PPid"))]
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return " ".join([str(pid), *told, command])
    return str(pid)


def main() -> None:
    owner = int(sys.argv[1])
    for _ in sys.stdin:
        pids = processes_of_box(owner)
        pidfds = open_pidfds(pids)
        print(len(pidfds), sum(map(held_bytes, pids)), flush=True)
        wait_dead(pidfds)
        while processes_of_box(owner) or any(Path(f"/proc/{pid}").exists() for pid in pids):
            pass
        print(time.monotonic_ns(), flush=True)


main()
