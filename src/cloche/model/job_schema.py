"""The JSON Schema of a job's spec, made from the model itself."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from cloche.model.job import JobSpec, Step
from cloche.model.policy import MAX_TIMEOUT_MS

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_NUMBERS: Mapping[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": 0},
    float: {"type": "number", "exclusiveMinimum": 0},
    str: {"type": "string"},
    bytes: {"type": "string"},
    types.NoneType: {"type": "null"},
}


def job_schema() -> dict[str, Any]:
    """What a `cloche.yaml` may hold. `cloche job validate` checks more: names, bounds, paths."""
    schema = _of_class(JobSpec)
    # In a file the bundle is the file's own folder where none is named.
    schema["required"] = []
    content = {"type": ["string", "null"]}
    schema["properties"]["bundle"]["anyOf"] = [
        {"type": "string"},
        {"type": "object", "additionalProperties": content},
    ]
    return {"$schema": _DRAFT, "title": "A job of Cloche", **schema}


def _of_class(kind: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    told = _tell(kind)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for field in dataclasses.fields(kind):
        found = _of_type(hints[field.name])
        if field.name in told:
            found = {"description": told[field.name], **found}
        if field.name.endswith("timeout_ms"):
            found |= {"minimum": 1, "maximum": MAX_TIMEOUT_MS}
        if field.default is not dataclasses.MISSING and field.default is not None:
            default = field.default
            found["default"] = list(default) if isinstance(default, tuple) else default
        elif field.default is field.default_factory:
            required.append(field.name)
        properties[field.name] = found
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    if kind is Step:
        schema["oneOf"] = [{"required": ["argv"]}, {"required": ["shell"]}]
    return schema


def _of_type(hint: Any) -> dict[str, Any]:
    if hint in _NUMBERS:
        return dict(_NUMBERS[hint])
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_of_type(each) for each in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _of_type(arguments[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _of_type(arguments[1])}
    if issubclass(hint, StrEnum):
        return {"enum": [each.value for each in hint]}
    return _of_class(hint)


def _tell(kind: type[Any]) -> dict[str, str]:
    """What the docstring of a class says of its attributes."""
    told: dict[str, str] = {}
    names: list[str] = []
    _, _, listed = (kind.__doc__ or "").partition("Attributes:\n")
    for line in listed.splitlines():
        text = line.strip()
        head, colon, rest = text.partition(": ")
        if colon and line.startswith(" " * 8) and not line.startswith(" " * 9):
            names = [name.strip() for name in head.split(",")]
            text = rest
        for name in names if text else ():
            told[name] = f"{told[name]} {text}" if name in told else text
    return told
