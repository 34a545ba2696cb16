"""npm: installs a package-lock.json, frozen (`npm ci`), with Cloche's own npm."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cloche.egress.mirror import tarball_paths
from cloche.jobs.installers.base import ADDRESS, Installation
from cloche.jobs.project.entries import show
from cloche.jobs.project.graph import Platform
from cloche.jobs.project.inputs import MANIFEST, reduce_manifest
from cloche.jobs.project.lockfile import encode
from cloche.jobs.project.manifest import read_manifest
from cloche.jobs.project.npm_lockfile import LOCKFILES, read_npm_lockfile
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_COMMAND: Final = (
    *("/usr/bin/npm", "ci"),
    f"--registry={ADDRESS}/",
    "--cache=/tmp/cache",
    "--ignore-scripts",  # of the project and of packages
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--fetch-retries=0",  # Cloche has retried already
    "--maxsockets=32",  # half of the connections that a box may have
    "--loglevel=warn",
)
_OUTDATED: Final = Reason(
    ReasonCode.LOCKFILE_OUTDATED,
    "package-lock.json does not match package.json (npm's own words are in the log); run"
    " `npm install --package-lock-only` and add the new package-lock.json",
)
# It resolves anew what the lockfile's own entries do not come up to.
_ASKS_FOR_MORE: Final = f"404 Not Found - GET {ADDRESS}/"
# Beside what every package manager gets of a package.json.
_FIELDS: Final = ("workspaces", "overrides", "bundleDependencies", "bundledDependencies")


def read(files: Mapping[str, bytes]) -> Installation | None:
    """What a project of npm's wants installed; None where it has no lockfile of npm's.

    Raises:
        JobRefusedError: as `read_npm_lockfile`; MANIFEST_MISSING or MANIFEST_INVALID.
    """
    name = next((each for each in LOCKFILES if each in files), None)
    if name is None:
        return None
    lockfile = read_npm_lockfile(
        files[name], name, platform=Platform.of_this_host(), mirror=ADDRESS
    )
    laid: dict[str, bytes] = {name: lockfile.text}
    ignored: list[str] = []
    for folder in ("", *(f"{workspace}/" for workspace in lockfile.workspaces)):
        path = f"{folder}{MANIFEST}"
        if path not in files:
            raise JobRefusedError(
                ReasonCode.MANIFEST_MISSING, f"{show(path)} is missing, though {name} has it"
            )
        manifest = read_manifest(files[path], path)
        reduced = reduce_manifest(manifest, path)
        group = lockfile.find_mismatch(folder.rstrip("/"), reduced)
        if group is not None:
            raise JobRefusedError(
                ReasonCode.LOCKFILE_OUTDATED,
                f"{name} does not match the {group} of {show(path)}; run"
                f" `npm install --package-lock-only` and add the new {name}",
            )
        more = {field: manifest[field] for field in _FIELDS if field in manifest}
        laid[path] = encode({**reduced, **more})
        ignored += _describe_ignored(manifest, path)
    if any(path.rpartition("/")[2] == ".npmrc" for path in files):
        ignored.append(".npmrc has no say in the install")
    folders = ["node_modules", *(f"{each}/node_modules" for each in lockfile.workspaces)]
    return Installation(
        tool="npm",
        lockfile=name,
        origin="npm",
        items=tarball_paths(lockfile.packages),
        names=frozenset(package.name for package in lockfile.packages),
        packages_count=len(lockfile.packages),
        files=MappingProxyType(dict(sorted(laid.items()))),
        commands=(_COMMAND,),
        folders=tuple(folders),
        ignored=tuple(ignored),
        reasons=MappingProxyType({"npm error code EUSAGE": _OUTDATED, _ASKS_FOR_MORE: _OUTDATED}),
    )


def _describe_ignored(manifest: Mapping[str, object], path: str) -> Iterator[str]:
    if manifest.get("packageManager") is not None:
        yield f"{path}: packageManager: Cloche's own npm installs and runs"
