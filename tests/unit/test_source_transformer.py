"""The boxed server as a plain process: one fork per text, and an answer whatever comes of it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tree_sitter
import tree_sitter_javascript
import tree_sitter_typescript

import cloche.source

SERVER = Path(cloche.__file__).parent / "guest" / "transformer.py"

# Puts the two pipes on fds 3 and 4: a plain Popen cannot.
START = "import os, sys; os.dup2({0}, 3); os.dup2({1}, 4); os.execv(sys.executable, {2!r})"


class Server:
    def __init__(self, site: Path) -> None:
        # Numbers above 4, so that putting them in place overwrites neither.
        spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(6)]
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        arguments = [sys.executable, "-I", "-S", "-B", str(SERVER), str(site)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", START.format(requests, answers, arguments)],
            pass_fds=(requests, answers),
        )
        for descriptor in (requests, answers, *spare):
            os.close(descriptor)

    def send(self, payload: bytes) -> None:
        os.write(self.requests, len(payload).to_bytes(4, "big") + payload)

    def ask(self, identifier: int, code: str) -> dict[str, Any]:
        request = {"id": identifier, "code": code, "language": "javascript"}
        self.send(json.dumps(request).encode())
        return self.receive()

    def receive(self) -> dict[str, Any]:
        with os.fdopen(os.dup(self.answers), "rb", buffering=0) as stream:
            length = int.from_bytes(stream.read(4) or b"", "big")
            payload = b""
            while len(payload) < length:
                payload += stream.read(length - len(payload)) or b""
        return json.loads(payload)

    def close(self) -> int:
        os.close(self.requests)
        status = self.process.wait(timeout=10)
        os.close(self.answers)
        return status


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for package in (tree_sitter, tree_sitter_javascript, tree_sitter_typescript):
        folder = Path(package.__file__).parent
        (tmp_path / folder.name).symlink_to(folder)
    (tmp_path / "cloche_source").symlink_to(Path(cloche.source.__file__).parent)
    return tmp_path


@pytest.fixture
def server(site: Path) -> Iterator[Server]:
    server = Server(site)
    yield server
    if server.process.poll() is None:
        assert server.close() == 0


def test_each_text_is_answered_under_its_own_id(server: Server) -> None:
    for identifier in (7, 8):
        answer = server.ask(identifier, f"{identifier}")
        assert answer["id"] == identifier
        assert answer["ok"] is True
        assert answer["code"] == f"export {{}};export default await ({identifier})"
        assert answer["map"] == {
            "line_offset": 0,
            "edits": [[1, 1, -10], [1, 11, -22], [1, 34, -1]],
        }


def test_a_text_that_takes_too_long_is_refused_and_the_next_one_is_read(server: Server) -> None:
    slow = server.ask(1, "a<b<" * 100_000)
    assert (slow["id"], slow["ok"], slow["line"]) == (1, False, None)
    assert server.ask(2, "5")["ok"] is True


def test_a_text_as_deep_as_it_is_long_is_answered(server: Server) -> None:
    assert "ok" in server.ask(1, "[" * 100_000 + "]" * 100_000)
    assert server.ask(2, "5")["ok"] is True


def test_a_child_that_dies_is_answered_for(site: Path) -> None:
    (site / "cloche_source").unlink()
    (site / "cloche_source.py").write_text(
        "import os\n"
        "class Result: message, line, column = 'said', 1, 2\n"
        "def transform(code, language):\n"
        "    if code == 'die': os.kill(os.getpid(), 9)\n"
        "    return Result()\n"
    )
    server = Server(site)
    assert server.ask(1, "die")["message"].startswith("the code cannot be read")
    assert server.ask(2, "live") == {
        "id": 2,
        "ok": False,
        "message": "said",
        "line": 1,
        "column": 2,
    }
    assert server.close() == 0


def test_what_is_no_request_ends_the_service(server: Server) -> None:
    server.send(b"[]")
    assert server.close() == 1
