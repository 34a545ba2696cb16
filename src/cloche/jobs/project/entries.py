"""A lockfile's entries, one by one: what fields they have, and which sources are taken."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Any, Final

from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode
from cloche.model.package import check_package

LOCKFILE: Final = "pnpm-lock.yaml"
_SHOWN_LIMIT_COUNT: Final = 5
_ENTRY_FIELDS: Final = frozenset(
    "resolution engines cpu os libc deprecated hasBin peerDependencies peerDependenciesMeta"
    " bundledDependencies bundleDependencies".split()
)


def invalid(why: str) -> JobRefusedError:
    """The refusal of a lockfile that is not what it should be."""
    return JobRefusedError(
        ReasonCode.LOCKFILE_INVALID,
        f"{LOCKFILE}: {why}. Make it anew with `pnpm install --lockfile-only` (pnpm 9 to 12)",
    )


def show(text: str) -> str:
    """A stranger's text for a message: short, with nothing that a terminal would act on."""
    return ascii(text if len(text) <= 120 else text[:117] + "...")


def enumerate_first(items: Iterable[str]) -> str:
    """The first of them, and how many more there are."""
    listed = list(items)
    rest = len(listed) - _SHOWN_LIMIT_COUNT
    return "; ".join(listed[:_SHOWN_LIMIT_COUNT]) + (f"; and {rest} more" if rest > 0 else "")


def locate(folder: str, path: str) -> str | None:
    """Where `path` leads from `folder`: relative to the project's root; None for outside.

    Args:
        folder: `.` or a relative path of plain parts.
        path: A stranger's; may climb.
    """
    if not path.isprintable() or path.startswith(("/", "~")) or "\\" in path or ":" in path:
        return None
    found = posixpath.normpath(posixpath.join(folder, path))
    return None if found == ".." or found.startswith("../") else found


def take_mapping(value: Any, where: str) -> dict[str, Any]:
    """The value, which must hold names and values.

    Raises:
        JobRefusedError: LOCKFILE_INVALID.
    """
    if not isinstance(value, dict):
        found = type(value).__name__
        raise invalid(f"{where} must hold names and values, not {found}")
    return value


def check_fields(fields: dict[str, Any], known: frozenset[str], where: str) -> None:
    """Checks that nothing is there that would pass unseen.

    Raises:
        JobRefusedError: LOCKFILE_INVALID.
    """
    for name in fields:
        if name not in known:
            raise invalid(f"{where} has the field {show(name)}, which is not known here")


def split_key(key: str) -> tuple[str, str]:
    """Name and version in a key such as `@scope/name@1.0.0`."""
    at = key.find("@", 1)
    return (key[:at], key[at + 1 :]) if at > 0 else (key, "")


def check_entries(entries: dict[str, dict[str, Any]]) -> None:
    """Checks that all are packages of the registry, by name, exact version and one sha512.

    Raises:
        JobRefusedError: DEPENDENCY_REFUSED: names those that are not, and what they are.
            LOCKFILE_INVALID: an entry has another shape.
    """
    faults = [f"{show(key)} {fault}" for key in entries if (fault := _fault_of(key, entries[key]))]
    if faults:
        raise JobRefusedError(
            ReasonCode.DEPENDENCY_REFUSED,
            f"{LOCKFILE}: only packages of the npm registry with a sha512 are installed:"
            f" {enumerate_first(faults)}",
        )
    for key, entry in entries.items():
        check_fields(entry, _ENTRY_FIELDS, show(key))


def _fault_of(key: str, entry: dict[str, Any]) -> str | None:
    """Why the package must not be installed; None for one that may."""
    name, version = split_key(key)
    resolution = take_mapping(entry.get("resolution"), f"the resolution of {show(key)}")
    fault = _foreign_source_of(version, resolution)
    if fault is not None:
        return fault
    if name.startswith("@jsr/"):
        return "comes from the jsr registry"
    integrity = resolution.get("integrity")
    if not integrity:
        return "has no integrity"
    try:
        check_package(name, version, str(integrity))
    except ValueError as error:
        return f"is refused: {error}"
    return None


def _foreign_source_of(version: str, resolution: dict[str, Any]) -> str | None:
    """What its source is when it is not the registry."""
    protocol, colon, _ = version.partition(":")
    kind, tarball = resolution.get("type"), resolution.get("tarball")
    if kind == "git" or not resolution.keys().isdisjoint(("repo", "commit")):
        return "is a git repository"
    if kind == "directory" or "directory" in resolution:
        return "is a folder (`file:`, or an injected workspace package)"
    if kind in ("variations", "binary") or protocol == "runtime":
        return "is a runtime (`runtime:`, devEngines.runtime); Cloche brings its own"
    if protocol == "file" or str(tarball).startswith("file:"):
        return "is a tarball in a folder (`file:`)"
    if "gitHosted" in resolution or "/tar.gz/" in str(tarball) or (colon and "git" in protocol):
        return "is an archive of a git host"
    # Also for the registry's own address: the file is a stranger's, and one rule is enough.
    if tarball is not None:
        return "names a tarball by URL (for the registry's: leave out `lockfileIncludeTarballUrl`)"
    if colon:
        return f"comes from another source ({show(protocol + colon)})"
    for field in resolution:
        if field != "integrity":
            return f"has a resolution of an unknown kind ({show(field)})"
    return None
