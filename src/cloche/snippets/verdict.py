"""From an outcome and a result frame to what the caller is told.

Timeout, memory, exit and signal come from the outcome, which is the kernel's word; the frame is
the guest's word and only fills in the value, or explains a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloche.errors import SandboxErrorCode
from cloche.frames import FrameError, ResultReader
from cloche.model.outcome import Cause, Outcome

if TYPE_CHECKING:
    from cloche.model.snippet import SandboxOptions

_MESSAGE_LIMIT = 8 * 1024
_STACK_LIMIT = 16 * 1024
_NETWORK_SIGNS = (
    "getaddrinfo",
    "ENETUNREACH",
    "Network is unreachable",
    "name resolution",
    "Unable to connect",
)
_GUEST_CODES = frozenset(
    {
        SandboxErrorCode.EXECUTION_ERROR,
        SandboxErrorCode.INVALID_CODE,
        SandboxErrorCode.VALUE_TOO_LARGE,
    }
)
# A worker host speaks for its engine: it is Cloche's own program, and knows the engine's heap.
WORKER_CODES = _GUEST_CODES | {SandboxErrorCode.MEMORY_EXCEEDED}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The part of a result that tells success from failure."""

    code: SandboxErrorCode | None = None
    error: str | None = None
    value: Any = None
    line: int | None = None
    column: int | None = None
    stack: str | None = None


def judge(
    outcome: Outcome,
    reader: ResultReader,
    options: SandboxOptions,
    *,
    codes: frozenset[SandboxErrorCode] = _GUEST_CODES,
) -> Verdict:
    """Decides what a run came to.

    Args:
        outcome: With no exit code where it was ended after its last word.
        reader: Has that word.
        options: Of the run.
        codes: Those that the frame may claim.
    """
    stopped = _stopped(outcome, options)
    if stopped is not None:
        return stopped
    try:
        frame = reader.result()
    except FrameError as error:
        return Verdict(SandboxErrorCode.EXECUTION_ERROR, f"no result: {error}")
    succeeded = outcome.cause is Cause.EXITED and outcome.exit_code in (0, None)
    if frame is None:
        return Verdict() if succeeded else _ended(outcome)
    if frame.get("ok") is True and options.mode == "snippet":
        if not succeeded:
            return _ended(outcome)
        if reader.body_bytes() > options.value_limit_bytes + len('{"ok":true,"value":}'):
            return Verdict(
                SandboxErrorCode.VALUE_TOO_LARGE,
                f"the value is larger than {options.value_limit_bytes} bytes",
            )
        return Verdict(value=frame.get("value"))
    if options.mode == "program" and succeeded:
        return Verdict()
    return _explained(frame, outcome, codes, options)


def _stopped(outcome: Outcome, options: SandboxOptions) -> Verdict | None:
    match outcome.cause:
        case Cause.WALL_TIMEOUT:
            text = f"the run took longer than timeout_ms={options.timeout_ms}"
            return Verdict(SandboxErrorCode.TIMEOUT, text)
        case Cause.CPU_TIMEOUT:
            text = f"the run used more CPU time than cpu_time_ms={options.cpu_time_ms}"
            return Verdict(SandboxErrorCode.TIMEOUT, text)
        case Cause.MEMORY:
            text = f"the run held more than memory_limit_mb={options.memory_limit_mb}"
            return Verdict(SandboxErrorCode.MEMORY_EXCEEDED, text)
        case Cause.ABORTED:
            return Verdict(SandboxErrorCode.ABORTED, "the run was aborted")
        case Cause.DISPOSED:
            return Verdict(SandboxErrorCode.DISPOSED, "the sandbox was disposed during the run")
    return None


def _ended(outcome: Outcome) -> Verdict:
    if outcome.exit_code is not None:
        text = f"the code ended with exit code {outcome.exit_code}"
    else:
        text = f"the code was killed by signal {outcome.signal}"
    return Verdict(SandboxErrorCode.EXECUTION_ERROR, text)


def _explained(
    frame: dict[str, Any],
    outcome: Outcome,
    codes: frozenset[SandboxErrorCode],
    options: SandboxOptions,
) -> Verdict:
    """A failure in the guest's words, as far as they are of the right kind and size."""
    error = frame.get("error")
    if not isinstance(error, dict):
        return _ended(outcome)
    code = _text(error.get("code"), 64)
    name, message = _text(error.get("name"), 200), _text(error.get("message"), _MESSAGE_LIMIT)
    if name and message:
        told = message if message.startswith(name) else f"{name}: {message}"
    else:
        told = message or name or "the code failed"
    return Verdict(
        code=SandboxErrorCode(code) if code in codes else SandboxErrorCode.EXECUTION_ERROR,
        error=told
        + hint(
            told,
            writable=options.wants_scratch,
            networked=options.allow_network or bool(options.allow_hosts),
        ),
        line=_position(error.get("line")),
        column=_position(error.get("column")),
        stack=_text(error.get("stack"), _STACK_LIMIT) or None,
    )


def hint(error: str, *, writable: bool, networked: bool = False) -> str:
    """What would help, where the guest's words sound like a wall of the box; else nothing."""
    if not writable and ("EROFS" in error or "Read-only file system" in error):
        return " (nothing is writable here; allow_fs=True gives a private /workspace and /tmp)"
    if not networked and any(sign in error for sign in _NETWORK_SIGNS):
        return " (this run has no network; allow_hosts=[…] names what it may connect to)"
    return ""


def _text(value: Any, limit: int) -> str:
    return value[:limit] if isinstance(value, str) else ""


def _position(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**31 else None
