"""Yarn's lockfile: which packages a project is made of, and what Yarn is given of it.

A stranger's file, as pnpm's is (`lockfile.py`): read strictly, written anew from what was read. One
kind of package may stand in it: of the registry, by name and exact version, with the checksum of
the archive that Yarn makes of it. Yarn leaves that out for packages that are bound to a platform,
and so they are what the registry says that they are.

Yarn's own patches of packages are left out, and Yarn is told so (`environments.yarn_tools`).

Source: yarnpkg.com; lockfiles that Yarn 4.0 to 4.18 write (version 8 to 10).
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from cloche.jobs.named_packages import NamedPackage, check_name
from cloche.jobs.project.entries import enumerate_first, locate, show
from cloche.jobs.project.graph import Platform
from cloche.jobs.project.yaml_document import read_yaml
from cloche.jobs.project.yarn_text import write_yarn_text
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode

YARN_LOCKFILE: Final = "yarn.lock"
LOCKFILE_BYTES_LIMIT: Final = 32 * 1024 * 1024
_MARKS: Final = (b"\n", b",", b":", b"[", b"{", b"- ", b"? ")
_MARKS_LIMIT_COUNT: Final = 1_000_000
_METADATA: Final = "__metadata"
_CLASSIC: Final = b"# yarn lockfile v1"
_CLASSIC_BYTES: Final = 1024
# One is as the other, but for Yarn's own patches: an earlier one would be resolved anew.
_VERSIONS: Final = ("8", "9", "10")
_WRITTEN_VERSION: Final = "10"
# Yarn 3 makes other archives, and so its checksums tell Yarn 4 nothing. Source: tried with both.
_VERSIONS_OF_YARN_3: Final = ("4", "5", "6", "7")
_CACHE_VERSION: Final = "10"
_SHA512_DIGITS_COUNT: Final = 128
_LENGTH_LIMIT: Final = 8192
_MADE_ANEW: Final = "Make it anew with `yarn install --mode=update-lockfile` (Yarn 4)"
_TEXTS: Final = ("version", "resolution", "checksum", "conditions", "languageName", "linkType")
_TABLES: Final = ("dependencies", "peerDependencies", "bin")
_DEEP_TABLES: Final = ("dependenciesMeta", "peerDependenciesMeta")
_GROUPS: Final = ("dependencies", "devDependencies", "optionalDependencies")


@dataclass(frozen=True, slots=True)
class YarnLockfile:
    """A lockfile that was checked.

    Attributes:
        packages: All that it names, sorted; `wanted` are those for the platform.
        projects: What it says of the top ("") and of each workspace below it, by folder.
        compression_level: Of the archives that its checksums are of; `mixed` or a digit.
        unchecked: The packages for the platform that have no checksum.
        text: All of it, for Yarn.
    """

    packages: tuple[NamedPackage, ...]
    projects: Mapping[str, Mapping[str, Any]]
    compression_level: str
    unchecked: tuple[NamedPackage, ...]
    text: bytes

    def find_mismatch(self, folder: str, manifest: Mapping[str, Any]) -> str | None:
        """The dependency of a project of which its package.json says something else."""
        stated = self.projects[folder]
        wanted: dict[str, set[str]] = {}
        for group in _GROUPS:
            for name, specifier in manifest.get(group, {}).items():
                wanted.setdefault(name, set()).add(_bare(specifier))
        known = stated.get("dependencies", {})
        peers, known_peers = manifest.get("peerDependencies", {}), stated.get("peerDependencies")
        for name in sorted(wanted.keys() | known.keys()):
            if name not in known or _bare(known[name]) not in wanted.get(name, ()):
                return str(name)
        return next((name for name in peers if name not in (known_peers or {})), None)


def is_classic(data: bytes) -> bool:
    """Whether it is a lockfile of Yarn 1."""
    return _CLASSIC in data[:_CLASSIC_BYTES]


def is_berry(data: bytes) -> bool:
    """Whether it is a lockfile of Yarn 2 or later."""
    return _METADATA.encode() in data


def read_yarn_lockfile(data: bytes, *, platform: Platform) -> YarnLockfile:
    """Reads and checks a lockfile.

    Args:
        data: Its bytes.
        platform: What is installed is for it.

    Raises:
        JobRefusedError: LOCKFILE_INVALID: it is none of Yarn 4, or at odds with itself.
            DEPENDENCY_REFUSED: it names what is no package of a registry.
    """
    entries = _read_entries(data)
    metadata = entries.pop(_METADATA, None)
    if not isinstance(metadata, dict):
        raise _invalid("it has no `__metadata`")
    version = metadata.get("version")
    if version in _VERSIONS_OF_YARN_3:
        raise JobRefusedError(
            ReasonCode.LOCKFILE_INVALID,
            f"{YARN_LOCKFILE}: is of Yarn 2 or 3, whose checksums no other Yarn can check; `yarn"
            " set version berry` and `yarn install` make it one of Yarn 4",
        )
    if version not in _VERSIONS:
        raise _invalid(f"its version is {show(repr(version))}, not 8 to 10")
    cache_key = str(metadata.get("cacheKey"))
    compression_level = _read_cache_key(cache_key)
    reader = _Reader(cache_key, platform)
    written: dict[str, Any] = {}
    for key, entry in entries.items():
        _check_shape(key, entry)
        if reader.read(key, entry):
            if "checksum" in entry:
                hashed = entry["checksum"].rpartition("/")[2]
                entry = {**entry, "checksum": f"{cache_key}/{hashed}"}
            written[key] = entry
    reader.finish()
    head = {_METADATA: {"version": _WRITTEN_VERSION, "cacheKey": cache_key}}
    return YarnLockfile(
        packages=tuple(sorted(reader.packages, key=lambda each: (each.name, each.version))),
        projects=reader.projects,
        compression_level=compression_level,
        unchecked=tuple(reader.unchecked),
        text=write_yarn_text({**head, **written}),
    )


def _invalid(why: str) -> JobRefusedError:
    return JobRefusedError(ReasonCode.LOCKFILE_INVALID, f"{YARN_LOCKFILE}: {why}. {_MADE_ANEW}")


def _read_entries(data: bytes) -> dict[str, Any]:
    if is_classic(data):
        raise JobRefusedError(
            ReasonCode.LOCKFILE_INVALID,
            f"{YARN_LOCKFILE}: is of Yarn 1, whose lockfiles are not read: `yarn set version"
            " berry`, `nodeLinker: node-modules` in .yarnrc.yml and `yarn install` make it one of"
            " Yarn 4; or `pnpm import` makes a pnpm-lock.yaml of it",
        )
    if sum(map(data.count, _MARKS)) > _MARKS_LIMIT_COUNT:
        raise _invalid(f"has more than {_MARKS_LIMIT_COUNT} values")
    try:
        document = read_yaml(data, limit_bytes=LOCKFILE_BYTES_LIMIT, as_texts=True)
    except ValueError as error:
        raise _invalid(str(error)) from error
    if not isinstance(document, dict):
        raise _invalid("must hold names and values")
    return document


def _read_cache_key(key: str) -> str:
    """The compression that `10c0` (0) or `10` (mixed) names."""
    version, c, level = key.partition("c")
    if version != _CACHE_VERSION or (c and level not in tuple("0123456789")):
        raise _invalid(f"its cacheKey is {show(key)}, not {_CACHE_VERSION} or {_CACHE_VERSION}c0")
    return level if c else "mixed"


def _check_shape(key: str, entry: Any) -> None:
    if not isinstance(entry, dict) or not _is_text(key):
        raise _invalid(f"its entry {show(key)} must be a text that holds names and values")
    for field, value in entry.items():
        if field in _TEXTS:
            is_right = _is_text(value)
        elif field in _TABLES:
            is_right = _are_texts(value)
        elif field in _DEEP_TABLES:
            is_right = (
                isinstance(value, dict)
                and all(map(_is_text, value))
                and all(map(_are_texts, value.values()))
            )
        else:
            raise _invalid(f"its entry {show(key)} has the field {show(field)}, not known here")
        if not is_right:
            raise _invalid(f"the {field} of its entry {show(key)} has not the shape that it should")
    for field in ("version", "resolution"):
        if field not in entry:
            raise _invalid(f"its entry {show(key)} has no {field}")
        if len(entry[field]) > _LENGTH_LIMIT:
            raise _invalid(f"the {field} of its entry {show(key)} is over {_LENGTH_LIMIT} letters")


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, (*value, *value.values())))


def _is_text(value: Any) -> bool:
    # Yarn writes others as they are, and no reader of YAML takes all of these.
    return isinstance(value, str) and value.isprintable()


def _bare(specifier: str) -> str:
    return specifier.removeprefix("npm:")


class _Reader:
    """Reads entries of one lockfile, and gathers what is wrong with them."""

    def __init__(self, cache_key: str, platform: Platform) -> None:
        self._cache_key = cache_key
        self._platform = platform
        self._faults: list[str] = []
        self._resolutions: set[str] = set()
        self._patched: set[str] = set()
        self.packages: list[NamedPackage] = []
        self.projects: dict[str, Mapping[str, Any]] = {}
        self.unchecked: list[NamedPackage] = []

    def read(self, key: str, entry: Mapping[str, Any]) -> bool:
        """Takes an entry; False for one that Yarn gets nothing of."""
        resolution = entry["resolution"]
        at = resolution.find("@", 1)
        name, reference = (resolution[:at], resolution[at + 1 :]) if at > 0 else (resolution, "")
        protocol, colon, rest = reference.partition(":")
        if resolution in self._resolutions:
            raise _invalid(f"it has {show(resolution)} twice")
        self._resolutions.add(resolution)
        if (protocol, colon) == ("workspace", ":"):
            self._read_project(rest, entry)
            return True
        if (protocol, colon) == ("patch", ":") and _is_own_patch(name, reference):
            self._patched.add(unquote(rest.partition("#")[0]))
            return False
        fault = _foreign_source_of(reference)
        if fault is None:
            fault = self._read_package(key, name, rest, entry)
        if fault is not None:
            self._faults.append(f"{show(resolution)} {fault}")
        return True

    def _read_project(self, folder: str, entry: Mapping[str, Any]) -> None:
        if locate(".", folder) != folder:
            raise _invalid(f"its workspace {show(folder)} does not lie below it")
        self.projects["" if folder == "." else folder] = entry

    def _read_package(
        self, key: str, name: str, version: str, entry: Mapping[str, Any]
    ) -> str | None:
        """Takes a package; returns why it is refused."""
        if "::" in version:
            return "names its tarball by URL; only those at the usual place are taken"
        try:
            check_name(name, version)
        except ValueError as error:
            return f"is refused: {error}"
        if entry["version"] != version:
            return f"is said to be of version {show(entry['version'])}"
        others = [asked for asked in key.split(",") if not _asks_for(asked.strip(), name)]
        if others:
            return f"stands for another package ({show(others[0].strip())})"
        checksum, conditions = entry.get("checksum"), entry.get("conditions")
        if checksum is None and conditions is None:
            return "has no checksum"
        if checksum is not None and not self._is_checksum(checksum):
            return f"has a checksum that is no sha512 of an archive {show(self._cache_key)}"
        wanted = conditions is None or _hold(conditions, self._platform)
        package = NamedPackage(name, version, wanted)
        self.packages.append(package)
        if wanted and checksum is None:
            self.unchecked.append(package)
        return None

    def _is_checksum(self, checksum: str) -> bool:
        key, slash, digits = checksum.rpartition("/")
        return (
            (not slash or key == self._cache_key)
            and len(digits) == _SHA512_DIGITS_COUNT
            and set(string.hexdigits[:16]).issuperset(digits)
        )

    def finish(self) -> None:
        """Checks what only the whole tells; raises JobRefusedError."""
        if self._faults:
            raise JobRefusedError(
                ReasonCode.DEPENDENCY_REFUSED,
                f"{YARN_LOCKFILE}: only packages of the npm registry with a checksum are installed:"
                f" {enumerate_first(self._faults)}",
            )
        missing = sorted(self._patched - self._resolutions)
        if missing:
            raise _invalid(f"it patches {show(missing[0])}, which it does not have")
        if "" not in self.projects:
            raise _invalid("it does not have the project itself (`@workspace:.`)")


def _is_own_patch(name: str, reference: str) -> bool:
    """Whether it is one of the patches that Yarn brings, of a package of the registry."""
    source, _, selector = reference.removeprefix("patch:").partition("#")
    patch = selector.partition("::")[0].removeprefix("optional!").removeprefix("~")
    return patch == f"builtin<compat/{name}>" and unquote(source).startswith(f"{name}@npm:")


def _foreign_source_of(reference: str) -> str | None:
    """What a source is when it is not the registry."""
    protocol, colon, _ = reference.partition(":")
    if (protocol, colon) == ("npm", ":"):
        return None
    if "#commit=" in reference or protocol.startswith("git"):
        return "is a git repository"
    if protocol in ("http", "https"):
        return "is a tarball by URL"
    if protocol == "file":
        return "is a file or folder of its own (`file:`)"
    if protocol in ("link", "portal"):
        return f"is a link to a folder (`{protocol}:`); make the folder a workspace"
    if protocol == "patch":
        return "is patched (`patch:`); take the package as it is"
    return f"comes from another source ({show(protocol + colon)})"


def _asks_for(descriptor: str, name: str) -> bool:
    """Whether `name@npm:range`, or another name with `npm:name@range`, asks for this package."""
    at = descriptor.find("@", 1)
    if at < 0:
        return False
    asked, specifier = descriptor[:at], _bare(descriptor[at + 1 :])
    at = specifier.find("@", 1)
    return (specifier[:at] if at > 0 else asked) == name


def _hold(conditions: str, platform: Platform) -> bool:
    """Whether conditions such as `os=linux & (cpu=x64 | cpu=arm64)` hold.

    Only for what is fetched ahead: Yarn itself decides what it installs.
    """
    known = {f"os={platform.os}", f"cpu={platform.cpu}", f"libc={platform.libc}"}

    def holds(option: str) -> bool:
        return option[1:] not in known if option.startswith("!") else option in known

    return all(
        any(holds(option.strip(" ()")) for option in group.split("|"))
        for group in conditions.split("&")
    )
