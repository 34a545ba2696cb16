"""Runs snippets in a language engine, inside a box: `python3 -I -S -B worker.py LANGUAGE [SITE]`.

LANGUAGE is `javascript` (TypeScript too) or `python`. SITE (default /opt/cloche/site) holds the
packages `cloche_engines` and `cloche_source`, and what they need.

Out (fd 4), each frame 16 bytes nonce + 4 bytes big-endian length + UTF-8 JSON:
    {"ready": true, "engine": name, "version": text}    once, nonce of zeros: the engine is warm
    {"out": "stdout" | "stderr", "text": …}             what the code printed, in order
    {"call": id, "tool": name, "args": […], "kwargs": {…}}
    {"ok": true, "value": …} or {"ok": false, "error": {…}}                last of each run
In (fd 3), each frame 4 bytes big-endian length + UTF-8 JSON: a request, then answers to its calls;
and, after the last frame of a run, the next request.
Ends with status 0 at the end of fd 3, with 1 when what comes there is no such frame.

`worker.py compile [SITE]` writes the JavaScript engine as machine code to fd 4, without a frame,
and ends. In SITE/quickjs.machine it saves a worker host a second of its start.

One run at a time, each in an engine instance that no run has used; the next one is made when the
last frame of a run is out, so that nobody waits for it. Deadlines, memory and aborts are kept from
outside: whoever wants an end kills this process.
"""

import gc
import importlib.util
import json
import os
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any

SITE = "/opt/cloche/site"
REQUEST_LIMIT_BYTES = 64 * 1024 * 1024
OUTPUT_CHARACTERS = 10_000  # at most six bytes each as JSON: a frame is below 64 KiB
# The engine's recursion uses native stack: more than a process is sure to have for its first
# thread.
STACK_BYTES = 16 * 1024 * 1024
ZERO_NONCE = bytes(16)


class EndedError(Exception):
    """Fd 3 has come to its end, or holds no frames.

    Attributes:
        status: What the process ends with.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Frames:
    """What comes on fd 3 and goes out on fd 4."""

    def __init__(self) -> None:
        self.nonce = ZERO_NONCE
        self._received = bytearray()
        self._poll = select.poll()
        self._poll.register(3, select.POLLIN | select.POLLHUP)

    def listen(self, descriptor: int) -> None:
        """Let `receive_some` return early when `descriptor` is readable, too."""
        self._poll.register(descriptor, select.POLLIN)

    def send(self, text: str) -> None:
        """Send a frame with the nonce of the run."""
        body = text.encode("utf-8", "replace")
        view = memoryview(self.nonce + len(body).to_bytes(4, "big") + body)
        while view:
            view = view[os.write(4, view) :]

    def receive(self) -> str:
        """Block until a frame is there.

        Raises:
            EndedError: There is none.
        """
        while (frame := self._take()) is None:
            self._read()
        return frame

    def receive_some(self, timeout_s: float | None) -> list[str]:
        """Return the frames that are there, waiting for the first one up to `timeout_s`.

        None where something else is there; see `listen`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        frames: list[str] = []
        while True:
            while (frame := self._take()) is not None:
                frames.append(frame)
            if frames:
                return frames
            left_ms = None
            if deadline is not None:
                # Rounded up, so that it is not asked again and again at the end.
                left_ms = max(0, int((deadline - time.monotonic()) * 1000 + 0.999))
            ready = self._poll.poll(left_ms)
            if all(descriptor != 3 for descriptor, _ in ready):
                return frames
            self._read()

    def _read(self) -> None:
        chunk = os.read(3, 1 << 20)
        if not chunk:
            raise EndedError(1 if self._received else 0)
        self._received += chunk

    def _take(self) -> str | None:
        received = self._received
        if len(received) < 4:
            return None
        end = 4 + int.from_bytes(received[:4], "big")
        if end > REQUEST_LIMIT_BYTES:
            raise EndedError(1)
        if len(received) < end:
            return None
        frame = received[4:end].decode("utf-8", "replace")
        del received[:end]
        return frame


class Host:
    """What a run may ask for; see `cloche_engines.engine.EngineHost`."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._fetching: Any = None  # the module; loaded by the first run that has network
        self._wake: Any = None
        self._fetches: Any = None  # those of this run

    def begin(self, *, networked: bool) -> None:
        """Get ready for a run."""
        if not networked:
            return
        if self._fetching is None:
            _load("worker_http")
            self._fetching = _load("worker_fetch")
            self._wake = self._fetching.Wake()
            self._frames.listen(self._wake.reader)
        self._fetches = self._fetching.Fetches(self._wake)

    def end(self) -> bool:
        """End what the run left under way; tell whether it has ended."""
        fetches, self._fetches = self._fetches, None
        return fetches is None or fetches.close()

    def output(self, stream: str, text: str) -> None:
        """Send what was printed."""
        for start in range(0, len(text), OUTPUT_CHARACTERS):
            piece = json.dumps(text[start : start + OUTPUT_CHARACTERS], ensure_ascii=False)
            self._frames.send(f'{{"out":"{stream}","text":{piece}}}')

    def call(self, identifier: int, tool: str, args: str, kwargs: str) -> None:
        """Ask for a call of a tool."""
        name = json.dumps(tool)
        self._frames.send(
            f'{{"call":{identifier:d},"tool":{name},"args":{args},"kwargs":{kwargs}}}'
        )

    def wait(self, timeout_s: float | None) -> list[str]:
        """Return answers to calls, and what became of exchanges."""
        frames = self._frames.receive_some(timeout_s)
        return frames if self._fetches is None else frames + self._fetches.take_answers()

    def fetch(self, identifier: int, request: str, body: bytes | None) -> None:
        """Begin an exchange."""
        self._fetches.start(identifier, request, body)

    def take_body(self, identifier: int) -> bytes:
        """Return the body of a response."""
        return bytes(self._fetches.take_body(identifier))

    def drop(self, identifier: int) -> None:
        """End an exchange."""
        self._fetches.drop(identifier)


class Worker:
    """An engine for one language, and what stands between requests and it."""

    def __init__(self, language: str, site: str) -> None:
        self._is_script = language == "javascript"
        self._site = site
        if self._is_script:
            from cloche_source import transform  # type: ignore[import-not-found]
            from cloche_source.marks import mark_statements  # type: ignore[import-not-found]
            from cloche_source.positions import compose_edits  # type: ignore[import-not-found]

            self._transform, self._mark, self._compose = transform, mark_statements, compose_edits
        self._engine = self._make()

    def _make(self) -> Any:
        if self._is_script:
            from cloche_engines.quickjs import QuickJSEngine  # type: ignore[import-not-found]

            return QuickJSEngine(Path(self._site, "quickjs.machine"))
        from cloche_engines.monty import MontyEngine  # type: ignore[import-not-found]

        return MontyEngine()

    def serve(self, frames: Frames) -> None:
        """Serve until `EndedError` is raised."""
        self._warm_up()
        engine = self._engine
        ready = {"ready": True, "engine": engine.name, "version": engine.version}
        frames.send(json.dumps(ready))
        host = Host(frames)
        while True:
            text = frames.receive()
            try:
                request = json.loads(text)
                if "answer" in request:
                    continue  # to a call of a run that did not wait for it
                frames.nonce = bytes.fromhex(request["nonce"])
            except (ValueError, TypeError, KeyError):
                raise EndedError(1) from None
            host.begin(networked=bool(request.get("network")))
            last = self.run(request, host)
            # Before anybody hears that the run is over: nothing of it reaches the next one.
            is_over = host.end()
            frames.send(last)
            if not is_over:
                raise EndedError(1)
            self._engine.prepare()

    def run(self, request: dict[str, Any], host: Host) -> str:
        """Run one snippet; return the text of its last frame."""
        from cloche_engines.engine import EngineBroken  # type: ignore[import-not-found]

        if self._is_script:
            refusal = self._translate(request)
            if refusal is not None:
                return refusal
        try:
            return str(self._engine.run(request, host))
        except EngineBroken as broken:
            self._engine = self._make()
            return str(broken.body)

    def _translate(self, request: dict[str, Any]) -> str | None:
        """Put the module in place of the code; return the text of a refusal, if it is one."""
        made = self._transform(request["code"], request["language"])
        if not hasattr(made, "code"):
            return _invalid(made.message, made.line, made.column)
        if not made.erased:
            line, column = made.suspect or (None, None)
            return _invalid(
                "this is no TypeScript, or such as only the process sandbox knows",
                line,
                column,
            )
        if made.imports:
            # The list is that of the caller's text: imports of types alone are gone from the code.
            for found in self._transform(made.code, "javascript").imports:
                return self._refuse_import(found, made)
        code, edits = made.code, made.edits
        if made.check is None:
            code, marks = self._mark(code)
            edits = self._compose(edits, marks)
        request.update(
            code=code,
            map={"line_offset": made.line_offset, "edits": edits},
            check=made.check,
            suspect=made.suspect,
            unclear=made.unclear,
        )
        return None

    def _refuse_import(self, found: Any, made: Any) -> str:
        from cloche_source import map_position

        line, column = map_position(
            found.line, found.column, line_offset=made.line_offset, edits=made.edits
        )
        return _invalid(
            f"{found.specifier}: imports are not available in the worker sandbox; "
            "use the process sandbox",
            line,
            column,
        )

    def _warm_up(self) -> None:
        """Run once everything that a run needs, so that the first one is as fast as the next."""
        request: dict[str, Any] = {
            "code": "const a = [1].map(x => x + 1); `${a[0]}`" if self._is_script else "1 + 1",
            "language": "typescript" if self._is_script else "python",
            "context": {"x": 1},
            "tools": [],
            "value_limit_bytes": 1024,
            "depth_limit": 256,
            "digit_limit": 4300,
            "memory_limit_bytes": 128 * 1024 * 1024,
            "network": False,
        }
        self.run(request, Host(Frames()))
        self._engine.prepare()
        gc.collect()
        gc.freeze()


def _load(name: str) -> Any:
    """Import a module beside this one, whose folder is on no path; return it."""
    path = Path(__file__).with_name(f"{name}.py")
    compiled = path.with_suffix(".pyc")
    place = str(compiled if compiled.exists() else path)
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _invalid(message: str, line: int | None, column: int | None) -> str:
    from cloche_engines.engine import failure

    return str(failure("SANDBOX_INVALID_CODE", "SyntaxError", message, "", line, column))


def main(language: str, site: str = SITE) -> int:
    """Serve until fd 3 ends; return the exit status."""
    sys.path.insert(0, site)
    if language == "compile":
        from cloche_engines.quickjs import compile_engine

        view = memoryview(compile_engine())
        while view:
            view = view[os.write(4, view) :]
        return 0
    try:
        Worker(language, site).serve(Frames())
    except EndedError as ended:
        return ended.status
    return 1


if __name__ == "__main__":
    statuses = [1]
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=lambda: statuses.append(main(*sys.argv[1:])))
    thread.start()
    thread.join()
    sys.exit(statuses[-1])
