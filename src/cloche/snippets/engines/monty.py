"""Python in the worker sandbox: Monty, an interpreter of a subset of Python, in a child process.

A run gets a session that no run has used, restored ahead from a dump that holds nothing but the
prelude. The snippet is checked first (`monty_check`), then its marked text is fed, and then the
value is asked for as JSON text. Nothing else of what Monty gives back is looked at: it turns what
it cannot hand out into strings, and shared parts into copies without bound.

The session can open no file, import nothing from the host and read no variable: it is given no
mount, no handler and no module, and what it asks the host for is answered with an error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pydantic_monty
from pydantic_monty import FunctionSnapshot, FutureSnapshot, Monty, MontyComplete

from . import monty_prelude as prelude
from .engine import EngineBroken, EngineHost, Stream, failure
from .monty_check import check
from .monty_failures import describe
from .monty_source import Marks, RefusedError, mark_value, parse

BINARY_PATH: Final = Path("/usr/bin/monty")
"""Where a worker's box has the interpreter; elsewhere the package finds its own."""
DEFAULT_MEMORY_BYTES: Final = 128 * 1024 * 1024
MANY_CALLS: Final = 10**9
"""Monty's own limit on calls out of it, which cannot be switched off: no limit. Cloche has one."""
_REPLACEMENT: Final = "\ufffd"


class MontyEngine:
    """The engine for Python. See `engine.Engine` for the contract."""

    name = "monty"
    version = pydantic_monty.__version__

    def __init__(self) -> None:
        # The package looks for telemetry in every run; this is the answer, and a quick one.
        sys.modules.setdefault("opentelemetry", None)  # type: ignore[arg-type]
        path = BINARY_PATH if BINARY_PATH.exists() else None
        # One process, and no deadlines in it: the whole worker is killed from outside.
        self._pool = Monty(binary_path=path, min_processes=1, max_processes=1)
        self._pool.__enter__()
        self._memory_bytes = DEFAULT_MEMORY_BYTES
        self._images: dict[int, bytes] = {}
        self._session: Any = None
        self._fresh = False
        self._failures: set[str] = set()  # messages of tools that failed in the run
        self.prepare()

    def close(self) -> None:
        """End the interpreter's process."""
        self._discard()
        self._pool.__exit__(None, None, None)

    def prepare(self) -> None:
        """Make the next run's session, for as much memory as the last run might have."""
        if self._fresh:
            return
        self._discard()
        image = self._images.get(self._memory_bytes) or self._make_image(self._memory_bytes)
        self._session = self._open(self._memory_bytes)
        self._session.load_session(image)
        self._fresh = True

    def run(self, request: Mapping[str, Any], host: EngineHost) -> str:
        """Run one snippet. See `engine.Engine.run`."""
        marks = Marks()
        try:
            source, tree = parse(request["code"])
            mark_value(tree, marks)
            check(source, tree, request["context"], set(request["tools"]), marks)
        except RefusedError as error:
            return error.body
        self._take(request["memory_limit_bytes"])
        try:
            return self._evaluate(request, marks.apply(source), host)
        except pydantic_monty.MontyCrashedError as error:
            self.close()
            raise EngineBroken(
                failure("SANDBOX_INTERNAL_ERROR", "MontyCrashedError", str(error))
            ) from error
        except pydantic_monty.MontyError as error:
            return describe(error, source, tree, marks, self._failures)

    # -- sessions ------------------------------------------------------------------------------

    def _take(self, memory_bytes: int) -> None:
        """See that the session is fresh and for this much memory."""
        if memory_bytes != self._memory_bytes:
            self._memory_bytes = memory_bytes
            self._fresh = False
        self.prepare()
        self._fresh = False

    def _open(self, memory_bytes: int) -> Any:
        session = self._pool.checkout(
            script_name="snippet.py",
            limits={"max_memory": memory_bytes, "max_suspensions": MANY_CALLS},
            # Plain `assert`, each line of output as it comes, sleeps that let other tasks run.
            assert_message_annotations=False,
            print_flush_interval=0,
            os_policy={"sleep": "call_host", "process_time": "elapsed"},
        )
        session.__enter__()
        return session

    def _make_image(self, memory_bytes: int) -> bytes:
        """A dump of a session that has run the prelude; it carries its limits with it."""
        session = self._open(memory_bytes)
        try:
            session.feed_run(prelude.SETUP, print_callback=_no_output)
            image: bytes = session.dump()
        finally:
            session.__exit__(None, None, None)
        if len(self._images) >= 8:
            self._images.clear()
        self._images[memory_bytes] = image
        return image

    def _discard(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)

    # -- a run ---------------------------------------------------------------------------------

    def _evaluate(self, request: Mapping[str, Any], text: str, host: EngineHost) -> str:
        self._failures.clear()
        tools: list[str] = list(request["tools"])
        if tools:
            limits = f"{request['depth_limit']}, {request['value_limit_bytes']}"
            line = f"tools = __cloche_tools({json.dumps(tools)}, {limits})"
            self._session.feed_run(line, print_callback=_no_output)
        inputs = _plain(request["context"])
        token = self._drive(text, inputs, host)
        if not isinstance(token, int):
            return '{"ok":true}'
        limit = request["value_limit_bytes"]
        found: str = self._session.feed_run(
            f"__cloche_value({token}, {limit}, {request['depth_limit']})",
            print_callback=_no_output,
        )
        return _value_frame(found, limit, request["depth_limit"])

    def _drive(self, text: str, inputs: dict[str, Any], host: EngineHost) -> object:
        """Feed a snippet and answer what it asks; return where its value was put, if it was."""

        def output(stream: Stream, printed: str) -> None:
            host.output(stream, printed)

        calls = _Calls(host, self._failures)
        snapshot = self._session.feed_start(text, inputs=inputs or None, print_callback=output)
        while not isinstance(snapshot, MontyComplete):
            if isinstance(snapshot, FunctionSnapshot):
                snapshot = calls.start(snapshot)
            elif isinstance(snapshot, FutureSnapshot):
                snapshot = calls.settle(snapshot)
            else:
                snapshot = snapshot.resume()
        return snapshot.output


class _Calls:
    """What one run waits for: tools and sleeps."""

    def __init__(self, host: EngineHost, failures: set[str]) -> None:
        self._failures = failures
        self._host = host
        self._count = 0
        self._tools: dict[int, int] = {}  # our number → Monty's
        self._sleeps: dict[int, float] = {}  # Monty's number → when it is over

    def start(self, snapshot: FunctionSnapshot) -> Any:
        """Pass on a call of a tool, or wait; what else the code asks the host for is not there."""
        name = snapshot.function_name
        if name == "asyncio.sleep":
            self._sleeps[snapshot.call_id] = time.monotonic() + float(snapshot.args[0])
            return snapshot.resume({"future": ...})
        if name == "time.sleep":
            time.sleep(float(snapshot.args[0]))
            return snapshot.resume({"return_value": None})
        if snapshot.is_os_function:
            return snapshot.resume_not_handled()
        if name != prelude.CALL:
            message = f"name '{name}' is not defined"
            return snapshot.resume({"exc_type": "NameError", "message": message})
        tool, args, kwargs = snapshot.args
        self._count += 1
        self._tools[self._count] = snapshot.call_id
        self._host.call(self._count, tool, args, kwargs)
        return snapshot.resume({"future": ...})

    def settle(self, snapshot: FutureSnapshot) -> Any:
        """Wait until something is there that was waited for, and hand it over."""
        results: dict[int, Any] = {}
        while not results:
            end = min(self._sleeps.values(), default=None)
            rest = None if end is None else max(0.0, end - time.monotonic())
            if self._tools or rest is None:
                self._take(self._host.wait(rest), results)
            else:
                time.sleep(rest)
            for call_id, end in list(self._sleeps.items()):
                if end <= time.monotonic():
                    del self._sleeps[call_id]
                    results[call_id] = {"return_value": None}
        return snapshot.resume(results)

    def _take(self, answers: list[str], results: dict[int, Any]) -> None:
        for text in answers:
            answer = json.loads(text)
            call_id = self._tools.pop(answer.get("answer"), None)
            if call_id is not None:
                results[call_id] = self._result(answer)

    def _result(self, answer: dict[str, Any]) -> Any:
        if answer.get("ok") is True:
            return {"return_value": _plain(answer.get("value"))}
        message = str(answer.get("error", {}).get("message", ""))
        message = message.encode("utf-8", "replace").decode()
        self._failures.add(message)
        return {"exc_type": "Exception", "message": message}


def _no_output(_stream: str, _text: str) -> None:
    """Take what the prelude prints, which is nothing."""


def _plain(value: Any) -> Any:
    """A JSON value without lone surrogates, which Monty's strings cannot hold."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = "".join(_REPLACEMENT if "\ud800" <= one <= "\udfff" else one for one in text)
        return json.loads(text)
    return value


def _value_frame(found: str, limit: int, depth_limit: int) -> str:
    """The last frame for what `__cloche_value` returned."""
    tag, text = found[:1], found[1:]
    if tag == "F":
        return failure("SANDBOX_EXECUTION_ERROR", "TypeError", text)
    if tag == "=":
        if text == "null":
            return '{"ok":true}'
        if len(text) * 4 > limit and len(text.encode()) > limit:
            tag, text = "L", f"the value is larger than {limit} bytes"
        elif text.count("[") + text.count("{") > depth_limit and _depth(text) > depth_limit:
            tag, text = "L", f"the value is nested deeper than {depth_limit} levels"
        else:
            return f'{{"ok":true,"value":{text}}}'
    return failure("SANDBOX_VALUE_TOO_LARGE", "ValueError", text)


def _depth(text: str) -> int:
    """How deep a JSON text is nested."""
    depth = deepest = 0
    # Without escapes, every second piece between quotes is outside of strings.
    for piece in text.replace("\\\\", "").replace('\\"', "").split('"')[::2]:
        for character in piece:
            if character in "[{":
                depth += 1
                deepest = max(deepest, depth)
            elif character in "]}":
                depth -= 1
    return deepest
