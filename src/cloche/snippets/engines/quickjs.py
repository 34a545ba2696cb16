"""JavaScript in QuickJS, in WebAssembly: a new instance for each run.

Requires: snippets come as modules (see `cloche_source`), types erased; their default export is
the value. Static imports have been refused before; anything that is imported all the same, or by
`import()`, is a module whose only statement throws.
"""

from __future__ import annotations

import json
import os
import struct
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import wasmtime

from .engine import EngineHost, failure
from .machine import Instance, Machine, configure
from .quickjs_image import ENOMEM, Places, fresh_random_state, make_module, places_of, put

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAMES = {"javascript": "snippet.js", "typescript": "snippet.ts"}
CHECK_NAME = "snippet.check"
NEVER_NAME = "cloche:never"
RANDOM_LIMIT_BYTES = 65536  # Source: Web Crypto API, getRandomValues
STACK_MESSAGE = "Maximum call stack size exceeded"
_TOO_DEEP = (wasmtime.TrapCode.STACK_OVERFLOW, wasmtime.TrapCode.MEMORY_OUT_OF_BOUNDS)
_NO_IMPORT = (
    "is not available: imports are not available in the worker sandbox; use the process sandbox"
)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_VALUE = '{"ok":true,"value":'
_MEMORY_CODE, _FAILED_CODE = "SANDBOX_MEMORY_EXCEEDED", "SANDBOX_EXECUTION_ERROR"
_KEPT_BYTES = 4096  # what is not worth a call to give back before the instance ends
_UNHANDLED_LIMIT = 1000
_FIRST_REFERENCE = -9  # Source: quickjs.h, JS_TAG_FIRST: tags from here to -1 are references
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class QuickJSEngine:
    """The engine for JavaScript and TypeScript."""

    name = "quickjs-ng"
    version = "quickjs-rs 0.2.6"

    def __init__(self, compiled: Path | None = None) -> None:
        """Make the engine.

        Args:
            compiled: What `compile_engine` gave, in a file. Without it, or when the file was
                made by another release or for another processor, this takes a second.
        """
        self._machine = _load(compiled)
        self._next: Instance | None = None
        instance = self._machine.start()
        self._places = places_of(instance)
        instance.close()
        self.prepare()

    def close(self) -> None:
        """Give everything back."""
        if self._next is not None:
            self._next.close()
            self._next = None
        self._machine.close()

    def prepare(self) -> None:
        """Make the next run's instance."""
        if self._next is None:
            instance = self._machine.start()
            instance.write(self._places.random_state, fresh_random_state())
            self._next = instance

    def run(self, request: Mapping[str, Any], host: EngineHost) -> str:
        """Run one snippet; see `Engine`."""
        self.prepare()
        instance, self._next = self._next, None
        assert instance is not None
        run = _Run(instance, self._places, request, host)
        self._machine.current = run
        try:
            return run.finish()
        finally:
            self._machine.current = None
            instance.close()


def compile_engine() -> bytes:
    """Return the engine as machine code for processors like this one, for `QuickJSEngine`.

    Whoever loads it runs it outside of WebAssembly: keep it like a program.
    """
    return bytes(wasmtime.Module(configure(), make_module()).serialize())


def _load(compiled: Path | None) -> Machine:
    engine = configure()
    if compiled is not None and compiled.exists():
        try:
            return Machine(engine, wasmtime.Module.deserialize_file(engine, str(compiled)))
        except wasmtime.WasmtimeError:
            pass  # it is of another release or for another processor
    return Machine(engine, wasmtime.Module(engine, make_module()))


class _Run:
    """One run in one instance: what it asks for, and what became of it."""

    def __init__(
        self, instance: Instance, places: Places, request: Mapping[str, Any], host: EngineHost
    ) -> None:
        self._instance = instance
        self._places = places
        self._request = request
        self._host = host
        self._name = NAMES[request["language"]]
        self._modules = {self._name: request["code"]}
        check = request.get("check")
        if check is not None:
            # Compiled, and not run: what it imports besides cannot be had.
            self._modules[CHECK_NAME] = f"{check}\nimport '{NEVER_NAME}';"
        self._body: str | None = None
        self._starved = False
        self._turning = False  # whether the prelude's `turn` is on
        self._waited = self._valued = False
        self._wait_ms = 0.0
        # Rejections that nobody handled, in their order: the words of the reasons.
        self._unhandled: dict[int, bytes] = {}
        self._rejections: dict[int, int] = {}  # their numbers, by the address of the promise
        self._rejections_count = 0

    def finish(self) -> str:
        """Run to the end; return the text of the last frame."""
        try:
            self._go()
        except wasmtime.Trap as trap:
            return self._explain(trap.trap_code)
        except MemoryError:
            return self._explain(None)
        assert self._body is not None
        if self._starved and self._was_refused_memory():
            return _memory_exceeded()
        return self._checked(self._body)

    def _go(self) -> None:
        instance = self._instance
        limit = self._request["memory_limit_bytes"]
        instance.limit_memory(self._places.size_bytes + limit)
        self._enter(self._places.begin, self._beginning())
        while True:
            while instance.call("execute_pending_jobs") > 0:  # it does a bounded number at a time
                pass
            if self._unhandled:
                self._reject()
            self._turning = True
            answers = self._answers()
            if answers:
                self._enter(self._places.turn, answers)
            else:
                self._call(self._places.turn, self._places.undefined)
            self._turning = False
            if self._body is not None:
                return

    def _beginning(self) -> str:
        request = self._request
        check = None
        if request.get("check") is not None:
            line, column = request.get("suspect") or (None, None)
            check = {
                "line": line,
                "column": column,
                "lines": self._request["check"].count("\n") + 1,
                "unclear": bool(request.get("unclear")),
            }
        beginning = {
            "name": self._name,
            "check": check,
            "context": request["context"],
            "tools": request["tools"],
            "network": bool(request["network"]),
            "value_limit_bytes": request["value_limit_bytes"],
            "depth_limit": request["depth_limit"],
        }
        return json.dumps(beginning, ensure_ascii=False)

    def _answers(self) -> str:
        """Wait as long as the prelude said it has nothing to do; return the answers, if any."""
        if self._wait_ms == 0:
            return ""
        waited_ms, self._wait_ms = self._wait_ms, 0.0
        answers = self._host.wait(None if waited_ms < 0 else waited_ms / 1000)
        return f"[{','.join(answers)}]" if answers else ""

    def _enter(self, function: int, text: str) -> None:
        """Call a function of the prelude with a text."""
        self._call(function, self._string(_encode(text)))

    def _call(self, function: int, argument: int) -> None:
        instance, places = self._instance, self._places
        instance.write(places.slots, struct.pack("<I", argument))
        status = instance.call(
            "call_function", function, places.undefined, places.slots, 1, places.slots + 4
        )
        if status:
            # The prelude catches what the code throws; what remains is want of memory.
            self._starved = True
            self._body = _stopped()

    def _reject(self) -> None:
        """Hand the reason of the first rejection that nobody handled to the prelude."""
        reason = next(iter(self._unhandled.values()))
        self._unhandled.clear()
        self._instance.write(self._places.reason, reason)
        self._call(self._places.rejected, self._places.reason)

    # --- what the instance asks for; see `machine.Imports` ---

    def host_call(self, name: int, name_length: int, this: int, count: int, values: int) -> int:
        """Serve a function of the prelude's `host`; see prelude.js."""
        if name_length < 0:
            self._note_rejection(name, name_length == -1, this, count)
            return 0
        given = struct.unpack(f"<{count}i", self._instance.read(values, 4 * count))
        result = self._SERVED[self._instance.read(name, name_length)](self, *given)
        return self._instance.call("new_undefined") if result is None else result

    def host_module_normalize(
        self, base: int, base_length: int, name: int, name_length: int, length: int
    ) -> int:
        """Take each name for what it is."""
        return self._lend(self._instance.read(name, name_length), length)

    def host_module_load(self, name: int, name_length: int, length: int) -> int:
        """Give the snippet's code; what the snippet itself asks for cannot be had."""
        named = self._instance.read(name, name_length).decode("utf-8", "replace")
        code = self._modules.pop(named, None)
        if code is None and self._name in self._modules:
            return 0  # the check is on, or the snippet would have been asked for
        if code is None:
            code = f"throw new TypeError({json.dumps(f'{named} {_NO_IMPORT}')})"
        return self._lend(_encode(code), length)

    def _lend(self, data: bytes, length: int) -> int:
        pointer, size = put(self._instance, data)
        self._instance.write(length, struct.pack("<I", size))
        return pointer

    def _note_rejection(self, promise: int, unhandled: bool, low: int, high: int) -> None:
        """Hear of a promise that was rejected, or that is handled now after all.

        Args:
            promise: Its address.
            unhandled: Nobody handles it so far.
            low, high: The words of the reason.
        """
        if unhandled and len(self._unhandled) < _UNHANDLED_LIMIT:
            self._hold(low, high, 1)
            # Where a promise that is gone was, another one may be: its rejection stays.
            self._rejections_count += 1
            self._rejections[promise] = self._rejections_count
            self._unhandled[self._rejections_count] = struct.pack("<ii", low, high)
        elif not unhandled and (number := self._rejections.pop(promise, None)) in self._unhandled:
            del self._unhandled[number]
            self._hold(low, high, -1)  # the promise holds it still

    def _hold(self, low: int, high: int, change: int) -> None:
        """Change the count of what holds a value, which is the first word of what it refers to."""
        if _FIRST_REFERENCE <= high < 0:
            count = self._instance.read_number(low)
            self._instance.write(low, struct.pack("<I", count + change))

    def _end(self, body: int) -> None:
        text = self._text(body)
        # Code that bends what the prelude rests on may choose its own error, and not its fate.
        forged = not text.startswith('{"ok":true') and _MEMORY_CODE in text
        self._body = text.replace(_MEMORY_CODE, _FAILED_CODE) if forged else text

    def _settle(self) -> None:
        self._valued = True

    def _starve(self) -> None:
        self._starved = True

    def _wait(self, milliseconds: int) -> None:
        self._waited = True
        self._wait_ms = float(self._text(milliseconds))

    def _map(self) -> int:
        return self._string(json.dumps(self._request.get("map")).encode())

    def _print(self, stream: int, text: int) -> None:
        self._host.output(
            "stderr" if self._text(stream) == "stderr" else "stdout", self._text(text)
        )

    def _call_tool(self, identifier: int, tool: int, args: int) -> int | None:
        text = self._text(args)
        data = text.encode()
        limit, depth_limit = self._request["value_limit_bytes"], self._request["depth_limit"]
        if len(data) > limit:
            return self._string(f"larger than {limit} bytes".encode())
        if data.count(b"[") + data.count(b"{") > depth_limit and _depth(data) > depth_limit:
            return self._string(f"nested deeper than {depth_limit} levels".encode())
        self._host.call(int(self._text(identifier)), self._text(tool), text, "{}")
        return None

    def _fetch(self, identifier: int, asked: int, body: int) -> None:
        text = self._text(asked)
        self._host.fetch(int(self._text(identifier)), text, self._view(body))

    def _take_body(self, identifier: int) -> int:
        return self._bytes(self._host.take_body(int(self._text(identifier))))

    def _drop(self, identifier: int) -> None:
        self._host.drop(int(self._text(identifier)))

    def _encode_text(self, text: int) -> int:
        return self._bytes(_encode(self._text(text)))

    def _decode_bytes(self, data: int, fatal: int) -> int | None:
        found = self._view(data)
        if found is None:
            return None
        try:
            text = found.decode("utf-8", "strict" if self._text(fatal) else "replace")
        except UnicodeDecodeError:
            return None
        return self._string(text.encode())

    def _view(self, data: int) -> bytes | None:
        """The bytes of a typed array; None for what is none."""
        slots = self._places.slots
        if self._instance.call("get_typed_array_buffer", data, slots, slots + 4, slots + 8):
            return None
        return self._result()

    def _random_bytes(self, count: int) -> int:
        return self._bytes(os.urandom(min(int(self._text(count)), RANDOM_LIMIT_BYTES)))

    def _string(self, data: bytes) -> int:
        """Return a handle of a text, given as UTF-8."""
        instance = self._instance
        pointer, length = put(instance, data)
        handle = instance.call("new_string", pointer, length)
        if length > _KEPT_BYTES:
            instance.call("qjs_free", pointer, length)
        return handle

    def _bytes(self, data: bytes) -> int:
        instance, slots = self._instance, self._places.slots
        pointer, length = put(instance, data)
        if instance.call("new_uint8array", pointer, length, slots + 12):
            raise MemoryError
        instance.call("qjs_free", pointer, length)
        return instance.read_number(slots + 12)

    def _text(self, handle: int) -> str:
        if self._instance.call("get_string", handle):
            raise MemoryError
        return self._result().decode("utf-8", "replace")

    def _result(self) -> bytes:
        instance = self._instance
        result = instance.read(instance.call("qjs_last_ptr"), instance.call("qjs_last_len"))
        instance.call("qjs_result_free")
        return result

    # --- what became of it ---

    def _was_refused_memory(self) -> bool:
        return self._instance.read_number(self._places.errno) == ENOMEM

    def _explain(self, trap: wasmtime.TrapCode | None) -> str:
        """Tell what a wall that the instance ran into means."""
        if trap in _TOO_DEEP:
            # The value's way to JSON is in the first turn, unless there was something to wait for.
            if self._valued or (self._turning and not self._waited):
                limit = self._request["depth_limit"]
                return _too_large(f"the value is nested deeper than {limit} levels")
            return failure("SANDBOX_EXECUTION_ERROR", "RangeError", STACK_MESSAGE)
        if self._was_refused_memory():
            return _memory_exceeded()
        return _stopped()

    def _checked(self, body: str) -> str:
        """Return `body`, or what it is when its value is larger or deeper than it may be."""
        if not body.startswith(_VALUE):
            return body
        data = body.encode()
        limit = self._request["value_limit_bytes"]
        if len(data) - len(_VALUE) - 1 > limit:
            return _too_large(f"the value is larger than {limit} bytes")
        limit = self._request["depth_limit"]
        # Around the value is one level more.
        if data.count(b"[") + data.count(b"{") > limit + 1 and _depth(data) > limit + 1:
            return _too_large(f"the value is nested deeper than {limit} levels")
        return body

    _SERVED: ClassVar[dict[bytes, Callable[..., int | None]]] = {
        b"end": _end,
        b"settled": _settle,
        b"starved": _starve,
        b"wait": _wait,
        b"map": _map,
        b"out": _print,
        b"call": _call_tool,
        b"encode": _encode_text,
        b"decode": _decode_bytes,
        b"random": _random_bytes,
        b"fetch": _fetch,
        b"body": _take_body,
        b"drop": _drop,
    }


def _encode(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _depth(data: bytes) -> int:
    """Return how deep a JSON text is nested."""
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(bare.split(b'"')[::2])
    return max(accumulate(map(_STEPS.__getitem__, outside.translate(None, _NO_BRACKETS))))


def _too_large(message: str) -> str:
    return failure("SANDBOX_VALUE_TOO_LARGE", "RangeError", message)


def _stopped() -> str:
    return failure("SANDBOX_EXECUTION_ERROR", "Error", "the code made the engine stop")


def _memory_exceeded() -> str:
    return failure(_MEMORY_CODE, "RangeError", "the memory limit was reached")
