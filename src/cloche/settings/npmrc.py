"""The syntax of an npmrc.

Source: npm's `ini`, `decode` and `unsafe`; @npmcli/config, env-replace.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FILE_BYTES_LIMIT: Final = 1024 * 1024

Entries = dict[str, list[str]]
"""Key → values; more than one for `key[]=`."""


def read_npmrc(path: Path, environment: Mapping[str, str]) -> Entries:
    """The entries of an npmrc; none where it cannot be read."""
    try:
        with path.open("rb") as reader:
            text = reader.read(_FILE_BYTES_LIMIT).decode("utf-8", "replace")
    except OSError:
        return {}
    entries: Entries = {}
    for raw_line in text.replace("\r", "\n").split("\n"):
        line = raw_line.strip()
        if line.startswith("["):
            break  # what is in a section is no setting of npm's
        if not line or line[0] in ";#":
            continue
        raw_key, equals, raw_value = line.partition("=")
        key = expand_variables(_unquote(raw_key), environment)
        value = expand_variables(_unquote(raw_value), environment) if equals else "true"
        if len(key) > 2 and key.endswith("[]"):
            entries.setdefault(key[:-2], []).append(value)
        else:
            entries[key] = [value]
    return entries


def _unquote(text: str) -> str:
    """A key or value without its quotes or, where it has none, without its comment."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        inner = text[1:-1] if text[0] == "'" else text
        try:
            value = json.loads(inner)
        except (ValueError, RecursionError):
            return inner
        return value if isinstance(value, str) else inner
    plain = ""
    is_escaped = False
    for character in text:
        if is_escaped:
            plain += character if character in "\\;#" else f"\\{character}"
            is_escaped = False
        elif character in ";#":
            break
        elif character == "\\":
            is_escaped = True
        else:
            plain += character
    return (plain + "\\" * is_escaped).strip()


def expand_variables(text: str, environment: Mapping[str, str]) -> str:
    """Puts variables in the place of `${NAME}`; one that is not set stays as it stands.

    `${NAME?}` is empty then. A backslash before it keeps it from being read.
    """
    done, rest = "", text
    while "${" in rest:
        before, _, after = rest.partition("${")
        name, brace, tail = after.partition("}")
        word = name.removesuffix("?")
        if not brace or not word or any(character in word for character in "${?"):
            done, rest = f"{done}{before}${{", after
            continue
        plain = before.rstrip("\\")
        escapes_count = len(before) - len(plain)
        whole = f"${{{name}}}"
        unset = "" if name.endswith("?") else whole
        value = whole if escapes_count % 2 else environment.get(word, unset)
        done, rest = done + plain + "\\" * (escapes_count // 2) + value, tail
    return done + rest
