"""What promises say about results, with messages that show what was seen instead."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from cloche.errors import ClocheError, SandboxErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloche.model.snippet import SandboxResult


def describe(result: SandboxResult) -> str:
    """A result in one line."""
    value = repr(result.value)
    shown = value if len(value) <= 200 else f"{value[:200]}…"
    return (
        f"ok={result.ok} value={shown} error_code={result.error_code} error={result.error!r}"
        f" exit_code={result.exit_code} signal={result.signal} stdout={result.stdout[:200]!r}"
        f" stderr={result.stderr[:200]!r} duration_ms={result.duration_ms}"
        f" runtime={result.runtime.name}"
    )


def same(seen: Any, expected: Any, what: str) -> None:
    """Raises AssertionError unless both are equal, of one type."""
    if seen != expected or type(seen) is not type(expected):
        raise AssertionError(f"{what}: expected {expected!r}, not {seen!r}")


def has_value(result: SandboxResult, value: Any) -> None:
    """Raises AssertionError unless a run was ok and had this value (1 and 1.0 are one number)."""
    equal = result.ok and result.value == value
    if not equal or isinstance(result.value, bool) is not isinstance(value, bool):
        raise AssertionError(f"expected the value {value!r}, but {describe(result)}")
    if result.error is not None or result.error_code is not None:
        raise AssertionError(f"ok with an error: {describe(result)}")


def is_ok(result: SandboxResult) -> None:
    """Raises AssertionError unless a run was ok."""
    if not result.ok:
        raise AssertionError(f"expected ok, but {describe(result)}")


def has_code(result: SandboxResult, code: SandboxErrorCode, *told: str) -> None:
    """Raises AssertionError unless a run ended with this code, and an error that has the words."""
    if result.ok or result.error_code is not code or result.value is not None:
        raise AssertionError(f"expected {code}, but {describe(result)}")
    for word in told:
        if word not in (result.error or ""):
            raise AssertionError(f"expected {word!r} in the error, but {describe(result)}")


def holds(condition: bool, what: str) -> None:
    """Raises AssertionError with `what` unless the condition holds."""
    if not condition:
        raise AssertionError(what)


@contextlib.contextmanager
def refused(
    *told: str, code: SandboxErrorCode = SandboxErrorCode.INVALID_REQUEST
) -> Iterator[None]:
    """Raises AssertionError unless its body raises a ClocheError of this code, with the words."""
    try:
        yield
    except ClocheError as error:
        if error.code is not code:
            raise AssertionError(f"expected {code}, but {error.code}: {error}") from error
        if code is not SandboxErrorCode.INTERNAL_ERROR and not error.retry_safe:
            raise AssertionError(f"nothing was started, but not retry_safe: {error}") from error
        for word in told:
            if word not in error.message:
                raise AssertionError(f"expected {word!r} in the message: {error}") from error
    else:
        raise AssertionError(f"expected {code} to be raised ({', '.join(told)}), but it was not")
