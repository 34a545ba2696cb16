"""uv: installs a uv.lock, frozen, with Cloche's own uv."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cloche.jobs.installers import python
from cloche.jobs.installers.base import ADDRESS
from cloche.jobs.project.entries import show
from cloche.jobs.project.pyproject import PYPROJECT, read_pyproject, write_toml
from cloche.jobs.project.uv_lockfile import UV_LOCK, read_uv_lockfile
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cloche.jobs.installers.base import Installation

_SYNC: Final = (
    *("/usr/bin/uv", "sync"),
    "--locked",  # as it is, or not at all
    "--no-install-project",  # whose build backend would run
)
_OUTDATED: Final = Reason(
    ReasonCode.LOCKFILE_OUTDATED,
    f"{UV_LOCK} does not match {PYPROJECT} (uv's own words are in the log); run `uv lock` and add"
    f" the new {UV_LOCK}",
)
# What of a pyproject.toml bears on the lockfile and on what is installed of it.
_PROJECT_FIELDS: Final = (
    "name version requires-python dependencies optional-dependencies dynamic".split()
)
_UV_FIELDS: Final = (
    "dev-dependencies override-dependencies constraint-dependencies exclude-dependencies"
    " environments required-environments conflicts default-groups package"
).split()
_UNREAD: Final = ("dependencies", "optional-dependencies")


def read(files: Mapping[str, bytes]) -> Installation | None:
    """What a project of uv's wants installed; None where it has no lockfile of uv's.

    Raises:
        JobRefusedError: as `read_uv_lockfile`; MANIFEST_MISSING or MANIFEST_INVALID; or
            DEPENDENCY_REFUSED: a dependency has a source of its own.
    """
    if UV_LOCK not in files:
        return None
    if PYPROJECT not in files:
        raise JobRefusedError(
            ReasonCode.MANIFEST_MISSING, f"{PYPROJECT} is missing, though there is a {UV_LOCK}"
        )
    pyproject = read_pyproject(files)
    lockfile = read_uv_lockfile(files[UV_LOCK], mirror=ADDRESS)
    laid = {PYPROJECT: write_toml(_reduce(pyproject)), UV_LOCK: lockfile.text}
    return python.install(
        lockfile.projects,
        lockfile=UV_LOCK,
        laid=laid,
        commands=(_SYNC,),
        has_sources=python.has_sources(files),
        ignored=tuple(_describe_ignored(pyproject, files)),
        reasons=dict.fromkeys(("needs to be updated", "No solution found"), _OUTDATED),
    )


def _reduce(pyproject: Mapping[str, Any]) -> dict[str, Any]:
    """What uv gets of a pyproject.toml."""
    project, groups = pyproject.get("project"), pyproject.get("dependency-groups")
    uv = _uv_table(pyproject)
    for name, table in (("project", project), ("dependency-groups", groups)):
        if not isinstance(table, dict | None):
            raise _invalid(f"`{name}` must be a table")
    if isinstance(project, dict):
        dynamic = project.get("dynamic", [])
        unread = [field for field in _UNREAD if isinstance(dynamic, list) and field in dynamic]
        if unread:
            raise _invalid(
                f"{unread[0]} is dynamic: to know it is to run the build backend. State it"
            )
    sources = uv.get("sources")
    if sources:
        name = next(iter(sources)) if isinstance(sources, dict) else "sources"
        raise JobRefusedError(
            ReasonCode.DEPENDENCY_REFUSED,
            f"{PYPROJECT}: [tool.uv.sources] has {show(name)}: only versions of pip's"
            " indexes are installed. Take it out, and make the lockfile anew with `uv lock`",
        )
    reduced: dict[str, Any] = {}
    if project is not None:
        reduced["project"] = {key: project[key] for key in _PROJECT_FIELDS if key in project}
    if groups is not None:
        reduced["dependency-groups"] = groups
    if "build-system" in pyproject:
        reduced["build-system"] = {"requires": []}  # that there is one is in the lockfile
    kept = {key: uv[key] for key in _UV_FIELDS if key in uv}
    if kept:
        reduced["tool"] = {"uv": kept}
    return reduced


def _uv_table(pyproject: Mapping[str, Any]) -> dict[str, Any]:
    tool = pyproject.get("tool", {})
    uv = tool.get("uv", {}) if isinstance(tool, dict) else None
    if not isinstance(uv, dict):
        raise _invalid("`tool.uv` must be a table")
    return uv


def _invalid(why: str) -> JobRefusedError:
    return JobRefusedError(ReasonCode.MANIFEST_INVALID, f"{PYPROJECT}: {why}")


def _describe_ignored(pyproject: Mapping[str, Any], files: Mapping[str, bytes]) -> Iterator[str]:
    """What the project asks for in vain."""
    if "index" in _uv_table(pyproject):
        yield f"{PYPROJECT}: [[tool.uv.index]] has no say: the indexes are those of pip's settings"
    if "uv.toml" in files:
        yield "uv.toml has no say in the install"
    if ".python-version" in files:
        yield ".python-version has no say: the Python is this host's"
