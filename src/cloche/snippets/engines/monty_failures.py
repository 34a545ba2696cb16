"""From what Monty raises to the last frame: the error's name and words, and the caller's places."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Set
from typing import Any, Final

from pydantic_monty import MontyError, MontySyntaxError

from . import monty_names as names
from .engine import failure
from .monty_places import Places
from .monty_source import SNIPPET, Marks, unsupported

FAILED: Final = "SANDBOX_EXECUTION_ERROR"
_MEMORY_SIGNS: Final = ("memory limit exceeded", "exceeded its memory limit", "out of memory")
_NATIVE_DEPTH: Final = 900
"""Monty's own functions call back into code only some dozen levels deep, and its stack of ordinary
calls is 1,000: a RecursionError with fewer frames than this is no runaway recursion."""
_UNSUPPORTED_SIGNS: Final = (
    "not yet support",
    "not supported",
    "cannot suspend",
    "not implemented",
    "cannot reassign read-only",
    "Internal error in monty",
    "is only supported",
    "that shadows a captured variable",
)
_TYPES: Final[dict[str, type]] = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type)
} | {
    "function": type(lambda: None),
    "NoneType": type(None),
}
_ABSENT_BUILTINS: Final = names.KNOWN_BUILTINS - names.BUILTINS
_LACKING: Final = (
    ("can only concatenate list (not ", ") to list", "+="),
    ("cannot convert '", "' object to bytes", "bytes"),
    ("unknown encoding: ", "", ""),
    ("pow() 2nd argument cannot be negative when 3rd argument specified", "", "pow"),
    ("set.", " given)", "."),
)
"""How messages start and end that CPython would not give, and what is in the line then."""
Frame = tuple[int | None, int | None, str]
"""Line and column in the caller's text, as far as they are known, and the function."""


def describe(
    error: MontyError, source: str, tree: ast.Module, marks: Marks, tool_failures: Set[str]
) -> str:
    """The last frame for an error that ended a run.

    Args:
        error: What Monty raised.
        source: The caller's text.
        tree: Its tree.
        marks: What was put into it.
        tool_failures: Messages of the tools that failed in this run.
    """
    name, message = _name_and_message(error)
    if name == "MemoryError" and any(sign in message for sign in _MEMORY_SIGNS):
        return failure("SANDBOX_MEMORY_EXCEEDED", name, "the run held more than its memory limit")
    frames = _frames(error, name, source, tree, marks)
    line, column = frames[-1][:2] if frames else (None, None)
    if isinstance(error, MontySyntaxError) or (name == "SyntaxError" and len(frames) <= 1):
        return unsupported(f"`{message}`", line, column)
    row = source.split("\n")[line - 1] if line else "+= bytes pow ."
    construct = _unsupported(name, message, row, len(frames))
    if construct is not None:
        return unsupported(construct, line, column)
    if name == "Exception" and message in tool_failures:
        name = "ToolError"
    return failure(FAILED, name, message, _stack(frames, name, message), line, column)


def _name_and_message(error: MontyError) -> tuple[str, str]:
    display: Any = getattr(error, "display", None)
    if display is None or not isinstance(error, MontyError):
        return type(error).__name__, str(error)
    try:
        message, whole = display("msg"), display("type-msg")
    except TypeError:
        return type(error).__name__, str(error)
    name = whole.removesuffix(message).rstrip(": ") if message else whole
    name = name.rpartition(".")[2] or "Exception"
    return name, _key_text(message) if name == "KeyError" else message


def _key_text(message: str) -> str:
    """What `str` of a KeyError is: the key's own form. Monty has only its text."""
    if message[:1] == message[-1:] == "'" and len(message) > 1:
        return message
    try:
        key = ast.literal_eval(message)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return repr(message)
    return repr(message) if isinstance(key, str) else message


def _frames(
    error: MontyError, name: str, source: str, tree: ast.Module, marks: Marks
) -> list[Frame]:
    """Where in the caller's text the error passed, the outermost place first."""
    rows = source.split("\n")
    found: list[Frame] = []
    frames: list[Any] = error.traceback() if hasattr(error, "traceback") else []
    own = frames[0].filename if frames else ""
    places = Places(source, tree)
    for frame in frames:
        if frame.filename != own or not 0 < frame.line <= len(rows):
            continue
        row = rows[frame.line - 1]
        column = marks.original(frame.line, frame.column, row)
        if row[: column - 1].rstrip().endswith("def"):
            # A call with wrong arguments is told at the function's name, in the caller's frame.
            found.append((None, None, frame.function_name or "<module>"))
        else:
            line, shown = places.of(name, frame.line, column)
            found.append((line, shown, frame.function_name or "<module>"))
    return found


def _unsupported(name: str, message: str, row: str, depth: int) -> str | None:
    """Name what Monty lacks, where an error says that; None: it is the code's own error."""
    own = message.startswith("Internal error in monty")
    said = any(sign in message for sign in _UNSUPPORTED_SIGNS)
    if own or (name == "NotImplementedError" and said):
        return f"this (`{message}`)"
    if name == "RecursionError" and depth < _NATIVE_DEPTH:
        return "recursion through `map`, a sort key or a special method that deep"
    if name == "AttributeError" and (attribute := _missing_attribute(message)):
        return f"the attribute `{attribute}`"
    if name in ("ImportError", "ModuleNotFoundError"):
        return f"this import (`{message}`)"
    if name == "NameError":
        asked = message.split("'")[1:2]
        return f"`{asked[0]}`" if asked and asked[0] in _ABSENT_BUILTINS else None
    for start, end, where in _LACKING:
        if message.startswith(start) and message.endswith(end) and where in row:
            return f"this (`{message}`)"
    return None


def _missing_attribute(message: str) -> str | None:
    """The attribute that an AttributeError names, if an object of CPython would have it."""
    pieces = message.split("'")
    if len(pieces) < 5 or "has no attribute" not in message:
        return None
    kind, attribute = pieces[1], pieces[3]
    if message.startswith("module"):
        return f"{kind}.{attribute}"
    known = _TYPES.get(kind.rpartition(".")[2])
    return attribute if known is not None and hasattr(known, attribute) else None


def _stack(frames: list[Frame], name: str, message: str) -> str:
    """A traceback as CPython prints it, of the caller's frames."""
    lines = ["Traceback (most recent call last):"]
    index = 0
    while index < len(frames):
        line, _, function = frames[index]
        same = 1
        while index + same < len(frames) and frames[index + same][::2] == (line, function):
            same += 1
        shown = "?" if line is None else line
        lines += [f'  File "{SNIPPET}", line {shown}, in {function}'] * min(same, 3)
        if same > 3:
            lines.append(f"  [Previous line repeated {same - 3} more time{'s' * (same > 4)}]")
        index += same
    lines.append(f"{name}: {message}" if message else name)
    return "\n".join(lines) + "\n"
