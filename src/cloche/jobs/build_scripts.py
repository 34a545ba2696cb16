"""Build scripts of packages: those that a job allows by name, in a box of their own.

The box has the installed tree and what it was installed from, and no network. Of what the scripts
leave, nothing is kept but what lies in the own folders of the allowed packages: the new layer is
the tree as it was installed, with these folders as they are in the box. So whatever a script does
to another package, to the links between them or to the home is gone with the box.

How pnpm's links to programs (`.bin`) start a program depends on what the program is, which scripts
may change. pnpm makes them anew, in a second box that runs no script and has of the first one
nothing but those folders.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloche.admission import admit_step
from cloche.backends.base import Sinks
from cloche.jobs.build_work import SHELL, Work, find_folders, is_own, work_of
from cloche.jobs.project.entries import enumerate_first, show
from cloche.jobs.refusal import JobRefusedError
from cloche.jobs.steps import Site
from cloche.jobs.verdict import judge
from cloche.linux.gathering import TreeCopy, TreeRefusedError, copy_around, copy_folder
from cloche.linux.scratch import scratch_folder
from cloche.linux.threads import finish_in_thread
from cloche.model.job import Reason, ReasonCode, Step, StepResult, StepStatus
from cloche.model.plan import Command
from cloche.model.policy import MAX_TIMEOUT_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cloche.backends.base import Box
    from cloche.environments.layers import Layer, LayerStore
    from cloche.jobs.installers.base import Installation
    from cloche.linux.gathering import GuestFile

NAME: Final = "build-scripts"
# Raised whenever the way a layer is made changes.
_LAYER_FORMAT: Final = 1
_MIB: Final = 1024 * 1024
# What the package managers write on their own account.
_OF_TOOLS: Final = (
    ".cloche-store/",
    "node_modules/.modules.yaml",
    "node_modules/.package-lock.json",
    "node_modules/.pnpm-workspace-state",
)
# A folder is no longer a folder, or there is a link on the way to it.
_REPLACED: Final = (errno.ELOOP, errno.ENOTDIR, errno.EXDEV)


class BuildScripts:
    """Runs the build scripts that a job allows, and keeps what they made as a layer.

    Attributes:
        folders: Of the packages whose scripts the layer holds the results of: name by path.
        layer: What they made of the installed tree; None where they made nothing. Close it.
    """

    def __init__(self, site: Site, layers: LayerStore) -> None:
        """Starts nothing.

        Args:
            site: Where their box runs.
            layers: Where the result is kept.
        """
        self._site = site
        self._layers = layers
        self.folders: Mapping[str, str] = {}
        self._links: tuple[str, ...] = ()
        self.layer: Layer | None = None

    async def run(
        self, installation: Installation, installed: Layer, *, timeout_ms: int
    ) -> StepResult:
        """Brings the layer about.

        Args:
            installation: By which `installed` was made.
            installed: The tree without results of scripts; stays as it is.
            timeout_ms: What is left of the job's time.

        Raises:
            JobRefusedError: BUILD_SCRIPT_FAILED: it cannot be told which folders are whose.
            UnavailableError, InternalError, OSError: Cloche or this host failed.
        """
        started_at = time.monotonic()
        result = await self._run(installation, installed, timeout_ms)
        return replace(result, duration_ms=round((time.monotonic() - started_at) * 1000, 3))

    async def _run(
        self, installation: Installation, installed: Layer, timeout_ms: int
    ) -> StepResult:
        allowed = installation.names.intersection(self._site.spec.build_scripts)
        self.folders = await asyncio.to_thread(
            find_folders, installation, installed.tree, frozenset(allowed)
        )
        if not self.folders:
            return self._say("no package that is allowed to has build scripts here")
        key = _key(installed.key, work_of(installation, self.folders), self.folders)
        if await self._find(key):
            return self._say(f"layer {key[:12]} has what they made", cached=True)
        async with self._layers.making(key):
            # Whoever held it before may have made just this.
            if await self._find(key):
                return self._say(f"layer {key[:12]} has what they made", cached=True)
            with scratch_folder() as folder:
                kept = folder / "tree"
                kept.mkdir(mode=0o755)
                result = await self._build(installation, installed, kept, timeout_ms)
                if result.status is StepStatus.PASSED:
                    await self._keep(key, installed, kept)
        log_bytes = self._site.log.offset_bytes - result.log_offset_bytes
        return replace(result, log_bytes=log_bytes)

    async def _build(
        self, installation: Installation, installed: Layer, kept: Path, timeout_ms: int
    ) -> StepResult:
        """Runs the scripts, and copies into `kept` what is to be kept of it."""
        started_at = time.monotonic()
        work = work_of(installation, self.folders)
        box = await self._create(work.files, (str(installed.tree),), timeout_ms)
        try:
            result = await self._execute(box, Command(work.argv, work.env), timeout_ms)
            if result.status is not StepStatus.PASSED:
                return result
            await self._note_the_rest(box, installed, work.files)
            reason = await self._copy(box, self.folders, kept)
            if reason is not None:
                return replace(result, status=StepStatus.FAILED, reason=reason)
        finally:
            await box.destroy()
        if work.linking is None:
            return result
        left_ms = max(1, timeout_ms - round((time.monotonic() - started_at) * 1000))
        box = await self._create(work.files, (str(kept), str(installed.tree)), left_ms)
        try:
            linked = await self._execute(box, Command(work.linking, work.env), left_ms)
            if linked.status is not StepStatus.PASSED:
                return replace(linked, log_offset_bytes=result.log_offset_bytes)
            self._links = await self._find_links(box)
            reason = await self._copy(box, self._links, kept)
            assert reason is None, "nothing but pnpm has been there"
        finally:
            await box.destroy()
        return result

    async def _create(
        self, files: Mapping[str, bytes], layers: tuple[str, ...], timeout_ms: int
    ) -> Box:
        site = self._site
        plan = admit_step(
            site.spec.limits.of_step(timeout_ms),
            site.environment,
            site.facts,
            files=files,
            executables=frozenset({SHELL}),
            layers=layers,
        )
        return await site.backend.create(plan)

    async def _find(self, key: str) -> bool:
        self.layer = await self._layers.take(key)
        return self.layer is not None

    def _say(self, text: str, *, cached: bool = False) -> StepResult:
        log = self._site.log.open_step(NAME)
        log.note(text)
        return StepResult(
            name=NAME,
            status=StepStatus.PASSED,
            cached=cached,
            log_offset_bytes=log.started_at_bytes,
            log_bytes=log.size_bytes,
        )

    async def _execute(self, box: Box, command: Command, timeout_ms: int) -> StepResult:
        names = ", ".join(sorted(set(self.folders.values())))
        log = self._site.log.open_step(NAME)
        sinks = Sinks(log.stdout, log.stderr, lambda _: None)
        outcome = await box.exec(command, stdin=b"", control=b"", sinks=sinks)
        log.close()
        # It has no limit of its own: what ends it is the job's.
        step = Step(NAME, argv=command.argv, timeout_ms=MAX_TIMEOUT_MS)
        status, reason = judge(
            step, outcome, None, self._site.spec, timeout_ms=timeout_ms, scratch_is_full=False
        )
        if reason is not None and reason.code in (ReasonCode.EXIT_CODE, ReasonCode.SIGNAL):
            message = (
                f"a build script of {names} failed (the log has its words). It has no network, and"
                " no compiler but what packages bring: take a version with prebuilt files, or take"
                " the package out of `build_scripts`"
            )
            reason = Reason(ReasonCode.BUILD_SCRIPT_FAILED, message)
        return StepResult(
            name=NAME,
            status=status,
            argv=command.argv,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            usage=outcome.usage,
            reason=reason,
            log_offset_bytes=log.started_at_bytes,
            isolation=box.isolation,
        )

    async def _note_the_rest(self, box: Box, installed: Layer, files: Mapping[str, bytes]) -> None:
        """Tells what was written elsewhere, as far as names and sizes show it."""
        others: list[str] = []

        def take(file: GuestFile) -> None:
            if (
                file.path.startswith(_OF_TOOLS)
                or "/.bin/" in file.path
                or is_own(file.path, self.folders)
            ):
                return
            known = files.get(file.path)
            try:
                size = len(known) if known else (installed.tree / file.path).lstat().st_size
            except OSError:
                size = -1
            if size != file.size_bytes:
                others.append(file.path)

        await box.gather(("**", "**/node_modules/**"), take)
        if others:
            shown = enumerate_first(map(show, others))
            self._site.log.add(NAME, "cloche", f"not kept, being of no allowed package: {shown}")

    async def _find_links(self, box: Box) -> tuple[str, ...]:
        """The folders of links to programs that are no package's own."""
        found: set[str] = set()

        def take(file: GuestFile) -> None:
            folder, _, name = file.path.rpartition("/.bin/")
            if folder and "/" not in name and not is_own(file.path, self.folders):
                found.add(f"{folder}/.bin")

        await box.gather(("**/node_modules/**/.bin/*",), take)
        return tuple(sorted(found))

    async def _copy(self, box: Box, folders: Iterable[str], kept: Path) -> Reason | None:
        """Copies folders out of a box; returns why what they hold is not taken."""
        counts = self._counts(left_out=frozenset(f"{each}/node_modules" for each in self.folders))
        try:
            with _open_folder(kept) as target:
                await box.copy_folders(sorted(folders), target, counts)
        except TreeRefusedError as error:
            return Reason(ReasonCode.BUILD_SCRIPT_FAILED, f"what it left is refused: {error}")
        except OSError as error:
            if error.errno not in _REPLACED:
                raise
            message = f"a build script put something else in the place of a folder: {error}"
            return Reason(ReasonCode.BUILD_SCRIPT_FAILED, message)
        return None

    async def _keep(self, key: str, installed: Layer, kept: Path) -> None:
        """Makes the layer of the installed tree and what was kept of the boxes."""
        replaced = sorted((*self.folders, *self._links))
        counts = self._counts()

        def copy(tree: int) -> TreeCopy:
            with _open_folder(installed.tree) as source:
                copy_around(source, tree, replaced, counts)
            counts.left_out = frozenset(f"{each}/node_modules" for each in self.folders)
            with _open_folder(kept) as source:
                for folder in replaced:
                    copy_folder(source, tree, folder, counts)
            return counts

        async def fill(tree: int) -> TreeCopy:
            return await finish_in_thread(
                copy, tree, on_cancel=lambda: setattr(counts, "stopped", True)
            )

        try:
            self.layer = await self._layers.add(key, fill)
        except TreeRefusedError as error:
            message = f"the dependencies, with what their build scripts made, are refused: {error}"
            raise JobRefusedError(ReasonCode.BUILD_SCRIPT_FAILED, message) from error

    def _counts(self, left_out: frozenset[str] = frozenset()) -> TreeCopy:
        limits = self._site.spec.limits
        bounds = limits.scratch_mb * _MIB, limits.scratch_inodes_count
        return TreeCopy(*bounds, left_out=left_out)


@contextmanager
def _open_folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _key(installed: str, work: Work, folders: Mapping[str, str]) -> str:
    """Of all that makes the layer: the tree that was installed, and whose scripts ran in it."""
    made_of = {
        "build_scripts": _LAYER_FORMAT,
        "installed": installed,
        "commands": (work.argv, work.linking),
        "env": dict(work.env),
        "folders": dict(folders),
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
