"""One line of `cloche map`: a JSON object that says what to run."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from cloche.cli.request import check_language, choose_language, decode_text
from cloche.errors import InvalidRequestError
from cloche.model import snippet_fields
from cloche.model.snippet import RunFields

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LINE_LIMIT_BYTES: Final = 64 * 1024 * 1024
_CODE_LIMIT_BYTES: Final = 8 * 1024 * 1024
# What has no JSON form, and the host's folders: those are for the command line to name.
_NOT_OF_A_LINE = ("tools", "on_output", "signal", "logger", "mounts")
_FIELDS = tuple(name for name in RunFields.__annotations__ if name not in _NOT_OF_A_LINE)
_KNOWN = ("code", "file", "context", "id", *_FIELDS)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for lines that do not say otherwise.

    Attributes:
        folder: Where the files of lines are looked for.
        language, mode: None: as a line's file says.
        context: Names that every line's snippet sees; those of the line win.
        has_programs: The sandbox runs programs.
    """

    folder: Path
    language: str | None
    mode: str | None
    context: Mapping[str, Any]
    has_programs: bool


@dataclass(frozen=True, slots=True)
class Request:
    """What `run` of a sandbox takes.

    Attributes:
        code: As the line has it; the sandbox checks it.
        is_plain: The line has no field of its own: what the host cannot do for it, it cannot do
            for what the command line asks.
    """

    code: Any
    context: Mapping[str, Any] | None
    fields: dict[str, Any]
    is_plain: bool


def parse_line(data: bytes | None, number: int) -> dict[str, Any]:
    """The object of a line.

    Args:
        data: None for a line over LINE_LIMIT_BYTES.
        number: 1-based, for the message.

    Raises:
        InvalidRequestError: no JSON object.
    """
    where = f"line {number}"
    if data is None:
        raise InvalidRequestError(f"{where}: more than {LINE_LIMIT_BYTES} bytes")
    text = decode_text(data, where)
    try:
        fields = _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRequestError(f'{where}: must be a JSON object, such as {{"code": "1 + 1"}}')
    return fields


def make_request(line: Mapping[str, Any], defaults: Defaults) -> Request:
    """What to run for a line.

    Raises:
        InvalidRequestError: a field is unknown or wrong, or a file cannot be read.
    """
    for name in _NOT_OF_A_LINE:
        if name in line:
            told = "is for the command line" if name == "mounts" else "has no JSON form"
            raise InvalidRequestError(f"{name}: {told}")
    snippet_fields.check_names(line, _KNOWN, "a line")
    fields = {name: line[name] for name in _FIELDS if name in line}
    is_plain = not fields
    code, file = line.get("code"), line.get("file")
    if (code is None) == (file is None):
        raise InvalidRequestError("a line has either code or file")
    if file is not None:
        code = _read_code(defaults.folder, file)
    if "files" in fields:
        fields["files"] = _read_contents(fields["files"])
    language = fields.get("language")
    if isinstance(language, str):
        fields["language"] = check_language(language)
    elif language is None:
        fields["language"] = choose_language(defaults.language, file)
    if "mode" not in fields:
        is_program = file is not None and defaults.has_programs
        fields["mode"] = defaults.mode or ("program" if is_program else "snippet")
    context = line.get("context")
    if context is None:
        context = {}
    if not isinstance(context, dict):
        raise InvalidRequestError("context: must be an object, its keys the names")
    if fields["mode"] == "snippet":  # a program has no context
        context = {**defaults.context, **context}
    return Request(code, context or None, fields, is_plain)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is too large")
    return number


_decoder = json.JSONDecoder(parse_float=_parse_float, parse_constant=_refuse_constant)


def _read_code(folder: Path, name: Any) -> str:
    """A file below the folder of the lines; no link leads to another one."""
    from cloche.linux.files import open_beneath

    snippet_fields.check_path("file", name)
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            descriptor = open_beneath(top, name, os.O_RDONLY)
        finally:
            os.close(top)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidRequestError(f"file: {name} is no regular file")
            with open(descriptor, "rb", closefd=False) as reader:
                data = reader.read(_CODE_LIMIT_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InvalidRequestError(f"file: {name}: {error.strerror}") from error
    if len(data) > _CODE_LIMIT_BYTES:
        raise InvalidRequestError(f"file: {name} has more than {_CODE_LIMIT_BYTES} bytes")
    return decode_text(data, f"file: {name}")


def _read_contents(files: Any) -> Any:
    """Contents as results give them, too: {"encoding": "base64", "content": …}."""
    if not isinstance(files, dict):
        return files
    return {path: _read_content(path, content) for path, content in files.items()}


def _read_content(path: str, content: Any) -> Any:
    if not isinstance(content, dict):
        return content
    import base64

    text, encoding = content.get("content"), content.get("encoding")
    if not isinstance(text, str) or encoding not in ("utf-8", "base64"):
        raise InvalidRequestError(
            f'files[{path!r}]: must be text, or {{"encoding": "base64", "content": …}}'
        )
    if encoding == "utf-8":
        return text
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidRequestError(f"files[{path!r}]: is no base64: {error}") from error
