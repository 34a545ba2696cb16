"""Host functions that a snippet may call: JSON in and out, counted, bounded, without a trace.

A call comes as a frame `{"call": id, "tool": name, "args": […], "kwargs": {…}}`; its answer is
`{"answer": id, "ok": true, "value": …}` or `{"answer": id, "ok": false, "error": {…}}`. What a tool
raises stays here: the code is told that the tool failed, and in words only by `ToolError`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from cloche.errors import ToolError
from cloche.frames import FrameError, clean_text, decode_json, encode_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CALLS_LIMIT_COUNT: Final = 1_000
AT_ONCE_LIMIT_COUNT: Final = 64
ANSWERS_LIMIT_BYTES: Final = 64 * 1024 * 1024
_MESSAGE_LIMIT = 1_000
_GRACE_S = 1.0
_logger = logging.getLogger("cloche.tools")


class ToolCalls:
    """Answers the calls of one run. Belongs to the event loop that made it."""

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]],
        answer: Callable[[bytes], None],
        *,
        value_limit_bytes: int,
        logger: logging.Logger | None,
    ) -> None:
        """Answers nothing yet.

        Args:
            tools: By name; each is called with the call's arguments.
            answer: Takes the frame of an answer.
            value_limit_bytes: Of one answer's value as JSON.
            logger: Is told what a tool raised; None for `cloche.tools`.
        """
        self._tools = tools
        self._answer = answer
        self._value_limit_bytes = value_limit_bytes
        self._logger = logger or _logger
        self._running: set[asyncio.Task[None]] = set()
        self._calls_count = 0
        self._answered_bytes = 0
        self._closed = False

    def take(self, frame: dict[str, Any]) -> None:
        """Takes a call's frame from the guest: nothing in it is trusted."""
        identifier, name = frame.get("call"), frame.get("tool")
        args, kwargs = frame.get("args"), frame.get("kwargs") or {}
        if self._closed or type(identifier) is not int or not 0 < identifier < 2**53:
            return
        self._calls_count += 1
        tool = self._tools.get(name) if isinstance(name, str) else None
        if self._calls_count > CALLS_LIMIT_COUNT:
            self._refuse(identifier, f"a run may call tools {CALLS_LIMIT_COUNT} times")
        elif len(self._running) >= AT_ONCE_LIMIT_COUNT:
            self._refuse(identifier, f"a run may wait for {AT_ONCE_LIMIT_COUNT} tools at a time")
        elif tool is None:
            self._refuse(identifier, "no tool has this name")
        elif not isinstance(args, list) or not isinstance(kwargs, dict):
            self._refuse(identifier, "the arguments are malformed")
        else:
            task = asyncio.ensure_future(self._call(identifier, str(name), tool, args, kwargs))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _call(
        self,
        identifier: int,
        name: str,
        tool: Callable[..., Any],
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> None:
        try:
            value = tool(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
        except asyncio.CancelledError:
            if self._closed:
                raise
            self._refuse(identifier, f"tool {name} failed: it was cancelled")
        except GeneratorExit:
            self._refuse(identifier, f"tool {name} failed")
        except ToolError as error:
            self._refuse(identifier, _words_of(error) or f"tool {name} failed")
        except Exception as error:
            self._logger.warning("tool %s failed", name, exc_info=error)
            self._refuse(identifier, f"tool {name} failed")
        else:
            self._give(identifier, name, value)

    def _give(self, identifier: int, name: str, value: Any) -> None:
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=True).encode()
            value = decode_json(text)  # a copy, of the depth and the numbers that a guest may have
        except (TypeError, ValueError, RecursionError, FrameError) as error:
            self._logger.warning("the value of tool %s has no JSON form", name, exc_info=error)
            self._refuse(identifier, f"tool {name} failed: its value has no JSON form")
            return
        if len(text) > self._value_limit_bytes:
            limit = self._value_limit_bytes
            self._refuse(identifier, f"tool {name} failed: its value is larger than {limit} bytes")
            return
        self._answered_bytes += len(text)
        if self._answered_bytes > ANSWERS_LIMIT_BYTES:
            self._refuse(identifier, f"the answers come to more than {ANSWERS_LIMIT_BYTES} bytes")
            return
        self._send({"answer": identifier, "ok": True, "value": value})

    def _refuse(self, identifier: int, message: str) -> None:
        error = {"name": "ToolError", "message": message}
        self._send({"answer": identifier, "ok": False, "error": error})

    def _send(self, answer: dict[str, Any]) -> None:
        if not self._closed:
            self._answer(encode_request(answer))

    async def close(self) -> None:
        """Cancels the calls in flight and waits for them, for a second at most. Idempotent."""
        self._closed = True
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            _, stubborn = await asyncio.wait(running, timeout=_GRACE_S)
            for task in stubborn:
                self._logger.warning("a tool goes on after its run: %r", task)


def _words_of(error: ToolError) -> str:
    """What a tool has to say; the caller's class may fail at that too."""
    try:
        return clean_text(str(error)[:_MESSAGE_LIMIT])
    except Exception:
        return ""
