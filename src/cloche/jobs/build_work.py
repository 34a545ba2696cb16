"""Which of a project's packages have build scripts that a job allows, and what runs them."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cloche.jobs.project.inputs import RUN_ENVIRONMENT
from cloche.jobs.project.lockfile import encode
from cloche.jobs.project.pnpm_settings import WORKSPACE
from cloche.jobs.refusal import JobRefusedError
from cloche.jobs.steps import STEP_ENVIRONMENT
from cloche.linux.trees import Tree
from cloche.model.job import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cloche.jobs.installers.base import Installation

# Those whose packages have build scripts.
_TOOLS: Final = ("npm", "pnpm")
SHELL: Final = ".cloche-shell"
"""Of the scripts, in /workspace; among the files of `Work`, to be executable."""

# Both package managers put node_modules/.bin first in PATH, where any package, allowed or not, may
# have put a `node` or a `sh`: the toolchain comes first here too. Source: tried with pnpm 12.21
# and npm 11.21.
_SHELL_TEXT: Final = b'#!/usr/bin/sh\nPATH="/usr/bin:$PATH" exec /usr/bin/sh "$@"\n'
_SCRIPTS: Final = ("preinstall", "install", "postinstall")
_VIRTUAL_STORE: Final = "node_modules/.pnpm"
_ENTRIES_LIMIT_COUNT: Final = 100_000
_MANIFEST_BYTES_LIMIT: Final = 4 * 1024 * 1024


def find_folders(
    installation: Installation, tree: Path, allowed: frozenset[str]
) -> Mapping[str, str]:
    """The own folders of allowed packages that have build scripts: name by path. Blocks.

    Whose a folder is, the lockfile says, or pnpm by the folder's name; never what lies in it: any
    package can call itself anything, and be installed under another's name (`npm:`).

    Raises:
        JobRefusedError: BUILD_SCRIPT_FAILED: that is not known for other package managers, and for
            pnpm's `nodeLinker: hoisted`.
    """
    if not allowed:
        return {}
    if installation.tool not in _TOOLS:
        raise _refuse(f"{installation.tool}, only with npm and pnpm")
    find = _find_of_npm if installation.tool == "npm" else _find_of_pnpm
    with Tree(str(tree)) as opened:
        found = sorted(find(installation, opened, allowed))
        return {folder: name for folder, name in found if _has_scripts(opened, folder)}


def _refuse(what: str) -> JobRefusedError:
    return JobRefusedError(
        ReasonCode.BUILD_SCRIPT_FAILED, f"build_scripts: build scripts are not run with {what}"
    )


def _find_of_npm(
    installation: Installation, _: Tree, allowed: frozenset[str]
) -> Iterator[tuple[str, str]]:
    entries = json.loads(installation.files[installation.lockfile])["packages"]
    for path, entry in entries.items():
        if "node_modules/" in path and not entry.get("link") and not entry.get("inBundle"):
            name = entry.get("name", path.rpartition("node_modules/")[2])
            if name in allowed:
                yield path, name


def _find_of_pnpm(
    installation: Installation, tree: Tree, allowed: frozenset[str]
) -> Iterator[tuple[str, str]]:
    if _settings_of(installation).get("nodeLinker") == "hoisted":
        raise _refuse(f"`nodeLinker: hoisted`; take that setting out of {WORKSPACE}")
    try:
        listed = tree.list_folder(_VIRTUAL_STORE, _ENTRIES_LIMIT_COUNT)
    except FileNotFoundError:  # everything was optional, and for other platforms
        return
    # As pnpm names them: `@scope+name@1.0.0`, with more behind it. A name has no `+`.
    starts = {f"{name.replace('/', '+')}@": name for name in allowed}
    for entry in listed:
        folder = entry.path.rpartition("/")[2]
        name = starts.get(folder[: folder.find("@", 1) + 1])
        if name is not None:
            yield f"{entry.path}/node_modules/{name}", name


def _has_scripts(tree: Tree, folder: str) -> bool:
    """Whether package managers would run anything for a package."""
    try:
        entries = tree.list_folder(folder, _ENTRIES_LIMIT_COUNT)
    except OSError:  # for another platform: not installed
        return False
    by_name = {entry.path.rpartition("/")[2]: entry for entry in entries}
    manifest = by_name.get("package.json")
    if manifest is None or not stat.S_ISREG(manifest.mode):
        return False
    if "binding.gyp" in by_name or manifest.size_bytes > _MANIFEST_BYTES_LIMIT:
        return True
    try:
        scripts = json.loads(tree.read_file(manifest).removeprefix(b"\xef\xbb\xbf"))["scripts"]
        return any(scripts.get(name) for name in _SCRIPTS)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


@dataclass(frozen=True, slots=True)
class Work:
    """What is done in a box.

    Attributes:
        argv: Runs the scripts of just the packages that are allowed.
        linking: Links programs anew, and runs no script; None where that is not needed.
        files, env: Of both.
    """

    argv: tuple[str, ...]
    linking: tuple[str, ...] | None
    files: Mapping[str, bytes]
    env: Mapping[str, str]


def work_of(installation: Installation, folders: Mapping[str, str]) -> Work:
    """What is done to run the scripts of the packages in these folders (name by path)."""
    files = {**installation.files, SHELL: _SHELL_TEXT}
    env = {**STEP_ENVIRONMENT, **installation.env}
    if installation.tool == "npm":
        argv = (
            *("/usr/bin/npm", "rebuild", "--ignore-scripts=false", "--foreground-scripts"),
            *("--offline", "--cache=/tmp/cache", "--no-audit", "--no-fund", "--no-update-notifier"),
            # What it warns of is that it will not run scripts in some later version.
            *("--loglevel=error", f"--script-shell=/workspace/{SHELL}"),
            # By path: by name it would take others that are installed under that name.
            *(f"./{folder}" for folder in folders),
        )
        return Work(argv, None, files, env)
    names = sorted(set(folders.values()))
    # The only word on builds that pnpm 12 listens to. Source: tried with pnpm 12.21.
    settings = {**_settings_of(installation), "allowBuilds": dict.fromkeys(names, True)}
    files[WORKSPACE] = encode(settings)
    argv = (
        *("/usr/bin/pnpm", "rebuild", "--recursive", "--trust-lockfile", "--ignore-pnpmfile"),
        *("--offline", "--store-dir=/workspace/.cloche-store", "--reporter=append-only"),
        *("--config.side-effects-cache=false", "--config.update-notifier=false"),
    )
    env |= {**RUN_ENVIRONMENT, "pnpm_config_script_shell": f"/workspace/{SHELL}"}
    return Work((*argv, "--", *names), (*argv, "--ignore-scripts", "--", *names), files, env)


def _settings_of(installation: Installation) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(installation.files[WORKSPACE])
    return settings


def is_own(path: str, folders: Mapping[str, str]) -> bool:
    """Whether a file belongs to one of these packages itself."""
    return any(
        path.startswith(f"{folder}/") and not path.startswith(f"{folder}/node_modules/")
        for folder in folders
    )
