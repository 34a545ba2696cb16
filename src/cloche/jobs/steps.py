"""One step of a job: a box of its own, one command in it, what is to be had from it afterwards."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from cloche.admission import admit_step
from cloche.backends.base import Sinks
from cloche.environments.roots import GUEST_HOME
from cloche.jobs.artifacts import read_kept
from cloche.jobs.project.inputs import RUN_ENVIRONMENT
from cloche.jobs.reports.reader import ReportReader
from cloche.jobs.verdict import judge
from cloche.model.job import StepResult, StepStatus
from cloche.model.plan import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloche.backends.base import Backend, Box
    from cloche.jobs.artifacts import ArtifactCollector
    from cloche.jobs.log import JobLog
    from cloche.linux.facts import HostFacts
    from cloche.model.job import JobSpec, Reason, Step
    from cloche.model.outcome import Outcome
    from cloche.model.plan import Environment

# The toolchain comes first: a project's own programs do not stand in for it.
STEP_ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "PATH": "/usr/bin:/workspace/node_modules/.bin",
        "HOME": GUEST_HOME,
        "CI": "true",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
    }
)
_BIN = "/usr/bin"
_FULL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Site:
    """Where the steps of a job run.

    Attributes:
        backend: Makes their boxes.
        facts: Of this host.
        environment: The root of their boxes.
        log: Takes what they write.
        spec: What was asked for.
    """

    backend: Backend
    facts: HostFacts
    environment: Environment
    log: JobLog
    spec: JobSpec


@dataclass(slots=True)
class Tree:
    """What a step finds in /workspace.

    Attributes:
        files, executables: The inputs, with what earlier steps kept above them.
        layers: The dependency layers below.
    """

    files: dict[str, bytes]
    executables: frozenset[str]
    layers: tuple[str, ...] = field(default=())


def command_of(step: Step) -> Command:
    """The command of a step: its program, or bash with its line."""
    argv = ("bash", "-eo", "pipefail", "-c", step.shell) if step.shell is not None else step.argv
    assert argv, "one of the two is checked to be there"
    if not argv[0].startswith("/"):
        argv = (f"{_BIN}/{argv[0]}", *argv[1:])
    return Command(argv, {**STEP_ENVIRONMENT, **step.env, **RUN_ENVIRONMENT})


async def run_step(
    site: Site, step: Step, tree: Tree, collector: ArtifactCollector, *, timeout_ms: int
) -> StepResult:
    """Runs a step to its end; where it passed, collects artifacts and what it keeps.

    Args:
        site: Where it runs.
        step: What it does.
        tree: What it finds; what it keeps is added.
        collector: Takes the artifacts.
        timeout_ms: Its own limit, or what is left of the job's.

    Raises:
        UnavailableError, InternalError: as `Backend.create` and `Box.exec`.
        OSError: artifacts could not be written.

    Ensures: nothing of it runs any more, also when the awaiting task is cancelled.
    """
    started_at = time.monotonic()
    plan = admit_step(
        site.spec.limits.of_step(timeout_ms),
        site.environment,
        site.facts,
        files=tree.files,
        executables=tree.executables,
        layers=tree.layers,
    )
    reader = ReportReader()
    log = site.log.open_step(step.name, reader.feed)
    command = command_of(step)
    box = await site.backend.create(plan)
    try:
        sinks = Sinks(log.stdout, log.stderr, _drop)
        outcome = await box.exec(command, stdin=b"", control=b"", sinks=sinks)
        log.close()
        duration_ms = round((time.monotonic() - started_at) * 1000, 3)
        counts = reader.counts() if step.is_test else None
        status, reason = judge(
            step,
            outcome,
            counts,
            site.spec,
            timeout_ms=timeout_ms,
            scratch_is_full=_is_full(box, outcome),
        )
        if status is StepStatus.PASSED:
            await collector.collect(box)
            await _keep(site, step, box, tree)
        return StepResult(
            name=step.name,
            status=status,
            argv=command.argv,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            duration_ms=duration_ms,
            usage=outcome.usage,
            tests=counts,
            reason=reason,
            log_offset_bytes=log.started_at_bytes,
            log_bytes=log.size_bytes,
            isolation=box.isolation,
        )
    finally:
        await box.destroy()


async def _keep(site: Site, step: Step, box: Box, tree: Tree) -> None:
    if not step.keeps:
        return
    contents, executables, skipped = await read_kept(box, step.keeps, site.spec.limits)
    tree.files |= contents
    tree.executables = tree.executables - contents.keys() | executables
    for path, why in skipped.items():
        site.log.add(step.name, "cloche", f"not kept: {path}: {why}")


def _is_full(box: Box, outcome: Outcome) -> bool:
    if outcome.exit_code == 0:
        return False
    left_bytes, left_inodes = box.scratch_left()
    return left_bytes < _FULL_BYTES or left_inodes == 0


def _drop(_: bytes) -> None:
    """Steps have no result but their exit code."""


def refused(name: str, status: StepStatus, reason: Reason, duration_ms: float) -> StepResult:
    """The result of a step that ended without an outcome of its own."""
    return StepResult(name=name, status=status, reason=reason, duration_ms=duration_ms)
