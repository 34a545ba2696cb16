"""The default backend: boxes of the kernel's own parts, by Cloche's own launcher."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from typing import TYPE_CHECKING

from cloche.backends import namespaces_box
from cloche.errors import InternalError, UnavailableError
from cloche.linux import cgroup, launching, seccomp

if TYPE_CHECKING:
    from cloche.backends.base import Box
    from cloche.model.plan import BoxPlan

# Uids that nothing owns: above the ranges for containers (…1879048191), below 2^31.
# Source: systemd, docs/UIDS-GIDS.md.
_UID_BASE = 1_879_048_192
_UID_PAIRS_COUNT = 134_217_728 - 1


class NamespacesBackend:
    """Boxes from one launcher, started on the first use.

    Thread-safe; a box itself belongs to the loop that made it.
    """

    name = "namespaces"

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._lock = threading.Lock()
        self._launcher: launching.Launcher | None = None
        self._parents = cgroup.CgroupParents(1, {})
        self._closed = False
        self._filter = seccomp.default_filter().hex()
        self._boxes: set[namespaces_box.NamespacesBox] = set()

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
                cgroup.remove_parents(self._parents)
            token = f"cloche-{os.getpid()}-{secrets.token_hex(4)}"
            self._parents = cgroup.find_parents(token)
            try:
                self._launcher = launching.Launcher(set(self._parents.folders.values()))
            except launching.LauncherError as error:
                cgroup.remove_parents(self._parents)
                raise UnavailableError(
                    f"this host does not let Cloche make boxes: {error}",
                    fact="user-namespaces",
                    fix="run `cloche doctor`, which names what forbids them",
                ) from error
            return self._launcher

    async def create(self, plan: BoxPlan) -> Box:
        """See `backends.base.Backend.create`."""
        launcher = self._launcher
        if launcher is None or not launcher.is_alive():
            launcher = await asyncio.to_thread(self.start)
        uid = _UID_BASE + 2 * secrets.randbelow(_UID_PAIRS_COUNT)
        box = namespaces_box.NamespacesBox(
            plan,
            launcher=launcher,
            parents=self._parents,
            host_uid=uid if os.geteuid() == 0 else None,
            program=self._filter,
            on_destroyed=self._boxes.discard,
        )
        self._boxes.add(box)
        return box

    async def close(self) -> None:
        """See `backends.base.Backend.close`."""
        for box in list(self._boxes):
            await box.destroy()
        with self._lock:
            self._closed = True
            launcher, self._launcher = self._launcher, None
        if launcher is not None:
            await asyncio.to_thread(launcher.close)
        cgroup.remove_parents(self._parents)
