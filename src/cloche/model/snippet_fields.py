"""Checks of the fields that callers give: strict types, finite numbers, bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from keyword import iskeyword
from types import MappingProxyType
from typing import Any, Final

from cloche.errors import InvalidRequestError
from cloche.model.abort import AbortSignal
from cloche.model.plan import Mount
from cloche.model.policy import MAX_TIMEOUT_MS

Check = Callable[[str, Any], None]

PATH_BYTES_LIMIT: Final = 1024
NAME_BYTES_LIMIT: Final = 255
MOUNTS_LIMIT_COUNT: Final = 8
ARGUMENT_BYTES_LIMIT: Final = 96 * 1024
TOOLS_LIMIT_COUNT: Final = 64
TOOL_NAME_LIMIT: Final = 64


def _refuse(name: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name}: {why}", retry_safe=True)


def _show(number: float) -> str:
    """A number for a message; Python does not print integers of thousands of digits."""
    return str(number) if abs(number) < 10**30 else "a number that large"


def check_names(fields: Iterable[str], known: Iterable[str], of_what: str) -> None:
    """Raises InvalidRequestError for the first field that is unknown."""
    names = list(known)
    for name in fields:
        if name not in names:
            near = [each for each in names if each.startswith(name[:3])]
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise _refuse(str(name), f"is no field of {of_what}{hint}")


def _integer(low: int, high: int, *, optional: bool = False) -> Check:
    def check(name: str, value: Any) -> None:
        if optional and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            raise _refuse(name, f"must be a whole number, not {type(value).__name__}")
        if not low <= value <= high:
            raise _refuse(name, f"must be from {low} to {high}, not {_show(value)}")

    return check


def _cpus(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refuse(name, f"must be a number of CPUs or None, not {type(value).__name__}")
    if not 0.01 <= value <= 1024:  # NaN is not
        raise _refuse(name, f"must be from 0.01 to 1024 CPUs, not {_show(value)}")


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _refuse(name, f"must be True or False, not {type(value).__name__}")


def _one_of(*choices: str | None) -> Check:
    def check(name: str, value: Any) -> None:
        if value not in choices or isinstance(value, bool):
            shown = ", ".join(str(choice) for choice in choices)
            found = repr(value[:80]) if isinstance(value, str) else type(value).__name__
            raise _refuse(name, f"must be one of {shown}, not {found}")

    return check


def _items(name: str, value: Any, kind: type) -> Sequence[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise _refuse(name, f"must be a list, not {type(value).__name__}")
    for index, item in enumerate(value):
        if not isinstance(item, kind):
            found = type(item).__name__
            raise _refuse(f"{name}[{index}]", f"must be {kind.__name__}, not {found}")
    return value


def _mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise _refuse(name, f"must be a mapping, not {type(value).__name__}")
    return value


def _text(name: str, text: str) -> bytes:
    """Text that can go to a process: UTF-8, no NUL."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise _refuse(name, "has a lone surrogate") from None
    if b"\0" in data:
        raise _refuse(name, "has a NUL character")
    return data


def _strings(name: str, value: Any) -> None:
    total = sum(len(_text(f"{name}[{i}]", item)) for i, item in enumerate(_items(name, value, str)))
    if total > ARGUMENT_BYTES_LIMIT:
        raise _refuse(name, f"has {total} bytes, over {ARGUMENT_BYTES_LIMIT}")


def _variables(name: str, value: Any) -> None:
    total = 0
    for key, text in _mapping(name, value).items():
        if not isinstance(key, str) or not key or "=" in key:
            raise _refuse(name, f"{key!r} is no name of a variable")
        if not isinstance(text, str):
            raise _refuse(f"{name}[{key!r}]", f"must be str, not {type(text).__name__}")
        total += len(_text(name, key)) + len(_text(f"{name}[{key!r}]", text))
    if total > ARGUMENT_BYTES_LIMIT:
        raise _refuse(name, f"has {total} bytes, over {ARGUMENT_BYTES_LIMIT}")


def check_path(name: str, path: Any) -> None:
    """A relative path of plain parts, as a guest's file may have it."""
    if not isinstance(path, str):
        raise _refuse(name, f"a path must be str, not {type(path).__name__}")
    data = _text(f"{name}[{path!r}]", path)
    parts = path.split("/")
    if path.startswith("/"):
        raise _refuse(name, f"{path!r} is absolute; paths are relative to /workspace")
    if any(part in ("", ".", "..") for part in parts):
        raise _refuse(name, f"{path!r} has an empty, `.` or `..` part")
    if any(len(part.encode()) > NAME_BYTES_LIMIT for part in parts):
        raise _refuse(name, f"a part of {path[:40]!r}… is over {NAME_BYTES_LIMIT} bytes")
    if len(data) > PATH_BYTES_LIMIT:
        raise _refuse(name, f"{path[:40]!r}… is over {PATH_BYTES_LIMIT} bytes")


def _files(name: str, value: Any) -> None:
    paths = _mapping(name, value)
    for path, content in paths.items():
        check_path(name, path)
        if not isinstance(content, str | bytes):
            found = type(content).__name__
            raise _refuse(f"{name}[{path!r}]", f"must be str or bytes, not {found}")
        if isinstance(content, str):
            try:
                content.encode()
            except UnicodeEncodeError:
                raise _refuse(f"{name}[{path!r}]", "has a lone surrogate") from None
    for path in paths:
        folder = path
        while "/" in folder:
            folder = folder.rpartition("/")[0]
            if folder in paths:
                raise _refuse(name, f"{folder!r} is a file and a folder")


def _globs(name: str, value: Any) -> None:
    for glob in _items(name, value, str):
        check_path(name, glob)


def _mounts(name: str, value: Any) -> None:
    mounts = _items(name, value, Mount)
    if len(mounts) > MOUNTS_LIMIT_COUNT:
        raise _refuse(name, f"at most {MOUNTS_LIMIT_COUNT} folders, not {len(mounts)}")
    for index, mount in enumerate(mounts):
        where = f"{name}[{index}]"
        check_path(where, mount.box_path)
        _flag(f"{where}.unsafe_writable", mount.unsafe_writable)
        if not isinstance(mount.host_path, str) or not mount.host_path.startswith("/"):
            raise _refuse(where, "host_path must be an absolute path, as str")
        _text(where, mount.host_path)


def _stdin(name: str, value: Any) -> None:
    if not isinstance(value, str | bytes):
        raise _refuse(name, f"must be str or bytes, not {type(value).__name__}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _refuse(name, "has a lone surrogate") from None


def _optional_callable(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise _refuse(name, f"must be callable, not {type(value).__name__}")


def _tools(name: str, value: Any) -> None:
    if len(_mapping(name, value)) > TOOLS_LIMIT_COUNT:
        raise _refuse(name, f"at most {TOOLS_LIMIT_COUNT} tools, not {len(value)}")
    for tool, function in value.items():
        plain = isinstance(tool, str) and tool.isascii() and tool.isidentifier()
        if not plain or len(tool) > TOOL_NAME_LIMIT or tool.startswith("__") or tool == "then":
            shown = repr(tool)[:80] if isinstance(tool, str) else type(tool).__name__
            raise _refuse(name, f"{shown} is no name for a tool: an ASCII identifier")
        if iskeyword(tool):
            raise _refuse(name, f"{tool!r} is a reserved word of Python")
        if not callable(function):
            raise _refuse(f"{name}[{tool!r}]", f"must be callable, not {type(function).__name__}")


def _signal(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, AbortSignal):
        raise _refuse(name, f"must be a cloche.AbortSignal, not {type(value).__name__}")


def _logger(name: str, value: Any) -> None:
    if value is not None and not callable(getattr(value, "info", None)):
        raise _refuse(name, "must have the methods of logging.Logger")


def _requirements(name: str, value: Any) -> None:
    for control, mechanism in _mapping(name, value).items():
        if not isinstance(control, str) or not isinstance(mechanism, str):
            raise _refuse(name, "maps the name of a control to the name of a mechanism")


def _trust_domain(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value or len(value) > 200 or not value.isprintable():
        raise _refuse(name, "must be 1 to 200 printable characters")


CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "timeout_ms": _integer(1, MAX_TIMEOUT_MS),
        "cpu_time_ms": _integer(1, MAX_TIMEOUT_MS, optional=True),
        "queue_timeout_ms": _integer(0, MAX_TIMEOUT_MS),
        "memory_limit_mb": _integer(16, 1024 * 1024),
        "pids_limit": _integer(1, 65_536),
        "cpu_limit": _cpus,
        "allow_network": _flag,
        "allow_hosts": _strings,
        "allow_fs": _flag,
        "mounts": _mounts,
        "scratch_limit_mb": _integer(1, 1024 * 1024),
        "files": _files,
        "collect": _globs,
        "language": _one_of("javascript", "typescript", "python"),
        "runtime": _one_of(None, "bun", "deno", "node", "python"),
        "mode": _one_of("snippet", "program"),
        "stdin": _stdin,
        "args": _strings,
        "env": _variables,
        "tools": _tools,
        "on_output": _optional_callable,
        "output_limit_bytes": _integer(1, 1024**3),
        "value_limit_bytes": _integer(1, 64 * 1024 * 1024),
        "signal": _signal,
        "logger": _logger,
        "require": _requirements,
        "backend": _one_of("auto", "namespaces"),
        "trust_domain": _trust_domain,
        "pool_size": _integer(0, 1024, optional=True),
        "max_pending": _integer(0, 1_000_000),
    }
)
