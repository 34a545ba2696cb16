"""`registry: open`: a step may have any package of the registry, by name and version.

A loosening that a job asks for by name: what a step fetches is what the registry says it is (its
sha512 is that of the registry's own metadata), and no lockfile has named it. Each package is in the
record.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cloche.egress.metadata import Metadata, MetadataItems, reduce_metadata
from cloche.egress.mirror import Mirror
from cloche.egress.registry import PackageError
from cloche.jobs.installers.base import ADDRESS, PORT
from cloche.model.job import ReasonCode
from cloche.model.package import Package, is_package_name

if TYPE_CHECKING:
    from pathlib import Path

    from cloche.egress.registry import Registry
    from cloche.model.policy import JobLimits

REGISTRY_ENVIRONMENT: Final = {
    "npm_config_registry": f"{ADDRESS}/",
    "pnpm_config_registry": f"{ADDRESS}/",
    "YARN_NPM_REGISTRY_SERVER": ADDRESS,
    "YARN_UNSAFE_HTTP_WHITELIST": "127.0.0.1",
}
_MIB: Final = 1024 * 1024
_TARBALL: Final = "/-/"


@dataclass(frozen=True, slots=True)
class Tarball:
    """One version of a package, as it is asked for."""

    name: str
    version: str
    wanted: bool = False

    @property
    def is_counted(self) -> bool:
        """It is a package."""
        return True

    @property
    def media_type(self) -> str:
        """As it is served."""
        return "application/octet-stream"

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


class OpenItems(Mapping[str, "Metadata | Tarball"]):
    """Everything that has the path of a package's metadata or tarball."""

    def __init__(self) -> None:
        self._metadata = MetadataItems(None)

    def __getitem__(self, path: str) -> Metadata | Tarball:
        if _TARBALL not in path:
            return self._metadata[path]
        name, _, file = path.removeprefix("/").partition(_TARBALL)
        name = name.replace("%2f", "/").replace("%2F", "/").replace("%40", "@")
        base = f"{name.rpartition('/')[2]}-"
        version = file.removesuffix(".tgz").removeprefix(base)
        is_tarball = file == f"{base}{version}.tgz" and "/" not in version
        if not path.startswith("/") or not is_package_name(name) or not is_tarball:
            raise KeyError(path)
        return Tarball(name, version)

    def __iter__(self) -> Iterator[str]:
        return iter(())  # nothing is fetched before it is asked for

    def __len__(self) -> int:
        return 0


class OpenRegistry:
    """Serves the registry to one step.

    Attributes:
        fetched: The packages that were given out, in their order.
        mirror: Start it with a socket on `PORT`; close it.
    """

    def __init__(self, registry: Registry, folder: Path, limits: JobLimits) -> None:
        """Serves nothing yet; `folder` takes what the registry says of packages."""
        self.fetched: dict[Package, None] = {}
        self._registry = registry
        self._folder = folder
        self._documents: dict[str, Path] = {}
        self.mirror = Mirror(
            OpenItems(),
            self._fetch,
            port=PORT,
            limit_bytes=limits.egress_mb * _MIB,
            connections_count=limits.connections_count,
        )

    async def _fetch(self, item: Metadata | Tarball) -> Path:
        document = self._documents.get(item.name)
        if document is None:
            told = await self._registry.fetch_metadata(item.name)
            document = await asyncio.to_thread(self._keep, item.name, told)
            self._documents[item.name] = document
        if isinstance(item, Metadata):
            return document
        package = await asyncio.to_thread(_find, document, item)
        path = await self._registry.fetch(package)
        self.fetched[package] = None
        return path

    def _keep(self, name: str, told: bytes) -> Path:
        try:
            reduced, _ = reduce_metadata(told, name, newest=None, mirror=ADDRESS)
        except ValueError as error:
            text = f"{name}: what the registry gave {error}"
            raise PackageError(ReasonCode.REGISTRY_FAILED, text) from error
        path = self._folder / name.replace("/", "+")
        path.write_bytes(reduced)
        return path


def _find(document: Path, item: Tarball) -> Package:
    entry = json.loads(document.read_bytes())["versions"].get(item.version)
    if entry is None:
        raise PackageError(
            ReasonCode.PACKAGE_UNAVAILABLE, f"{item}: the registry has no such version"
        )
    return Package(item.name, item.version, entry["dist"]["integrity"])
