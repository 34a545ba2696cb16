"""Which package manager a project is installed with: the one whose lockfile it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloche.jobs.installers import npm, pnpm
from cloche.jobs.project.lockfile import LOCKFILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloche.jobs.installers.base import Installation


def read_installation(files: Mapping[str, bytes]) -> Installation | None:
    """What a project wants installed; None where that is nothing.

    Of several lockfiles pnpm's counts.

    Raises:
        JobRefusedError: it has no lockfile and needs one, or its lockfile is refused.
    """
    if LOCKFILE not in files:
        installation = npm.read(files)
        if installation is not None:
            return installation
    return pnpm.read(files)
