"""A requirements.txt with hashes, installed as it is, with Cloche's own uv."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cloche.jobs.installers import python
from cloche.jobs.project.pyproject import PYPROJECT, read_pyproject
from cloche.jobs.project.requirements import REQUIREMENTS, lock_projects, read_requirements
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloche.jobs.installers.base import Installation

_INSTALL: Final = (
    *("/usr/bin/uv", "pip", "install", "--python", python.VENV),
    "--require-hashes",  # of what others depend on too: the file names all, or nothing is installed
    *("--requirements", f"/workspace/{REQUIREMENTS}"),
)
_INCOMPLETE: Final = Reason(
    ReasonCode.LOCKFILE_OUTDATED,
    f"{REQUIREMENTS} does not name all that its packages depend on, as they need it (uv's own words"
    " are in the log); make it anew with `uv pip compile --generate-hashes`",
)
_OTHER_LOCKFILES: Final = ("poetry.lock", "pdm.lock", "Pipfile.lock")


def read(files: Mapping[str, bytes]) -> Installation | None:
    """What a project in Python without a uv.lock wants installed; None where it is none.

    Without a requirements.txt that is an empty .venv, if the project depends on nothing.

    Raises:
        JobRefusedError: as `read_requirements`; LOCKFILE_MISSING: there are dependencies;
            MANIFEST_INVALID.
    """
    if REQUIREMENTS not in files:
        return _read_bare(files)
    requirements = read_requirements(files[REQUIREMENTS])
    projects = lock_projects(requirements)
    text = "".join(f"{line}\n" for line in sorted(map(str, requirements)))
    return python.install(
        projects,
        lockfile=REQUIREMENTS,
        laid={REQUIREMENTS: text.encode()},
        commands=(python.MAKE_VENV, _INSTALL) if projects else (python.MAKE_VENV,),
        has_sources=python.has_sources(files),
        ignored=tuple(
            f"{name}: {REQUIREMENTS} is read" for name in _OTHER_LOCKFILES if name in files
        ),
        reasons=dict.fromkeys(
            ("No solution found", "all requirements must be pinned"), _INCOMPLETE
        ),
    )


def _read_bare(files: Mapping[str, bytes]) -> Installation | None:
    if PYPROJECT not in files:
        return None
    project = read_pyproject(files).get("project", {})
    if isinstance(project, dict) and project.get("dependencies"):
        found = [name for name in _OTHER_LOCKFILES if name in files]
        hint = f" ({', '.join(found)} is not read)" if found else ""
        raise JobRefusedError(
            ReasonCode.LOCKFILE_MISSING,
            f"{PYPROJECT} has dependencies, but there is no uv.lock or {REQUIREMENTS}{hint};"
            " run `uv lock` and add the uv.lock that it writes",
        )
    return python.install(
        {},
        lockfile=PYPROJECT,
        laid={},
        commands=(python.MAKE_VENV,),
        has_sources=python.has_sources(files),
    )
