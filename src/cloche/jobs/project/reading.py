"""All that a job is given, read and checked before anything of it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloche.errors import InvalidRequestError
from cloche.jobs.egress import check_egress
from cloche.jobs.installers.choice import read_installation
from cloche.jobs.project.bundle import read_bundle
from cloche.jobs.project.overlay import EMPTY, keep_lockfile, lay_over
from cloche.jobs.project.patches import Patch
from cloche.jobs.project.spec import PROJECT_ARTIFACTS, complete_steps
from cloche.jobs.refusal import JobRefusedError
from cloche.jobs.resolve import prepare_resolution
from cloche.jobs.steps import Tree
from cloche.model.job import LockfileRule, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloche.jobs.installers.base import Installation
    from cloche.jobs.project.bundle import Bundle
    from cloche.jobs.project.spec import JobSteps
    from cloche.jobs.resolve import Resolution
    from cloche.model.job import JobSpec


@dataclass(frozen=True, slots=True)
class Project:
    """What was read of a project, checked.

    Attributes:
        bundle: Its files, those of the template among them.
        sources: SHA-256 of what they were made of: `bundle`, and `template` where there is one.
        steps: What is to be done.
        installation: None where there is nothing to install, or it is not known yet.
        resolution: What it is to be made of first; None where there is a lockfile to install from.
    """

    bundle: Bundle
    sources: Mapping[str, str]
    steps: JobSteps
    installation: Installation | None
    resolution: Resolution | None


def read_project(spec: JobSpec) -> Project:
    """Reads and checks all that a job is given. Blocks.

    Raises:
        InvalidRequestError: the bundle is not there.
        JobRefusedError: the project must not be run.
    """
    outputs = PROJECT_ARTIFACTS if spec.artifacts is None else spec.artifacts
    template = EMPTY
    if spec.template is not None:
        found = read_bundle(spec.template, outputs=outputs, what="template")
        if isinstance(found, Patch):
            raise InvalidRequestError("template: must be files, not a diff", retry_safe=True)
        template = found
    change = read_bundle(spec.bundle, outputs=outputs)
    bundle = keep_lockfile(spec.lockfile, template, lay_over(template, change, outputs=outputs))
    sources = {"bundle": change.sha256}
    if spec.template is not None:
        sources["template"] = template.sha256
    if lack := Tree(bundle.files, bundle.executables).find_lack_of_room(spec.limits):
        raise JobRefusedError(ReasonCode.BUNDLE_REFUSED, f"the project is too large: {lack}")
    resolution = installation = None
    if spec.lockfile is LockfileRule.RESOLVE:
        resolution = prepare_resolution(bundle.files)
    else:
        installation = read_installation(bundle.files)
    runner = "pnpm" if installation is None else installation.tool
    python_names = None
    if installation is not None and installation.origin == "pypi":
        python_names = installation.names
    steps = complete_steps(spec, bundle.files, runner=runner, python_names=python_names)
    check_egress(steps.steps, spec)
    return Project(bundle, sources, steps, installation, resolution)
