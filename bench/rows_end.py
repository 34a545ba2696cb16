"""From a deadline to the moment when nothing of the run is alive, as an outside observer sees it.

The deadline is counted twice: from the mark that the guest itself sets as its first act, and from
the call of `run`, which is before it in any case (it includes the set-up of the box), so that
nothing can be won by a clock that starts late.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloche
from bench import floor
from bench.pairs import Row, Scale, Target

_MEMORY_LIMIT_MB = 128
_LEAST_HELD_BYTES = 90 * 1024 * 1024
_TARGET = Target("p99", 20)
_MISSES_PER_KILL = 5

_PYTHON = """
import os, time
print(time.time() * 1000, flush=True)
reader, writer = os.pipe()
for spins in (True, False):
    if os.fork() == 0:
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
        held = b"x" * (30 << 20)
        os.write(writer, b".")
        while True:
            spins or time.sleep(60)
    os.wait()
held = b"x" * (32 << 20)
os.read(reader, 1), os.read(reader, 1)
print("holding", flush=True)
while True:
    pass
"""
_BUN = """
console.log(Date.now());
const held = new Uint8Array(95 << 20).fill(1);
console.log("holding");
while (held) ;
"""


@dataclass(frozen=True, slots=True)
class _Guest:
    name: str
    code: str
    language: str
    processes_count: int


_GUESTS = (
    _Guest("Python and 2 double-forked", _PYTHON, "python", 4),  # with the box's init
    _Guest("Bun", _BUN, "javascript", 2),
)


class _Killing:
    """One sandbox, one observer, one death after another."""

    def __init__(
        self,
        sandbox: cloche.ProcessSandbox,
        observer: asyncio.subprocess.Process,
        deadline_ms: int,
    ) -> None:
        self._sandbox = sandbox
        self._deadline_ms = deadline_ms
        self._observer = observer

    async def observe(self, guest: _Guest) -> tuple[float, float] | None:
        """How late (ms) the end was: after the guest's mark, after the call.

        None where all processes of the guest, and the memory that they should hold, were not
        seen before the deadline: on a busy machine they come too late.
        """
        printed = ""
        stdin, stdout = self._observer.stdin, self._observer.stdout
        assert stdin is not None
        assert stdout is not None

        def on_output(_: str, text: str) -> None:
            nonlocal printed
            before, printed = printed, printed + text
            if "holding" in printed and "holding" not in before:
                stdin.write(b"look\n")

        fields: dict[str, Any] = {"language": guest.language, "on_output": on_output}
        called_at = time.monotonic_ns()
        epoch_at = time.monotonic_ns() - time.time_ns()  # the guests tell the time of day
        result = await self._sandbox.run(guest.code, **fields)
        if "holding" not in printed:
            return None
        seen_count, held_bytes = map(int, (await stdout.readline()).split())
        gone_at = int(await stdout.readline())
        if result.error_code != cloche.SandboxErrorCode.TIMEOUT:
            raise RuntimeError(f"the guest ended before its deadline: {result.error}")
        if seen_count != guest.processes_count or held_bytes < _LEAST_HELD_BYTES:
            return None
        marked_at = float(printed.split()[0]) * 1e6 + epoch_at
        after_mark, after_call = (
            (gone_at - at) / 1e6 - self._deadline_ms for at in (marked_at, called_at)
        )
        return after_mark, after_call

    async def observe_abort(self, guest: _Guest) -> float | None:
        """How late (ms) the end was after the caller's signal; None as in `observe`."""
        stdin, stdout = self._observer.stdin, self._observer.stdout
        assert stdin is not None
        assert stdout is not None
        holding = asyncio.Event()
        controller = cloche.AbortController()

        def on_output(_: str, text: str) -> None:
            if "holding" in text:
                holding.set()

        run = asyncio.ensure_future(
            self._sandbox.run(
                guest.code,
                language=guest.language,
                on_output=on_output,
                signal=controller.signal,
                timeout_ms=20_000,
            )
        )
        await asyncio.wait(
            [run, asyncio.ensure_future(holding.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        stdin.write(b"look\n")
        seen_count, held_bytes = map(int, (await stdout.readline()).split())
        fired_at = time.monotonic_ns()
        controller.abort()
        gone_at = int(await stdout.readline())
        result = await run
        if result.error_code != cloche.SandboxErrorCode.ABORTED:
            raise RuntimeError(f"the guest was not aborted: {result.error}")
        if seen_count != guest.processes_count or held_bytes < _LEAST_HELD_BYTES:
            return None
        return (gone_at - fired_at) / 1e6


async def measure_worker(scale: Scale) -> AsyncIterator[Row]:
    """Worker hosts whose engine spins with 90 MB in its heap: from the signal to their death.

    Raises:
        RuntimeError: a host lived when its run had returned.
    """
    code = "const held = new Uint8Array(90 << 20).fill(1); console.log('holding'); while (held);"
    late: list[float] = []
    async with cloche.create_worker_sandbox(memory_limit_mb=_MEMORY_LIMIT_MB) as sandbox:
        for _ in range(scale.kills_count):
            holding = asyncio.Event()
            controller = cloche.AbortController()
            run = asyncio.ensure_future(
                sandbox.run(
                    code,
                    timeout_ms=20_000,
                    signal=controller.signal,
                    on_output=lambda *_, event=holding: event.set(),
                )
            )
            await holding.wait()
            (box,) = sandbox.boxes
            pid = box._init.pid  # type: ignore[attr-defined]
            fired_at = time.perf_counter()
            controller.abort()
            result = await run
            late.append((time.perf_counter() - fired_at) * 1000)
            if result.error_code != cloche.SandboxErrorCode.ABORTED:
                raise RuntimeError(f"the run was not aborted: {result.error}")
            if Path(f"/proc/{pid}").exists() and "Z" not in _state_of(pid):
                raise RuntimeError("a worker host outlived its run")
    yield Row("abort → nothing alive: worker, from the signal to the return", late, target=_TARGET)
    deaths = await floor.take_deaths_of_100_mb_ms(scale.kills_count)
    yield Row("no box: a CPython that holds 100 MB, SIGKILL to its death", deaths)


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


async def measure(scale: Scale) -> AsyncIterator[Row]:
    """Guests that hold 100 MB under a limit of 128 MB, killed by their deadline.

    Raises:
        RuntimeError: a guest ended before its deadline, or too few could be measured.
    """
    observer = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", str(Path(__file__).with_name("observer.py")), str(os.getpid())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with cloche.create_process_sandbox(
            mode="program", timeout_ms=scale.deadline_ms, memory_limit_mb=_MEMORY_LIMIT_MB
        ) as sandbox:
            killing = _Killing(sandbox, observer, scale.deadline_ms)
            for guest in _GUESTS:
                await killing.observe(guest)  # a warm-up
                late: list[tuple[float, float]] = []
                misses_count = 0
                while len(late) < scale.kills_count:
                    lateness = await killing.observe(guest)
                    if lateness is not None:
                        late.append(lateness)
                        continue
                    misses_count += 1
                    if misses_count > _MISSES_PER_KILL * scale.kills_count:
                        raise RuntimeError(f"{guest.name}: not seen whole in time, too often")
                after_mark, after_call = zip(*late, strict=True)
                name = f"deadline → nothing alive: {guest.name}"
                yield Row(f"{name}, from its start", after_mark, target=_TARGET)
                yield Row(f"{name}, from the call", after_call, target=_TARGET)
                aborted: list[float] = []
                while len(aborted) < scale.kills_count:
                    lateness_ms = await killing.observe_abort(guest)
                    if lateness_ms is not None:
                        aborted.append(lateness_ms)
                name = f"abort → nothing alive: {guest.name}, from the signal"
                yield Row(name, aborted, target=_TARGET)
    finally:
        assert observer.stdin is not None
        observer.stdin.close()
        await observer.wait()
