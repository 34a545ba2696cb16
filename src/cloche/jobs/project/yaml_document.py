"""YAML without its surprises: one document, the core schema's scalars, nothing that refers back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEPTH_LIMIT: Final = 32

# The parser in C where PyYAML was built with it; both give the same events.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Source: YAML 1.2.2, 10.3.2 "Tag Resolution" (core schema). Of numbers: decimal ones.
_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_CHARS = frozenset("0123456789+-.eE")
_DIGITS_LIMIT = 40


def read_yaml(data: bytes, *, limit_bytes: int, as_texts: bool = False) -> Any:
    """Decodes one YAML document (JSON for the most part is one).

    Keys are texts as they are written, each once in its mapping. Anchors, aliases and tags are
    refused: no data needs them, and a few lines of them can stand for gigabytes.

    Args:
        data: The document.
        limit_bytes: How much of it is read.
        as_texts: Every scalar is a text as it is written (YAML's failsafe schema).

    Returns:
        Made of dict, list, str, int, float, bool and None; None for an empty text.

    Raises:
        ValueError: it is anything else, larger than `limit_bytes`, or deeper than DEPTH_LIMIT;
            the message starts with the position as far as it is known.
    """
    if len(data) > limit_bytes:
        raise ValueError(f"has {len(data)} bytes, over {limit_bytes}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error
    try:
        resolve = _take_text if as_texts else _resolve
        return _read_document(yaml.parse(text, Loader=_Loader), resolve)
    except yaml.MarkedYAMLError as error:
        where = f"{_position(error.problem_mark)}: " if error.problem_mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        # No mark: a character that YAML does not allow.
        reason = getattr(error, "reason", "cannot be read")
        raise ValueError(f"character {getattr(error, 'position', 0)}: {reason}") from error


def _read_document(events: Iterator[Any], resolve: Callable[[Any], Any]) -> Any:
    found: list[Any] = []
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            if found:
                raise _refuse(event, "a second document starts here; give one")
            found.append(_read_node(next(events), events, resolve, 1))
    return found[0] if found else None


def _read_node(event: Any, events: Iterator[Any], resolve: Callable[[Any], Any], depth: int) -> Any:
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise _refuse(event, "anchors and aliases (`&`, `*`) are not taken; write it out")
    if event.tag is not None:
        raise _refuse(event, "tags (`!`) are not taken")
    if isinstance(event, yaml.ScalarEvent):
        return resolve(event)
    if depth > DEPTH_LIMIT:
        raise _refuse(event, f"is nested deeper than {DEPTH_LIMIT} levels")
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_read_node(event, events, resolve, depth + 1))
        return items
    return _read_mapping(events, resolve, depth)


def _read_mapping(
    events: Iterator[Any], resolve: Callable[[Any], Any], depth: int
) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        _read_node(event, events, resolve, depth + 1)  # the same rules hold for a key
        if not isinstance(event, yaml.ScalarEvent):
            raise _refuse(event, "a key must be a text")
        if event.value in mapping:
            raise _refuse(event, f"the key {event.value[:80]!r} is there twice")
        mapping[event.value] = _read_node(next(events), events, resolve, depth + 1)
    return mapping


def _take_text(event: Any) -> Any:
    return event.value


def _resolve(event: Any) -> Any:
    text = event.value
    if not event.implicit[0]:  # in quotes, or a block
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if not _NUMBER_CHARS.issuperset(text):
        return text
    try:
        if "." not in text and "e" not in text.lower():
            if len(text) > _DIGITS_LIMIT:
                raise _refuse(event, "a number is too large")
            return int(text)
        return float(text)
    except yaml.MarkedYAMLError:
        raise
    except ValueError:  # such as a date or a version
        return text


def _refuse(event: Any, why: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=why, problem_mark=event.start_mark)


def _position(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
