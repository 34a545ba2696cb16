"""`make soak`: 50,000 mixed runs, some of them hostile, and what Cloche holds meanwhile.

Runs come in a seeded random order, some at a time. After each tenth of them everything is quiet for
a moment and is counted: memory, descriptors, threads, processes, cgroups and mounts. Exit code 0
when every run ended as it should and the counts of the last tenth are those of the second.
"""

import argparse
import asyncio
import gc
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cloche

_SEED = 7
_TENTHS = 10
_AT_ONCE_COUNT = 6
_QUIET_S = 3.0
# A box or two more or less are warm at any moment; a leak of one in a hundred runs is far above.
_SLACK = {
    "memory_mb": 24.0,
    "descriptors_count": 40,
    "threads_count": 2,
    "processes_count": 8,
    "cgroups_count": 16,
    "mounts_count": 80,
}
_CODE = cloche.SandboxErrorCode
Sandbox = cloche.WorkerSandbox | cloche.ProcessSandbox


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of run: how often, what, and how it must end."""

    weight: float
    name: str
    code: str
    ending: str = "ok"
    language: str = "javascript"
    worker: bool = True
    fields: tuple[tuple[str, Any], ...] = ()


async def _tool(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


_TIME = (("timeout_ms", 60),)
_FILES = (("allow_fs", True), ("files", {"a": "b"}))
_ORPHANS = "import os, time\nif os.fork() == 0:\n os.setsid()\n time.sleep(60)\na"
_FLOOD = "for (let i = 0; i < 1e4; i++) console.log('x'.repeat(999)); a"
_FULL_DISK = "import os\nopen('f', 'wb').write(bytes(10 ** 8))"
_FORGED = "import os\nos.write(4, b'x' * 99)\na"
_CRASH = "import os\nos.kill(os.getpid(), 11)"
_FORKS = "import os\nwhile True: os.fork()"
_FAILED, _TIMEOUT, _MEMORY = _CODE.EXECUTION_ERROR, _CODE.TIMEOUT, _CODE.MEMORY_EXCEEDED
_FIBONACCI = "const f = (n) => n < 2 ? n : f(n - 1) + f(n - 2); f(12)"
_ENUM = "enum E { A = 1, B }\nconst x: number = E.B; x + a"

_KINDS = (
    Kind(300, "sum", "a + b"),
    Kind(100, "closure", _FIBONACCI),
    Kind(60, "typescript", _ENUM, language="typescript"),
    Kind(100, "python", "[x * x for x in range(a)]", language="python"),
    Kind(40, "printing", "console.log('x'.repeat(1000)); a"),
    Kind(40, "tool", "await tools.add(a)"),
    Kind(20, "throwing", "null.x", _FAILED),
    Kind(10, "broken text", "const = 1", _CODE.INVALID_CODE),
    Kind(10, "large value", "'x'.repeat(2 ** 21)", _CODE.VALUE_TOO_LARGE),
    Kind(1, "loop", "while (true);", _TIMEOUT, fields=_TIME),
    Kind(1, "python loop", "while True: pass", _TIMEOUT, "python", fields=_TIME),
    Kind(1, "native loop", "new Array(1e9) + ''", "", fields=_TIME),
    Kind(30, "warm Bun", "a + b", worker=False),
    Kind(15, "cold Bun", "a + b", worker=False, fields=_FILES),
    Kind(15, "CPython", "a + b", language="python", worker=False),
    Kind(5, "box tool", "await tools.add(a)", language="python", worker=False),
    Kind(1, "box loop", "while (true);", _TIMEOUT, worker=False, fields=_TIME),
    Kind(1, "fork bomb", _FORKS, "", "python", False, _TIME),
    Kind(1, "orphans", _ORPHANS, "ok", "python", False),
    Kind(1, "memory bomb", "b'x' * 10 ** 9", _MEMORY, "python", False),
    Kind(1, "flood", _FLOOD, worker=False),
    Kind(1, "crash", _CRASH, _FAILED, "python", False),
    Kind(1, "forged frame", _FORGED, _FAILED, "python", False),
    Kind(1, "full disk", _FULL_DISK, _FAILED, "python", False, (("allow_fs", True),)),
)


@dataclass(frozen=True, slots=True)
class Held:
    """What Cloche holds at a quiet moment."""

    memory_mb: float
    descriptors_count: int
    threads_count: int
    processes_count: int
    cgroups_count: int
    mounts_count: int


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path("/proc", str(pid), "task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *_descendants(child)]
    return found


def take() -> Held:
    """Counts; launchers, warm boxes and worker hosts are among the processes."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    mounts_count = 0
    processes = _descendants(os.getpid())
    for pid in processes:
        if b"launcher" in Path("/proc", str(pid), "cmdline").read_bytes():
            mounts_count += len(Path("/proc", str(pid), "mountinfo").read_text().splitlines())
    groups = list(Path("/sys/fs/cgroup").rglob(f"*cloche-{os.getpid()}-*/box-*"))
    return Held(
        memory_mb=round(int(status["VmRSS"].split()[0]) / 1024, 1),
        descriptors_count=sum(1 for _ in Path("/proc/self/fd").iterdir()),
        threads_count=int(status["Threads"]),
        processes_count=len(processes),
        cgroups_count=len(groups),
        mounts_count=mounts_count,
    )


class Soak:
    """The runs, and what was wrong with them."""

    def __init__(self, worker: Sandbox, process: Sandbox) -> None:
        self._sandboxes = {True: worker, False: process}
        self._random = random.Random(_SEED)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def _run(self, kind: Kind, number: int) -> None:
        fields: dict[str, Any] = dict(kind.fields)
        if "tools." in kind.code:
            fields["tools"] = {"add": _tool}
        work = self._sandboxes[kind.worker].run(
            kind.code, {"a": number % 7, "b": 2}, language=kind.language, **fields
        )
        ended = "ok"
        if number % 97 == 0:  # one in a hundred is cancelled by whoever waits for it
            ended = await _cancelled(work, self._random.random() / 100)
        else:
            result = await work
            ended = str(result.error_code or "ok")
            if kind.ending and ended != kind.ending:
                self.wrong.append(f"{kind.name}: {ended}: {result.error}")
        self.counts[f"{kind.name}: {ended}"] += 1

    async def go(self, first: int, count: int) -> None:
        """So many runs, some at a time."""
        weights = [kind.weight for kind in _KINDS]
        chosen = iter(list(enumerate(self._random.choices(_KINDS, weights, k=count), first)))

        async def repeat() -> None:
            for number, kind in chosen:
                await self._run(kind, number)

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE_COUNT):
                group.create_task(repeat())


async def _cancelled(work: Awaitable[Any], delay_s: float) -> str:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(delay_s)
    task.cancel()
    try:
        result = await task
    except asyncio.CancelledError:
        return "cancelled"
    return str(result.error_code or "ok")


async def soak(count: int, show: Callable[[str], None]) -> bool:
    """Runs them all; True when nothing was wrong and nothing has grown."""
    held: list[Held] = []
    async with (
        cloche.create_worker_sandbox() as worker,
        cloche.create_process_sandbox() as process,
    ):
        work = Soak(worker, process)
        for tenth in range(_TENTHS):
            started_at = time.monotonic()
            size = count // _TENTHS
            await work.go(tenth * size, size)
            seconds = time.monotonic() - started_at
            await asyncio.sleep(_QUIET_S)
            held.append(take())
            show(f"{(tenth + 1) * size:>7} runs, {size / seconds:5.0f}/s  {asdict(held[-1])}")
            if work.wrong:
                break
    for name, number in sorted(work.counts.items()):
        show(f"  {number:>6}  {name}")
    for line in work.wrong[:20]:
        show(f"WRONG {line}")
    # The first tenth fills caches and starts what stays.
    first, last = held[min(1, len(held) - 1)], held[-1]
    grown = [
        name for name, slack in _SLACK.items() if getattr(last, name) > getattr(first, name) + slack
    ]
    show(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
    show("grown: " + ", ".join(grown) if grown else "flat: nothing has grown")
    return not grown and not work.wrong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=50_000, metavar="N")
    options = parser.parse_args()
    good = asyncio.run(soak(options.runs, lambda line: print(line, flush=True)))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
