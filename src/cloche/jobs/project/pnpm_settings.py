"""The settings of a project that pnpm is given: those that say what is linked where, no others.

A lockfile holds for the settings that it was made with; without them pnpm finds it outdated. Where
packages come from, what code runs and what lies outside the project is Cloche's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloche.jobs.project.entries import LOCKFILE, enumerate_first, locate, show
from cloche.jobs.project.lockfile import Lockfile
from cloche.jobs.project.yaml_document import read_yaml
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode

WORKSPACE: Final = "pnpm-workspace.yaml"
WORKSPACE_BYTES_LIMIT: Final = 1024 * 1024

_Check = Callable[[Any], bool]


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_deep_flag(value: Any) -> bool:
    return isinstance(value, bool) or value == "deep"


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _are_names(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _are_tables(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, dict) for item in value.values())


# Source: pnpm.io/settings; which of them a frozen lockfile is compared with: pnpm 12.21 itself.
_CHECKS: Final[Mapping[str, tuple[_Check, str]]] = {
    **dict.fromkeys(
        "addMissingPeerTypes allowUnusedPatches autoDedupe autoInstallPeers"
        " autoInstallPeersFromHighestMatch dedupeDirectDeps dedupeInjectedDeps"
        " dedupePeerDependents dedupePeers excludeLinksFromLockfile extendNodePath hoist"
        " hoistWorkspacePackages ignoreCompatibilityDb injectWorkspacePackages"
        " preferSymlinkedExecutables preferWorkspacePackages projectScopedOptionalPeers"
        " resolvePeersFromWorkspaceRoot shamefullyHoist strictPeerDependencies".split(),
        (_is_flag, "true or false"),
    ),
    **dict.fromkeys(
        ("peersSuffixMaxLength", "virtualStoreDirMaxLength"), (_is_number, "a whole number")
    ),
    **dict.fromkeys(
        "hoistPattern ignoredOptionalDependencies packages publicHoistPattern".split(),
        (_are_texts, "a list of texts"),
    ),
    **dict.fromkeys(
        "catalog overrides patchedDependencies".split(),
        (_are_names, "names and texts (a number in quotes)"),
    ),
    **dict.fromkeys(("catalogs", "packageExtensions"), (_are_tables, "names, each with a table")),
    "peerDependencyRules": (_is_table, "a table"),
    "linkWorkspacePackages": (_is_deep_flag, "true, false or deep"),
    "hoistingLimits": (_is_text, "a text"),
    "nodeLinker": (_is_text, "isolated or hoisted"),
}
_PATCH_SUFFIXES: Final = (".patch", ".diff")
_LINKERS: Final = ("isolated", "hoisted")
_ABOUT_BUILDS: Final = frozenset(
    "allowBuilds dangerouslyAllowAllBuilds neverBuiltDependencies onlyBuiltDependencies"
    " onlyBuiltDependenciesFile ignoredBuiltDependencies strictDepBuilds".split()
)
# pnpm up to 10 read them in package.json, under `pnpm`; by the section that they leave in the
# lockfile, which tells whether they held when it was made.
_OF_THE_MANIFEST: Final = {
    "overrides": "overrides",
    "patchedDependencies": "patchedDependencies",
    "ignoredOptionalDependencies": "ignoredOptionalDependencies",
    "packageExtensions": "packageExtensionsChecksum",
}


@dataclass(frozen=True, slots=True)
class PnpmSettings:
    """What pnpm is told.

    Attributes:
        values: For a pnpm-workspace.yaml.
        patches: The files that they name, relative to the project's root.
        ignored: What the project's own file says in vain, for people.
    """

    values: Mapping[str, Any]
    patches: tuple[str, ...]
    ignored: tuple[str, ...]


def read_settings(
    workspace: bytes | None, manifest: Mapping[str, Any], lockfile: Lockfile
) -> PnpmSettings:
    """Takes the settings from pnpm-workspace.yaml; where it is silent, from what else knows them.

    Args:
        workspace: The bytes of the project's pnpm-workspace.yaml; None where there is none.
        manifest: The package.json beside it.
        lockfile: Tells what it was made with.

    Raises:
        JobRefusedError: MANIFEST_INVALID: the file or a value has not the shape that it should
            have. DEPENDENCY_REFUSED: it asks for configDependencies, or an override links out of
            the project. LOCKFILE_INVALID: it wants a lockfile for each project.
    """
    stated = _read_workspace(workspace)
    linker = stated.get("nodeLinker", "isolated")
    ignored = _describe_ignored(stated)
    if linker not in _LINKERS:
        ignored = (*ignored, f"{WORKSPACE}: dependencies are installed with `nodeLinker: isolated`")
        del stated["nodeLinker"]
    values = {
        **{n: v for n, v in lockfile.settings.items() if n in _CHECKS and _CHECKS[n][0](v)},
        **_read_manifest(manifest, lockfile),
        **_take_known(stated, WORKSPACE),
    }
    for pattern in values.get("packages", ()):
        if locate(".", pattern.removeprefix("!")) is None:
            raise _invalid(WORKSPACE, f"`packages`: {show(pattern)} does not lie in the project")
    check_links(values.get("overrides", {}), ".", f"{WORKSPACE}: overrides")
    return PnpmSettings(values, _find_patches(values), ignored)


def check_links(dependencies: Mapping[str, str], folder: str, where: str) -> None:
    """Checks that no `link:` among them leads out of the project.

    They are in the lockfile too, unless `excludeLinksFromLockfile` is set.

    Raises:
        JobRefusedError: DEPENDENCY_REFUSED.
    """
    for name, specifier in dependencies.items():
        if specifier.startswith("link:") and locate(folder, specifier[len("link:") :]) is None:
            raise JobRefusedError(
                ReasonCode.DEPENDENCY_REFUSED,
                f"{where}: {show(name)} is a link out of the project ({show(specifier)}); put the"
                " folder into the project, or take a published package",
            )


def _invalid(where: str, why: str) -> JobRefusedError:
    return JobRefusedError(ReasonCode.MANIFEST_INVALID, f"{where}: {why}")


def _read_workspace(data: bytes | None) -> dict[str, Any]:
    try:
        stated = read_yaml(data or b"", limit_bytes=WORKSPACE_BYTES_LIMIT)
    except ValueError as error:
        raise _invalid(WORKSPACE, str(error)) from error
    if stated is None:
        return {}
    if not isinstance(stated, dict):
        raise _invalid(WORKSPACE, "must hold names and values")
    config = stated.get("configDependencies")
    if config:
        names = enumerate_first(map(show, config)) if isinstance(config, dict) else ""
        raise JobRefusedError(
            ReasonCode.DEPENDENCY_REFUSED,
            f"{WORKSPACE}: configDependencies are refused, since they change pnpm itself: {names}."
            " Take them out, and make the lockfile anew",
        )
    if stated.get("sharedWorkspaceLockfile") is False:
        raise JobRefusedError(
            ReasonCode.LOCKFILE_INVALID,
            f"{WORKSPACE}: a lockfile for each project (`sharedWorkspaceLockfile: false`) is not"
            f" read; take the setting out and make one {LOCKFILE} with `pnpm install"
            " --lockfile-only`",
        )
    return {name: value for name, value in stated.items() if value is not None}


def _take_known(stated: Mapping[str, Any], where: str) -> dict[str, Any]:
    taken = {name: value for name, value in stated.items() if name in _CHECKS}
    for name, value in taken.items():
        is_right, shape = _CHECKS[name]
        if not is_right(value):
            raise _invalid(where, f"`{name}` must be {shape}")
    return taken


def _read_manifest(manifest: Mapping[str, Any], lockfile: Lockfile) -> dict[str, Any]:
    stated = manifest.get("pnpm")
    if not isinstance(stated, dict):
        return {}
    held = {
        name: stated[name]
        for name, section in _OF_THE_MANIFEST.items()
        if name in stated and section in lockfile.sections
    }
    return _take_known(held, "package.json: pnpm")


def _find_patches(values: Mapping[str, Any]) -> tuple[str, ...]:
    patches = []
    for name, path in values.get("patchedDependencies", {}).items():
        found = locate(".", path)
        # The suffix keeps them apart from all that pnpm reads on its own account.
        if found is None or not found.endswith(_PATCH_SUFFIXES):
            raise _invalid(
                WORKSPACE,
                f"the patch of {show(name)} must be a file of the project, named"
                f" {' or '.join(f'*{suffix}' for suffix in _PATCH_SUFFIXES)}, not {show(path)}",
            )
        patches.append(found)
    return tuple(sorted(set(patches)))


def _describe_ignored(stated: Mapping[str, Any]) -> tuple[str, ...]:
    lines = []
    builds = sorted(_ABOUT_BUILDS & stated.keys())
    if builds:
        lines.append(f"{WORKSPACE}: build scripts of packages are not run ({', '.join(builds)})")
    others = sorted(stated.keys() - _CHECKS.keys() - _ABOUT_BUILDS)
    if others:
        lines.append(f"{WORKSPACE}: without effect here: {enumerate_first(map(show, others))}")
    return tuple(lines)
