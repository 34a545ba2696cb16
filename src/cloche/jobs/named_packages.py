"""Packages by name and version alone, from lockfiles that have no hash of their tarballs.

Yarn's checksums are of archives that it makes itself. So a tarball must be what the registry's own
metadata says of it, and Yarn, in its box, compares what it makes of it with the lockfile.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cloche.egress.registry import PackageError
from cloche.model.job import ReasonCode
from cloche.model.package import Package, check_package

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cloche.egress.registry import Registry

ORIGIN: Final = "npm-named"
"""Of an `Installation` whose items are `NamedPackage`s."""

_ASKED_COUNT: Final = 16
# Of any package: stands in where a name and a version are checked alone.
_ANY_HASH: Final = f"sha512-{'A' * 86}=="


@dataclass(frozen=True, slots=True)
class NamedPackage:
    """One version of a package.

    Attributes:
        name, version: As for `Package`.
        wanted: This platform installs it; worth fetching before it is asked for.
    """

    name: str
    version: str
    wanted: bool = True

    @property
    def media_type(self) -> str:
        """Of its tarball, as it is served."""
        return "application/octet-stream"

    @property
    def is_counted(self) -> bool:
        """It is a package."""
        return True

    @property
    def tarball_path(self) -> str:
        """Where a registry keeps it by convention, below its own address."""
        return Package(self.name, self.version, _ANY_HASH).tarball_path

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def check_name(name: str, version: str) -> None:
    """Raises ValueError as `check_package`, of a name and a version."""
    check_package(name, version, _ANY_HASH)


class NamedPackages:
    """A source of them; for one event loop."""

    def __init__(self, registry: Registry) -> None:
        """Asks nothing yet."""
        self._registry = registry
        self._known: dict[str, asyncio.Task[Mapping[str, str]]] = {}
        self._asking = asyncio.Semaphore(_ASKED_COUNT)

    async def fetch(self, item: NamedPackage, /) -> Path:
        """The tarball, which has the sha512 that the registry states.

        Raises:
            PackageError: it cannot be had, or the registry states none.
        """
        if item.name not in self._known:
            task = asyncio.create_task(self._ask(item.name))
            # It may be that nobody waits any more.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._known[item.name] = task
        try:
            known = await asyncio.shield(self._known[item.name])
        except PackageError:
            self._known.pop(item.name, None)
            raise
        try:
            integrity = known[item.version]
            check_package(item.name, item.version, integrity)
        except KeyError as error:
            raise _unavailable(item, "the registry has no such version") from error
        except ValueError as error:
            raise _unavailable(item, "the registry states no sha512 of it") from error
        return await self._registry.fetch(Package(item.name, item.version, integrity))

    async def find_scope(self, names: Iterable[str]) -> str:
        """As `Registry.find_scope`."""
        return await self._registry.find_scope(names)

    async def _ask(self, name: str) -> Mapping[str, str]:
        async with self._asking:
            document = await self._registry.fetch_metadata(name, is_short=True)
        return await asyncio.to_thread(_read_hashes, document, name)


def _read_hashes(document: bytes, name: str) -> Mapping[str, str]:
    """By version, of a registry's document; a stranger's."""
    try:
        versions = json.loads(document)["versions"].items()
        return {
            version: str(entry["dist"].get("integrity", ""))
            for version, entry in versions
            if isinstance(entry, dict) and isinstance(entry.get("dist"), dict)
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        text = f"{name}: what the registry gave is no metadata of a package"
        raise PackageError(ReasonCode.REGISTRY_FAILED, text) from error


def _unavailable(item: NamedPackage, why: str) -> PackageError:
    return PackageError(ReasonCode.PACKAGE_UNAVAILABLE, f"{item}: {why}")
