"""The default backend: boxes of the kernel's own parts, by Cloche's own launcher."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
from collections import deque
from typing import TYPE_CHECKING

from cloche.backends import namespaces_box
from cloche.errors import ClocheError, InternalError, InvalidRequestError, UnavailableError
from cloche.linux import cgroup, ids, launching, seccomp

if TYPE_CHECKING:
    from cloche.backends.base import Box
    from cloche.model.plan import BoxPlan, Environment

# Uids that nothing owns: above the ranges for containers (…1879048191), below 2^31.
# Source: systemd, docs/UIDS-GIDS.md.
_UID_BASE = 1_879_048_192
_UID_PAIRS_COUNT = 134_217_728 - 1
# Empty boxes (namespaces and cgroup; no root, no guest) kept ahead. Joining a v1 cgroup can wait
# for a grace period of the kernel (20 ms were seen), which so falls between runs.
_EMPTY_COUNT = 2


class NamespacesBackend:
    """Boxes from one launcher, started on the first use.

    Belongs to one event loop, as its boxes do.
    """

    name = "namespaces"

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._lock = threading.Lock()
        self._launcher: launching.Launcher | None = None
        self._id_mode = ids.IdMode.REFUSED
        self._parents = cgroup.CgroupParents(1, {})
        # Cgroups of launchers that are gone; boxes that die late may still be in them.
        self._remains: list[cgroup.CgroupParents] = []
        self._closed = False
        self._boxes: set[namespaces_box.NamespacesBox] = set()
        self._empty: deque[namespaces_box.NamespacesBox] = deque()
        self._destroying: set[asyncio.Future[None]] = set()

    def start(self) -> launching.Launcher:
        """Starts the launcher, or a new one where the last has died. Blocks for about 40 ms.

        Raises:
            UnavailableError: the host does not let the launcher set up.
        """
        with self._lock:
            if self._closed:
                raise InternalError("the backend is closed", retry_safe=True)
            if self._launcher is not None and self._launcher.is_alive():
                return self._launcher
            if self._launcher is not None:
                self._launcher.close()
                self._remains.append(self._parents)
            self._remove_remains()
            self._id_mode = ids.choose_id_mode(_UID_BASE, 2 * _UID_PAIRS_COUNT)
            if self._id_mode is ids.IdMode.REFUSED:
                raise UnavailableError(
                    "boxes would run as the host's root: this root may not map other ids",
                    fact="root",
                    fix="grant CAP_SETUID and CAP_SETGID, or run Cloche as a plain user",
                )
            token = f"cloche-{os.getpid()}-{secrets.token_hex(4)}"
            self._parents = cgroup.find_parents(token)
            cgroup.sweep(self._parents, "cloche")
            try:
                self._launcher = launching.Launcher(
                    set(self._parents.folders.values()), seccomp.default_filter()
                )
            except launching.LauncherError as error:
                cgroup.remove_parents(self._parents)
                raise UnavailableError(
                    f"this host does not let Cloche make boxes: {error}",
                    fact="user-namespaces",
                    fix="run `cloche doctor`, which names what forbids them",
                ) from error
            return self._launcher

    async def prepare(self, environment: Environment) -> None:
        """See `backends.base.Backend.prepare`."""
        launcher = await self._serving(environment)
        self._refill(launcher)

    async def create(self, plan: BoxPlan) -> Box:
        """See `backends.base.Backend.create`."""
        launcher = await self._serving(plan.environment)
        box = self._take_empty(plan) or self._make_empty(launcher)
        clones: list[int] = []
        try:
            if plan.layers or plan.mounts:
                clones = await self._clone_folders(launcher, plan, box.guest_host_uid)
            box.build(plan, clones)
        except BaseException:
            await box.destroy()
            raise
        finally:
            for clone in clones:
                os.close(clone)
        return box

    async def _clone_folders(
        self, launcher: launching.Launcher, plan: BoxPlan, guest_host_uid: int | None
    ) -> list[int]:
        # In a box with uids of its own, what Cloche wrote must belong to the guest.
        owner_map = None if guest_host_uid is None else (os.geteuid(), guest_host_uid)
        folders = [launching.Folder(layer, owner_map=owner_map) for layer in plan.layers] + [
            launching.Folder(mount.host_path, read_only=not mount.unsafe_writable)
            for mount in plan.mounts
        ]
        try:
            return await _take_descriptors(
                asyncio.ensure_future(asyncio.to_thread(launcher.clone_folders, folders))
            )
        except launching.PeerGoneError as error:
            raise InternalError(str(error), retry_safe=True) from error
        except launching.LauncherError as error:
            if plan.layers and not plan.mounts:
                raise UnavailableError(
                    f"a layer cannot be mounted: {error}",
                    fact="layers",
                    fix="keep Cloche's cache on ext4, xfs or btrfs: set CLOCHE_CACHE_DIR",
                ) from error
            raise InvalidRequestError(
                f"mounts: a folder cannot be mounted: {error}", retry_safe=True
            ) from error

    async def _serving(self, environment: Environment) -> launching.Launcher:
        """A launcher that is alive and has the environment."""
        launcher = self._launcher
        if launcher is None or not launcher.is_alive():
            await self._discard_empty()
            launcher = await asyncio.to_thread(self.start)
        if not launcher.has_environment(environment):
            try:
                await asyncio.to_thread(launcher.add_environment, environment)
            except launching.PeerGoneError as error:
                raise InternalError(str(error), retry_safe=True) from error
            except launching.LauncherError as error:
                raise UnavailableError(
                    f"the root of a box could not be built: {error}",
                    fact="mount-api",
                    fix="run `cloche doctor`; is a file of the runtime unreadable or gone?",
                ) from error
        return launcher

    def _take_empty(self, plan: BoxPlan) -> namespaces_box.NamespacesBox | None:
        while self._empty:
            box = self._empty.popleft()
            if box.can_become(plan):
                return box
            self._destroying.add(task := asyncio.ensure_future(box.destroy()))
            task.add_done_callback(self._destroying.discard)
        return None

    def _make_empty(self, launcher: launching.Launcher) -> namespaces_box.NamespacesBox:
        uid = _UID_BASE + 2 * secrets.randbelow(_UID_PAIRS_COUNT)
        box = namespaces_box.NamespacesBox(
            launcher,
            self._parents,
            host_uid=uid if self._id_mode is ids.IdMode.OWN else None,
            on_started=lambda: self._refill(launcher),
            on_destroyed=self._boxes.discard,
        )
        self._boxes.add(box)
        return box

    def _refill(self, launcher: launching.Launcher) -> None:
        """Makes empty boxes for the runs to come, while the present one computes."""
        if launcher is not self._launcher or self._closed:
            return
        with contextlib.suppress(ClocheError):  # the next run will tell
            while len(self._empty) < _EMPTY_COUNT:
                self._empty.append(self._make_empty(launcher))

    async def _discard_empty(self) -> None:
        empty, self._empty = list(self._empty), deque()
        for box in empty:
            await box.destroy()

    async def close(self) -> None:
        """See `backends.base.Backend.close`."""
        for box in list(self._boxes):
            await box.destroy()
        with self._lock:
            self._closed = True
            launcher, self._launcher = self._launcher, None
        if launcher is not None:
            await asyncio.to_thread(launcher.close)
        self._remains.append(self._parents)
        self._remove_remains()

    def _remove_remains(self) -> None:
        self._remains = [left for left in self._remains if not cgroup.remove_parents(left)]


async def _take_descriptors(work: asyncio.Future[list[int]]) -> list[int]:
    """Waits for descriptors; when nobody wants them any more, closes them as they come."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        if work.exception() is None:
            for descriptor in work.result():
                os.close(descriptor)
        raise
