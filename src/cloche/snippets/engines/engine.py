"""What a language engine is to the worker host that runs it (`guest/worker.py`).

One engine lives as long as its worker host and serves one run at a time. Each run gets an instance
that no run has used: the engine makes it ahead in `prepare`, and throws it away after `run`.
Deadlines, memory of the process and aborts are not an engine's business: the process is killed
from outside. Nothing that guest code does may be taken for granted: texts it gives are bounded
here, and what it throws ends as the text of a failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, Protocol

MESSAGE_LIMIT = 8 * 1024
STACK_LIMIT = 16 * 1024
NAME_LIMIT = 256
OUTPUT_CHUNK_BYTES = 64 * 1024

Stream = Literal["stdout", "stderr"]


class EngineBroken(Exception):  # noqa: N818 - a state, which the host reacts to
    """The engine cannot be used any more; the worker host makes a new one or ends.

    Attributes:
        body: What the run ends with all the same: the text of its last frame.
    """

    def __init__(self, body: str) -> None:
        super().__init__("the engine cannot be used any more")
        self.body = body


class EngineHost(Protocol):
    """What a run may ask of the worker host. Valid during that run only."""

    def output(self, stream: Stream, text: str) -> None:
        """Pass on what the code printed, in order. Texts of any length; sent in bounded frames."""

    def call(self, identifier: int, tool: str, args: str, kwargs: str) -> None:
        """Ask Cloche to call a tool.

        Args:
            identifier: 1, 2, 3 … within the run.
            tool: One of the request's `tools`.
            args: A JSON array.
            kwargs: A JSON object.
        """

    def wait(self, timeout_s: float | None) -> list[str]:
        """Block until answers to calls are there, or for `timeout_s` (None: for ever).

        Returns:
            JSON texts of answer frames, in the order they came, none after the time is up:
            `{"answer": id, "ok": true, "value": …}` or
            `{"answer": id, "ok": false, "error": {"name": "ToolError", "message": …}}`.
            For exchanges, see `guest/worker_fetch.py`.
        """

    def fetch(self, identifier: int, request: str, body: bytes | None) -> None:
        """Begin an HTTP exchange. Requires: the request's `network`.

        Args:
            identifier: -1, -2, -3 … within the run.
            request: A JSON object; see `guest/worker_fetch.py`.
            body: Of the request.
        """

    def take_body(self, identifier: int) -> bytes:
        """Return the body of an exchange whose end was told; once."""

    def drop(self, identifier: int) -> None:
        """End an exchange; nothing is told of it any more."""


class Engine(Protocol):
    """An engine for one language. It is made without arguments, compiled and warm when made."""

    name: str
    version: str

    def close(self) -> None:
        """End it: no process, thread or descriptor of it is left."""

    def prepare(self) -> None:
        """Make the next run's fresh instance, if there is none yet. Called between runs."""

    def run(self, request: Mapping[str, Any], host: EngineHost) -> str:
        """Run one snippet in the instance that was prepared.

        Args:
            request: The request frame: `code` (for JavaScript a module whose default export is
                the value, with `map` to lead back to the caller's text, and `language`),
                `context`, `tools`, `value_limit_bytes`, `depth_limit`, `digit_limit`,
                `memory_limit_bytes`, `network`. The engine must not change it.
            host: Where output and tool calls go.

        Returns:
            The text of the last frame: `{"ok":true,"value":…}`, `{"ok":true}` or a `failure`.
            Whatever the code did is told this way, never raised.

        Raises:
            EngineBroken: The run is over and the engine with it.
        """


def failure(
    code: str,
    name: str,
    message: str,
    stack: str = "",
    line: int | None = None,
    column: int | None = None,
) -> str:
    """Return the text of a last frame that says what went wrong; its texts are cut to size."""
    error = {
        "code": code,
        "name": shorten(name, NAME_LIMIT),
        "message": shorten(message, MESSAGE_LIMIT),
        "stack": shorten(stack, STACK_LIMIT),
        "line": line,
        "column": column,
    }
    return json.dumps({"ok": False, "error": error}, separators=(",", ":"))


def shorten(text: str, limit: int) -> str:
    """Return `text`, or its beginning and a mark when it is longer than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 16]} … (shortened)"
