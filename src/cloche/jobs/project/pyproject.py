"""A project's pyproject.toml, and TOML that Cloche writes itself."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any, Final

from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode
from cloche.model.wheel import normalise_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PYPROJECT: Final = "pyproject.toml"
_BYTES_LIMIT: Final = 1024 * 1024
DEPTH_LIMIT: Final = 64
_WEIGHT_LIMIT: Final = 5_000_000
# Source: TOML 1.0.0, "Integer"; the longest ones Python would read and not write.
_INTEGERS: Final = range(-(2**63), 2**63)
_TOO_DEEP: Final = f"is nested deeper than {DEPTH_LIMIT} levels"
# What ends the name in a requirement. Source: PEP 508.
_NAME_ENDS: Final = " [(<>=!~;@,\t"


def read_pyproject(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The project's pyproject.toml; empty where there is none.

    Raises:
        JobRefusedError: MANIFEST_INVALID.
    """
    try:
        return read_toml(files.get(PYPROJECT, b""), limit_bytes=_BYTES_LIMIT)
    except ValueError as error:
        raise JobRefusedError(ReasonCode.MANIFEST_INVALID, f"{PYPROJECT}: {error}") from error


def read_toml(data: bytes, *, limit_bytes: int) -> dict[str, Any]:
    """Decodes TOML.

    Raises:
        ValueError: it is none, larger than that, nested deeper than `DEPTH_LIMIT`, or has a
            number of more than 64 bits.
    """
    if len(data) > limit_bytes:
        raise ValueError(f"has {len(data)} bytes, over {limit_bytes}")
    text = data.decode("utf-8-sig")
    if _weigh(text) > _WEIGHT_LIMIT:
        raise ValueError("has keys of too many parts")
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    level: list[Any] = [table]
    for _ in range(DEPTH_LIMIT):
        level = [each for value in level for each in _values_of(value)]
        if any(isinstance(each, int) and each not in _INTEGERS for each in level):
            raise ValueError("has a number of more than 64 bits")
        if not level:
            return table
    raise ValueError(_TOO_DEEP)


def _values_of(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _weigh(text: str) -> int:
    """How long `tomllib` may take for its keys, in steps of about a microsecond.

    It walks all parts of a key for each part of it, and those of the table's name again.
    """
    weight = name_count = 0
    for line in text.splitlines():
        # What is quoted is no part of a key, where it is plain what that is.
        is_plain = "'" not in line and "\\" not in line and '"""' not in line
        count = ("".join(line.split('"')[::2]) if is_plain else line).count(".")
        if line.lstrip().startswith("["):
            name_count = max(name_count, count)
        weight += (count + 1) * (count + name_count)
    return weight


def read_build_names(files: Mapping[str, bytes]) -> frozenset[str] | None:
    """The normalised names of what builds the project; None where it says nothing of that.

    Raises:
        JobRefusedError: MANIFEST_INVALID.
    """
    table = read_pyproject(files).get("build-system")
    if table is None:
        return None
    requires = table.get("requires", []) if isinstance(table, dict) else None
    names = set()
    for each in requires if isinstance(requires, list) else [None]:
        name = normalise_name(_name_of(each)) if isinstance(each, str) else None
        if name is None:
            raise JobRefusedError(
                ReasonCode.MANIFEST_INVALID,
                f"{PYPROJECT}: `requires` of [build-system] must be a list of requirements",
            )
        names.add(name)
    return frozenset(names)


def _name_of(requirement: str) -> str:
    text = requirement.strip()
    end = next((i for i, letter in enumerate(text) if letter in _NAME_ENDS), len(text))
    return text[:end]


def write_toml(table: Mapping[str, Any]) -> bytes:
    """TOML with each key of the table on a line of its own; tables in it are inline.

    Values are those that TOML knows.
    """
    lines = [f"{_write(key)} = {_write(value)}\n" for key, value in table.items()]
    return "".join(lines).encode()


def _write(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_write(key)} = {_write(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_write, value))}]"
    if isinstance(value, str):
        # JSON's texts are TOML's but for this letter.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else str(value)
