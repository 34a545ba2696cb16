"""From the options of a command to the fields of a sandbox and its runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cloche.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloche.snippets.sandbox import Sandbox

EXTENSION_OF: Final = {"javascript": "js", "typescript": "ts", "python": "py"}
INPUT_LIMIT_BYTES: Final = 64 * 1024 * 1024
_LANGUAGE_OF = {
    **dict.fromkeys((".js", ".mjs", ".cjs"), "javascript"),
    **dict.fromkeys((".ts", ".mts", ".cts"), "typescript"),
    ".py": "python",
}
_ALIASES = {"js": "javascript", "ts": "typescript", "py": "python"}
# Options that are fields, with the same name and the same values.
_PLAIN = (
    "runtime",
    "mode",
    "collect",
    "allow_fs",
    "allow_network",
    "allow_hosts",
    "timeout_ms",
    "cpu_time_ms",
    "memory_limit_mb",
    "pids_limit",
    "cpu_limit",
    "scratch_limit_mb",
    "output_limit_bytes",
    "value_limit_bytes",
)


def read_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given, by the options of `cloche.cli.options`; no others.

    `language` and `context` are not among them: see `choose_language` and `read_context`.

    Raises:
        InvalidRequestError: an option has not its form, or a file cannot be read.
    """
    fields = {name: given[name] for name in _PLAIN if _is_given(given.get(name))}
    if given["env"]:
        fields["env"] = dict(split_item(item, "--env", "K=V") for item in given["env"])
    if given["files"]:
        fields["files"] = dict(_read_file(item) for item in given["files"])
    if given["mounts"]:
        fields["mounts"] = [_make_mount(item) for item in given["mounts"]]
    if given["require"]:
        items = (split_item(item, "--require", "CONTROL=MECHANISM") for item in given["require"])
        fields["require"] = dict(items)
    return fields


def create_sandbox(kind: str, fields: Mapping[str, Any]) -> Sandbox:
    """A sandbox of a kind, with these fields as defaults of its runs.

    Raises:
        InvalidRequestError: a field is wrong, or that kind does not have it.
        UnavailableError: this host cannot do it.
    """
    from cloche.snippets import entry  # the help of a command does not need it

    if kind == "worker":
        return entry.create_worker_sandbox(**fields)
    return entry.create_process_sandbox(**fields)


def check_language(given: str) -> str:
    """A language by its name or its short one.

    Raises:
        InvalidRequestError: unknown.
    """
    language = _ALIASES.get(given, given)
    if language not in EXTENSION_OF:
        raise InvalidRequestError(
            f"language: {given!r} is unknown; known: {', '.join(EXTENSION_OF)}"
        )
    return language


def choose_language(given: str | None, file: str | None) -> str:
    """The language that was given, else that of the file's name, else JavaScript.

    Raises:
        InvalidRequestError: unknown.
    """
    if given is not None:
        return check_language(given)
    suffix = Path(file).suffix if file not in (None, "-") else ""
    if suffix and suffix not in _LANGUAGE_OF:
        raise InvalidRequestError(
            f"language: files that end in {suffix!r} are unknown; say it with -l"
        )
    return _LANGUAGE_OF.get(suffix, "javascript")


def read_bytes(path: str) -> bytes:
    """What a file holds, or standard input for `-`; at most INPUT_LIMIT_BYTES.

    Raises:
        InvalidRequestError: it cannot be read, or holds more.
    """
    try:
        if path == "-":
            data = sys.stdin.buffer.read(INPUT_LIMIT_BYTES + 1)
        else:
            with Path(path).open("rb") as reader:
                data = reader.read(INPUT_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRequestError(f"{path}: {reason}") from error
    if len(data) > INPUT_LIMIT_BYTES:
        raise InvalidRequestError(f"{path}: more than {INPUT_LIMIT_BYTES} bytes")
    return data


def decode_text(data: bytes, name: str) -> str:
    """UTF-8 text.

    Raises:
        InvalidRequestError: it is none; says where.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{name}: byte {error.start} is no UTF-8") from error


def read_context(given: str | None) -> dict[str, Any] | None:
    """A context as `--context` takes it.

    Raises:
        InvalidRequestError: no JSON object, or a file that cannot be read.
    """
    if given is None:
        return None
    text = read_bytes(given[1:]).decode("utf-8", "replace") if given.startswith("@") else given
    context = read_json(text, "--context")
    if not isinstance(context, dict):
        raise InvalidRequestError("--context: must be a JSON object, its keys the names")
    return context


def read_json(text: str | bytes, name: str) -> Any:
    """JSON of the caller's.

    Raises:
        InvalidRequestError: malformed, or nested too deep.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{name}: not JSON: {error}") from error


def split_item(item: str, option: str, form: str) -> tuple[str, str]:
    """The two sides of the first `=`.

    Raises:
        InvalidRequestError: not of that form.
    """
    key, equals, value = item.partition("=")
    if not equals or not key:
        raise InvalidRequestError(f"{option}: {item!r} is not of the form {form}")
    return key, value


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value != ()


def _read_file(item: str) -> tuple[str, bytes]:
    path, source = split_item(item, "--file", "PATH=SRC")
    return path, read_bytes(source)


def _make_mount(item: str) -> Any:
    from cloche.model.plan import Mount

    host_path, equals, box_path = item.rpartition("=")  # a host's folder may have a `=`
    if not equals or not host_path:
        raise InvalidRequestError(f"--mount: {item!r} is not of the form HOST=BOX")
    return Mount(str(Path(host_path).absolute()), box_path)
