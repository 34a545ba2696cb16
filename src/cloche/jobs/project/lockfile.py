"""pnpm's lockfile: which packages a project is made of, and what pnpm is given of it.

The file is a stranger's. It is read strictly, by closed lists of fields, and written anew for pnpm
from what was read: both readers see the same data, whatever either of them makes of merge conflict
markers, merge keys or a second document. One kind of package may stand in it: of the registry, by
name, exact version and one sha512. All else is refused by name.

Source: lockfiles that pnpm 12.21 and 9 to 11 write; format 9.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from cloche.jobs.project.entries import (
    LOCKFILE,
    check_entries,
    check_fields,
    enumerate_first,
    invalid,
    show,
    split_key,
    take_mapping,
)
from cloche.jobs.project.graph import DependencyGraph, Platform
from cloche.jobs.project.yaml_document import read_yaml
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode
from cloche.model.package import Package

__all__ = ["LOCKFILE", "Lockfile", "Platform", "encode", "read_lockfile"]

FORMAT: Final = "9.0"
LOCKFILE_BYTES_LIMIT: Final = 32 * 1024 * 1024
# Every value comes with one of these: bounds what is made of the text. Lockfiles that pnpm wrote
# have some 70 in a kilobyte.
_MARKS: Final = (b"\n", b",", b":", b"[", b"{", b"- ", b"? ")
_MARKS_LIMIT_COUNT: Final = 1_000_000
_FIELDS: Final = frozenset(
    "lockfileVersion settings catalogs overrides packageExtensionsChecksum pnpmfileChecksum"
    " ignoredOptionalDependencies patchedDependencies importers packages snapshots time".split()
)
# JSON takes these as they are; YAML does not, or one version of it reads them as ends of lines.
# Source: YAML 1.2.2, 5.1 "Character Set" and 5.4 "Line Break Characters".
_ESCAPES: Final = {
    code: f"\\u{code:04x}" for code in (0x7F, *range(0x80, 0xA0), 0x2028, 0x2029, 0xFEFF)
}


@dataclass(frozen=True, slots=True)
class Lockfile:
    """A lockfile that was checked.

    Attributes:
        packages: All that it names, sorted; `wanted` are those that pnpm fetches on the platform.
        importers: The folders of its projects, sorted: `.` or relative paths of plain parts.
        uses_pnpmfile: It was made with the hooks of a pnpmfile.
        settings: What it records of the settings that it was made with.
        sections: The names of its fields.
        text: All of it, for pnpm: one document.
    """

    packages: tuple[Package, ...]
    importers: tuple[str, ...]
    uses_pnpmfile: bool
    settings: Mapping[str, bool | int | str]
    sections: frozenset[str]
    text: bytes


def read_lockfile(data: bytes, *, platform: Platform) -> Lockfile:
    """Reads and checks a lockfile.

    Raises:
        JobRefusedError: LOCKFILE_INVALID: not YAML, not of format 9.0, with a field that is not
            known, or at odds with itself. DEPENDENCY_REFUSED: it names what is no package of the
            registry with a sha512, or links to something outside the project.
    """
    document = _read_document(data)
    settings = _read_settings(document)
    entries = {
        key: take_mapping(entry, show(key)) for key, entry in _section(document, "packages").items()
    }
    check_entries(entries)
    graph = DependencyGraph(entries, _section(document, "snapshots"))
    importers = _section(document, "importers")
    roots = [
        root
        for folder, importer in importers.items()
        for root in graph.find_roots(folder, importer)
    ]
    wanted = graph.find_wanted(roots, platform)
    return Lockfile(
        packages=tuple(
            Package(*split_key(key), entry["resolution"]["integrity"], wanted=key in wanted)
            for key, entry in sorted(entries.items())
        ),
        importers=tuple(sorted(importers)),
        uses_pnpmfile="pnpmfileChecksum" in document,
        settings=MappingProxyType(settings),
        sections=frozenset(document),
        text=encode(document),
    )


def encode(value: Any) -> bytes:
    """Plain data as JSON that is YAML too: one line, keys sorted, the same for the same data."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.translate(_ESCAPES).encode()


def _read_document(data: bytes) -> dict[str, Any]:
    """The lockfile itself.

    Another document may precede it, on pnpm's own packages: those that a `packageManager` asks
    for, which nobody installs here, and configDependencies.
    """
    if sum(data.count(mark) for mark in _MARKS) > _MARKS_LIMIT_COUNT:
        raise invalid(f"has more than {_MARKS_LIMIT_COUNT} values")
    documents = []
    for part in _split(data):
        try:
            found = read_yaml(part, limit_bytes=LOCKFILE_BYTES_LIMIT)
        except ValueError as error:
            raise invalid(str(error)) from error
        if found is not None:
            documents.append(take_mapping(found, "the file"))
    if not documents:
        raise invalid("is empty")
    if len(documents) > 2:
        raise invalid("holds more than two documents")
    for document in documents:
        _check_format(document)
        check_fields(document, _FIELDS, "it")
        _refuse_config_dependencies(document)
    return documents[-1]


def _split(data: bytes) -> Iterator[bytes]:
    """The parts that a line `---` starts, padded at their front so that line numbers stay true.

    The fourth is the last, whatever is in it.
    """
    part: list[bytes] = []
    parts_count = 1
    for number, line in enumerate(data.split(b"\n")):
        is_start = line[:3] == b"---" and line[3:4] in (b"", b" ", b"\t", b"\r")
        if number and is_start and parts_count < 4:
            yield b"\n".join(part)
            part = [b""] * number
            parts_count += 1
        part.append(line)
    yield b"\n".join(part)


def _check_format(document: dict[str, Any]) -> None:
    version = document.get("lockfileVersion")
    if version != FORMAT:
        found = "is missing" if version is None else f"is {show(str(version))}"
        hint = "; leave `lockfile.format` out of pnpm-workspace.yaml" if version == "13.0" else ""
        raise invalid(f"its lockfileVersion {found}, and {FORMAT!r} is what is read{hint}")


def _refuse_config_dependencies(document: dict[str, Any]) -> None:
    for importer in _section(document, "importers").values():
        names = take_mapping(importer, "importers").get("configDependencies")
        if names:
            shown = enumerate_first(map(show, take_mapping(names, "configDependencies")))
            raise JobRefusedError(
                ReasonCode.DEPENDENCY_REFUSED,
                f"{LOCKFILE}: configDependencies are refused, since they change pnpm itself:"
                f" {shown}. Take them out of pnpm-workspace.yaml and make the lockfile anew",
            )


def _read_settings(document: dict[str, Any]) -> dict[str, bool | int | str]:
    settings = _section(document, "settings")
    if "integrityTarget" in settings:
        raise invalid(
            "its hashes are those of unpacked archives; leave `lockfile.integrityTarget` out of"
            " pnpm-workspace.yaml"
        )
    for name, value in settings.items():
        if not isinstance(value, bool | int | str):
            raise invalid(f"its setting {show(name)} must be one value")
    return settings


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    return take_mapping(document.get(name, {}), name)
