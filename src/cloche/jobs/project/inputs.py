"""What is laid into the box that installs: manifests of Cloche's own making, beside the lockfile.

Of the project's own files pnpm sees the patches that its settings name, and nothing else: no
scripts, no `.npmrc`, no pnpmfile, no `packageManager`. What does not matter for the installed tree
is left out, so that it does not make another dependency layer either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from cloche.jobs.project.entries import enumerate_first, locate, show
from cloche.jobs.project.lockfile import LOCKFILE, Lockfile, Platform, encode, read_lockfile
from cloche.jobs.project.manifest import read_manifest
from cloche.jobs.project.pnpm_settings import WORKSPACE, check_links, read_settings
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode

MANIFEST: Final = "package.json"

INSTALL_FLAGS: Final = (
    "--frozen-lockfile",  # as it is, or not at all
    "--ignore-scripts",  # of the project and of packages
    "--ignore-pnpmfile",  # also where the lockfile was made with one
    "--trust-lockfile",  # asks the registry nothing about the age and the origin of packages
    "--config.update-notifier=false",  # nor about a newer pnpm
    "--config.fetch-timeout=600000",  # the first byte comes after the last was checked
)
"""pnpm's own, for an install from `Inputs.files`. Source: tried with pnpm 12.21."""

RUN_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pnpm_config_pm_on_fail": "ignore",  # packageManager, devEngines.packageManager
        "pnpm_config_runtime_on_fail": "ignore",  # devEngines.runtime, engines.runtime
        "pnpm_config_verify_deps_before_run": "false",  # else each `pnpm run` installs first
        "pnpm_config_ignore_pnpmfile": "true",
        # Whole: pnpm looks in node_modules/.bin first, where any package may have put a `sh`.
        "pnpm_config_script_shell": "/usr/bin/sh",
        "npm_config_script_shell": "/usr/bin/sh",  # for the same reason
        "pnpm_config_node_options": "",
        "pnpm_config_shell_emulator": "false",
        "pnpm_config_update_notifier": "false",
    }
)
"""Variables for a step in which pnpm runs scripts; they also hold for a pnpm that a script starts,
and have precedence over the project's pnpm-workspace.yaml. Source: tried with pnpm 12.21."""

_GROUPS: Final = ("dependencies", "devDependencies", "optionalDependencies", "peerDependencies")
# Source: docs.npmjs.com, "Life Cycle Scripts"; pnpm.io/scripts.
_LIFECYCLE: Final = (
    "preinstall install postinstall prepublish preprepare prepare postprepare pnpm:devPreinstall"
).split()
_FOREIGN_LOCKFILES: Final = (
    "package-lock.json npm-shrinkwrap.json yarn.lock bun.lock bun.lockb".split()
)
_PNPMFILES: Final = (".pnpmfile.cjs", ".pnpmfile.mjs")
_OTHER_MANIFESTS: Final = ("package.json5", "package.yaml")


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that the box that installs is given.

    Attributes:
        files: Content by path from /workspace.
        ignored: What of the project has no say, for people.
        flags: For `pnpm install`.
    """

    files: Mapping[str, bytes]
    ignored: tuple[str, ...]
    flags: tuple[str, ...] = INSTALL_FLAGS


def prepare_install(files: Mapping[str, bytes]) -> tuple[Lockfile, Inputs] | tuple[None, None]:
    """Reads what a project wants installed, for this host's platform.

    Args:
        files: The bundle's, checked.

    Returns:
        None where there is nothing to install: no lockfile, and no dependency.

    Raises:
        JobRefusedError: LOCKFILE_MISSING: there are dependencies. Else as `read_lockfile` and
            `lay_inputs`.
    """
    data = files.get(LOCKFILE)
    if data is None:
        _refuse_dependencies(files)
        return None, None
    lockfile = read_lockfile(data, platform=Platform.of_this_host())
    return lockfile, lay_inputs(files, lockfile)


def lay_inputs(files: Mapping[str, bytes], lockfile: Lockfile) -> Inputs:
    """Makes the files that pnpm installs from.

    Every package.json is among them, not only those of the lockfile's projects: pnpm alone decides
    which folders are projects, and that the lockfile knows them.

    Raises:
        JobRefusedError: MANIFEST_MISSING: a project of the lockfile has no package.json.
            MANIFEST_INVALID: it cannot be read, or says something that cannot be. Else as
            `read_settings`.
    """
    projects = {_manifest_of(folder) for folder in (".", *lockfile.importers)}
    manifests = {path: _read(files, path) for path in sorted(projects)}
    settings = read_settings(files.get(WORKSPACE), manifests[MANIFEST], lockfile)
    ignored = [*_describe_ignored(files, manifests, lockfile), *settings.ignored]
    laid = {path: encode(reduce_manifest(manifest, path)) for path, manifest in manifests.items()}
    for path in sorted(_find_manifests(files) - projects):
        try:
            laid[path] = encode(reduce_manifest(read_manifest(files[path], path), path))
        except JobRefusedError:
            ignored.append(f"{path} is no manifest of a project; it is left out of the install")
    for path in settings.patches:
        if path not in files:
            raise JobRefusedError(
                ReasonCode.MANIFEST_INVALID, f"{WORKSPACE}: there is no patch {show(path)}"
            )
        laid[path] = files[path]
    laid[LOCKFILE] = lockfile.text
    laid[WORKSPACE] = encode(settings.values)
    return Inputs(MappingProxyType(dict(sorted(laid.items()))), tuple(ignored))


def _manifest_of(folder: str) -> str:
    return MANIFEST if folder == "." else f"{folder}/{MANIFEST}"


def _find_manifests(files: Mapping[str, bytes]) -> set[str]:
    return {path for path in files if path.rpartition("/")[2] == MANIFEST}


def _read(files: Mapping[str, bytes], path: str) -> dict[str, Any]:
    if path in files:
        return read_manifest(files[path], path)
    folder = path.removesuffix(MANIFEST)
    others = [name for name in _OTHER_MANIFESTS if folder + name in files]
    hint = f" ({others[0]} is not read)" if others else ""
    raise JobRefusedError(
        ReasonCode.MANIFEST_MISSING,
        f"{path} is missing{hint}, though {LOCKFILE} has the project; add it, or make the"
        " lockfile anew with `pnpm install --lockfile-only`",
    )


def reduce_manifest(manifest: Mapping[str, Any], path: str) -> dict[str, Any]:
    """What of a package.json bears on the installed tree.

    Args:
        manifest: As `read_manifest` gives it.
        path: Where it lies in the project.

    Raises:
        JobRefusedError: MANIFEST_INVALID, or DEPENDENCY_REFUSED for a link out of the project.
    """
    folder = path.removesuffix(MANIFEST).rstrip("/") or "."
    stated = {field: manifest[field] for field in _FIELDS if field in manifest}
    published = stated.pop("publishConfig", None)
    if isinstance(published, dict):
        folders = {name: published[name] for name in _PUBLISHED if name in published}
        stated |= {"publishConfig": folders} if folders else {}
    for field, value in stated.items():
        is_right, shape = _FIELDS[field]
        if not is_right(value, folder):
            raise JobRefusedError(ReasonCode.MANIFEST_INVALID, f"{path}: `{field}` must be {shape}")
        if field in _GROUPS:
            check_links(value, folder, f"{path}: {field}")
    return stated


def _is_text(value: Any, _: str) -> bool:
    return isinstance(value, str)


def _is_table(value: Any, _: str) -> bool:
    return isinstance(value, dict)


def _are_texts(value: Any, _: str) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _are_paths(value: Any, folder: str) -> bool:
    paths = {"": value} if isinstance(value, str) else value
    return _are_texts(paths, folder) and all(
        locate(folder, path) is not None for path in paths.values()
    )


def _are_folders(value: Any, folder: str) -> bool:
    directory = value.get("directory", ".")
    return isinstance(directory, str) and locate(folder, directory) is not None


# Fields of a package.json that pnpm gets.
_FIELDS: Final[Mapping[str, tuple[Callable[[Any, str], bool], str]]] = {
    **dict.fromkeys(("name", "version"), (_is_text, "a text")),
    **dict.fromkeys(_GROUPS, (_are_texts, "an object, its values texts")),
    **dict.fromkeys(("peerDependenciesMeta", "dependenciesMeta"), (_is_table, "an object")),
    "bin": (_are_paths, "a path in the project, or an object of such"),
    "publishConfig": (_are_folders, "an object, its `directory` in the project"),
}
_PUBLISHED: Final = ("directory", "linkDirectory")


def _refuse_dependencies(files: Mapping[str, bytes]) -> None:
    """Without a lockfile there must be nothing to install."""
    if MANIFEST not in files:
        return
    root = read_manifest(files[MANIFEST], MANIFEST)
    has_projects = WORKSPACE in files or "workspaces" in root
    for path, manifest in [(MANIFEST, root), *(_read_others(files) if has_projects else ())]:
        if any(manifest.get(group) for group in _GROUPS):
            found = [name for name in _FOREIGN_LOCKFILES if name in files]
            hint = f" ({', '.join(found)} is not read: `pnpm import` converts it)" if found else ""
            raise JobRefusedError(
                ReasonCode.LOCKFILE_MISSING,
                f"{path} has dependencies, but there is no {LOCKFILE} or package-lock.json{hint};"
                f" run `pnpm install --lockfile-only` and add the {LOCKFILE} that it writes",
            )


def _read_others(files: Mapping[str, bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(_find_manifests(files) - {MANIFEST}):
        try:
            yield path, read_manifest(files[path], path)
        except JobRefusedError:  # a fixture or a template
            continue


def _describe_ignored(
    files: Mapping[str, bytes], manifests: Mapping[str, Mapping[str, Any]], lockfile: Lockfile
) -> Iterator[str]:
    """What the project asks for in vain."""
    root = manifests[MANIFEST]
    asked = root.get("packageManager")
    if asked is not None:
        shown = show(asked) if isinstance(asked, str) else "its value"
        yield f"{MANIFEST}: packageManager: not {shown} but Cloche's own pnpm installs and runs"
    engines = root.get("devEngines")
    if isinstance(engines, dict) and not engines.keys().isdisjoint(("packageManager", "runtime")):
        yield f"{MANIFEST}: devEngines: Cloche brings its own pnpm and Node"
    scripts = {name for manifest in manifests.values() for name in manifest.get("scripts", {})}
    lifecycle = [name for name in _LIFECYCLE if name in scripts]
    if lifecycle:
        yield f"{MANIFEST}: the install runs no scripts ({', '.join(lifecycle)})"
    names = {path.rpartition("/")[2] for path in files}
    if ".npmrc" in names:
        yield ".npmrc has no say in the install"
    if lockfile.uses_pnpmfile or not names.isdisjoint(_PNPMFILES):
        yield "the hooks of a pnpmfile are not run"
    foreign = [name for name in _FOREIGN_LOCKFILES if name in files]
    if foreign:
        yield f"{enumerate_first(foreign)}: {LOCKFILE} is what is read"
