"""The program of a worker host: frames in, frames out, one run after another."""

import importlib.util
import json
import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live
SOURCE = Path(__file__).parents[2] / "src" / "cloche"
PACKAGES = ("quickjs_rs", "wasmtime", "tree_sitter", "tree_sitter_javascript",
            "tree_sitter_typescript")  # fmt: skip
NONCE = bytes(range(16))


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"missing fact: {name} is installed")
    return Path(found.origin).parent


class WorkerHost:
    """A worker host as a plain process."""

    def __init__(self, *args: str) -> None:
        ends = [*os.pipe(), *os.pipe()]
        request, self._writer, self._reader, result = ends
        self.pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-B", str(SOURCE / "guest" / "worker.py"), *args],
            {"PATH": "/usr/bin:/bin"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, request, 30),
                (os.POSIX_SPAWN_DUP2, result, 31),
                (os.POSIX_SPAWN_DUP2, 30, 3),
                (os.POSIX_SPAWN_DUP2, 31, 4),
                (os.POSIX_SPAWN_CLOSE, 30),
                (os.POSIX_SPAWN_CLOSE, 31),
            ],
        )
        os.close(request)
        os.close(result)
        self.status: int | None = None

    def send(self, frame: dict[str, Any] | bytes) -> None:
        body = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
        data = len(body).to_bytes(4, "big") + body
        while data:
            data = data[os.write(self._writer, data) :]

    def request(self, code: str, language: str = "javascript", **fields: Any) -> None:
        self.send(
            {
                "nonce": NONCE.hex(),
                "mode": "snippet",
                "language": language,
                "code": code,
                "context": {},
                "tools": [],
                "value_limit_bytes": 1 << 20,
                "depth_limit": 256,
                "digit_limit": 4300,
                "memory_limit_bytes": 64 << 20,
                "network": False,
                **fields,
            }
        )

    def frame(self, nonce: bytes = NONCE, timeout_s: float = 20) -> dict[str, Any]:
        header = self._read(20, timeout_s)
        assert header[:16] == nonce
        return json.loads(self._read(int.from_bytes(header[16:], "big"), timeout_s))

    def _read(self, count: int, timeout_s: float) -> bytes:
        data = b""
        while len(data) < count:
            if not select.select([self._reader], [], [], timeout_s)[0]:
                raise TimeoutError
            chunk = os.read(self._reader, count - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def run(self, code: str, language: str = "javascript", **fields: Any) -> dict[str, Any]:
        """The last frame of a run that prints nothing and calls nothing."""
        self.request(code, language, **fields)
        return self.frame()

    def end(self, *, kill: bool = False) -> int:
        """The exit status."""
        if self.status is None:
            if kill:
                os.kill(self.pid, 9)
            os.close(self._writer)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._reader)
        return self.status


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What /opt/cloche/site is in a box, the compiled engine among it."""
    site = tmp_path_factory.mktemp("site")
    (site / "cloche_source").symlink_to(SOURCE / "source")
    (site / "cloche_engines").symlink_to(SOURCE / "snippets" / "engines")
    for name in PACKAGES:
        (site / name).symlink_to(_package(name))
    host = WorkerHost("compile", str(site))
    with open(host._reader, "rb", closefd=False) as pipe:
        (site / "quickjs.machine").write_bytes(pipe.read())
    assert host.end() == 0
    return site


@pytest.fixture
def worker(site: Path) -> Iterator[WorkerHost]:
    host = WorkerHost("javascript", str(site))
    try:
        ready = host.frame(bytes(16))
        assert ready["ready"] is True
        assert ready["engine"] == "quickjs-ng"
        assert ready["version"]
        yield host
    finally:
        host.end(kill=True)


def test_runs_are_served_one_after_another_each_in_a_fresh_engine(worker: WorkerHost) -> None:
    assert worker.run("globalThis.left = 1 + 1; left") == {"ok": True, "value": 2}
    assert worker.run("typeof left") == {"ok": True, "value": "undefined"}
    assert worker.run("x * y", context={"x": 6, "y": 7})["value"] == 42
    assert worker.run("const a: number = 1; a", "typescript")["value"] == 1
    assert worker.run("undefined") == {"ok": True}
    assert worker.end() == 0


def test_what_is_printed_comes_in_order_and_in_bounded_frames(worker: WorkerHost) -> None:
    worker.request("console.log('a'); console.error('b'); console.log('\\0'.repeat(30000)); 1")
    frames = []
    while "ok" not in (frame := worker.frame()):
        frames.append((frame["out"], frame["text"]))
        assert len(json.dumps(frame)) < 64 * 1024
    assert frames[:2] == [("stdout", "a\n"), ("stderr", "b\n")]
    assert "".join(text for _, text in frames[2:]) == "\0" * 30000 + "\n"


def test_what_is_printed_comes_before_the_run_ends(worker: WorkerHost) -> None:
    worker.request("console.log('before'); while (true);")
    assert worker.frame() == {"out": "stdout", "text": "before\n"}
    with pytest.raises(TimeoutError):
        worker.frame(timeout_s=0.2)


def test_tools_are_called_and_their_answers_taken_in_any_order(worker: WorkerHost) -> None:
    worker.request(
        "const all = [tools.a(1), tools.b({ x: 2 })]; setTimeout(() => {}, 1e6);"
        "await Promise.race(all); console.log('one'); await Promise.all(all)",
        tools=["a", "b"],
    )
    calls = [worker.frame(), worker.frame()]
    assert calls == [
        {"call": 1, "tool": "a", "args": [1], "kwargs": {}},
        {"call": 2, "tool": "b", "args": [{"x": 2}], "kwargs": {}},
    ]
    worker.send({"answer": 2, "ok": True, "value": "second"})
    assert worker.frame() == {"out": "stdout", "text": "one\n"}
    worker.send({"answer": 1, "ok": True, "value": ["first"]})
    assert worker.frame() == {"ok": True, "value": [["first"], "second"]}
    late = worker.run("1")
    assert late == {"ok": True, "value": 1}


def test_an_answer_that_comes_after_its_run_is_no_request(worker: WorkerHost) -> None:
    worker.request("tools.a(); 5", tools=["a"])
    assert worker.frame()["call"] == 1
    assert worker.frame() == {"ok": True, "value": 5}
    worker.send({"answer": 1, "ok": True, "value": 1})
    assert worker.run("6") == {"ok": True, "value": 6}


def test_a_run_that_waits_uses_no_time(worker: WorkerHost) -> None:
    worker.request("await new Promise(r => setTimeout(r, 150)); 1")
    started = _cpu_ticks(worker.pid)
    assert worker.frame() == {"ok": True, "value": 1}
    assert _cpu_ticks(worker.pid) - started <= 3


def _cpu_ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


@pytest.mark.case("ts-07-esm-cjs-mix")
@pytest.mark.case("file-02-compile-time-import")
@pytest.mark.parametrize(
    ("code", "language", "name", "place"),
    [
        ("import fs from 'node:fs'; 1", "javascript", "node:fs", (1, 16)),
        ("1;\nimport 'left-pad'", "javascript", "left-pad", (2, 8)),
        ("export * from 'x'", "javascript", "x", (1, 15)),
        ("type A = 1;\nimport { a, type B } from 'x'; a", "typescript", "x", (2, 27)),
    ],
)
def test_a_static_import_is_refused_by_name_with_its_place(
    worker: WorkerHost, code: str, language: str, name: str, place: tuple[int, int]
) -> None:
    told = worker.run(code, language)["error"]
    assert told["code"] == "SANDBOX_INVALID_CODE"
    assert told["message"].startswith(f"{name}: imports are not available in the worker sandbox")
    assert (told["line"], told["column"]) == place
    assert worker.run("import type { A } from 'x'; 1", "typescript")["value"] == 1


@pytest.mark.parametrize(
    ("code", "language", "line"),
    [
        ("1;\nlet a = = 3", "javascript", 2),
        ("1;\nlet a: = 3", "typescript", 2),
        ("1;\nlet a: number = 3", "javascript", 2),
        ("console.log('ran');\n})(); globalThis.hit = 1; (async () => {", "javascript", 2),
        ("console.log('ran');\n})(); return 1; (async () => {", "javascript", 2),
    ],
)
def test_code_that_does_not_parse_is_refused_with_its_place(
    worker: WorkerHost, code: str, language: str, line: int
) -> None:
    told = worker.run(code, language)["error"]
    assert (told["code"], told["line"]) == ("SANDBOX_INVALID_CODE", line)


@pytest.mark.case("res-21-deep-recursion")
def test_a_wall_that_a_run_hits_is_not_the_end_of_the_host(worker: WorkerHost) -> None:
    for code in ("function f() { f() } f()", "JSON.parse('['.repeat(1e5))"):
        assert worker.run(code)["error"]["name"] == "RangeError"
    code = "const a = []; for (;;) a.push(new Uint8Array(1e6).fill(1))"
    assert worker.run(code)["error"]["code"] == "SANDBOX_MEMORY_EXCEEDED"
    assert worker.run("1 + 1") == {"ok": True, "value": 2}


@pytest.mark.case("res-21-deep-recursion")
def test_a_small_stack_of_the_process_is_no_limit(site: Path) -> None:
    import resource

    old = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, old[1]))
    try:
        host = WorkerHost("javascript", str(site))
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, old)
    try:
        host.frame(bytes(16))
        assert host.run("JSON.parse('['.repeat(1e5))")["error"]["name"] == "RangeError"
        assert host.run("1 + 1") == {"ok": True, "value": 2}
    finally:
        host.end(kill=True)


@pytest.mark.parametrize(
    "sent", [b"no json", b"{}", b"[]", b'{"nonce":"zz"}', b'{"nonce":7}', b"\xff"]
)
def test_a_frame_that_is_no_request_is_the_end(worker: WorkerHost, sent: bytes) -> None:
    worker.send(sent)
    assert worker.end() == 1


def test_a_broken_stream_is_the_end_and_a_whole_one_is_fine(worker: WorkerHost) -> None:
    os.write(worker._writer, b"\0\0")
    assert worker.end() == 1


def test_memory_of_a_run_is_given_back(worker: WorkerHost) -> None:
    worker.run("1")
    before = _resident_bytes(worker.pid)
    for _ in range(3):
        assert worker.run("new Uint8Array(50e6).fill(1).length")["ok"]
    assert worker.run("1")["ok"]
    time.sleep(0.05)
    assert _resident_bytes(worker.pid) - before < 16 << 20


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_compiled_engine_that_is_damaged_or_missing_is_made_anew(
    site: Path, tmp_path: Path
) -> None:
    for entry in site.iterdir():
        if entry.name != "quickjs.machine":
            (tmp_path / entry.name).symlink_to(entry.resolve())
    (tmp_path / "quickjs.machine").write_bytes(b"\x7fELF damaged")
    host = WorkerHost("javascript", str(tmp_path))
    try:
        assert host.frame(bytes(16))["ready"] is True
        assert host.run("1 + 1")["value"] == 2
    finally:
        host.end(kill=True)
