"""Every exception of Cloche, and every code.

    ClocheError
    ├── RequestError              the caller's fault (exit 2)
    │   ├── InvalidRequestError       SANDBOX_INVALID_REQUEST
    │   └── DisposedError             SANDBOX_DISPOSED
    ├── HostError                 this host cannot (exit 69); names the fact and its fix
    │   ├── UnavailableError          SANDBOX_UNAVAILABLE
    │   └── OverloadedError           SANDBOX_OVERLOADED
    ├── InternalError             ours (exit 70)  SANDBOX_INTERNAL_ERROR
    └── RunError                  what a program did; raised by `raise_for_error()` only
        ├── RunTimeoutError           SANDBOX_TIMEOUT
        ├── MemoryExceededError       SANDBOX_MEMORY_EXCEEDED
        ├── ExecutionError            SANDBOX_EXECUTION_ERROR
        ├── InvalidCodeError          SANDBOX_INVALID_CODE
        ├── ValueTooLargeError        SANDBOX_VALUE_TOO_LARGE
        ├── AbortedError              SANDBOX_ABORTED
        └── DisposedInFlightError     SANDBOX_DISPOSED

    ToolError                     raised by the caller's own tools: its text is for the code that
                                  called the tool, all else that a tool raises stays hidden

What a program did is data (`SandboxResult.error_code`); it becomes an exception
only where the caller asks for one.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class SandboxErrorCode(StrEnum):
    """Stable codes of snippets and programs; `docs/errors.md` explains each."""

    TIMEOUT = "SANDBOX_TIMEOUT"
    MEMORY_EXCEEDED = "SANDBOX_MEMORY_EXCEEDED"
    EXECUTION_ERROR = "SANDBOX_EXECUTION_ERROR"
    INVALID_CODE = "SANDBOX_INVALID_CODE"
    VALUE_TOO_LARGE = "SANDBOX_VALUE_TOO_LARGE"
    ABORTED = "SANDBOX_ABORTED"
    DISPOSED = "SANDBOX_DISPOSED"
    INVALID_REQUEST = "SANDBOX_INVALID_REQUEST"
    UNAVAILABLE = "SANDBOX_UNAVAILABLE"
    OVERLOADED = "SANDBOX_OVERLOADED"
    INTERNAL_ERROR = "SANDBOX_INTERNAL_ERROR"


class ClocheError(Exception):
    """Anything that Cloche raises.

    Attributes:
        code: The stable code.
        message: What, why, and what to do.
        retry_safe: True when no guest code had started.
    """

    code: SandboxErrorCode = SandboxErrorCode.INTERNAL_ERROR

    def __init__(self, message: str, *, retry_safe: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.retry_safe = retry_safe


class RequestError(ClocheError):
    """The caller's fault."""


class InvalidRequestError(RequestError):
    """A field, the context or the language is wrong; no guest code has run."""

    code = SandboxErrorCode.INVALID_REQUEST


class DisposedError(RequestError):
    """`run` was called on a sandbox that is disposed."""

    code = SandboxErrorCode.DISPOSED


class HostError(ClocheError):
    """This host cannot do what was asked."""


class UnavailableError(HostError):
    """A control that was asked for cannot be enforced here.

    Attributes:
        fact: The missing host fact, as `cloche doctor` names it.
        fix: What mends it.
    """

    code = SandboxErrorCode.UNAVAILABLE

    def __init__(self, message: str, *, fact: str, fix: str) -> None:
        super().__init__(f"{message} (missing: {fact}). Fix: {fix}", retry_safe=True)
        self.fact = fact
        self.fix = fix


class OverloadedError(HostError):
    """The queue is full, or the wait in it took too long; retry later."""

    code = SandboxErrorCode.OVERLOADED


class InternalError(ClocheError):
    """Cloche's own failure; `retry_safe` says whether guest code had started."""

    code = SandboxErrorCode.INTERNAL_ERROR


class RunError(ClocheError):
    """What a program did, as an exception (see `SandboxResult.raise_for_error`)."""


class RunTimeoutError(RunError):
    """A deadline passed."""

    code = SandboxErrorCode.TIMEOUT


class MemoryExceededError(RunError):
    """The memory limit stopped the program or a part of it."""

    code = SandboxErrorCode.MEMORY_EXCEEDED


class ExecutionError(RunError):
    """The program threw, exited non-zero, was killed, or its value has no JSON form."""

    code = SandboxErrorCode.EXECUTION_ERROR


class InvalidCodeError(RunError):
    """The code does not parse, or uses what the engine does not know."""

    code = SandboxErrorCode.INVALID_CODE


class ValueTooLargeError(RunError):
    """The value is over its limit in bytes, depth or digits."""

    code = SandboxErrorCode.VALUE_TOO_LARGE


class AbortedError(RunError):
    """The caller's signal ended the run."""

    code = SandboxErrorCode.ABORTED


class DisposedInFlightError(RunError):
    """The sandbox was disposed while the run was in flight."""

    code = SandboxErrorCode.DISPOSED


class ToolError(Exception):
    """Raised by a caller's tool to tell the code that called it, in words, what went wrong."""


RUN_ERRORS: Final[Mapping[SandboxErrorCode, type[RunError]]] = MappingProxyType(
    {
        error.code: error
        for error in (
            RunTimeoutError,
            MemoryExceededError,
            ExecutionError,
            InvalidCodeError,
            ValueTooLargeError,
            AbortedError,
            DisposedInFlightError,
        )
    }
)

SANDBOX_ERROR_CODES: Final[Mapping[SandboxErrorCode, str]] = MappingProxyType(
    {
        SandboxErrorCode.TIMEOUT: "A deadline passed; `error` says which.",
        SandboxErrorCode.MEMORY_EXCEEDED: "The memory limit stopped the run or a part of it.",
        SandboxErrorCode.EXECUTION_ERROR: (
            "The code threw, exited non-zero, was killed, or its value has no JSON form."
        ),
        SandboxErrorCode.INVALID_CODE: (
            "The code does not parse, or uses what this engine does not know."
        ),
        SandboxErrorCode.VALUE_TOO_LARGE: "The value is over its limit in bytes, depth or digits.",
        SandboxErrorCode.ABORTED: "The caller's signal fired.",
        SandboxErrorCode.DISPOSED: "The sandbox was disposed.",
        SandboxErrorCode.INVALID_REQUEST: "A field, the context or the language is wrong.",
        SandboxErrorCode.UNAVAILABLE: "This host cannot enforce what was asked.",
        SandboxErrorCode.OVERLOADED: "The queue is full or the wait in it took too long.",
        SandboxErrorCode.INTERNAL_ERROR: "Cloche's own failure.",
    }
)

ERROR_CODES: dict[str, str] = {}


def register_sandbox_error_codes() -> None:
    """Publishes the codes of snippets and programs in `ERROR_CODES`; idempotent."""
    ERROR_CODES.update({str(code): text for code, text in SANDBOX_ERROR_CODES.items()})
