"""npm's lockfile: which packages a project is made of, and what npm is given of it.

A stranger's file, as pnpm's is (`lockfile.py`): read strictly, written anew from what was read. Its
packages come from the registry that npm's own settings name, whatever host their addresses have;
each must have one sha512, and an address as a registry gives it.

Source: docs.npmjs.com, "package-lock.json", lockfileVersion 2 and 3; lockfiles of npm 7 to 12.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cloche.jobs.project.entries import enumerate_first, locate, show
from cloche.jobs.project.graph import Platform, fits
from cloche.jobs.project.manifest import read_object
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode
from cloche.model.package import Package, check_package
from cloche.settings.address import Address

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCKFILES: Final = ("npm-shrinkwrap.json", "package-lock.json")
"""In the order in which npm looks for them."""

LOCKFILE_BYTES_LIMIT: Final = 32 * 1024 * 1024
_VERSIONS: Final = (2, 3)
_MODULES: Final = "node_modules/"
# What npm gets of an entry; the rest is for people (`license`, `funding`, `deprecated`, …).
_GROUPS: Final = ("dependencies", "devDependencies", "optionalDependencies", "peerDependencies")
_KEPT: Final = frozenset(
    "name version resolved integrity link dev optional devOptional peer inBundle extraneous"
    " hasInstallScript hasShrinkwrap bin engines os cpu libc workspaces bundleDependencies"
    " peerDependenciesMeta".split()
) | frozenset(_GROUPS)


@dataclass(frozen=True, slots=True)
class NpmLockfile:
    """A lockfile that was checked.

    Attributes:
        packages: All that it names, sorted; `wanted` are those for the platform.
        projects: What it says of the top ("") and of each project below it, by folder.
        text: All of it, for npm; every address is that of the mirror.
    """

    packages: tuple[Package, ...]
    projects: Mapping[str, Mapping[str, Any]]
    text: bytes

    @property
    def workspaces(self) -> tuple[str, ...]:
        """The folders of its projects below the top, sorted."""
        return tuple(sorted(folder for folder in self.projects if folder))

    def find_mismatch(self, folder: str, manifest: Mapping[str, Any]) -> str | None:
        """The group of dependencies in which a project's package.json says something else."""
        for group in _GROUPS:
            if _named(self.projects[folder], group) != _named(manifest, group):
                return group
        return None


def read_npm_lockfile(data: bytes, name: str, *, platform: Platform, mirror: str) -> NpmLockfile:
    """Reads and checks a lockfile.

    Args:
        data: Its bytes.
        name: Its path, for messages.
        platform: What is installed is for it.
        mirror: The address that npm is to fetch from; no slash at its end.

    Raises:
        JobRefusedError: LOCKFILE_INVALID: it is none of version 2 or 3, or at odds with itself.
            DEPENDENCY_REFUSED: it names what is no package of a registry with a sha512.
    """
    entries = _read_entries(data, name)
    reader = _Reader(name, entries)
    packages: dict[Package, None] = {}
    written: dict[str, Any] = {}
    projects: dict[str, Mapping[str, Any]] = {}
    for path, entry in entries.items():
        kept = {field: value for field, value in entry.items() if field in _KEPT}
        if not _is_installed(path):
            projects[path] = entry
        elif entry.get("link") is True:
            reader.check_link(path, entry)
        elif entry.get("inBundle") is not True:
            package = reader.read_package(path, entry)
            if package is not None:
                wanted = entry.get("optional") is not True or fits(entry, platform)
                packages[Package(package.name, package.version, package.integrity, wanted)] = None
                kept["resolved"] = f"{mirror}/{package.tarball_path}"
        written[path] = kept
    reader.refuse_faults()
    document = {"lockfileVersion": 3, "requires": True, "packages": written}
    return NpmLockfile(
        packages=tuple(sorted(packages, key=lambda each: (each.name, each.version))),
        projects=projects,
        text=json.dumps(document, ensure_ascii=True).encode(),
    )


def _named(project: Mapping[str, Any], group: str) -> dict[str, Any]:
    """The dependencies of a group; an optional one is in no other."""
    named = dict(project.get(group) or {})
    if group != "optionalDependencies":
        for name in project.get("optionalDependencies") or {}:
            named.pop(name, None)
    return named


def _read_entries(data: bytes, name: str) -> dict[str, dict[str, Any]]:
    try:
        document = read_object(data, limit_bytes=LOCKFILE_BYTES_LIMIT)
    except ValueError as error:
        raise _invalid(name, str(error)) from error
    if document.get("lockfileVersion") not in _VERSIONS:
        shown = show(repr(document.get("lockfileVersion")))
        raise _invalid(name, f"its lockfileVersion is {shown}, not 2 or 3")
    entries = document.get("packages")
    if not isinstance(entries, dict) or not isinstance(entries.get(""), dict):
        raise _invalid(name, 'it has no `packages` with the project itself (`""`)')
    for path, entry in entries.items():
        if not isinstance(entry, dict):
            raise _invalid(name, f"its entry {show(path)} is no object")
        for group in _GROUPS:
            if not isinstance(entry.get(group, {}), dict):
                raise _invalid(name, f"the {group} of its entry {show(path)} are no object")
        if path and locate(".", path) != path:
            raise _invalid(name, f"its entry {show(path)} does not lie below it")
    return entries


def _is_installed(path: str) -> bool:
    return path.startswith(_MODULES) or f"/{_MODULES}" in path


def _invalid(name: str, why: str) -> JobRefusedError:
    return JobRefusedError(
        ReasonCode.LOCKFILE_INVALID,
        f"{name}: {why}. Make it anew with `npm install --package-lock-only` (npm 7 or later)",
    )


class _Reader:
    """Reads entries of one lockfile, and gathers what is wrong with them."""

    def __init__(self, name: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
        self._name = name
        self._entries = entries
        self._faults: list[str] = []
        origins = Counter(
            address.origin
            for entry in entries.values()
            if (address := _parse(entry.get("resolved"))) is not None
        )
        # A lockfile is made with one registry: an address elsewhere was put there.
        self._origin = origins.most_common(1)[0][0] if origins else ""

    def check_link(self, path: str, entry: Mapping[str, Any]) -> None:
        """A link leads to a project that the lockfile has, below the top."""
        target = entry.get("resolved")
        if not isinstance(target, str) or target not in self._entries or _is_installed(target):
            self._faults.append(f"{show(path)} is a link to {show(str(target))}, no project of it")

    def read_package(self, path: str, entry: Mapping[str, Any]) -> Package | None:
        """The package of an entry; None for one that is refused."""
        name = entry.get("name", path.rpartition(_MODULES)[2])
        version, integrity = entry.get("version"), entry.get("integrity")
        fault = self._fault_of(entry.get("resolved"))
        if fault is None and not isinstance(integrity, str):
            fault = "has no integrity"
        if fault is None:
            try:
                check_package(str(name), str(version), str(integrity))
            except ValueError as error:
                fault = f"is refused: {error}"
        package = Package(str(name), str(version), str(integrity))
        if fault is None and not self._is_conventional(entry.get("resolved"), package):
            fault = f"has an address that no registry gives to {package}"
        if fault is not None:
            self._faults.append(f"{show(path)} {fault}")
            return None
        return package

    def _fault_of(self, resolved: Any) -> str | None:
        if resolved is None:  # made with `omit-lockfile-registry-resolved`
            return None
        if not isinstance(resolved, str):
            return "has an address that is no text (`resolved`)"
        if resolved.startswith("git"):
            return "is a git repository"
        if resolved.startswith("file:"):
            return "is a file or folder of its own (`file:`)"
        address = _parse(resolved)
        if address is None:
            return f"comes from another source ({show(resolved)})"
        if address.origin != self._origin:
            return f"comes from another host than the others ({show(address.origin)})"
        return None

    def _is_conventional(self, resolved: str | None, package: Package) -> bool:
        if resolved is None:
            return True
        address = _parse(resolved)
        assert address is not None, "checked before"
        path = address.path.replace("%2f", "/").replace("%2F", "/").replace("%40", "@")
        return path.endswith(f"/{package.tarball_path}") and not address.query

    def refuse_faults(self) -> None:
        """Raises JobRefusedError where there is a fault: names the first ones."""
        if self._faults:
            raise JobRefusedError(
                ReasonCode.DEPENDENCY_REFUSED,
                f"{self._name}: only packages of the npm registry with a sha512 are installed:"
                f" {enumerate_first(self._faults)}",
            )


def _parse(resolved: Any) -> Address | None:
    try:
        return Address.parse(resolved) if isinstance(resolved, str) else None
    except ValueError:
        return None
