"""One step of a job: a box of its own, one command in it, what is to be had from it afterwards."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from cloche.admission import admit_step
from cloche.backends.base import Sinks
from cloche.egress.transparent import open_egress
from cloche.environments.roots import GUEST_HOME, TRUST_ENVIRONMENT
from cloche.jobs.artifacts import KeptTooMuchError, parents_of, read_kept
from cloche.jobs.egress import rules_of
from cloche.jobs.installers.base import PORT
from cloche.jobs.open_registry import REGISTRY_ENVIRONMENT, OpenRegistry
from cloche.jobs.project.inputs import RUN_ENVIRONMENT
from cloche.jobs.reports.junit import REPORT_BYTES_LIMIT, add, combine, read_junit
from cloche.jobs.reports.reader import ReportReader
from cloche.jobs.services import with_services
from cloche.jobs.verdict import judge
from cloche.linux.scratch import scratch_folder
from cloche.model.job import Reason, ReasonCode, StepResult, StepStatus
from cloche.model.outcome import Cause
from cloche.model.plan import Command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from cloche.backends.base import Backend, Box
    from cloche.egress.registry import Registry
    from cloche.egress.rules import EgressRules
    from cloche.egress.transparent import TransparentEgress
    from cloche.jobs.artifacts import ArtifactCollector
    from cloche.jobs.egress import EgressAccount
    from cloche.jobs.log import JobLog
    from cloche.linux.facts import HostFacts
    from cloche.model.job import JobSpec, Step, TestCounts
    from cloche.model.outcome import Outcome
    from cloche.model.plan import Environment
    from cloche.model.policy import JobLimits

    OpenEgress = Callable[..., Awaitable[TransparentEgress]]

# The toolchain comes first: a project's own programs do not stand in for it.
STEP_ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "PATH": "/usr/bin:/workspace/node_modules/.bin",
        "HOME": GUEST_HOME,
        "CI": "true",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        # So that builds that ask are reproducible; a zip can hold no earlier time.
        # Source: reproducible-builds.org/specs/source-date-epoch.
        "SOURCE_DATE_EPOCH": "315532800",
    }
)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_BIN = "/usr/bin"
# The project has no say in how its scripts are run (its pnpm-workspace.yaml is overridden by
# RUN_ENVIRONMENT, being part of what a workspace is).
_SETTINGS_OF_MANAGERS = (
    *(".npmrc", ".pnpmfile.cjs", ".pnpmfile.mjs"),
    *(".yarnrc.yml", ".env.yarn", ".pnp.cjs", ".pnp.loader.mjs"),  # programs, or what starts one
)
_MIB = 1024 * 1024
_PAGE_BYTES = 4096
# The folders that the box itself makes in its scratch.
_OWN_INODES_COUNT = 10
_FULL_BYTES = 64 * 1024
_REPORTS_LIMIT_COUNT = 1_000
_SKIPPED_SHOWN_COUNT = 20


@dataclass(frozen=True, slots=True)
class Site:
    """Where the steps of a job run.

    Attributes:
        backend: Makes their boxes.
        facts: Of this host.
        environment: The root of their boxes.
        log: Takes what they write.
        spec: What was asked for.
        egress: Takes account of the connections of steps.
        open_egress: Serves the network of a box.
        registry: What a step may have whole, where the job has `registry: open`.
    """

    backend: Backend
    facts: HostFacts
    environment: Environment
    log: JobLog
    spec: JobSpec
    egress: EgressAccount
    open_egress: OpenEgress = open_egress
    registry: Registry | None = None


class Tree:
    """What a step finds in /workspace.

    Attributes:
        files, executables: The inputs, with what earlier steps kept above them.
        layers: The dependency layers below.
        env: What steps are told of these.
    """

    def __init__(self, files: Mapping[str, bytes], executables: frozenset[str]) -> None:
        """The inputs of a job. What package managers would read as settings is not among them."""
        self.files = {
            path: content
            for path, content in files.items()
            if path.rpartition("/")[2] not in _SETTINGS_OF_MANAGERS
        }
        self.executables = executables
        self.layers: tuple[str, ...] = ()
        self.env: Mapping[str, str] = _NOTHING

    def add(self, files: Mapping[str, bytes], executables: frozenset[str]) -> None:
        """Lays files above what is there: they replace files and folders of their names."""
        folders = {parent for path in files for parent in parents_of(path)}
        for path in list(self.files):
            if path in folders or any(parent in files for parent in parents_of(path)):
                del self.files[path]
        self.files |= files
        self.executables = self.executables - files.keys() | executables

    def find_lack_of_room(self, limits: JobLimits) -> str | None:
        """Why the files do not fit into a box, or None."""
        pages_count = sum(-(-len(content) // _PAGE_BYTES) for content in self.files.values())
        needed = pages_count * _PAGE_BYTES
        for name, limit_mb in (("scratch_mb", limits.scratch_mb), ("memory_mb", limits.memory_mb)):
            if needed > limit_mb * _MIB:
                return f"{needed} bytes in pages do not fit into {name}={limit_mb}"
        count = len({part for path in self.files for part in (path, *parents_of(path))})
        if count + _OWN_INODES_COUNT > limits.scratch_inodes_count:
            limit = limits.scratch_inodes_count
            return f"{count} files and folders do not fit into scratch_inodes_count={limit}"
        return None


def command_of(step: Step, variables: Mapping[str, str] = _NOTHING) -> Command:
    """The command of a step: bash with its line, or with its program in bash's place.

    Bash looks a program up, and what cannot be started ends as 126 or 127, with words of why.
    """
    bash = f"{_BIN}/bash"
    if step.shell is not None:
        argv: tuple[str, ...] = (bash, "-eo", "pipefail", "-c", step.shell)
    else:
        assert step.argv, "one of the two is checked to be there"
        argv = (bash, "-c", 'exec -- "$0" "$@"', *step.argv)
    if step.services:
        argv = with_services(step.services, argv)
    return Command(argv, {**STEP_ENVIRONMENT, **variables, **step.env, **RUN_ENVIRONMENT})


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
    rules = rules_of(step, site.spec)
    plan = admit_step(
        site.spec.limits.of_step(timeout_ms),
        site.environment,
        site.facts,
        files=tree.files,
        executables=tree.executables,
        layers=tree.layers,
        catch_ports=rules.ports,
        listen_ports=(PORT,) if site.registry is not None else (),
    )
    reader = ReportReader()
    log = site.log.open_step(step.name, reader.feed)
    box = await site.backend.create(plan)
    try:
        async with _serving(site, step, box, rules) as variables:
            watch = _IdleWatch(box, step.idle_timeout_ms)
            sinks = Sinks(watch.heard(log.stdout), watch.heard(log.stderr), _drop)
            command = command_of(step, {**tree.env, **variables})
            try:
                outcome = await box.exec(command, stdin=b"", control=b"", sinks=sinks)
            finally:
                watch.close()
        log.close()
        duration_ms = round((time.monotonic() - started_at) * 1000, 3)
        counts = None
        if step.is_test:
            counts = combine(reader.counts(), await _read_reports(site, step, box, tree))
        status, reason = judge(
            step,
            outcome,
            counts,
            site.spec,
            timeout_ms=timeout_ms,
            scratch_is_full=_is_full(box, outcome),
            was_idle=watch.has_fired,
        )
        if status is StepStatus.PASSED:
            await collector.collect(box)
            reason = await _keep(site, step, box, tree)
            if reason is not None:
                status = StepStatus.FAILED
        return StepResult(
            name=step.name,
            status=status,
            argv=step.argv or command.argv,
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


@asynccontextmanager
async def _serving(
    site: Site, step: Step, box: Box, rules: EgressRules
) -> AsyncIterator[Mapping[str, str]]:
    """Serves the step's network, where it has any; yields what its command is told of it."""
    variables: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        if rules.ports:
            note = partial(site.egress.note, step.name)
            egress = await site.open_egress(box, rules, on_decision=note)
            stack.push_async_callback(egress.close)
            variables |= TRUST_ENVIRONMENT
        if site.registry is not None:
            folder = stack.enter_context(scratch_folder())
            opened = OpenRegistry(site.registry, folder, site.spec.limits)
            stack.callback(site.egress.note_packages, step.name, opened)
            stack.push_async_callback(opened.mirror.close)
            await opened.mirror.start(await box.listen(PORT))
            variables |= REGISTRY_ENVIRONMENT
        yield variables


async def _read_reports(site: Site, step: Step, box: Box, tree: Tree) -> TestCounts | None:
    """The counts in the reports that the step wrote; one that was there before is none of its."""
    if not step.reports:
        return None
    found = await box.collect(
        step.reports, limit_bytes=REPORT_BYTES_LIMIT, limit_count=_REPORTS_LIMIT_COUNT
    )
    for path, why in list(found.skipped.items())[:_SKIPPED_SHOWN_COUNT]:
        site.log.add(step.name, "cloche", f"report not read: {path}: {why}")
    if more_count := max(0, len(found.skipped) - _SKIPPED_SHOWN_COUNT):
        site.log.add(step.name, "cloche", f"reports not read: {more_count} more")
    counts: TestCounts | None = None
    for path, data in found.files.items():
        if tree.files.get(path) != data:
            written = await asyncio.to_thread(read_junit, data)  # seconds, where it is very large
            counts = written if counts is None else add(counts, written)
    return counts


class _IdleWatch:
    """Ends a box that has written nothing for a while.

    Attributes:
        has_fired: It did.
    """

    def __init__(self, box: Box, limit_ms: int | None) -> None:
        self.has_fired = False
        self._box = box
        self._limit_s = None if limit_ms is None else limit_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def heard(self, take: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Takes output, and notes when."""

        def take_and_note(chunk: bytes) -> None:
            self._heard_at = self._loop.time()
            take(chunk)

        return take_and_note

    def _look(self) -> None:
        if self._limit_s is None:
            return
        due_at = self._heard_at + self._limit_s
        if due_at > self._loop.time():
            self._timer = self._loop.call_at(due_at, self._look)
        else:
            self.has_fired = True
            self._box.kill(Cause.WALL_TIMEOUT)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def _keep(site: Site, step: Step, box: Box, tree: Tree) -> Reason | None:
    """Adds what a step keeps to the tree; returns why that is not possible."""
    if not step.keeps:
        return None
    limits = site.spec.limits
    limit_bytes = min(limits.scratch_mb, limits.memory_mb) * _MIB // 4
    try:
        contents, executables, skipped = await read_kept(box, step.keeps, limit_bytes)
    except KeptTooMuchError as error:
        message = f"step {step.name} keeps too much: {error} (a quarter of its scratch or memory)"
        return Reason(ReasonCode.SCRATCH_FULL, message)
    for path, why in skipped.items():
        site.log.add(step.name, "cloche", f"not kept: {path}: {why}")
    tree.add(contents, executables)
    if lack := tree.find_lack_of_room(limits):
        message = f"what step {step.name} keeps leaves no room for the next one: {lack}"
        return Reason(ReasonCode.SCRATCH_FULL, message)
    return None


def _is_full(box: Box, outcome: Outcome) -> bool:
    if outcome.cause is not Cause.EXITED or outcome.exit_code == 0:
        return False
    left_bytes, left_inodes = box.scratch_left()
    return left_bytes < _FULL_BYTES or left_inodes == 0


def _drop(_: bytes) -> None:
    """Steps have no result but their exit code."""


def refused(name: str, status: StepStatus, reason: Reason, duration_ms: float) -> StepResult:
    """The result of a step that ended without an outcome of its own."""
    return StepResult(name=name, status=status, reason=reason, duration_ms=duration_ms)
