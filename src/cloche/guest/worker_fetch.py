"""HTTP for the worker host: what `fetch` in the JavaScript engine asks for (see `worker.py`).

One exchange is one request and its response over a connection of its own, HTTP/1.1, served by a
thread. It goes by plain sockets: what a name leads to, and whether it may be reached at all, is
decided by Cloche outside the box. Redirects are the prelude's business.

An exchange is told of by two frames, like answers to calls; its id is a negative number:
    {"answer": id, "ok": true, "value": {"status", "text", "headers": [[name, value], …]}}
    {"answer": id, "ok": true, "value": null}                 the body is there: see `take_body`
or, in place of either one, the last frame of it:
    {"answer": id, "ok": false, "error": {"name": "TypeError", "message"}}

Nothing here has a deadline: a run has one, and is killed from outside. What a run began ends with
it: `Fetches.close` cuts each connection, and returns when the threads are gone.
"""

import contextlib
import http.client
import json
import os
import threading
import time
from collections import deque
from typing import Any

from worker_http import Decoder, Exchange, FetchError, ask, explain, read_request, trust

THREADS_COUNT = 8
PENDING_COUNT = 64
# As many connections as Cloche lets a run make; it would leave further ones without an answer.
EXCHANGES_COUNT = 1000
BODY_LIMIT_BYTES = 32 * 1024 * 1024
# Of all bodies that the engine has not taken yet: it takes them when it comes to rest.
HELD_LIMIT_BYTES = 40 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
END_TIMEOUT_S = 2.0
_STACK_BYTES = 1024 * 1024


class Wake:
    """A descriptor that is readable while there is something to take."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)

    def set(self) -> None:
        """Make it readable."""
        with contextlib.suppress(BlockingIOError):  # it is full: it is readable
            os.write(self._writer, b"\0")

    def clear(self) -> None:
        """Make it unreadable."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.reader, 4096)) == 4096:
                pass


class Fetches:
    """The exchanges of one run. Used by the run's thread; its own threads are hidden in it."""

    def __init__(self, wake: Wake) -> None:
        """Starts nothing; `wake` is set when there are answers."""
        self._wake = wake
        self._change = threading.Condition()
        # All below is guarded by `_change`.
        self._queue: deque[Exchange] = deque()
        self._exchanges: dict[int, Exchange] = {}
        self._answers: list[str] = []
        self._bodies: dict[int, bytes] = {}
        self._held_bytes = 0
        self._count = 0
        self._idle_count = 0
        self._is_over = False
        self._threads: list[threading.Thread] = []

    def start(self, identifier: int, request: str, body: bytes | None) -> None:
        """Begin an exchange.

        Args:
            identifier: A negative number that no other one of this run has.
            request: A JSON object: `method`, `secure`, `host`, `port`, `path`, and `headers`, a
                list of pairs.
            body: Of the request.
        """
        asked = read_request(request)
        exchange = Exchange(identifier, asked or {}, body)
        with self._change:
            self._count += 1
            if asked is None:
                self._fail(exchange, "the request is none")
                return
            if self._count > EXCHANGES_COUNT:
                self._fail(exchange, f"over {EXCHANGES_COUNT} requests in one run")
                return
            if len(self._exchanges) >= PENDING_COUNT:
                self._fail(exchange, f"{PENDING_COUNT} requests are under way already")
                return
            self._exchanges[identifier] = exchange
            self._queue.append(exchange)
            if self._idle_count >= len(self._queue) or len(self._threads) >= THREADS_COUNT:
                self._change.notify()
                return
            threading.stack_size(_STACK_BYTES)
            thread = threading.Thread(target=self._serve, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the box has too many: those there are will do, if there are
                if not self._threads:
                    self._queue.clear()
                    self._exchanges.clear()
                    self._fail(exchange, "no thread could be started")
                return
            self._threads.append(thread)

    def take_answers(self) -> list[str]:
        """Return the frames that there are, in their order."""
        with self._change:
            self._wake.clear()
            answers, self._answers = self._answers, []
            return answers

    def take_body(self, identifier: int) -> bytes:
        """Return the body of an exchange whose end was told; once."""
        with self._change:
            body = self._bodies.pop(identifier, b"")
            self._held_bytes -= len(body)
            return body

    def drop(self, identifier: int) -> None:
        """End an exchange; nothing is told of it any more."""
        with self._change:
            exchange = self._exchanges.get(identifier)
            if exchange is not None:
                exchange.is_cut = True  # already now, so that it does not come to its end
            self._held_bytes -= len(self._bodies.pop(identifier, b""))
        if exchange is not None:
            exchange.cut()

    def close(self) -> bool:
        """End everything; tell whether all threads are gone."""
        with self._change:
            self._is_over = True
            self._queue.clear()
            exchanges = list(self._exchanges.values())
            self._change.notify_all()
        for exchange in exchanges:
            exchange.cut()
        deadline = time.monotonic() + END_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._change:
            self._wake.clear()
            self._bodies.clear()
            return not any(thread.is_alive() for thread in self._threads)

    # --- in the threads ---

    def _serve(self) -> None:
        while True:
            with self._change:
                self._idle_count += 1
                while not self._queue and not self._is_over:
                    self._change.wait()
                self._idle_count -= 1
                if self._is_over:
                    return
                exchange = self._queue.popleft()
            try:
                self._perform(exchange)
            except Exception as error:
                with self._change:
                    self._fail(exchange, explain(error, exchange))
            finally:
                exchange.close()

    def _tell(self, exchange: Exchange, value: Any) -> None:
        """Requires: `_change` is held."""
        self._send(exchange, {"answer": exchange.identifier, "ok": True, "value": value})

    def _fail(self, exchange: Exchange, message: str) -> None:
        """Requires: `_change` is held."""
        self._exchanges.pop(exchange.identifier, None)
        self._held_bytes -= exchange.held_bytes
        exchange.held_bytes = 0
        error = {"name": "TypeError", "message": message}
        self._send(exchange, {"answer": exchange.identifier, "ok": False, "error": error})

    def _send(self, exchange: Exchange, frame: dict[str, Any]) -> None:
        if not exchange.is_cut and not self._is_over:
            self._answers.append(json.dumps(frame))
            self._wake.set()

    def _hold(self, exchange: Exchange, count_bytes: int) -> None:
        with self._change:
            self._held_bytes += count_bytes
            exchange.held_bytes += count_bytes
            if self._held_bytes > HELD_LIMIT_BYTES:
                raise FetchError(f"the responses under way are over {HELD_LIMIT_BYTES} bytes")

    def _perform(self, exchange: Exchange) -> None:
        request = exchange.request
        if exchange.is_cut:
            raise ConnectionAbortedError
        channel = exchange.connect()
        if request["secure"]:
            channel = exchange.secure(channel, trust())
        response = ask(channel, request, exchange.body)
        try:
            exchange.body = None
            head = {
                "status": response.status,
                "text": response.reason,
                "headers": [
                    [name.lower(), " ".join(value.splitlines())]
                    for name, value in response.headers.items()
                ],
            }
            with self._change:
                self._tell(exchange, head)
            body = self._read(exchange, response)
        finally:
            response.close()
            exchange.close()
        with self._change:
            self._exchanges.pop(exchange.identifier, None)
            # What was counted is the body's length, which `take_body` or `drop` gives back.
            if exchange.is_cut or self._is_over:
                self._held_bytes -= exchange.held_bytes
                return
            self._bodies[exchange.identifier] = body
            self._tell(exchange, None)

    def _read(self, exchange: Exchange, response: http.client.HTTPResponse) -> bytes:
        # Source: Fetch standard, null body status; and a HEAD has none, whatever its head says.
        if exchange.request["method"] == "HEAD" or response.status in (204, 205, 304):
            return b""
        decoder = Decoder(", ".join(response.headers.get_all("content-encoding", [])))
        body = bytearray()
        while chunk := response.read(CHUNK_BYTES):
            made = decoder.feed(chunk, BODY_LIMIT_BYTES - len(body))
            if len(body) + len(made) > BODY_LIMIT_BYTES:
                raise FetchError(f"the response is over {BODY_LIMIT_BYTES} bytes")
            self._hold(exchange, len(made))
            body += made
        if response.length:
            raise FetchError("the response ended early")
        decoder.end()
        return bytes(body)
