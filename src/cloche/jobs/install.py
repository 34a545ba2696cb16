"""The install: a lockfile's packages become a dependency layer, made once and kept.

It runs in a box that holds nothing but manifests of Cloche's own making, the lockfile and pnpm; its
network is one port, on which Cloche serves exactly what the lockfile names. No code of the project
or of a package runs.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cloche.admission import admit_step
from cloche.backends.base import Sinks
from cloche.egress.mirror import Mirror
from cloche.environments.layers import LayerStore
from cloche.jobs.refusal import JobRefusedError
from cloche.jobs.steps import STEP_ENVIRONMENT, Site
from cloche.jobs.verdict import judge
from cloche.linux.gathering import TreeCopy, TreeRefusedError
from cloche.model.events import StepEvent
from cloche.model.job import Reason, ReasonCode, Step, StepResult, StepStatus
from cloche.model.plan import Command
from cloche.model.policy import MAX_TIMEOUT_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from cloche.backends.base import Box
    from cloche.egress.mirror import Progress
    from cloche.environments.layers import Layer
    from cloche.environments.toolchain import Toolchain
    from cloche.jobs.project.inputs import Inputs
    from cloche.jobs.project.lockfile import Lockfile
    from cloche.model.events import Event
    from cloche.model.package import Package

NAME = "install"
_PORT = 4873
_MIB = 1024 * 1024
# Raised whenever the way a layer is made changes.
_LAYER_FORMAT = 1
# Beside the inputs, on the same file system: pnpm links packages from there instead of copying.
_STORE = "/workspace/.cloche-store"
# pnpm's codes for a lockfile that does not fit: its specifiers, its settings, its projects.
_MISMATCHES = (
    "ERR_PNPM_OUTDATED_LOCKFILE",
    "ERR_PNPM_LOCKFILE_CONFIG_MISMATCH",
    "ERR_PNPM_PACKAGE_MANAGER_NO_IMPORTER",
)
# In its own words too: by the end it has removed what did not fit.
_NO_SPACE = "No space left on device"
_FLAGS = (
    f"--registry=http://127.0.0.1:{_PORT}/",
    f"--store-dir={_STORE}",
    "--cache-dir=/tmp/cache",
    "--reporter=append-only",
    "--network-concurrency=32",  # half of the connections that a box may have
    "--config.fetch-retries=0",  # Cloche has retried already
)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What the install took from the registry, for the record."""

    packages_count: int = 0
    size_bytes: int = 0


class Installer:
    """Finds or makes the dependency layer of a job."""

    def __init__(
        self,
        site: Site,
        toolchain: Toolchain,
        fetch: Callable[[Package], Awaitable[Path]],
        cache_folder: Path,
        tell: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        """Starts nothing.

        Args:
            site: Where its box runs.
            toolchain: Whose pnpm installs.
            fetch: Gives the verified tarball of a package.
            cache_folder: Where layers are kept.
            tell: Takes the progress of downloads.
            clock: Seconds since the epoch.
        """
        self._site = site
        self._toolchain = toolchain
        self._fetch = fetch
        self._layers = LayerStore(cache_folder)
        self._tell = tell
        self._clock = clock
        self.layer: Layer | None = None
        self.fetched = Fetched()
        self.denials: list[tuple[str, str]] = []

    async def run(self, lockfile: Lockfile, inputs: Inputs, *, timeout_ms: int) -> StepResult:
        """Brings the layer about; `layer` is it, when the result is a pass.

        Raises:
            UnavailableError, InternalError, OSError: Cloche or this host failed.
        """
        started_at = time.monotonic()
        key = self._key(inputs)
        result = await self._find(key)
        if result is None:
            async with self._layers.making(key):
                # Whoever held it before may have made just this.
                result = await self._find(key)
                if result is None:
                    result = await self._make(key, lockfile, inputs, timeout_ms)
        return replace(result, duration_ms=round((time.monotonic() - started_at) * 1000, 3))

    def _key(self, inputs: Inputs) -> str:
        """Of all that is mounted into the box that makes the layer."""
        made_of = {
            "format": _LAYER_FORMAT,
            "toolchain": self._toolchain.describe(),
            "environment": self._site.environment.name,
            "trust_domain": self._site.spec.trust_domain,
            "flags": [*_FLAGS, *inputs.flags],
            "files": {
                path: hashlib.sha256(content).hexdigest() for path, content in inputs.files.items()
            },
        }
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()

    async def _find(self, key: str) -> StepResult | None:
        self.layer = self._layers.find(key)
        if self.layer is None:
            return None
        log = self._site.log.open_step(NAME)
        log.note(f"dependency layer {key[:12]} is there: {self.layer.entries_count} entries")
        return StepResult(
            name=NAME,
            status=StepStatus.PASSED,
            cached=True,
            log_offset_bytes=log.started_at_bytes,
            log_bytes=log.size_bytes,
        )

    async def _make(
        self, key: str, lockfile: Lockfile, inputs: Inputs, timeout_ms: int
    ) -> StepResult:
        limits = self._site.spec.limits
        mirror = Mirror(
            lockfile.packages,
            self._fetch,
            port=_PORT,
            limit_bytes=limits.egress_mb * _MIB,
            connections_count=limits.connections_count,
            on_progress=self._on_progress,
        )
        plan = admit_step(
            limits.of_step(timeout_ms),
            self._site.environment,
            self._site.facts,
            files=inputs.files,
            listen_ports=(_PORT,),
        )
        mirror.prefetch()
        try:
            box = await self._site.backend.create(plan)
            try:
                await mirror.start(await box.listen(_PORT))
                result = await self._install(box, mirror, inputs, timeout_ms)
                if result.status is StepStatus.PASSED:
                    await self._keep(key, box, lockfile)
            finally:
                await box.destroy()
        finally:
            await mirror.close()
            self.denials += mirror.denials
            self.fetched = Fetched(mirror.progress.done_count, mirror.progress.done_bytes)
        return result

    def _on_progress(self, progress: Progress) -> None:
        self._tell(
            StepEvent(
                self._clock(),
                NAME,
                "progress",
                done_count=progress.done_count,
                total_count=progress.total_count,
                done_bytes=progress.done_bytes,
            )
        )

    async def _install(
        self, box: Box, mirror: Mirror, inputs: Inputs, timeout_ms: int
    ) -> StepResult:
        seen: set[str] = set()
        last = ""

        def on_line(_: str, text: str) -> None:
            nonlocal last
            both = f"{last} {text.strip()}"  # pnpm wraps its words
            seen.update(code for code in (*_MISMATCHES, _NO_SPACE) if code in both)
            last = text.strip()

        log = self._site.log.open_step(NAME, on_line)
        command = Command(("/usr/bin/pnpm", "install", *_FLAGS, *inputs.flags), STEP_ENVIRONMENT)
        outcome = await box.exec(
            command, stdin=b"", control=b"", sinks=Sinks(log.stdout, log.stderr, lambda _: None)
        )
        log.close()
        # It has no limit of its own: what ends it is the job's.
        step = Step(NAME, argv=command.argv, timeout_ms=MAX_TIMEOUT_MS)
        status, reason = judge(
            step,
            outcome,
            None,
            self._site.spec,
            timeout_ms=timeout_ms,
            scratch_is_full=_NO_SPACE in seen,
        )
        if reason is None or reason.code is ReasonCode.EXIT_CODE:
            status, reason = self._explain(status, reason, mirror, seen)
        return StepResult(
            name=NAME,
            status=status,
            argv=command.argv,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            usage=outcome.usage,
            reason=reason,
            log_offset_bytes=log.started_at_bytes,
            log_bytes=log.size_bytes,
            isolation=box.isolation,
        )

    def _explain(
        self, status: StepStatus, reason: Reason | None, mirror: Mirror, seen: set[str]
    ) -> tuple[StepStatus, Reason | None]:
        """What is known beyond pnpm's exit code.

        Also of a pass: pnpm leaves out an optional package that it does not get, and ends well.
        """
        if mirror.is_exhausted:
            message = (
                f"the dependencies are more than the {self._site.spec.limits.egress_mb} MiB that"
                " a job may fetch"
            )
            return StepStatus.FAILED, Reason(ReasonCode.EGRESS_LIMIT, message)
        failure = mirror.failure
        if failure is not None:
            ours = failure.code in (ReasonCode.REGISTRY_FAILED, ReasonCode.HOST_FAILED)
            known = Reason(failure.code, str(failure))
            return (StepStatus.INFRA_FAILED if ours else StepStatus.FAILED), known
        if reason is not None and seen.intersection(_MISMATCHES):
            message = (
                "pnpm-lock.yaml does not match package.json (pnpm's own words are in the log); run"
                " `pnpm install --lockfile-only` and add the new pnpm-lock.yaml"
            )
            return status, Reason(ReasonCode.LOCKFILE_OUTDATED, message)
        if reason is None and mirror.denials:
            what, why = mirror.denials[0]
            message = f"pnpm went on without what it was refused: {what}: {why}"
            return StepStatus.FAILED, Reason(ReasonCode.DEPENDENCY_REFUSED, message)
        return status, reason

    async def _keep(self, key: str, box: Box, lockfile: Lockfile) -> None:
        """Copies the installed folders out of the box, checked on the way."""
        limits = self._site.spec.limits
        folders = [
            "node_modules" if importer == "." else f"{importer}/node_modules"
            for importer in lockfile.importers
        ]
        counts = TreeCopy(limits.scratch_mb * _MIB, limits.scratch_inodes_count)

        async def fill(tree: int) -> TreeCopy:
            await box.copy_folders(folders, tree, counts)
            return counts

        try:
            self.layer = await self._layers.add(key, fill)
        except TreeRefusedError as error:
            raise JobRefusedError(
                ReasonCode.DEPENDENCY_REFUSED, f"the installed dependencies are refused: {error}"
            ) from error
