"""The install: a lockfile's packages become a dependency layer, made once and kept.

It runs in a box that holds nothing but files of Cloche's own making, the lockfile and a package
manager; its network is one port, on which Cloche serves exactly what the lockfile names. No code of
the project or of a package runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from cloche.admission import admit_step
from cloche.backends.base import Sinks
from cloche.egress.mirror import Mirror
from cloche.egress.registry import PackageError, Registry
from cloche.egress.signatures import Signatures, check_signatures
from cloche.environments.layers import LayerStore, MadeOf
from cloche.jobs.build_scripts import BuildScripts
from cloche.jobs.installers.base import PORT
from cloche.jobs.refusal import JobRefusedError
from cloche.jobs.steps import STEP_ENVIRONMENT, Site
from cloche.jobs.verdict import judge
from cloche.linux.gathering import TreeCopy, TreeRefusedError
from cloche.linux.threads import finish_in_thread
from cloche.model.events import StateEvent, StepEvent
from cloche.model.job import Reason, ReasonCode, Step, StepResult, StepStatus
from cloche.model.outcome import Cause
from cloche.model.plan import Command
from cloche.model.policy import MAX_TIMEOUT_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cloche.backends.base import Box
    from cloche.egress.mirror import Progress
    from cloche.environments.layers import Layer
    from cloche.environments.toolchain import Toolchain
    from cloche.jobs.installers.base import Installation, Source
    from cloche.model.events import Event
    from cloche.model.package import Package

NAME = "install"
_MIB = 1024 * 1024
# Raised whenever the way a layer is made changes.
_LAYER_FORMAT = 3
# In a package manager's own words too: by the end it has removed what did not fit.
_NO_SPACE = "No space left on device"


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
        sources: Mapping[str, Source],
        cache_folder: Path,
        cache_limit_bytes: int,
        tell: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        """Starts nothing.

        Args:
            site: Where its box runs.
            toolchain: Whose package manager installs.
            sources: By origin, where items come from.
            cache_folder: Where layers are kept.
            cache_limit_bytes: Of all layers that nobody uses.
            tell: Takes the progress of downloads.
            clock: Seconds since the epoch.
        """
        self._site = site
        self._toolchain = toolchain
        self._sources = sources
        self._layers = LayerStore(cache_folder)
        self._cache_limit_bytes = cache_limit_bytes
        self._tell = tell
        self._clock = clock
        self.layer: Layer | None = None
        self.base: str | None = None  # the key of the layer that a new one started from
        self.fetched = Fetched()
        self.signatures: Signatures | None = None  # known when a layer was made
        self.built_folders: tuple[str, ...] = ()
        self.denials: list[tuple[str, str]] = []

    def close(self) -> None:
        """Lets go of the layer. Requires: no box has it any more. Idempotent."""
        if self.layer is not None:
            self.layer.close()

    async def run(self, installation: Installation, *, timeout_ms: int) -> StepResult:
        """Brings the layer about; `layer` is it, when the result is a pass.

        Raises:
            UnavailableError, InternalError, OSError: Cloche or this host failed.
        """
        started_at = time.monotonic()
        scope = await self._sources[installation.origin].find_scope(installation.names)
        key, made_of = self._describe(installation, scope)
        result = await self._find(key)
        if result is None:
            async with self._layers.making(key):
                # Whoever held it before may have made just this.
                result = await self._find(key)
                if result is None:
                    result = await self._make(key, made_of, installation, timeout_ms)
        return replace(result, duration_ms=round((time.monotonic() - started_at) * 1000, 3))

    async def build(self, installation: Installation, *, timeout_ms: int) -> StepResult:
        """Runs the build scripts that the job allows; `layer` then has what they made.

        Requires: `run` passed.

        Raises:
            JobRefusedError, UnavailableError, InternalError, OSError: as `BuildScripts.run`.
        """
        assert self.layer is not None
        for name in sorted(set(self._site.spec.build_scripts) - installation.names):
            message = f"build_scripts: {name} is not in {installation.lockfile}"
            self._tell(StateEvent(self._clock(), "note", message=message))
        builds = BuildScripts(self._site, self._layers)
        try:
            result = await builds.run(installation, self.layer, timeout_ms=timeout_ms)
        finally:
            if builds.layer is not None:
                self.layer.close()
                self.layer = builds.layer
        if result.status is StepStatus.PASSED:
            self.built_folders = tuple(builds.folders)
            if builds.layer is not None and not result.cached:
                await finish_in_thread(self._layers.prune, self._cache_limit_bytes)
        return result

    def _describe(self, installation: Installation, scope: str) -> tuple[str, MadeOf]:
        """The key, of all that is mounted into the box that makes the layer; and its like."""
        made_of = {
            "format": _LAYER_FORMAT,
            "toolchain": self._toolchain.describe(),
            "environment": self._site.environment.name,
            "trust_domain": self._site.spec.trust_domain,
            "credentials": scope,
            "commands": (installation.renewal, *installation.commands),
            "env": dict(installation.env),
            "folders": installation.folders,
        }
        files = {
            path: hashlib.sha256(content).hexdigest()
            for path, content in installation.files.items()
        }
        key = _hash({**made_of, "files": files})
        if not installation.renewal:
            return key, MadeOf()
        for path in installation.listing:
            files[path] = ""
        packages = dict(map(_split_key, installation.items.values()))
        return key, MadeOf(_hash({**made_of, "files": files}), packages)

    async def _find(self, key: str) -> StepResult | None:
        self.layer = await self._layers.take(key)
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
        self, key: str, made_of: MadeOf, installation: Installation, timeout_ms: int
    ) -> StepResult:
        started_at = time.monotonic()
        base = await self._layers.take_base(made_of)
        if base is None:
            return await self._make_from(None, key, made_of, installation, timeout_ms)
        with contextlib.closing(base[0]):
            first = await self._make_from(base, key, made_of, installation, timeout_ms)
        if first.status is StepStatus.PASSED:
            self.base = base[0].key
            return first
        if first.reason is None or first.reason.code is not ReasonCode.EXIT_CODE:
            return first
        # Whatever an earlier layer may do to a package manager, it fails no job.
        left_ms = max(1, timeout_ms - round((time.monotonic() - started_at) * 1000))
        result = await self._make_from(None, key, made_of, installation, left_ms)
        return replace(
            result,
            log_offset_bytes=first.log_offset_bytes,
            log_bytes=first.log_bytes + result.log_bytes,
        )

    async def _make_from(
        self,
        base: tuple[Layer, frozenset[str]] | None,
        key: str,
        made_of: MadeOf,
        installation: Installation,
        timeout_ms: int,
    ) -> StepResult:
        """Makes the layer, of an earlier one and the packages that this lacks, or of nothing."""
        limits = self._site.spec.limits
        mirror = Mirror(
            installation.items,
            self._sources[installation.origin].fetch,
            port=PORT,
            limit_bytes=limits.egress_mb * _MIB,
            connections_count=limits.connections_count,
            on_progress=self._on_progress,
        )
        layer, shared = (None, frozenset[str]()) if base is None else base
        plan = admit_step(
            limits.of_step(timeout_ms),
            self._site.environment,
            self._site.facts,
            files=installation.files,
            layers=() if layer is None else (str(layer.tree),),
            listen_ports=(PORT,),
        )
        items = installation.items.values()
        mirror.prefetch({item for item in items if shared and _split_key(item)[0] in shared})
        checking = asyncio.create_task(self._check_signatures(installation))
        try:
            box = await self._site.backend.create(plan)
            try:
                await mirror.start(await box.listen(PORT))
                result = await self._install(box, mirror, installation, timeout_ms, base=base)
                if result.status is StepStatus.PASSED:
                    result = await self._judge_signatures(result, checking)
                if result.status is StepStatus.PASSED:
                    await self._keep(key, made_of, box, installation, layer)
            finally:
                await box.destroy()
        finally:
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)
            await mirror.close()
            self.denials += mirror.denials
            self.fetched = Fetched(mirror.progress.done_count, mirror.progress.done_bytes)
        return result

    async def _check_signatures(self, installation: Installation) -> Signatures | None:
        """Of what this platform installs; None where they are not npm's."""
        source = self._sources[installation.origin]
        if not isinstance(source, Registry):
            return None
        packages = {each for each in installation.items.values() if each.wanted}
        return await check_signatures(source, cast("set[Package]", packages), self._clock)

    async def _judge_signatures(
        self, result: StepResult, checking: asyncio.Task[Signatures | None]
    ) -> StepResult:
        try:
            self.signatures = await checking
        except PackageError as error:
            reason = Reason(error.code, str(error))
            return replace(result, status=StepStatus.FAILED, reason=reason)
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
        self,
        box: Box,
        mirror: Mirror[Any],
        installation: Installation,
        timeout_ms: int,
        *,
        base: tuple[Layer, frozenset[str]] | None,
    ) -> StepResult:
        seen: set[str] = set()
        last = ""

        def on_line(_: str, text: str) -> None:
            nonlocal last
            both = f"{last} {text.strip()}"  # pnpm wraps its words
            seen.update(word for word in (*installation.reasons, _NO_SPACE) if word in both)
            last = text.strip()

        log = self._site.log.open_step(NAME, on_line)
        commands = installation.commands
        if base is not None:
            commands = (installation.renewal, *commands)
            layer, shared = base
            log.note(
                f"starts from layer {layer.key[:12]}, which has {len(shared)} of the"
                f" {installation.packages_count} packages"
            )
        for argv in commands:
            command = Command(argv, {**STEP_ENVIRONMENT, **installation.env})
            outcome = await box.exec(
                command, stdin=b"", control=b"", sinks=Sinks(log.stdout, log.stderr, lambda _: None)
            )
            if outcome.cause is not Cause.EXITED or outcome.exit_code != 0:
                break
        else:
            argv = installation.commands[0]  # the others only tidy up
        log.close()
        # It has no limit of its own: what ends it is the job's.
        step = Step(NAME, argv=argv, timeout_ms=MAX_TIMEOUT_MS)
        status, reason = judge(
            step,
            outcome,
            None,
            self._site.spec,
            timeout_ms=timeout_ms,
            scratch_is_full=_NO_SPACE in seen,
        )
        if reason is None or reason.code is ReasonCode.EXIT_CODE:
            status, reason = self._explain(status, reason, mirror, installation, seen)
        return StepResult(
            name=NAME,
            status=status,
            argv=argv,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            usage=outcome.usage,
            reason=reason,
            log_offset_bytes=log.started_at_bytes,
            log_bytes=log.size_bytes,
            isolation=box.isolation,
        )

    def _explain(
        self,
        status: StepStatus,
        reason: Reason | None,
        mirror: Mirror[Any],
        installation: Installation,
        seen: set[str],
    ) -> tuple[StepStatus, Reason | None]:
        """What is known beyond the exit code.

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
        for word, known in installation.reasons.items():
            if reason is not None and word in seen:
                return status, known
        if reason is None and mirror.denials:
            what, why = mirror.denials[0]
            message = f"{installation.tool} went on without what it was refused: {what}: {why}"
            return StepStatus.FAILED, Reason(ReasonCode.DEPENDENCY_REFUSED, message)
        return status, reason

    async def _keep(
        self,
        key: str,
        made_of: MadeOf,
        box: Box,
        installation: Installation,
        base: Layer | None,
    ) -> None:
        """Copies the installed folders out of the box, checked on the way."""
        limits = self._site.spec.limits
        counts = TreeCopy(limits.scratch_mb * _MIB, limits.scratch_inodes_count)

        async def fill(tree: int) -> TreeCopy:
            with contextlib.ExitStack() as opened:
                if base is not None:
                    counts.base = os.open(base.tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                    opened.callback(os.close, counts.base)
                await box.copy_folders(installation.folders, tree, counts)
            return counts

        try:
            self.layer = await self._layers.add(key, fill, made_of=made_of, base=base)
            await finish_in_thread(self._layers.prune, self._cache_limit_bytes)
        except TreeRefusedError as error:
            raise JobRefusedError(
                ReasonCode.DEPENDENCY_REFUSED, f"the installed dependencies are refused: {error}"
            ) from error


def _hash(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _split_key(item: Any) -> tuple[str, str]:
    """Of a package: its name with the version, which a tree has at most once, and its hash."""
    *name, integrity = item.key
    return "@".join(name), integrity
