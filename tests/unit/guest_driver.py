"""Starts a guest harness as a plain process, answers its calls and reads what it leaves.

Fds 0 to 2 and 4 are pipes; fd 3 is a memory file with the request, or a pipe, as in a box.
"""

import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloche.environments.runtimes import find_runtime

GUEST = Path(__file__).parents[2] / "src" / "cloche" / "guest"
NONCE = bytes(range(16))
SCRIPT_RUNTIMES = ("bun", "node", "deno")
PYTHON = os.path.realpath(sys.executable)
_OPTIONS = {
    "bun": ("--no-install",),
    "node": ("--experimental-transform-types", "--disable-warning=ExperimentalWarning"),
    "deno": ("run", "--quiet", "-A", "--no-remote", "--cached-only", "--no-config",
             "--no-code-cache", "--no-lock"),
}  # fmt: skip
_PROGRAM_OPTIONS = {
    "bun": ("--preload",),
    "node": ("--enable-source-maps", "--require"),
    "deno": ("--unstable-detect-cjs", "--preload"),
}
_ENV = {"DENO_DIR": "/nonexistent", "DENO_CACHE_DB_MODE": "disabled", "NO_COLOR": "1"}
Tool = Callable[..., Any]
LIMITS = {"value_limit_bytes": 1 << 20, "depth_limit": 256, "digit_limit": 4300}


@dataclass(frozen=True, slots=True)
class Ended:
    """What one run of a harness left: the frame's JSON (None without one), output, exit code."""

    frame: Any
    stdout: str
    stderr: str
    exit_code: int
    calls: list[Any] = field(default_factory=list)

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


def binary(runtime: str) -> str:
    """Where a runtime's program is; skips the test where it is not installed."""
    found = find_runtime(runtime)
    if found is None:
        pytest.skip(f"missing fact: runtime-{runtime}")
    return str(found.host_path)


def start(
    argv: list[str],
    request: dict[str, Any],
    *,
    stdin: str = "",
    timeout_s: float = 20,
    tools: dict[str, Tool] | None = None,
    stream: bool = False,
    delay_s: float = 0,
) -> Ended:
    """Run `argv` with `request` on fd 3; killed, with exit code -9, after `timeout_s`.

    Args:
        argv: What to run; with `stream` or `tools` that word is added and fd 3 is a pipe.
        request: The nonce and the names of the tools are added.
        stdin: On fd 0.
        timeout_s: See above.
        tools: Answer calls; what they raise is the error's message. None: leaves it unanswered.
        stream: As said.
        delay_s: How long the harness waits for its request.
    """
    pipes = {number: _pipe() for number in (0, 1, 2, 4)}
    streams = stream or tools is not None
    whole = {"nonce": NONCE.hex(), "tools": list(tools or {}), **request}
    body = json.dumps(whole).encode()
    if streams:
        argv = [*argv, "stream"]
        pipes[3] = _pipe()
    control = pipes[3][0] if streams else _memory_file(body)
    inner = [pipes[0][0], pipes[1][1], pipes[2][1], control, pipes[4][1]]
    pid = os.posix_spawn(
        argv[0],
        argv,
        {"HOME": "/tmp", "PATH": "/usr/bin:/bin", **_ENV},
        file_actions=[(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(inner)],
    )
    for end in inner:
        os.close(end)
    read: dict[int, bytes] = {4: b""}
    calls: list[Any] = []
    waiting = threading.Event()

    def drain(number: int) -> None:
        with open(pipes[number][0], "rb") as pipe:
            read[number] = pipe.read()

    def feed(number: int, data: bytes) -> None:
        try:
            with open(pipes[number][1], "wb") as pipe:
                pipe.write(data)
        except BrokenPipeError:
            pass

    def answer(frame: dict[str, Any]) -> None:
        calls.append(frame)
        given: dict[str, Any] = {"answer": frame["call"], "ok": True}
        try:
            given["value"] = (tools or {})[frame["tool"]](*frame["args"], **frame["kwargs"])
        except Exception as error:
            given |= {"ok": False, "error": {"name": "ToolError", "message": str(error)}}
        if given.get("value", 0) is not None:
            give(given)

    def give(frame: dict[str, Any]) -> None:
        data = json.dumps(frame).encode()
        data = len(data).to_bytes(4, "big") + data
        while data:
            data = data[os.write(pipes[3][1], data) :]

    def listen() -> None:
        while chunk := os.read(pipes[4][0], 65536):
            read[4] += chunk
            while (found := _call(read[4])) is not None:
                read[4] = read[4][found[0] :]
                answer(found[1])
        os.close(pipes[4][0])

    jobs = [
        *(threading.Thread(target=drain, args=(number,)) for number in (1, 2)),
        threading.Thread(target=listen),
        threading.Thread(target=feed, args=(0, stdin.encode())),
    ]
    timer = threading.Timer(timeout_s, os.kill, (pid, 9))
    for job in [*jobs, timer]:
        job.start()
    if streams:
        waiting.wait(delay_s)
        give(whole)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    timer.cancel()
    for job in jobs:
        job.join()
    if streams:
        os.close(pipes[3][1])
    return Ended(
        _frame(read[4]),
        read[1].decode(errors="replace"),
        read[2].decode(errors="replace"),
        status,
        calls,
    )


def _call(data: bytes) -> tuple[int, Any] | None:
    """The call at the start of some bytes, and where it ends; None for anything else."""
    if not data.startswith(NONCE) or len(data) < 20:
        return None
    end = 20 + int.from_bytes(data[16:20], "big")
    if len(data) < end:
        return None
    frame = json.loads(data[20:end])
    return (end, frame) if "call" in frame else None


def _frame(data: bytes) -> Any:
    """The JSON of the only frame, after anything that guest code wrote before it."""
    if NONCE not in data:
        return None
    frame = data[data.index(NONCE) :]
    size = int.from_bytes(frame[16:20], "big")
    assert len(frame) == 20 + size
    return json.loads(frame[20:])


def run_python(
    code: str,
    context: dict[str, Any] | None = None,
    *,
    tools: dict[str, Tool] | None = None,
    env: dict[str, str] | None = None,
    **fields: Any,
) -> Ended:
    """Run a Python snippet."""
    request = {"mode": "snippet", "code": code, "context": context or {}, **LIMITS}
    if env is not None:
        request["env"] = env
    argv = [PYTHON, "-I", "-S", "-B", str(GUEST / "python.py")]
    return start(argv, request, tools=tools, **fields)


def run_script(
    runtime: str,
    body: str,
    context: dict[str, Any] | None = None,
    *,
    edits: tuple[tuple[int, int, int], ...] = (),
    timeout_s: float = 20,
    tools: dict[str, Tool] | None = None,
    stream: bool = False,
    delay_s: float = 0,
    **fields: Any,
) -> Ended:
    """Run the body of a snippet as the transformer would hand it on; `fields` go into the request.

    The body's first line is the caller's line 1.
    """
    request = {
        "mode": "snippet",
        "code": f"export {{}};export default await (async () => {{\n{body}\n}})();",
        "loader": "ts" if runtime == "bun" else "js",
        "name": "snippet.ts",
        "map": {"line_offset": 1, "edits": edits},
        "context": context or {},
        **LIMITS,
        **fields,
    }
    argv = [binary(runtime), *_OPTIONS[runtime], str(GUEST / f"{runtime}.mjs")]
    return start(argv, request, timeout_s=timeout_s, tools=tools, stream=stream, delay_s=delay_s)


def run_program(path: Path, *args: str, runtime: str = "bun", **fields: Any) -> Ended:
    """Run a program, a Python one where its suffix says so."""
    request = {"mode": "program", "path": str(path), "args": list(args)}
    if path.suffix == ".py":
        argv = [PYTHON, "-I", "-S", "-B", str(GUEST / "python.py")]
    else:
        options = [*_OPTIONS[runtime], *_PROGRAM_OPTIONS[runtime]]
        preload = str(GUEST / f"{runtime}_program.mjs")
        argv = [binary(runtime), *options, preload, str(path), *args]
    return start(argv, request, **fields)
