"""Runs snippets in the JavaScript engine of the worker sandbox, in this process."""

import functools
import json
from collections import deque
from typing import Any

import pytest

from cloche.source import Refused, transform
from cloche.source.marks import mark_statements
from cloche.source.positions import compose_edits

pytest.importorskip("wasmtime")
pytest.importorskip("quickjs_rs")

from cloche.snippets.engines.quickjs import QuickJSEngine

LIMITS = {
    "value_limit_bytes": 1 << 20,
    "depth_limit": 256,
    "digit_limit": 4300,
    "memory_limit_bytes": 64 << 20,
    "network": False,
}


class WaitsError(Exception):
    """The code waits for something that nobody will do."""


class Recorder:
    """Keeps what is printed, and answers calls of tools with what `answer` gives."""

    def __init__(self, answer: Any = None) -> None:
        self.stdout = self.stderr = ""
        self.pieces: list[tuple[str, str]] = []
        self.calls: list[tuple[int, str, Any]] = []
        self.waits: list[float] = []
        self._answer = answer
        self._answers: deque[str] = deque()

    def output(self, stream: str, text: str) -> None:
        self.pieces.append((stream, text))
        setattr(self, stream, getattr(self, stream) + text)

    def call(self, identifier: int, tool: str, args: str, kwargs: str) -> None:
        assert json.loads(kwargs) == {}
        self.calls.append((identifier, tool, json.loads(args)))
        answer = {"answer": identifier, **self._answer(tool, *json.loads(args))}
        self._answers.append(json.dumps(answer))

    def wait(self, timeout_s: float | None) -> list[str]:
        if self._answers:
            return [self._answers.popleft()]
        if timeout_s is None:
            raise WaitsError
        self.waits.append(timeout_s)
        return []


@functools.cache
def engine() -> QuickJSEngine:
    """The one engine of this process: making it takes a second."""
    return QuickJSEngine()


def end() -> None:
    """End the engine: it holds a descriptor, which no module may leave behind."""
    if engine.cache_info().currsize:
        engine().close()
        engine.cache_clear()


def request_of(code: str, language: str = "javascript", **fields: Any) -> dict[str, Any]:
    """The request as a worker host hands it on."""
    made = transform(code, language)  # type: ignore[arg-type]
    assert not isinstance(made, Refused), made
    text, edits = made.code, list(made.edits)
    if made.check is None:
        text, marks = mark_statements(text)
        edits = compose_edits(edits, marks)
    return {
        "code": text,
        "language": language,
        "map": {"line_offset": made.line_offset, "edits": edits},
        "check": made.check,
        "suspect": made.suspect,
        "unclear": made.unclear,
        "context": {},
        "tools": [],
        **LIMITS,
        **fields,
    }


def run(code: str, language: str = "javascript", *, host: Any = None, **fields: Any) -> Any:
    """The last frame of a snippet."""
    body = engine().run(request_of(code, language, **fields), host or Recorder())
    assert body.startswith(('{"ok":true', '{"ok":false'))
    return json.loads(body)


def value(code: str, language: str = "javascript", **fields: Any) -> Any:
    """The value of a snippet that has to be fine."""
    frame = run(code, language, **fields)
    assert frame["ok"], frame["error"]
    return frame.get("value")


def error(code: str, language: str = "javascript", **fields: Any) -> Any:
    """The error of a snippet that has to fail."""
    frame = run(code, language, **fields)
    assert not frame["ok"], frame
    return frame["error"]
