"""What depends on what in a lockfile, and which of it a platform installs."""

from __future__ import annotations

import platform as host
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloche.jobs.project.entries import (
    LOCKFILE,
    check_fields,
    invalid,
    locate,
    show,
    take_mapping,
)
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode

GROUPS: Final = ("dependencies", "devDependencies", "optionalDependencies")
_IMPORTER_FIELDS: Final = frozenset(
    "dependencies devDependencies optionalDependencies skippedOptionalDependencies"
    " dependenciesMeta publishDirectory linkDirectory".split()
)
_SNAPSHOT_FIELDS: Final = frozenset(
    "dependencies optionalDependencies transitivePeerDependencies optional patched".split()
)
_CPUS: Final = {"x86_64": "x64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Platform:
    """What packages are installed for, in Node's words: `linux`, `x64`, `glibc`."""

    os: str
    cpu: str
    libc: str

    @classmethod
    def of_this_host(cls) -> Platform:
        """That of this host, and so of its boxes."""
        machine = host.machine()
        libc = "glibc" if host.libc_ver()[0] == "glibc" else "musl"
        return cls("linux", _CPUS.get(machine, machine), libc)


class DependencyGraph:
    """The snapshots of a lockfile: each reference leads to one, or to a folder of the project."""

    def __init__(self, entries: dict[str, dict[str, Any]], snapshots: dict[str, Any]) -> None:
        """Checks every reference.

        Args:
            entries: The lockfile's packages by key.
            snapshots: The same packages by key and peers, with their dependencies.

        Raises:
            JobRefusedError: LOCKFILE_INVALID: one leads nowhere. DEPENDENCY_REFUSED: it leads
                out of the project.
        """
        self._entries = entries
        self._snapshots = {key: take_mapping(value, show(key)) for key, value in snapshots.items()}
        for key, snapshot in self._snapshots.items():
            check_fields(snapshot, _SNAPSHOT_FIELDS, show(key))
            if _package_of(key) not in entries:
                raise invalid(f"its snapshot {show(key)} is not among its packages")
        self._below = {
            key: [
                found
                for group in GROUPS
                for alias, reference in take_mapping(snapshot.get(group, {}), show(key)).items()
                if (found := self._resolve(".", alias, reference)) is not None
            ]
            for key, snapshot in self._snapshots.items()
        }

    def find_roots(self, folder: str, importer: Any) -> list[str]:
        """The keys of the snapshots that a project depends on itself.

        Raises:
            JobRefusedError: as for snapshots; or the project is not below the lockfile.
        """
        if locate(".", folder) != folder:
            raise invalid(f"its project {show(folder)} does not lie below it")
        where = f"its project {show(folder)}"
        fields = take_mapping(importer, where)
        check_fields(fields, _IMPORTER_FIELDS, where)
        roots = []
        for group in GROUPS:
            for alias, dependency in take_mapping(fields.get(group, {}), where).items():
                reference = take_mapping(dependency, show(alias)).get("version")
                found = self._resolve(folder, alias, reference)
                if found is not None:
                    roots.append(found)
        return roots

    def _resolve(self, folder: str, alias: str, reference: Any) -> str | None:
        """The key of the snapshot that is meant; None for a folder of the project."""
        if not isinstance(reference, str):
            raise invalid(f"the version of {show(alias)} must be a text")
        if not _is_alias(alias):
            raise invalid(f"{show(alias)} is no name of a dependency")
        if reference.startswith("link:"):
            if locate(folder, reference.removeprefix("link:")) is None:
                raise JobRefusedError(
                    ReasonCode.DEPENDENCY_REFUSED,
                    f"{LOCKFILE}: {show(alias)} is a link out of the project ({show(reference)});"
                    " put the folder into the project, or take a published package",
                )
            return None
        # A dependency under another name (`npm:`) has the whole key of what it stands for.
        for key in (f"{alias}@{reference}", reference):
            if key in self._snapshots:
                return key
        raise invalid(f"{show(alias)} {show(reference)} is not among its snapshots")

    def find_wanted(self, roots: list[str], platform: Platform) -> set[str]:
        """The keys of the packages that pnpm fetches.

        An optional package that does not fit the platform is left out with all that only it
        needs; one that is not optional is installed all the same.
        """
        wanted: set[str] = set()
        seen: set[str] = set()
        waiting = list(roots)
        while waiting:
            key = waiting.pop()
            if key in seen:
                continue
            seen.add(key)
            entry = self._entries[_package_of(key)]
            if self._snapshots[key].get("optional") is True and not fits(entry, platform):
                continue
            wanted.add(_package_of(key))
            waiting += self._below[key]
        return wanted


def _package_of(key: str) -> str:
    """The package's own key, without the peers and patches in brackets."""
    return key.partition("(")[0]


def _is_alias(name: str) -> bool:
    """Whether it is one folder below node_modules, in a scope or not."""
    parts = name.split("/")
    return (
        len(parts) == (2 if name.startswith("@") else 1)
        and name.isprintable()
        and "\\" not in name
        and not any(part in ("", "@", "node_modules") or part.startswith(".") for part in parts)
    )


def fits(entry: Mapping[str, Any], platform: Platform) -> bool:
    """Whether a package is for a platform, by its fields `os`, `cpu` and `libc`."""
    return (
        _admits(entry.get("os"), platform.os)
        and _admits(entry.get("cpu"), platform.cpu)
        and _admits(entry.get("libc"), platform.libc)
    )


def _admits(words: Any, value: str) -> bool:
    """Whether a list such as `[linux, '!win32']` has room for this one.

    Source: npm-install-checks, `checkList`; npm's documentation of `os`, `cpu` and `libc`.
    """
    listed = [words] if isinstance(words, str) else words
    if not isinstance(listed, list) or not listed or listed == ["any"]:
        return True
    refused = [word for word in listed if isinstance(word, str) and word.startswith("!")]
    return f"!{value}" not in refused and (value in listed or len(refused) == len(listed))
