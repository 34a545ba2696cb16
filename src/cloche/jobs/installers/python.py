"""What all installs of Python projects share: uv, a .venv as the layer, what steps are told."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cloche.egress.pypi import IndexItems
from cloche.environments.roots import python_version
from cloche.jobs.installers.base import ADDRESS, Installation
from cloche.jobs.project.pyproject import PYPROJECT
from cloche.model.job import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloche.model.wheel import LockedProject

VENV: Final = "/workspace/.venv"
_PYTHON: Final = f"/usr/bin/{python_version()}"
_INSTALL_ENVIRONMENT: Final = MappingProxyType(
    {
        "UV_NO_CONFIG": "1",
        "UV_NO_ENV_FILE": "1",
        "UV_DEFAULT_INDEX": f"{ADDRESS}/simple",  # as a uv.lock is made to say
        "UV_NO_BUILD": "1",  # wheels alone: to build is to run a package's code
        "UV_PYTHON": _PYTHON,
        "UV_PYTHON_DOWNLOADS": "never",
        # On the file system of the layer: files are linked from there, not copied.
        "UV_CACHE_DIR": "/workspace/.cloche-store",
        "UV_LINK_MODE": "hardlink",
        "UV_CONCURRENT_DOWNLOADS": "32",  # half of the connections that a box may have
        "UV_HTTP_RETRIES": "0",  # Cloche has retried already
        "UV_HTTP_TIMEOUT": "600",  # the first byte comes after the last was checked
        "UV_NO_PROGRESS": "1",
    }
)
STEP_ENVIRONMENT: Final = MappingProxyType(
    {
        "VIRTUAL_ENV": VENV,
        # The toolchain comes first: no package stands in for a tool. `python` is none of it.
        "PATH": "/usr/bin:/workspace/.venv/bin:/workspace/node_modules/.bin",
        # A `uv run` takes what is installed.
        "UV_NO_SYNC": "1",
        "UV_OFFLINE": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
)
"""Of the steps of a project in Python. Source: tried with uv 0.13."""

MAKE_VENV: Final = ("/usr/bin/uv", "venv", "--no-project", "--python", _PYTHON, VENV)
# A layer has no link that leads out of it: the interpreter is copied, as `venv --copies` does.
_COPY_PYTHON: Final = f"cp --remove-destination {_PYTHON} {VENV}/bin/python"
# As an editable install does it, but without the project's build backend, whose code it would run.
_FIND_SOURCES: Final = (
    f"echo /workspace/src > {VENV}/lib/{python_version()}/site-packages/_project.pth"
)
_NO_WHEEL: Final = Reason(
    ReasonCode.DEPENDENCY_REFUSED,
    "a dependency has no wheel for this platform and Python (uv's own words are in the log);"
    " choose a version that has one",
)
_OTHER_PYTHON: Final = Reason(
    ReasonCode.MANIFEST_INVALID,
    f"the project is not for {python_version()}, which this host has (uv's own words are in the"
    " log); change requires-python, or run Cloche with another Python",
)


def install(
    projects: Mapping[str, LockedProject],
    *,
    lockfile: str,
    laid: Mapping[str, bytes],
    commands: tuple[tuple[str, ...], ...],
    has_sources: bool,
    ignored: tuple[str, ...] = (),
    reasons: Mapping[str, Reason] = MappingProxyType({}),
) -> Installation:
    """An install by uv.

    Args:
        projects: What may be had of the index, by name.
        lockfile: Where they were read.
        laid: All that the box gets.
        commands: They make `VENV`.
        has_sources: The project's own modules are in `src/`; steps can import them.
        ignored: What of the project has no say.
        reasons: After those that hold for every install.
    """
    finish = [_COPY_PYTHON, *([_FIND_SOURCES] if has_sources else [])]
    return Installation(
        tool="uv",
        lockfile=lockfile,
        origin="pypi",
        items=IndexItems(projects),
        names=frozenset(projects),
        packages_count=sum(len(project.versions) for project in projects.values()),
        files=MappingProxyType(dict(sorted(laid.items()))),
        commands=(*commands, ("/usr/bin/bash", "-ec", "; ".join(finish))),
        folders=(".venv",),
        env=_INSTALL_ENVIRONMENT,
        step_env=STEP_ENVIRONMENT,
        ignored=ignored,
        reasons=MappingProxyType(
            {
                "has no wheels with a matching": _NO_WHEEL,
                "does not satisfy Python": _NO_WHEEL,
                "doesn't have a source distribution or wheel for the current platform": _NO_WHEEL,
                "incompatible with the project's Python requirement": _OTHER_PYTHON,
                **reasons,
            }
        ),
    )


def has_sources(files: Mapping[str, bytes]) -> bool:
    """Whether the project has what is usual to be installed from `src/`."""
    return PYPROJECT in files and any(path.startswith("src/") for path in files)
