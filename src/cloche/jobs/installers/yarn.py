"""Yarn: installs a yarn.lock of Yarn 4, frozen, with Cloche's own Yarn.

Into node_modules: a project that wants Plug'n'Play (`nodeLinker: pnp`, Yarn's own choice where
nothing is said) is refused.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cloche.environments.yarn_tools import YARN_PLUGIN_IN_BOX
from cloche.jobs.installers.base import ADDRESS, Installation
from cloche.jobs.named_packages import ORIGIN, NamedPackage
from cloche.jobs.project.entries import enumerate_first, show
from cloche.jobs.project.graph import Platform
from cloche.jobs.project.inputs import MANIFEST, reduce_manifest
from cloche.jobs.project.lockfile import encode
from cloche.jobs.project.manifest import read_manifest
from cloche.jobs.project.yaml_document import read_yaml
from cloche.jobs.project.yarn_lockfile import (
    YARN_LOCKFILE,
    YarnLockfile,
    is_berry,
    is_classic,
    read_yarn_lockfile,
)
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

YARN_SETTINGS: Final = ".yarnrc.yml"
TOOL: Final = "yarn"
_SETTINGS_BYTES_LIMIT: Final = 1024 * 1024
_COMMAND: Final = ("/usr/bin/yarn", "install", "--immutable", "--mode=skip-build")
# Beside what every package manager gets of a package.json.
_FIELDS: Final = ("workspaces", "resolutions", "installConfig")
# A lockfile that was made with them holds for no other values.
_OF_THE_LOCKFILE: Final = ("catalog", "catalogs", "packageExtensions")
# Source: yarnpkg.com/configuration/yarnrc, and tried with Yarn 4.18.
_SETTINGS: Final = MappingProxyType(
    {
        "nodeLinker": "node-modules",
        "npmRegistryServer": ADDRESS,
        "unsafeHttpWhitelist": ["127.0.0.1"],
        "cacheFolder": "/tmp/cache",
        "enableGlobalCache": False,
        "enableMirror": False,
        "checksumBehavior": "throw",
        "enableHardenedMode": False,  # it asks the registry again for all that is locked
        "npmMinimalAgeGate": 0,
        "enableScripts": False,  # of the project and of packages
        "enableTelemetry": False,
        "enableProgressBars": False,
        "httpRetry": 0,  # Cloche has retried already
        "httpTimeout": 600_000,  # the first byte comes after the last was checked
        "networkConcurrency": 32,  # half of the connections that a box may have
        "installStatePath": "/tmp/install-state.gz",
    }
)
# The project has no say in how its scripts are run: its .yarnrc.yml is not there either.
_STEP_ENVIRONMENT: Final = MappingProxyType(
    {
        "YARN_IGNORE_PATH": "1",  # `yarnPath`, which is a program
        "YARN_PLUGINS": YARN_PLUGIN_IN_BOX,
        "YARN_NODE_LINKER": "node-modules",
        "YARN_ENABLE_SCRIPTS": "0",
        "YARN_ENABLE_TELEMETRY": "0",
        "YARN_INSTALL_STATE_PATH": "/tmp/install-state.gz",
    }
)
_ADVICE: Final = "run `yarn install --mode=update-lockfile` and add the new yarn.lock"
_OUTDATED: Final = Reason(
    ReasonCode.LOCKFILE_OUTDATED,
    f"yarn.lock does not match package.json (Yarn's own words are in the log); {_ADVICE}",
)
_DIFFERENT: Final = Reason(
    ReasonCode.INTEGRITY_MISMATCH,
    "what the registry has is not what yarn.lock names: a checksum differs (Yarn's own words are in"
    f" the log); look at what changed, then {_ADVICE}",
)
# Yarn's codes: of a checksum; of a lockfile that it would change, of a request that was refused.
_REASONS: Final = MappingProxyType({"YN0018": _DIFFERENT, "YN0028": _OUTDATED, "YN0035": _OUTDATED})


def read(files: Mapping[str, bytes]) -> Installation | None:
    """What a project of Yarn's wants installed; None where it has no lockfile of Yarn's.

    Raises:
        JobRefusedError: as `read_yarn_lockfile`; MANIFEST_MISSING or MANIFEST_INVALID;
            LOCKFILE_OUTDATED.
    """
    data = files.get(YARN_LOCKFILE)
    if data is None or not (is_classic(data) or is_berry(data)):
        return None
    lockfile = read_yarn_lockfile(data, platform=Platform.of_this_host())
    ignored = list(_read_settings(files.get(YARN_SETTINGS, b"")))
    laid = _lay_manifests(files, lockfile, ignored)
    settings = {**_SETTINGS, "compressionLevel": lockfile.compression_level}
    laid |= {YARN_LOCKFILE: lockfile.text, YARN_SETTINGS: encode(settings)}
    if lockfile.unchecked:
        names = enumerate_first(map(str, lockfile.unchecked))
        ignored.append(
            f"{YARN_LOCKFILE} has no checksum of what is bound to a platform; it is what the"
            f" registry says that it is: {names}"
        )
    folders = (f"{each}/node_modules" for each in sorted(lockfile.projects) if each)
    return Installation(
        tool=TOOL,
        lockfile=YARN_LOCKFILE,
        origin=ORIGIN,
        items=_find_paths(lockfile.packages),
        names=frozenset(package.name for package in lockfile.packages),
        packages_count=len(lockfile.packages),
        files=MappingProxyType(dict(sorted(laid.items()))),
        commands=(_COMMAND,),
        folders=("node_modules", *folders),
        env=MappingProxyType({"YARN_IGNORE_PATH": "1", "YARN_PLUGINS": YARN_PLUGIN_IN_BOX}),
        step_env=_STEP_ENVIRONMENT,
        step_files=MappingProxyType({YARN_LOCKFILE: lockfile.text}),
        ignored=tuple(ignored),
        reasons=_REASONS,
    )


def _find_paths(packages: Iterable[NamedPackage]) -> dict[str, NamedPackage]:
    """Where Yarn looks for them: the slash behind a scope is escaped, or else is not."""
    found: dict[str, NamedPackage] = {}
    for package in packages:
        name, _, file = package.tarball_path.partition("/-/")
        for spelling in (name, name.replace("/", "%2f"), name.replace("/", "%2F")):
            found[f"/{spelling}/-/{file}"] = package
    return found


def _lay_manifests(
    files: Mapping[str, bytes], lockfile: YarnLockfile, ignored: list[str]
) -> dict[str, bytes]:
    """Every package.json: Yarn alone decides which folders are workspaces."""
    projects = {f"{folder}/{MANIFEST}".lstrip("/"): folder for folder in lockfile.projects}
    laid: dict[str, bytes] = {}
    for path, folder in sorted(projects.items()):
        if path not in files:
            raise JobRefusedError(
                ReasonCode.MANIFEST_MISSING,
                f"{show(path)} is missing, though {YARN_LOCKFILE} has the workspace",
            )
        manifest = read_manifest(files[path], path)
        reduced = reduce_manifest(manifest, path)
        name = lockfile.find_mismatch(folder, reduced)
        if name is not None:
            raise JobRefusedError(
                ReasonCode.LOCKFILE_OUTDATED,
                f"{YARN_LOCKFILE} does not match {show(path)} in {show(name)}; {_ADVICE}",
            )
        laid[path] = _encode_manifest(manifest, reduced)
        if manifest.get("packageManager") is not None:
            ignored.append(f"{path}: packageManager: Cloche's own Yarn installs and runs")
    for path in sorted(files):
        if path.rpartition("/")[2] == MANIFEST and path not in laid:
            try:
                manifest = read_manifest(files[path], path)
                laid[path] = _encode_manifest(manifest, reduce_manifest(manifest, path))
            except JobRefusedError:
                ignored.append(f"{path} is no manifest of a project; it is left out of the install")
    return laid


def _encode_manifest(manifest: Mapping[str, Any], reduced: Mapping[str, Any]) -> bytes:
    more = {field: manifest[field] for field in _FIELDS if field in manifest}
    return encode({**reduced, **more})


def _read_settings(data: bytes) -> Iterator[str]:
    """Checks the project's settings; yields what of them has no say, for people.

    Raises:
        JobRefusedError: MANIFEST_INVALID: they cannot be read, or want what is not done here.
    """
    try:
        settings = read_yaml(data, limit_bytes=_SETTINGS_BYTES_LIMIT)
    except ValueError as error:
        raise _refuse(str(error)) from error
    settings = {} if settings is None else settings
    if not isinstance(settings, dict):
        raise _refuse("must hold names and values")
    linker = settings.get("nodeLinker", "pnp")
    if linker != "node-modules":
        said = "" if "nodeLinker" in settings else ", which is Yarn's own choice"
        raise _refuse(
            f"nodeLinker is {show(str(linker))}{said}; packages are installed into node_modules"
            " alone: write `nodeLinker: node-modules` there"
        )
    for name in _OF_THE_LOCKFILE:
        if settings.get(name):
            raise _refuse(
                f"{name} is not read; write these versions into package.json"
                f" (`dependencies`, `resolutions`), then {_ADVICE}"
            )
    others = sorted(settings.keys() - {"nodeLinker"})
    if others:
        yield f"{YARN_SETTINGS} has no say in: {enumerate_first(map(show, others))}"


def _refuse(why: str) -> JobRefusedError:
    return JobRefusedError(ReasonCode.MANIFEST_INVALID, f"{YARN_SETTINGS}: {why}")
