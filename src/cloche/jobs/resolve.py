"""The resolution: a lockfile is made anew, in a step of its own, under a policy.

pnpm resolves in a box that holds manifests of Cloche's own making; its network is one port, on
which Cloche says of packages what the policy admits, and gives no tarball. No code of the project
or of a package runs. What comes of it is read like any stranger's lockfile.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloche.admission import admit_step
from cloche.backends.base import Sinks
from cloche.egress.metadata import MetadataItems, reduce_metadata
from cloche.egress.mirror import Mirror
from cloche.egress.registry import PackageError
from cloche.jobs.installers.base import ADDRESS, PORT
from cloche.jobs.project.graph import Platform
from cloche.jobs.project.inputs import MANIFEST, lay_inputs
from cloche.jobs.project.lockfile import LOCKFILE, LOCKFILE_BYTES_LIMIT, Lockfile, read_lockfile
from cloche.jobs.refusal import JobRefusedError
from cloche.jobs.steps import STEP_ENVIRONMENT, Site
from cloche.jobs.verdict import judge
from cloche.linux.scratch import scratch_folder
from cloche.model.job import Reason, ReasonCode, Step, StepResult, StepStatus
from cloche.model.plan import Command
from cloche.model.policy import MAX_TIMEOUT_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloche.backends.base import Box
    from cloche.egress.metadata import Metadata
    from cloche.egress.registry import Registry
    from cloche.model.job import Resolve

NAME: Final = "resolve"
_MIB: Final = 1024 * 1024
_COMMAND: Final = (
    *("/usr/bin/pnpm", "install", "--lockfile-only", "--no-frozen-lockfile"),
    f"--registry={ADDRESS}/",
    "--store-dir=/workspace/.cloche-store",
    "--cache-dir=/tmp/cache",
    "--reporter=append-only",
    "--network-concurrency=32",
    "--ignore-scripts",
    "--ignore-pnpmfile",
    "--config.fetch-retries=0",
    "--config.fetch-timeout=600000",
    "--config.update-notifier=false",
    "--config.minimum-release-age=0",  # the policy is Cloche's to apply
    "--config.trust-policy=off",
)
_NOTHING: Final = Lockfile((), (".",), False, {}, frozenset(), b"")


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a resolution starts from.

    Attributes:
        files: All that its box gets, by path from /workspace.
        known: The packages that the template's lockfile has: these may always be asked for.
    """

    files: Mapping[str, bytes]
    known: frozenset[str]


def prepare_resolution(files: Mapping[str, bytes]) -> Resolution:
    """Reads what is to be resolved.

    Raises:
        JobRefusedError: a manifest is missing or wrong, or a lockfile that is there is refused.
    """
    if MANIFEST not in files:
        raise JobRefusedError(
            ReasonCode.MANIFEST_MISSING, f"there is no {MANIFEST} to resolve dependencies of"
        )
    data = files.get(LOCKFILE)
    platform = Platform.of_this_host()
    lockfile = _NOTHING if data is None else read_lockfile(data, platform=platform)
    laid = dict(lay_inputs(files, lockfile).files)
    if data is None:
        del laid[LOCKFILE]
    return Resolution(laid, frozenset(package.name for package in lockfile.packages))


class Resolver:
    """Makes a lockfile.

    Attributes:
        lockfile: What it made, once `run` has passed.
        denials: What pnpm asked for and was refused, and why.
    """

    def __init__(self, site: Site, registry: Registry, clock: Callable[[], float]) -> None:
        """Starts nothing.

        Args:
            site: Where its box runs.
            registry: Says what there is of a package.
            clock: Seconds since the epoch; the age of a version is counted from it.
        """
        self.lockfile = b""
        self.denials: list[tuple[str, str]] = []
        self._site = site
        self._registry = registry
        self._clock = clock
        self._withheld_count = 0

    async def run(self, resolution: Resolution, *, timeout_ms: int) -> StepResult:
        """Resolves; `lockfile` is what came of it, when the result is a pass.

        Raises:
            UnavailableError, InternalError, OSError: Cloche or this host failed.
        """
        spec = self._site.spec
        policy = spec.resolve
        plan = admit_step(
            spec.limits.of_step(timeout_ms),
            self._site.environment,
            self._site.facts,
            files=resolution.files,
            listen_ports=(PORT,),
        )
        allowed = None if policy.allow is None else resolution.known.union(policy.allow)
        with scratch_folder() as folder:
            mirror = Mirror(
                MetadataItems(allowed),
                lambda item: self._fetch(item, policy, folder),
                port=PORT,
                limit_bytes=spec.limits.egress_mb * _MIB,
                connections_count=spec.limits.connections_count,
            )
            try:
                box = await self._site.backend.create(plan)
                try:
                    await mirror.start(await box.listen(PORT))
                    return await self._resolve(box, mirror, timeout_ms)
                finally:
                    await box.destroy()
            finally:
                await mirror.close()
                self.denials += mirror.denials

    async def _fetch(self, item: Metadata, policy: Resolve, folder: Path) -> Path:
        document = await self._registry.fetch_metadata(item.name)
        age = timedelta(hours=policy.minimum_age_hours)
        newest = datetime.fromtimestamp(self._clock(), UTC) - age if age else None
        path = folder / item.name.replace("/", "+")
        return await asyncio.to_thread(self._reduce, document, item, newest, path)

    def _reduce(self, document: bytes, item: Metadata, newest: datetime | None, path: Path) -> Path:
        try:
            reduced, withheld_count = reduce_metadata(
                document, item.name, newest=newest, mirror=ADDRESS
            )
        except ValueError as error:
            raise PackageError(
                ReasonCode.REGISTRY_FAILED, f"{item}: what it gave {error}"
            ) from error
        self._withheld_count += withheld_count
        path.write_bytes(reduced)
        return path

    async def _resolve(self, box: Box, mirror: Mirror[Metadata], timeout_ms: int) -> StepResult:
        log = self._site.log.open_step(NAME)
        outcome = await box.exec(
            Command(_COMMAND, STEP_ENVIRONMENT),
            stdin=b"",
            control=b"",
            sinks=Sinks(log.stdout, log.stderr, lambda _: None),
        )
        if self._withheld_count:
            hours = self._site.spec.resolve.minimum_age_hours
            log.note(f"{self._withheld_count} versions are younger than {hours} hours: not chosen")
        log.close()
        step = Step(NAME, argv=_COMMAND, timeout_ms=MAX_TIMEOUT_MS)
        status, reason = judge(
            step, outcome, None, self._site.spec, timeout_ms=timeout_ms, scratch_is_full=False
        )
        if reason is not None and reason.code is ReasonCode.EXIT_CODE:
            status, reason = _explain(status, reason, mirror)
        if status is StepStatus.PASSED:
            status, reason = await self._take(box)
        return StepResult(
            name=NAME,
            status=status,
            argv=_COMMAND,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            usage=outcome.usage,
            duration_ms=outcome.duration_ms,
            reason=reason,
            log_offset_bytes=log.started_at_bytes,
            log_bytes=log.size_bytes,
            isolation=box.isolation,
        )

    async def _take(self, box: Box) -> tuple[StepStatus, Reason | None]:
        found = await box.collect((LOCKFILE,), limit_bytes=LOCKFILE_BYTES_LIMIT, limit_count=1)
        data = found.files.get(LOCKFILE)
        if data is None:
            message = f"pnpm made no {LOCKFILE}: has the project no dependency?"
            return StepStatus.FAILED, Reason(ReasonCode.LOCKFILE_MISSING, message)
        try:
            read_lockfile(data, platform=Platform.of_this_host())
        except JobRefusedError as refusal:
            return StepStatus.FAILED, refusal.reason
        self.lockfile = data
        return StepStatus.PASSED, None


def _explain(
    status: StepStatus, reason: Reason, mirror: Mirror[Metadata]
) -> tuple[StepStatus, Reason]:
    if mirror.failure is not None:
        ours = mirror.failure.code in (ReasonCode.REGISTRY_FAILED, ReasonCode.HOST_FAILED)
        known = Reason(mirror.failure.code, str(mirror.failure))
        return (StepStatus.INFRA_FAILED if ours else StepStatus.FAILED), known
    if mirror.denials:
        what, _ = mirror.denials[0]
        message = f"the resolution may not ask for {what.removeprefix('GET /')} (`resolve.allow`)"
        return status, Reason(ReasonCode.DEPENDENCY_REFUSED, message)
    return status, reason
