"""A project's package.json, and JSON as strictly as files of strangers are read."""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode

MANIFEST_BYTES_LIMIT: Final = 1024 * 1024
DEPTH_LIMIT: Final = 64


def read_manifest(data: bytes, path: str) -> dict[str, Any]:
    """Reads a package.json.

    Args:
        data: Its bytes, as they came.
        path: Where it lies in the bundle (a checked path); for the messages.

    Returns:
        The object. `scripts`, where there is one, maps names to texts; nothing else is checked.

    Raises:
        JobRefusedError: MANIFEST_INVALID; the message says where and why.
    """
    try:
        manifest = read_object(data, limit_bytes=MANIFEST_BYTES_LIMIT)
        scripts = manifest.get("scripts", {})
        if not isinstance(scripts, dict):
            raise ValueError("`scripts` must be an object, its values command lines")
        for name, line in scripts.items():
            if not isinstance(line, str):
                raise ValueError(f"the script {name[:80]!r} must be a text")
    except ValueError as error:
        raise JobRefusedError(ReasonCode.MANIFEST_INVALID, f"{path}: {error}") from error
    return manifest


def read_object(data: bytes, *, limit_bytes: int) -> dict[str, Any]:
    """Decodes a JSON object: UTF-8, each key once, finite numbers, no lone surrogate.

    A byte order mark at the start is skipped, as npm does.

    Raises:
        ValueError: it is anything else, larger than `limit_bytes`, or deeper than DEPTH_LIMIT;
            the message says where, as far as that is known.
    """
    if len(data) > limit_bytes:
        raise ValueError(f"has {len(data)} bytes, over {limit_bytes}")
    try:
        value = _decoder.decode(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise ValueError(f"is nested deeper than {DEPTH_LIMIT} levels") from error
    if not isinstance(value, dict):
        raise ValueError("must hold a JSON object: {…}")
    _check_values(value)
    return value


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:80]!r} is there twice")
            seen.add(key)
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _read_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _read_integer(text: str) -> int:
    if len(text) > 40:
        raise ValueError(f"the number {text[:20]}… is too large")
    return int(text)


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_make_object,
    parse_constant=_refuse_constant,
    parse_float=_read_float,
    parse_int=_read_integer,
)


def _check_values(root: Any) -> None:
    level = [root]
    for _ in range(DEPTH_LIMIT):
        for value in level:
            for text in value if isinstance(value, dict) else (value,):
                if isinstance(text, str) and not text.isascii():
                    _check_text(text)
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return
    raise ValueError(f"is nested deeper than {DEPTH_LIMIT} levels")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text[:80]!r} has a lone surrogate") from None
