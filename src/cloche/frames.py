"""Frames between Cloche and a program in a box, and the strict decoder of what comes back.

To the box (fd 3): 4 bytes big-endian length, then UTF-8 JSON: a request, then the answers to
calls of tools. From the box (fd 4): 16 bytes nonce, 4 bytes big-endian length, UTF-8 JSON: calls
of tools, and last the result. The nonce keeps stray writes apart from frames; it is no secret
from the guest and decides nothing about its fate.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

NONCE_BYTES: Final = 16
DEPTH_LIMIT: Final = 256
DIGITS_LIMIT: Final = 4300  # also Python's own for int(text)
_HEADER = struct.Struct(">I")
# Beside the value: the other fields of a result (message 8 KiB, stack 16 KiB, escaped).
_ENVELOPE_BYTES = 256 * 1024


class FrameError(Exception):
    """What came is no frame, or its JSON is not what JSON may be."""


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode_request(request: dict[str, Any]) -> bytes:
    """A frame for fd 3."""
    body = _encode(request).encode()
    return _HEADER.pack(len(body)) + body


def _refuse_constant(text: str) -> NoReturn:
    raise FrameError(f"{text} is not JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise FrameError("a number is too large")
    return value


_decoder = json.JSONDecoder(parse_float=_parse_float, parse_constant=_refuse_constant)


def decode_json(data: bytes) -> Any:
    """Decodes JSON from a guest.

    Bytes that are no UTF-8 and lone surrogates become U+FFFD.

    Requires: `data` is bounded by the caller.

    Raises:
        FrameError: malformed, deeper than DEPTH_LIMIT, NaN or Infinity, a number too large.
    """
    text = data.decode("utf-8", "replace")
    try:
        value = _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"malformed JSON: {type(error).__name__}") from error
    if data.count(b"[") + data.count(b"{") > DEPTH_LIMIT:
        _check_depth(value)
    if b"\\ud" in data or b"\\uD" in data:
        value = _replace_surrogates(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_LIMIT + 2):  # the result object around the value is one level
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return
    raise FrameError(f"deeper than {DEPTH_LIMIT}")


def clean_text(text: str) -> str:
    """A text that UTF-8 has bytes for: lone surrogates become U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_replace_surrogates(child) for child in value]
    if isinstance(value, dict):
        return {clean_text(key): _replace_surrogates(child) for key, child in value.items()}
    return value


class ResultReader:
    """Takes the bytes of fd 4 as they come, frame by frame; holds no more than it may.

    A frame with a `call` or an `out` is passed on; the first one with an `ok` is the result, and
    the last.

    Attributes:
        limit_bytes: How many bytes are kept: enough for one frame.
    """

    def __init__(
        self,
        nonce: bytes,
        value_limit_bytes: int,
        *,
        on_call: Callable[[dict[str, Any]], None] | None = None,
        on_output: Callable[[dict[str, Any]], None] | None = None,
        on_result: Callable[[], None] | None = None,
    ) -> None:
        """A reader for one run.

        Args:
            nonce: What every frame starts with.
            value_limit_bytes: Of a value as JSON.
            on_call: Takes a call of a tool; None where there are none.
            on_output: Takes a piece of output; None where it comes elsewhere.
            on_result: Called once, when the result is whole, or it is known that none will be.
        """
        self._nonce = nonce
        self.limit_bytes = NONCE_BYTES + _HEADER.size + value_limit_bytes + _ENVELOPE_BYTES
        self._data = bytearray()
        self._seen_bytes = 0  # of the frame that is being read, and of all after a result
        self._result: dict[str, Any] | None = None
        self._broken: FrameError | None = None
        self._passed_on = {
            key: take for key, take in (("call", on_call), ("out", on_output)) if take is not None
        }
        self._on_result = on_result

    def feed(self, chunk: bytes) -> None:
        """Takes what came; bytes over the limit are counted and dropped."""
        self._seen_bytes += len(chunk)
        self._data += chunk[: self.limit_bytes - len(self._data)]
        while self._result is None and self._broken is None and self._take_frame():
            pass

    def _take_frame(self) -> bool:
        """Takes a frame off the data; False while there is no whole one."""
        start = NONCE_BYTES + _HEADER.size
        if len(self._data) < start or not self._data.startswith(self._nonce):
            return False
        (length,) = _HEADER.unpack_from(self._data, NONCE_BYTES)
        if start + length > self.limit_bytes:
            self._break(FrameError(f"a frame of {length} bytes"))
            return False
        if len(self._data) < start + length:
            return False
        try:
            frame = decode_json(bytes(self._data[start : start + length]))
            if not isinstance(frame, dict):
                raise FrameError("the result is no object")
        except FrameError as error:
            self._break(error)
            return False
        for key, take in self._passed_on.items():
            if key in frame:
                del self._data[: start + length]
                self._seen_bytes -= start + length
                take(frame)
                return True
        self._result = frame
        if self._on_result is not None:
            self._on_result()
        return False

    def _break(self, error: FrameError) -> None:
        """No result can follow: that is the last word, too."""
        self._broken = FrameError(f"the code wrote on the result channel: {error}")
        if self._on_result is not None:
            self._on_result()

    @property
    def succeeded(self) -> bool:
        """True when a result has come that says so."""
        return self._result is not None and self._result.get("ok") is True

    def body_bytes(self) -> int:
        """The length of the JSON of the result's frame."""
        return max(0, self._seen_bytes - NONCE_BYTES - _HEADER.size)

    def result(self) -> dict[str, Any] | None:
        """The result's object, or None when nothing was written.

        Raises:
            FrameError: something else than whole frames with the nonce was written, or more after
                the result.
        """
        if self._broken is not None:
            raise self._broken
        if not self._seen_bytes:
            return None
        if not self._data.startswith(self._nonce):
            raise FrameError("the code wrote on the result channel")
        if self._result is None or self._seen_bytes != len(self._data) or self._has_more():
            raise FrameError("the code wrote on the result channel, or its result was cut")
        return self._result

    def _has_more(self) -> bool:
        (length,) = _HEADER.unpack_from(self._data, NONCE_BYTES)
        return bool(len(self._data) != NONCE_BYTES + _HEADER.size + length)
