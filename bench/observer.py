"""Watches boxes die, from outside: a process of its own, which shares nothing with Cloche.

Usage: `observer.py OWNER_PID`. Per line on stdin: takes a pidfd of every process that exists below
the children of OWNER_PID (below the launcher: the box's init, the guest and all that the
guest has started), answers with their number, waits until all are dead and until /proc, read
anew, shows none below the launcher, zombies included; then answers with CLOCK_MONOTONIC in
nanoseconds, taken after that last look. Standard library only.
"""

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

_PATIENCE_MS = 10_000


def processes_of_box(owner: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found: list[int] = []
    pending = [child for child in children.get(owner, ()) if child != os.getpid()]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def wait_dead(pids: list[int]) -> None:
    poller = select.poll()
    alive = {os.pidfd_open(pid): pid for pid in pids}
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
        print(len(pids), flush=True)
        wait_dead(pids)
        while processes_of_box(owner):
            pass
        print(time.monotonic_ns(), flush=True)


main()
