"""What a job does, step after step: resolve → install → build scripts → its own steps."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cloche.egress.transparent import open_egress
from cloche.environments.toolchain import find_toolchain, job_environment
from cloche.jobs import build_scripts, install, resolve
from cloche.jobs.artifacts import ArtifactCollector
from cloche.jobs.installers import yarn
from cloche.jobs.installers.choice import read_installation
from cloche.jobs.project.lockfile import LOCKFILE
from cloche.jobs.steps import Site, Tree, refused, run_step
from cloche.model.events import StateEvent
from cloche.model.job import Denial, ReasonCode, RegistryRule, StepStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from cloche.backends.base import Backend
    from cloche.egress.registry import Registry
    from cloche.jobs.audit import AuditRecord
    from cloche.jobs.egress import EgressAccount
    from cloche.jobs.installers.base import Installation, Source
    from cloche.jobs.ledger import Ledger
    from cloche.jobs.log import JobLog
    from cloche.jobs.project.reading import Project
    from cloche.jobs.project.spec import JobSteps
    from cloche.jobs.resolve import Resolution
    from cloche.jobs.steps import OpenEgress
    from cloche.linux.facts import HostFacts
    from cloche.model.events import Event
    from cloche.model.job import JobSpec, StepResult

_DENIALS_LIMIT_COUNT = 100


@dataclass(frozen=True, slots=True)
class JobHost:
    """What this host lends to its jobs.

    Attributes:
        backend: Makes boxes.
        facts: What can be enforced here.
        cache_folder: Packages, layers and tools; Cloche's own.
        registry: npm's.
        sources: By origin (`npm`, `npm-named`, `pypi`), where packages come from.
        cache_limit_bytes: Of layers that nobody uses.
        clock: Seconds since the epoch.
        open_egress: Serves the network of a box.
    """

    backend: Backend
    facts: HostFacts
    cache_folder: Path
    registry: Registry
    sources: Mapping[str, Source]
    cache_limit_bytes: int = 10 * 1024**3
    clock: Callable[[], float] = time.time
    open_egress: OpenEgress = open_egress


class JobWork:
    """The work of one job; use it once."""

    def __init__(
        self,
        host: JobHost,
        spec: JobSpec,
        ledger: Ledger,
        log: JobLog,
        audit: AuditRecord,
        collector: ArtifactCollector,
        egress: EgressAccount,
        tell: Callable[[Event], None],
    ) -> None:
        """Starts nothing.

        Args:
            host: What this host lends.
            spec: Of the job; its time limit counts from now.
            ledger: Takes each step.
            log: Takes what they write.
            audit: The record; on the disk again before anything starts.
            collector: Takes the artifacts.
            egress: Takes what was connected to, and what was refused.
            tell: Takes the other events.
        """
        self._host = host
        self._spec = spec
        self._ledger = ledger
        self._log = log
        self._audit = audit
        self._collector = collector
        self._egress = egress
        self._tell = tell
        self._started_at = time.monotonic()

    async def run(self, project: Project) -> None:
        """Does it; what became of each step is in the ledger.

        Raises:
            JobRefusedError: for a reason that only shows on the way.
            UnavailableError, InternalError, OSError: Cloche or this host failed.
        """
        bundle, installation = project.bundle, project.installation
        first = [] if installation is None else [install.NAME]
        if project.resolution is not None:
            first = [resolve.NAME, install.NAME]
        if first and self._spec.build_scripts:
            first.append(build_scripts.NAME)
        self._ledger.names = (*first, *(step.name for step in project.steps.steps))
        self._tell(StateEvent(self._host.clock(), "started", steps=self._ledger.names))
        for path, why in bundle.left_out.items():
            self._note(f"left out: {path} ({why})")
        for line in installation.ignored if installation is not None else ():
            self._note(line)
        is_python = installation is not None and installation.origin == "pypi"
        toolchain = await find_toolchain(
            self._host.cache_folder,
            self._host.sources["npm"].fetch,
            self._host.sources["pypi"].fetch if is_python else None,
            with_yarn=installation is not None and installation.tool == yarn.TOOL,
        )
        self._audit.state_toolchain(toolchain.describe())
        await asyncio.to_thread(self._audit.write)  # the last word before anything starts
        environment = await asyncio.to_thread(job_environment, toolchain)
        host = self._host
        site = Site(
            host.backend,
            host.facts,
            environment,
            self._log,
            self._spec,
            self._egress,
            host.open_egress,
            host.registry if self._spec.registry is RegistryRule.OPEN else None,
        )
        files = bundle.files
        if project.resolution is not None:
            lockfile = await self._resolve(site, project.resolution)
            if lockfile is None:
                return
            files = {**files, LOCKFILE: lockfile}
            installation = read_installation(files)
            self._collector.add(LOCKFILE, lockfile)
        tree = Tree(files, bundle.executables)
        if installation is not None:
            tree.env = installation.step_env
            tree.add(installation.step_files, frozenset())
        installer = install.Installer(
            site,
            toolchain,
            host.sources,
            host.cache_folder,
            host.cache_limit_bytes,
            self._tell,
            host.clock,
        )
        try:
            if installation is None or await self._install(installer, installation, tree):
                await self._run_steps(site, project.steps, tree)
        finally:
            installer.close()

    def _note(self, message: str) -> None:
        self._tell(StateEvent(self._host.clock(), "note", message=message))

    async def _resolve(self, site: Site, resolution: Resolution) -> bytes | None:
        """The lockfile that is made anew; None when that failed."""
        self._ledger.begin(resolve.NAME)
        resolver = resolve.Resolver(site, self._host.registry, self._host.clock)
        try:
            result = await resolver.run(resolution, timeout_ms=self._left_ms())
        finally:
            self._deny(resolve.NAME, resolver.denials)
        self._ledger.end(result)
        if result.status is not StepStatus.PASSED:
            return None
        return resolver.lockfile

    def _deny(self, step: str, denials: Sequence[tuple[str, str]]) -> None:
        for what, why in denials[:_DENIALS_LIMIT_COUNT]:
            self._egress.denied.append(Denial(step, what, why))

    async def _run_steps(self, site: Site, steps: JobSteps, tree: Tree) -> None:
        has_failed = False
        for step in steps.steps:
            if has_failed and not step.always:
                continue
            self._ledger.begin(step.name)
            if step.is_test and steps.missing_test is not None:
                result = refused(step.name, StepStatus.NO_TESTS, steps.missing_test, 0.0)
            else:
                timeout_ms = min(step.timeout_ms, self._left_ms())
                result = await run_step(site, step, tree, self._collector, timeout_ms=timeout_ms)
            result = replace(result, allowed=step.allow_failure and _may_be_allowed(result))
            self._ledger.end(result)
            has_failed |= result.status is not StepStatus.PASSED and not result.allowed

    async def _install(
        self, installer: install.Installer, installation: Installation, tree: Tree
    ) -> bool:
        self._ledger.begin(install.NAME)
        try:
            result = await installer.run(installation, timeout_ms=self._left_ms())
        finally:
            self._deny(install.NAME, installer.denials)
        if installer.layer is not None:
            tree.layers = (str(installer.layer.tree),)
            self._audit.state_layer(
                installer.layer.key,
                installer.layer.sha256,
                cached=result.cached,
                base=installer.base,
                packages_count=installer.fetched.packages_count,
                fetched_bytes=installer.fetched.size_bytes,
                signatures=installer.signatures,
            )
        self._ledger.end(result)
        if result.status is StepStatus.PASSED and self._spec.build_scripts:
            self._ledger.begin(build_scripts.NAME)
            result = await installer.build(installation, timeout_ms=self._left_ms())
            assert installer.layer is not None, "it is there after the install at the latest"
            tree.layers = (str(installer.layer.tree),)
            self._audit.state_builds(installer.layer, installer.built_folders)
            self._ledger.end(result)
        return result.status is StepStatus.PASSED

    def _left_ms(self) -> int:
        passed_ms = (time.monotonic() - self._started_at) * 1000
        return max(1, round(self._spec.limits.timeout_ms - passed_ms))


def _may_be_allowed(result: StepResult) -> bool:
    """Whether it is the step's own failure, and not the end of the whole job."""
    ended = result.status in (StepStatus.PASSED, StepStatus.ABORTED, StepStatus.INFRA_FAILED)
    timed_out = result.reason is not None and result.reason.code is ReasonCode.JOB_TIMEOUT
    return not ended and not timed_out
