"""One box of the `namespaces` backend: its channel, its cgroup, its death."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import socket
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cloche.backends import namespaces_command, namespaces_report
from cloche.backends.base import CollectedFiles, Sinks
from cloche.errors import InternalError, UnavailableError
from cloche.linux import cgroup, files, gathering, inspection, launching, netns, processes
from cloche.linux import limits as kernel_limits
from cloche.linux.threads import finish_in_thread
from cloche.model.outcome import Cause, Outcome, Usage
from cloche.model.plan import BoxPlan, Command, Isolation, Scratch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from cloche.model.policy import Limits

_GUEST_ID = 1000
_MIB = 1024 * 1024
# What a box may hold of things that no cgroup counts; 0 namespaces: none inside a box.
# Source: Documentation/admin-guide/sysctl/user.rst.
_SYSCTLS = {
    **{
        f"user/max_{kind}_namespaces": 0
        for kind in ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
    },
    "user/max_inotify_instances": 16,
    "user/max_inotify_watches": 8192,
    "user/max_fanotify_groups": 0,
    "user/max_fanotify_marks": 0,
}
# Room beside the caller's files in a sealed workspace: tmpfs rounds up to pages.
_SEALED_SLACK_BYTES = 64 * 1024
_GRACE_S = 1.0


class NamespacesBox:
    """See `backends.base.Box`.

    Made empty (namespaces, ids, cgroup), then built by a plan, then used. Each step is asked for
    without waiting for the one before: set-up goes on while the caller sends its first command.
    """

    def __init__(
        self,
        launcher: launching.Launcher,
        parents: cgroup.CgroupParents,
        *,
        host_uid: int | None,
        on_started: Callable[[], None],
        on_destroyed: Callable[[NamespacesBox], None],
    ) -> None:
        """Asks the launcher for an empty box.

        Args:
            launcher: Makes it.
            parents: Where its cgroup goes.
            host_uid: The first of two uids that are its own; None for the caller's.
            on_started: Called each time when a command has been let go.
            on_destroyed: Called once.

        Raises:
            UnavailableError: the cgroup could not be made.
            InternalError: the launcher is gone.
        """
        self.on_started = on_started
        self._killed: Cause | None = None
        self.workspace = -1
        self._listeners: dict[int, socket.socket] = {}
        self._caught: netns.CaughtSockets | None = None
        self.cgroup: cgroup.Cgroup | None = None
        # What init says of the command in flight; `created` and `ready` are taken as they come.
        self.events: asyncio.Queue[tuple[dict[str, Any], int]] = asyncio.Queue()
        self._launcher = launcher
        self._host_uid = host_uid
        self._on_destroyed = on_destroyed
        self._loop = asyncio.get_running_loop()
        self._plan: BoxPlan | None = None
        self._init: processes.Process | None = None
        self._settled = asyncio.Event()  # created, or never to be
        self._ready = asyncio.Event()  # built, or never to be
        self._destroyed = False
        self._isolation: Isolation | None = None
        self._guest_pid = 0
        self._guest: processes.Handle | None = None
        groups: list[int] = []
        try:
            self._channel = launching.BoxChannel(self._on_event)
        except OSError as error:
            raise InternalError(f"a box could not be made: {error}", retry_safe=True) from error
        try:
            if parents.folders:
                self.cgroup = _make_cgroup(parents)
                groups = self.cgroup.open_procs()
            self._environments = launcher.create(_ids(host_uid), self._channel, groups)
        except BaseException as error:
            self._channel.close()
            if self.cgroup is not None:
                self.cgroup.destroy()
            if isinstance(error, OSError | launching.LauncherError):
                raise InternalError(f"a box could not be made: {error}", retry_safe=True) from error
            raise
        finally:
            for descriptor in groups:
                os.close(descriptor)

    @property
    def plan(self) -> BoxPlan:
        """What the box was built by."""
        assert self._plan is not None, "the box is empty"
        return self._plan

    def can_become(self, plan: BoxPlan) -> bool:
        """False once it is known to have died, or for an environment that it does not see."""
        return (
            self.killed is None
            and self.events.empty()
            and plan.environment.name in self._environments
        )

    def build(self, plan: BoxPlan, clones: Sequence[int]) -> None:
        """Tells an empty box what to become.

        Args:
            plan: Its environment is one that the launcher had when the box was made.
            clones: Detached clones of the plan's layers, then of its mounts, in their order.

        Raises:
            UnavailableError: the cgroup does not take the limits.
            InternalError: the plan is too large to be sent.
        """
        self._plan = plan
        if self.cgroup is not None:
            try:
                self.cgroup.apply(plan.limits)
            except OSError as error:
                raise _cgroup_error("does not take the limits", error) from error
        bundle = launching.make_file_bundle(plan.files, plan.executables) if plan.files else None
        try:
            self.send(
                {
                    "op": "build",
                    "environment": plan.environment.name,
                    "has_files": bundle is not None,
                    "layers_count": len(plan.layers),
                    "mounts": [each.box_path for each in plan.mounts],
                    "listen_ports": plan.listen_ports,
                    "catch_ports": plan.catch_ports,
                    "sysctls": _SYSCTLS,
                    "scratch": _scratch(plan),
                },
                [*([] if bundle is None else [bundle]), *clones],
            )
        finally:
            if bundle is not None:
                os.close(bundle)

    def _on_event(self, event: dict[str, Any] | None, descriptors: list[int], pid: int) -> None:
        event = {"event": "lost"} if event is None else event
        if event["event"] == "created":
            self._init = processes.Process(event["pid"], descriptors[0])
            self._settled.set()
            if self.killed is not None:
                self._init.kill()
        elif event["event"] == "ready":
            self.workspace, *served = descriptors
            sockets = [socket.socket(fileno=descriptor) for descriptor in served]
            listeners_count = len(self.plan.listen_ports)
            self._listeners = dict(zip(self.plan.listen_ports, sockets, strict=False))
            if self.plan.catch_ports:
                dns, *caught = sockets[listeners_count:]
                by_port = dict(zip(self.plan.catch_ports, caught, strict=True))
                self._caught = netns.CaughtSockets(dns, by_port)
            self._ready.set()
        else:
            self._settled.set()
            self._ready.set()
            self.events.put_nowait((event, pid))

    @property
    def uid_is_shared(self) -> bool:
        """True when the box's init and the guest have one uid, the caller's."""
        return self._host_uid is None

    @property
    def guest_host_uid(self) -> int | None:
        """The guest's uid as the host counts; None for the caller's own."""
        return None if self._host_uid is None else self._host_uid + 1

    @property
    def isolation(self) -> Isolation:
        """See `backends.base.Box.isolation`."""
        return self._isolation or Isolation("namespaces", MappingProxyType({}))

    @property
    def killed(self) -> Cause | None:
        """See `backends.base.Box.killed`."""
        return self._killed

    def kill(self, cause: Cause) -> None:
        """See `backends.base.Box.kill`."""
        if self._killed is None:
            self._killed = cause
        if self._guest is not None:
            self._guest.kill()  # it dies meanwhile: init's own end would only then reach it
        if self._init is not None:
            self._init.kill()

    def send(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Asks the box's init. When it is gone, its last events tell why; they come by `events`."""
        try:
            self._channel.send(message, descriptors)
        except launching.PeerGoneError:
            return
        except launching.LauncherError as error:
            raise InternalError(str(error), retry_safe=True) from error

    def finish(self) -> None:
        """See `backends.base.Box.finish`."""
        if self.cgroup is not None and {"memory", "cpuacct"} <= self.cgroup.controllers:
            self.kill(Cause.EXITED)

    @property
    def is_lost(self) -> bool:
        """See `backends.base.Box.is_lost`."""
        return not self._launcher.is_alive() or (self._init is not None and self._init.is_dead())

    @property
    def is_dead(self) -> bool:
        """See `backends.base.Box.is_dead`."""
        return self._init is not None and self._init.dead.is_set()

    def limit(self, limits: Limits) -> None:
        """See `backends.base.Box.limit`."""
        assert self._isolation is not None, "no command waits"
        timeout_ms = limits.timeout_ms  # which the kernel knows nothing of
        changed = limits != dataclasses.replace(self.plan.limits, timeout_ms=timeout_ms)
        self._plan = dataclasses.replace(self.plan, limits=limits)
        try:
            if self.cgroup is not None:
                if changed:
                    self.cgroup.apply(limits)
                else:
                    self.cgroup.weigh(waiting=False)
            if changed:
                kernel_limits.set_resource_limits(
                    self._guest_pid, limits, uid_is_shared=self.uid_is_shared
                )
        except OSError as error:
            raise InternalError(
                f"a box does not take other limits: {error}", retry_safe=True
            ) from error
        self._isolation = namespaces_report.read_again(
            self._isolation, self.plan, self._guest_pid, self.cgroup, limits_changed=changed
        )

    def usage(self) -> Usage:
        """See `backends.base.Box.usage`."""
        used = self.measure()
        return Usage(round(used.cpu_ms, 3), used.memory_bytes)

    async def exec(
        self,
        command: Command,
        *,
        stdin: bytes,
        control: bytes | Awaitable[bytes],
        sinks: Sinks,
        on_waiting: Callable[[], None] | None = None,
    ) -> Outcome:
        """See `backends.base.Box.exec`."""
        try:
            run = namespaces_command.CommandRun(self, command, stdin, control, sinks, on_waiting)
        except OSError as error:
            raise InternalError(
                f"a command could not be set up: {error}", retry_safe=True
            ) from error
        try:
            return await run.finish()
        except BaseException:
            # Cancelled, or lost: the guest must not outlive this call.
            self.kill(Cause.ABORTED)
            await asyncio.shield(self.wait_dead())
            raise
        finally:
            run.close()

    def report(self, guest_pid: int) -> None:
        """Keeps the pid, and reads back what holds for a command that has not started yet.

        Raises:
            InternalError: it is not what the plan asks for.
            UnavailableError: a mechanism that `require` names is not there.
        """
        self._guest_pid = guest_pid
        if self._guest is not None:
            self._guest.close()
        with contextlib.suppress(OSError):  # init's end reaches it in any case
            self._guest = processes.Handle(guest_pid)
        self._isolation = namespaces_report.read_back(
            self.plan, guest_pid, host_uid=self._host_uid, group=self.cgroup
        )

    def measure(self) -> inspection.TreeUsage:
        """What the box uses now, by its cgroup where it has one."""
        if self.cgroup is not None and "cpuacct" in self.cgroup.controllers:
            return inspection.TreeUsage(self.cgroup.peak_memory_bytes(), self.cgroup.cpu_ms())
        if self._init is None:
            return inspection.TreeUsage(0, 0.0)
        scratch = self.workspace if self.plan.scratch is not Scratch.NONE else None
        return inspection.measure_tree(self._init.pid, scratch)

    async def listen(self, port: int) -> socket.socket:
        """See `backends.base.Box.listen`."""
        await self._ready.wait()
        if port not in self._listeners:
            raise InternalError("the box was lost while it was set up", retry_safe=True)
        return self._listeners.pop(port)

    async def catch(self) -> netns.CaughtSockets:
        """See `backends.base.Box.catch`."""
        await self._ready.wait()
        caught, self._caught = self._caught, None
        if caught is None:
            raise InternalError("the box was lost while it was set up", retry_safe=True)
        return caught

    async def wait_end(self) -> None:
        """Waits until init is dead, however long that takes."""
        await self._settled.wait()
        if self._init is not None:
            await self._init.dead.wait()

    async def wait_dead(self) -> None:
        """Waits until nothing of the box lives.

        Raises:
            InternalError: it still did a second after SIGKILL.
        """
        try:
            async with asyncio.timeout(_GRACE_S):
                await self.wait_end()
        except TimeoutError:
            if self._init is None or not self._init.is_dead():
                raise InternalError("a box did not die within a second of SIGKILL") from None

    async def collect(
        self, globs: Sequence[str], *, limit_bytes: int, limit_count: int
    ) -> CollectedFiles:
        """See `backends.base.Box.collect`."""
        found = await asyncio.to_thread(
            files.collect,
            self.workspace,
            globs,
            limit_bytes=limit_bytes,
            limit_count=limit_count,
        )
        return CollectedFiles(*found)

    async def gather(
        self, globs: Sequence[str], take: Callable[[gathering.GuestFile], str | None]
    ) -> tuple[dict[str, str], int]:
        """See `backends.base.Box.gather`."""
        return await finish_in_thread(gathering.gather, self.workspace, globs, take)

    async def copy_folders(
        self, box_paths: Sequence[str], target: int, counts: gathering.TreeCopy
    ) -> None:
        """See `backends.base.Box.copy_folders`."""
        for path in box_paths:
            await finish_in_thread(
                gathering.copy_folder,
                self.workspace,
                target,
                path,
                counts,
                on_cancel=lambda: setattr(counts, "stopped", True),
            )

    def scratch_left(self) -> tuple[int, int]:
        """See `backends.base.Box.scratch_left`."""
        status = os.fstatvfs(self.workspace)
        return status.f_bavail * status.f_frsize, status.f_favail

    async def destroy(self) -> None:
        """See `backends.base.Box.destroy`."""
        if self._destroyed:
            return
        self._destroyed = True
        self.kill(Cause.DISPOSED)
        try:
            await self.wait_dead()
        finally:
            self._channel.close()
            for process in (self._guest, self._init):
                if process is not None:
                    process.close()
            for listener in self._listeners.values():
                listener.close()
            if self._caught is not None:
                self._caught.close()
            if self.workspace >= 0:
                os.close(self.workspace)
                self.workspace = -1
            if self.cgroup is not None and not self.cgroup.destroy():
                self._loop.call_later(0.05, self.cgroup.destroy)
            self._on_destroyed(self)


def _make_cgroup(parents: cgroup.CgroupParents) -> cgroup.Cgroup:
    try:
        return cgroup.Cgroup(parents, f"box-{secrets.token_hex(6)}")
    except OSError as error:
        raise _cgroup_error("could not be made", error) from error


def _ids(host_uid: int | None) -> dict[str, Any]:
    """The id maps of a box, (inside, outside, count) a line."""
    if host_uid is None:
        return {
            "uid_map": [[_GUEST_ID, os.geteuid(), 1]],
            "gid_map": [[_GUEST_ID, os.getegid(), 1]],
            "init_id": None,
        }
    own = [[0, host_uid, 1], [_GUEST_ID, host_uid + 1, 1]]
    return {"uid_map": own, "gid_map": own, "init_id": 0}


def _scratch(plan: BoxPlan) -> dict[str, Any] | None:
    if plan.scratch is Scratch.SEALED:
        pages = sum(-(-len(content) // 4096) * 4096 for content in plan.files.values())
        inodes = 64 + sum(path.count("/") + 1 for path in plan.files)
        return {"bytes": pages + _SEALED_SLACK_BYTES, "inodes": inodes, "sealed": True}
    if plan.scratch is Scratch.WRITABLE:
        limits = plan.limits
        return {
            "bytes": limits.scratch_mb * _MIB,
            "inodes": limits.scratch_inodes_count,
            "sealed": False,
        }
    return None


def _cgroup_error(what: str, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"the box's cgroup {what}: {error}",
        fact="cgroup-memory",
        fix="see `cloche doctor`; a limit above that of Cloche's own cgroup is refused too",
    )
