"""A uv.lock: checked, and written anew with the mirror's addresses in place of its own.

Source: docs.astral.sh/uv, "Locking and syncing"; uv's crate `uv-resolver`, `lock`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from cloche.jobs.project.entries import show
from cloche.jobs.project.pyproject import read_toml, write_toml
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode
from cloche.model.wheel import (
    LockedProject,
    is_sha256,
    is_version,
    normalise_name,
    read_wheel_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

UV_LOCK: Final = "uv.lock"
_VERSION: Final = 1
_BYTES_LIMIT: Final = 8 * 1024 * 1024  # some 0.3 s each
_PACKAGES_LIMIT_COUNT: Final = 10_000
_WHEELS_LIMIT_COUNT: Final = 2_000
_SHA256: Final = "sha256:"
# How versions were chosen is of no account once they are.
_LEFT_OUT: Final = ("options",)
_LEFT_OUT_OF_PACKAGE: Final = ("sdist", "wheels", "source")
_OWN_SOURCES: Final = ({"editable": "."}, {"virtual": "."})
_KINDS: Final = {
    "git": "a repository",
    "url": "a URL",
    "path": "a file",
    "directory": "a folder",
    "editable": "a folder (workspaces are not installed)",
    "virtual": "a folder (workspaces are not installed)",
}


@dataclass(frozen=True, slots=True)
class UvLockfile:
    """What is installed from it.

    Attributes:
        projects: What may be had of an index, by name.
        text: The lockfile, of nothing but what the mirror has.
    """

    projects: Mapping[str, LockedProject]
    text: bytes


def read_uv_lockfile(data: bytes, *, mirror: str) -> UvLockfile:
    """Reads it.

    Args:
        data: Its bytes, as they came.
        mirror: The address that the box knows; no slash at its end.

    Raises:
        JobRefusedError: DEPENDENCY_REFUSED: a package is not one of an index, or has no wheel.
            LOCKFILE_INVALID: it cannot be read, or has no sha256 of a wheel.
    """
    try:
        document = read_toml(data, limit_bytes=_BYTES_LIMIT)
    except ValueError as error:
        raise _invalid(str(error)) from error
    if document.get("version") != _VERSION:
        raise _invalid(f"its version is not {_VERSION}")
    entries = document.get("package", [])
    if not isinstance(entries, list) or len(entries) > _PACKAGES_LIMIT_COUNT:
        raise _invalid(f"`package` must be a list of at most {_PACKAGES_LIMIT_COUNT}")
    versions: dict[str, set[str]] = {}
    hashes: dict[str, set[str]] = {}
    packages = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise _invalid("`package` must be a list of tables")
        name, version = _read_identity(entry)
        kept = {key: value for key, value in entry.items() if key not in _LEFT_OUT_OF_PACKAGE}
        if entry.get("source") in _OWN_SOURCES:
            kept["source"] = entry["source"]
        else:
            kept["source"] = _take_source(entry.get("source"), name, mirror)
            wheels = _read_wheels(entry, name, version)
            kept["wheels"] = [
                {
                    "url": f"{mirror}/files/{name}/{sha256}/{quote(file_name, safe='')}",
                    "hash": f"{_SHA256}{sha256}",
                }
                for file_name, sha256 in wheels.items()
            ]
            versions.setdefault(name, set()).add(version)
            hashes.setdefault(name, set()).update(wheels.values())
        packages.append({key: _move_sources(value, name, mirror) for key, value in kept.items()})
    whole = {key: value for key, value in document.items() if key not in _LEFT_OUT}
    projects = {
        name: LockedProject(name, tuple(sorted(versions[name])), frozenset(hashes[name]))
        for name in sorted(versions)
    }
    return UvLockfile(projects, write_toml({**whole, "package": packages}))


def _invalid(why: str) -> JobRefusedError:
    return JobRefusedError(
        ReasonCode.LOCKFILE_INVALID, f"{UV_LOCK}: {why}. Make it anew with `uv lock`"
    )


def _read_identity(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Name and version; that of the project itself may have none."""
    told, version = entry.get("name"), entry.get("version", "")
    if not isinstance(told, str) or normalise_name(told) != told:
        raise _invalid(f"{show(str(told))} is no name of a package")
    is_own = entry.get("source") in _OWN_SOURCES
    if not isinstance(version, str) or not (is_version(version) or is_own):
        raise _invalid(f"{told}: {show(str(version))} is no exact version")
    return told, version


def _take_source(source: Any, name: str, mirror: str) -> dict[str, str]:
    """Where the mirror has it, if an index has."""
    table = source if isinstance(source, dict) else {}
    registry = table.get("registry")
    if isinstance(registry, str) and _is_of_web(registry):
        return {"registry": f"{mirror}/simple"}
    kind = next((what for key, what in _KINDS.items() if key in table), "a folder of packages")
    where = next((value for value in table.values() if isinstance(value, str)), "?")
    raise JobRefusedError(
        ReasonCode.DEPENDENCY_REFUSED,
        f"{UV_LOCK}: {name} comes from {kind}, {show(where)}: only versions of an index are"
        " installed. Depend on a released version",
    )


def _move_sources(value: Any, name: str, mirror: str) -> Any:
    """The same with each `source` of a dependency at the mirror."""
    if isinstance(value, list):
        return [_move_sources(each, name, mirror) for each in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _move_sources(each, name, mirror) for key, each in value.items()}
    source = value.get("source")
    if isinstance(source, dict) and source not in _OWN_SOURCES:
        moved["source"] = _take_source(source, str(value.get("name", name)), mirror)
    return moved


def _read_wheels(entry: Mapping[str, Any], name: str, version: str) -> dict[str, str]:
    """SHA-256 by file name."""
    listed = entry.get("wheels", [])
    if not isinstance(listed, list) or len(listed) > _WHEELS_LIMIT_COUNT:
        raise _invalid(f"{name}: `wheels` must be a list of at most {_WHEELS_LIMIT_COUNT}")
    if not listed:
        raise JobRefusedError(
            ReasonCode.DEPENDENCY_REFUSED,
            f"{UV_LOCK}: {name}=={version} has no wheel, and to build one runs its code: only"
            " wheels are installed. Choose a version that has one, or put one that you have built"
            " on an index of your own",
        )
    found: dict[str, str] = {}
    for wheel in listed:
        table = wheel if isinstance(wheel, dict) else {}
        told = table.get("filename") or _file_of(table.get("url") or table.get("path"))
        identity = read_wheel_name(told) if isinstance(told, str) else None
        if identity is None or identity[0] != name:
            raise _invalid(f"{name}: {show(str(told))} is no wheel of it")
        stated = table.get("hash")
        sha256 = stated.removeprefix(_SHA256) if isinstance(stated, str) else ""
        if not is_sha256(sha256):
            raise _invalid(f"{name}: its wheel {show(str(told))} has no sha256")
        found[str(told)] = sha256
    return found


def _file_of(place: Any) -> str | None:
    """The name in a URL or a path."""
    try:
        return unquote(urlsplit(place).path.rpartition("/")[2]) if isinstance(place, str) else None
    except ValueError:  # it is no URL, such as `http://[`
        return None


def _is_of_web(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False
