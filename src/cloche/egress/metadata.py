"""What a registry says of a package, under a policy: which versions may be chosen of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cloche.model.package import Package, check_package, is_package_name

_TAGS: Final = "dist-tags"
_LATEST: Final = "latest"
# What a package manager resolves by. Source: npm's registry documentation, package-metadata.
_FIELDS: Final = frozenset(
    "name version bin dependencies optionalDependencies peerDependencies peerDependenciesMeta"
    " bundleDependencies bundledDependencies engines os cpu libc deprecated hasInstallScript"
    " _hasShrinkwrap".split()
)


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is said of one package."""

    name: str
    wanted: bool = False

    @property
    def is_counted(self) -> bool:
        """It is a package."""
        return True

    @property
    def media_type(self) -> str:
        """As it is served."""
        return "application/json"

    def __str__(self) -> str:
        return self.name


class MetadataItems(Mapping[str, Metadata]):
    """The metadata that a resolution may ask for, by path: `/name`, `/@scope%2fname`."""

    def __init__(self, allowed: frozenset[str] | None) -> None:
        """Of these packages; None: of any."""
        self._allowed = allowed

    def __getitem__(self, path: str) -> Metadata:
        name = path.removeprefix("/").replace("%2f", "/").replace("%2F", "/").replace("%40", "@")
        is_allowed = self._allowed is None or name in self._allowed
        if not path.startswith("/") or not is_package_name(name) or not is_allowed:
            raise KeyError(path)
        return Metadata(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())  # nothing is fetched before it is asked for

    def __len__(self) -> int:
        return 0


def reduce_metadata(
    document: bytes, name: str, *, newest: datetime | None, mirror: str
) -> tuple[bytes, int]:
    """What a resolution is given of a registry's document.

    Args:
        document: As it came; a stranger's.
        name: Of the package that was asked for.
        newest: Versions published later are left out, and those of which that is not known; None:
            none is.
        mirror: The address that tarballs are said to have; no slash at its end.

    Returns:
        The document; how many versions were left out for their age.

    Raises:
        ValueError: It is no such document.
    """
    try:
        return _read(document, name, newest, mirror)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("is no metadata of a package") from error


def _read(document: bytes, name: str, newest: datetime | None, mirror: str) -> tuple[bytes, int]:
    found = json.loads(document)
    versions, times = found["versions"], found.get("time", {})
    entries = {
        version: entry for version, entry in versions.items() if _is_whole(name, version, entry)
    }
    kept = {
        version: entry
        for version, entry in entries.items()
        if newest is None or _is_older(times.get(version), newest)
    }
    tags = found.get(_TAGS)
    tags = {} if not isinstance(tags, dict) else tags
    tags = {tag: version for tag, version in tags.items() if version in kept}
    if _LATEST not in tags and kept:
        tags[_LATEST] = max(kept, key=_rank)
    reduced = {
        "name": name,
        _TAGS: tags,
        "versions": {version: _reduce(name, version, kept[version], mirror) for version in kept},
    }
    return json.dumps(reduced).encode(), len(entries) - len(kept)


def _is_whole(name: str, version: str, entry: Any) -> bool:
    """Whether it has what a lockfile needs: some very old versions have no sha512."""
    try:
        check_package(name, version, entry["dist"]["integrity"])
    except (LookupError, TypeError, ValueError, AttributeError):
        return False
    return True


def _is_older(published: Any, newest: datetime) -> bool:
    try:
        at = datetime.fromisoformat(published)
    except (TypeError, ValueError):
        return False
    return (at if at.tzinfo else at.replace(tzinfo=UTC)) <= newest


def _rank(version: str) -> tuple[bool, list[int], str]:
    """Releases above pre-releases, then by number."""
    core, _, rest = version.partition("+")[0].partition("-")
    return not rest, [int(number) for number in core.split(".")], rest


def _reduce(name: str, version: str, entry: Mapping[str, Any], mirror: str) -> dict[str, Any]:
    kept = {field: value for field, value in entry.items() if field in _FIELDS}
    package = Package(name, version, entry["dist"]["integrity"])
    tarball = f"{mirror}/{package.tarball_path}"
    return {
        **kept,
        "name": name,
        "version": version,
        "dist": {"integrity": package.integrity, "tarball": tarball},
    }
