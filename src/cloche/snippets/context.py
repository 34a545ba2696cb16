"""The context of a snippet: JSON values under names, checked before anything starts."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any, Final

from cloche.errors import InvalidRequestError
from cloche.frames import DEPTH_LIMIT, DIGITS_LIMIT

_MAX_SAFE_INTEGER = 2**53
_TOO_MANY_DIGITS: Final = 10**DIGITS_LIMIT

# ECMA-262: reserved words (strict mode and modules), and the names of the global object, which
# a context must not replace for the code that relies on them.
_JAVASCRIPT_RESERVED: Final = frozenset(
    """
    arguments await break case catch class const continue debugger default delete do else enum eval
    export extends false finally for function if implements import in instanceof interface let new
    null package private protected public return static super switch this throw true try typeof var
    void while with yield
    """.split()
)
_JAVASCRIPT_GLOBALS: Final = frozenset(
    """
    AggregateError Array ArrayBuffer AsyncFunction Atomics BigInt BigInt64Array BigUint64Array
    Boolean Buffer Bun DataView Date Deno Error EvalError FinalizationRegistry Float16Array
    Float32Array Float64Array Function Infinity Int16Array Int32Array Int8Array Intl Iterator JSON
    Map Math NaN Number Object Promise Proxy RangeError ReferenceError Reflect RegExp Set
    SharedArrayBuffer String Symbol SyntaxError TypeError URIError Uint16Array Uint32Array
    Uint8Array Uint8ClampedArray WeakMap WeakRef WeakSet WebAssembly console decodeURI
    decodeURIComponent encodeURI encodeURIComponent global globalThis isFinite isNaN
    parseFloat parseInt process require undefined
    """.split()
)


def _refuse(name: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"context: {name} {why}", retry_safe=True)


def _shown(name: Any) -> str:
    """A name in a message; a caller's object may have no text at all."""
    try:
        return repr(name)[:80]
    except Exception:  # such as a number of too many digits
        return f"<{type(name).__name__}>"


def _check_name(name: Any, *, python: bool) -> None:
    shown = _shown(name)
    if not isinstance(name, str):
        raise _refuse(shown, f"is no name: a name is a str, not {type(name).__name__}")
    if name.startswith("__"):
        raise _refuse(shown, "is reserved: names do not start with two underscores")
    plain = name if python else name.replace("$", "_")
    if not plain.isidentifier() or unicodedata.normalize("NFKC", name) != name:
        raise _refuse(shown, "is no identifier; put it into an object under another name")
    if python and iskeyword(name):
        raise _refuse(shown, "is a reserved word of Python")
    if not python and name in _JAVASCRIPT_RESERVED:
        raise _refuse(shown, "is a reserved word of JavaScript")
    if not python and name in _JAVASCRIPT_GLOBALS:
        raise _refuse(shown, "is a built-in of JavaScript")


def check_context(context: Any, language: str) -> dict[str, Any]:
    """Checks a context and returns it as plain JSON data that is nobody else's.

    Raises:
        InvalidRequestError: names the path of what is wrong.
    """
    if context is None:
        return {}
    if not isinstance(context, Mapping):
        raise _refuse("itself", f"must be a mapping, not {type(context).__name__}")
    python = language == "python"
    checked: dict[str, Any] = {}
    for name, value in context.items():
        _check_name(name, python=python)
        checked[name] = _copy(value, name, 1, python)
    return checked


def _copy(value: Any, path: str, depth: int, python: bool) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _refuse(path, "has a lone surrogate, which no JSON text can hold") from None
        return str(value)
    if isinstance(value, int):
        if not python and not -_MAX_SAFE_INTEGER <= value <= _MAX_SAFE_INTEGER:
            raise _refuse(path, "is an integer over 2^53, which JavaScript cannot hold exactly")
        if abs(value) >= _TOO_MANY_DIGITS:
            raise _refuse(path, f"is an integer of more than {DIGITS_LIMIT} digits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refuse(path, f"is {value}, which is not JSON")
        return float(value)
    if depth > DEPTH_LIMIT:
        raise _refuse(f"{path[:60]}…", f"is nested deeper than {DEPTH_LIMIT}, or holds itself")
    if isinstance(value, list | tuple):
        return [_copy(each, f"{path}[{i}]", depth + 1, python) for i, each in enumerate(value)]
    if isinstance(value, dict):
        copied = {}
        for key, each in value.items():
            if not isinstance(key, str):
                raise _refuse(f"{path}[{_shown(key)}]", "has a key that is no str")
            copied[_copy(key, f"a key of {path}", depth, python)] = _copy(
                each, f"{path}.{key}", depth + 1, python
            )
        return copied
    raise _refuse(path, f"is a {type(value).__name__}, which is not JSON")
