"""Frames between Cloche and a program in a box, and the strict decoder of what comes back.

To the box (fd 3): 4 bytes big-endian length, then UTF-8 JSON. From the box (fd 4): 16 bytes
nonce, 4 bytes big-endian length, UTF-8 JSON, once. The nonce keeps stray writes apart from
frames; it is no secret from the guest and decides nothing about its fate.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Final, NoReturn

NONCE_BYTES: Final = 16
DEPTH_LIMIT: Final = 256
DIGITS_LIMIT: Final = 4300  # also Python's own for int(text)
_HEADER = struct.Struct(">I")
# Beside the value: the other fields of a result (message 8 KiB, stack 16 KiB, escaped).
_ENVELOPE_BYTES = 256 * 1024


class FrameError(Exception):
    """What came is no frame, or its JSON is not what JSON may be."""


def encode_request(request: dict[str, Any]) -> bytes:
    """A frame for fd 3."""
    body = json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()
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


def _clean(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, list):
        return [_replace_surrogates(child) for child in value]
    if isinstance(value, dict):
        return {_clean(key): _replace_surrogates(child) for key, child in value.items()}
    return value


class ResultReader:
    """Takes the bytes of fd 4 as they come; holds no more than it may.

    Attributes:
        limit_bytes: How many bytes are kept: enough for one frame.
    """

    def __init__(self, nonce: bytes, value_limit_bytes: int) -> None:
        """A reader for one run."""
        self._nonce = nonce
        self.limit_bytes = NONCE_BYTES + _HEADER.size + value_limit_bytes + _ENVELOPE_BYTES
        self._data = bytearray()
        self._seen_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Takes what came; bytes over the limit are counted and dropped."""
        self._seen_bytes += len(chunk)
        self._data += chunk[: self.limit_bytes - len(self._data)]

    def body_bytes(self) -> int:
        """The length of the JSON of a whole frame."""
        return max(0, self._seen_bytes - NONCE_BYTES - _HEADER.size)

    def result(self) -> dict[str, Any] | None:
        """The frame's object, or None when nothing was written.

        Raises:
            FrameError: something else than one whole frame with the nonce was written.
        """
        if not self._seen_bytes:
            return None
        start = NONCE_BYTES + _HEADER.size
        if len(self._data) < start or not self._data.startswith(self._nonce):
            raise FrameError("the code wrote on the result channel")
        (length,) = _HEADER.unpack_from(self._data, NONCE_BYTES)
        if self._seen_bytes != start + length or len(self._data) != self._seen_bytes:
            raise FrameError("the code wrote on the result channel, or its result was cut")
        result = decode_json(bytes(self._data[start:]))
        if not isinstance(result, dict):
            raise FrameError("the result is no object")
        return result
