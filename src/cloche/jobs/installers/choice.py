"""Which package manager a project is installed with: the one whose lockfile it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloche.jobs.installers import npm, pnpm, requirements, uv, yarn
from cloche.jobs.project.inputs import MANIFEST
from cloche.jobs.project.lockfile import LOCKFILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloche.jobs.installers.base import Installation


def read_installation(files: Mapping[str, bytes]) -> Installation | None:
    """What a project wants installed; None where that is nothing.

    Of several lockfiles pnpm's counts, then npm's, then Yarn's; a project with a package.json is
    none in Python.

    Raises:
        JobRefusedError: it has no lockfile and needs one, or its lockfile is refused.
    """
    if LOCKFILE not in files:
        installation = npm.read(files) or yarn.read(files)
        if installation is not None:
            return installation
    if MANIFEST not in files and LOCKFILE not in files:
        return uv.read(files) or requirements.read(files)
    return pnpm.read(files)
