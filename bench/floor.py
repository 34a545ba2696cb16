"""What a run could not be faster than: the same processes without any box around them."""

import asyncio
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.bare import runtime_path
from cloche.environments.roots import bundle
from cloche.frames import encode_request

_HELD_BYTES = 100_000_000
_HOLD = f"held = b'x' * {_HELD_BYTES}\nprint(flush=True)\ninput()"
_WARM_UP_S = 0.15
_LIMIT_S = 5.0
_ENV = {"DO_NOT_TRACK": "1", "BUN_RUNTIME_TRANSPILER_CACHE_PATH": "0"}
_REQUEST: dict[str, Any] = {
    "nonce": "00" * 16,
    "code": "export default (price * (1 + rate));",
    "loader": "js",
    "context": {"price": 80, "rate": 0.25},
    "tools": [],
    "value_limit_bytes": 1024,
    "depth_limit": 99,
}


async def take_answers_and_deaths_ms(count: int) -> tuple[list[float], list[float]]:
    """From request to answer, and from SIGKILL to death, each of a Bun of its own."""
    with tempfile.TemporaryDirectory() as folder:
        harness = Path(folder, "bun.mjs")
        harness.write_text(bundle("bun.mjs"))
        pairs = [await asyncio.to_thread(_answer_and_die, harness) for _ in range(count)]
    return [answer for answer, _ in pairs], [death for _, death in pairs]


def _answer_and_die(harness: Path) -> tuple[float, float]:
    with _waiting_bun(harness) as (process, control, result):
        time.sleep(_WARM_UP_S)
        asked_at = time.perf_counter()
        os.write(control, encode_request(_REQUEST))
        _wait_for(result)
        answered_at = time.perf_counter()
        if b'"value":100}' not in os.read(result, 4096):
            raise RuntimeError("Bun gave another answer")
        return (answered_at - asked_at) * 1000, _kill_ms(process.pid)


async def take_deaths_of_100_mb_ms(count: int) -> list[float]:
    """From SIGKILL to death of a CPython that holds 100 MB, as the guests of aborts do."""
    return [await asyncio.to_thread(_hold_and_die) for _ in range(count)]


def _hold_and_die() -> float:
    command = [str(runtime_path("python")), "-I", "-S", "-c", _HOLD]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return _kill_ms(process.pid)


def _kill_ms(pid: int) -> float:
    pidfd = os.pidfd_open(pid)
    try:
        killed_at = time.perf_counter()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        _wait_for(pidfd)
        return (time.perf_counter() - killed_at) * 1000
    finally:
        os.close(pidfd)


@contextmanager
def _waiting_bun(harness: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    control_end, control = os.pipe()
    result, result_end = os.pipe()
    places = 'exec "$0" "$1" stream 3<&"$2" 4>&"$3"'
    command = ["bash", "-c", places, str(runtime_path("bun")), str(harness)]
    process = subprocess.Popen(
        [*command, str(control_end), str(result_end)],
        env=_ENV,
        stdin=subprocess.DEVNULL,
        pass_fds=(control_end, result_end),
    )
    os.close(control_end)
    os.close(result_end)
    try:
        yield process, control, result
    finally:
        process.kill()
        process.wait()
        os.close(control)
        os.close(result)


def _wait_for(descriptor: int) -> None:
    if not select.select([descriptor], [], [], _LIMIT_S)[0]:
        raise RuntimeError("a bare process did not answer, or did not die")
