"""Which package manager a project is installed with: the one whose lockfile it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloche.jobs.installers import pnpm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloche.jobs.installers.base import Installation


def read_installation(files: Mapping[str, bytes]) -> Installation | None:
    """What a project wants installed; None where that is nothing.

    Raises:
        JobRefusedError: it has no lockfile and needs one, or its lockfile is refused.
    """
    return pnpm.read(files)
