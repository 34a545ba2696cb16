"""Turns snippets into modules, inside a box of its own: `python3 -I -S -B transformer.py [SITE]`.

SITE (default /opt/cloche/site) holds the package `cloche_source` and the parser it needs.

In (fd 3), any number of frames, each 4 bytes big-endian length + UTF-8 JSON:
    {"id": integer, "code": text, "language": "javascript" | "typescript"}
Out (fd 4), one frame of the same form for each, in the same order:
    {"id", "ok": true, "code", "map": {"line_offset", "edits": [[line, column, delta], …]},
     "imports": [[specifier, line, column], …], "check": text or null,
     "suspect": [line, column] or null, "unclear": boolean,
     "erased": boolean}                                     see cloche_source.Transformed
    {"id", "ok": false, "message", "line", "column"}       line and column are null when unknown
Ends with status 0 at the end of fd 3, with 1 when what comes on fd 3 is no such frame.

The parser is native code and the text is hostile, so each text is read in a fork of its own that
is dead before the next one starts. This process passes on one bounded JSON object from it, with
the id put in here. A child that dies, takes too long or sends anything else is answered for. A
subverted child can choose its own answer, or end this service; it holds no descriptor of the
service's, cannot trace it or write its memory (not dumpable), and cannot fork.
"""

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

REQUEST_LIMIT_BYTES = 16 * 1024 * 1024
# A module is its snippet and a few words, perhaps twice (`check`); as JSON, six bytes a character.
ANSWER_LIMIT_BYTES = 8 * REQUEST_LIMIT_BYTES
CPU_LIMIT_S = 2
WALL_LIMIT_S = 6.0
MEMORY_LIMIT_BYTES = 768 * 1024 * 1024  # of address space; below that of the box
# Run through once by each fork before it waits: a first write to a page costs a fault (3 µs each,
# some 250 for a small text), so they are taken ahead, on both sides of the fork.
WARM_UP = (
    b'{"id": 1, "language": "typescript", "code": "import a from \\"a\\";\\nconst b: A[] = [c()];'
    b"\\nfunction c<T>(x: T) { return (y) => x + `${y}` }\\nclass D { #e = {f: 1, ...b} }"
    b'\\nif (b) { await c(2) } else return 3;\\n({b}).b[0] * 2"}'
)
PR_SET_DUMPABLE = 4  # Source: linux/prctl.h

Transform = Callable[[str, Any], Any]


def main(site: str) -> int:
    """Serve until fd 3 ends; return the exit status."""
    sys.path.insert(0, site)
    from cloche_source import transform  # type: ignore[import-not-found]

    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    _answer(transform, WARM_UP)
    gc.collect()
    gc.freeze()  # a collection in a child would copy each page it looks at
    gc.disable()
    child = _Child(transform)
    while (header := _receive(3, 4)) is not None:
        length = int.from_bytes(header, "big")
        payload = _receive(3, length) if length <= REQUEST_LIMIT_BYTES else None
        try:
            identifier = json.loads(payload or b"")["id"]
        except (ValueError, TypeError, KeyError):
            break
        answer = child.ask(header + (payload or b""))
        answer["id"] = identifier
        frame = json.dumps(answer).encode()
        _send(4, len(frame).to_bytes(4, "big") + frame)
        child.end()
        child = _Child(transform)
    child.end()
    return 0 if header is None else 1


class _Child:
    """A fork that waits for one text: made ahead, so that nobody waits for the fork."""

    def __init__(self, transform: Transform) -> None:
        request_reader, self._request = os.pipe()
        self._answer, answer_writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                for inherited in (3, 4, self._request, self._answer):
                    os.close(inherited)
                _serve_one(transform, request_reader, answer_writer)
            finally:
                os._exit(0)
        os.close(request_reader)
        os.close(answer_writer)
        json.dumps(json.loads(WARM_UP))

    def ask(self, frame: bytes) -> dict[str, Any]:
        """Return the answer to the request in `frame`, whatever becomes of the child."""
        deadline = time.monotonic() + WALL_LIMIT_S
        sent = None
        with contextlib.suppress(BrokenPipeError):
            _send(self._request, frame)
            sent = self._receive_answer(deadline)
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(sent or b"")
            if isinstance(answer, dict):
                return answer
        return _refusal("the code cannot be read: it takes the parser too much time or memory")

    def _receive_answer(self, deadline: float) -> bytes | None:
        """Return one framed answer, or None where there is none, too late a one or too big a one.

        Framed, because the end of the pipe comes half a millisecond later: with the memory gone.
        """
        poll = select.poll()
        poll.register(self._answer, select.POLLIN)
        received = bytearray()
        length = 0
        while (left := deadline - time.monotonic()) > 0 and length <= ANSWER_LIMIT_BYTES:
            if poll.poll(left * 1000):
                chunk = os.read(self._answer, 1 << 20)
                received += chunk
                length = int.from_bytes(received[:4], "big")
                if len(received) >= 4 + length and len(received) >= 4:
                    return bytes(received[4 : 4 + length])
                if not chunk:
                    break
        return None

    def end(self) -> None:
        """Kill the child. Ensures: it is dead and reaped."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._request)
        os.close(self._answer)


def _serve_one(transform: Transform, reader: int, writer: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    _answer(transform, WARM_UP)
    header = _receive(reader, 4)
    payload = header and _receive(reader, int.from_bytes(header, "big"))
    if payload:
        answer = _answer(transform, payload)
        _send(writer, len(answer).to_bytes(4, "big") + answer)


def _answer(transform: Transform, payload: bytes) -> bytes:
    request = json.loads(payload)
    result = transform(request["code"], request["language"])
    if not hasattr(result, "code"):
        answer = _refusal(result.message, result.line, result.column)
    else:
        answer = {
            "ok": True,
            "code": result.code,
            "map": {"line_offset": result.line_offset, "edits": result.edits},
            "imports": [(found.specifier, found.line, found.column) for found in result.imports],
            "check": result.check,
            "suspect": result.suspect,
            "unclear": result.unclear,
            "erased": result.erased,
        }
    return json.dumps(answer).encode()


def _refusal(message: str, line: int | None = None, column: int | None = None) -> dict[str, Any]:
    return {"ok": False, "message": message, "line": line, "column": column}


def _receive(descriptor: int, length: int) -> bytes | None:
    """Return exactly `length` bytes, or None where the stream ends before."""
    chunks = bytearray()
    while len(chunks) < length:
        chunk = os.read(descriptor, min(length - len(chunks), 1 << 20))
        if not chunk:
            return None
        chunks += chunk
    return bytes(chunks)


def _send(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "/opt/cloche/site"))
