"""The launcher: Cloche starts it once; it forks one box per request.

Theory of operation. Cloche holds one end of a socket, the launcher the other. A request brings the
channel of a box; the launcher clones a child into new namespaces, writes its id maps, and lets it
go on to `init.run`, which joins its cgroups and waits on that channel for what the box is to be.
The launcher answers on the channel with a pidfd of the child, so that Cloche can watch and kill it
without help from here. A box can so be made before it is known what it will run. Boxes die with
the launcher (parent-death signal, lifeline pipe) and the launcher with Cloche (socket, pidfd).

Single-threaded, standard library only, no guest input of any kind.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys

import environment
import init
import syscalls
import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)


class Launcher:
    """Serves requests until Cloche goes, then kills every box and removes their cgroups."""

    def __init__(self, channel: socket.socket, cgroups: list[str]) -> None:
        self._channel = channel
        self._cgroups = cgroups
        self._filter = b""
        self._boxes: dict[int, int] = {}
        self._lifeline, self._lifeline_end = os.pipe2(os.O_CLOEXEC)
        self._poller = select.poll()

    def serve(self, owner: int) -> None:
        """Returns when Cloche is gone."""
        for descriptor in (self._channel.fileno(), owner):
            self._poller.register(descriptor, select.POLLIN)
        gc.collect()
        gc.freeze()
        while True:
            for descriptor, _ in self._poller.poll():
                if descriptor in self._boxes:
                    self._reap(descriptor)
                elif descriptor == owner or not self._take():
                    return

    def _take(self) -> bool:
        message, descriptors = wire.receive(self._channel)
        if message is None:
            return False
        if message["op"] == "filter":
            self._filter = bytes.fromhex(message["program"])
        elif message["op"] == "environment":
            event: dict[str, Any] = {"event": "built"}
            try:
                environment.build(message["id"], message["entries"])
            except OSError as error:
                event = wire.failure("environment", error)
            wire.send(self._channel, event, [])
        elif message["op"] == "clone-folders":
            self._clone_folders(message["folders"])
        elif message["op"] == "create":
            self._create(message, descriptors)
        return True

    def _clone_folders(self, folders: list[dict[str, Any]]) -> None:
        """Answers with detached clones of host folders: a box may not be able to open them."""
        clones: list[int] = []
        event: dict[str, Any] = {"event": "cloned"}
        try:
            for folder in folders:
                clones.append(self._clone_folder(**folder))
        except OSError as error:
            event = wire.failure("mounts", error)
        wire.send(self._channel, event, clones if event["event"] == "cloned" else [])
        for clone in clones:
            os.close(clone)

    def _clone_folder(self, host_path: str, read_only: bool, owner_map: list[int] | None) -> int:
        if owner_map is None:
            return environment.clone_host(host_path, read_only=read_only)
        owners = _open_id_map(*owner_map)
        try:
            return environment.clone_host(host_path, read_only=read_only, owners=owners)
        finally:
            os.close(owners)

    def _create(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Makes a box with nothing in it yet; the descriptors are its channel and cgroups."""
        channel = socket.socket(fileno=descriptors[0])
        try:
            pid, pidfd = self._fork(request, channel, descriptors[1:])
            event, passed = {"event": "created", "pid": pid}, [pidfd]
        except OSError as error:
            event, passed = wire.failure("clone", error), []
        try:
            wire.send(channel, event, passed)
        except OSError:
            pass  # Cloche has let go of this box already; its init notices by itself
        channel.close()
        for descriptor in descriptors[1:]:
            os.close(descriptor)

    def _fork(
        self, request: dict[str, Any], channel: socket.socket, groups: list[int]
    ) -> tuple[int, int]:
        hold, let_go = os.pipe2(os.O_CLOEXEC)
        try:
            pid, pidfd = syscalls.clone(_NAMESPACES)
            if pid == 0:
                try:
                    syscalls.close_all_but([channel.fileno(), self._lifeline, hold, *groups])
                    if os.read(hold, 1) == b"g":
                        os.close(hold)
                        init.run(channel, self._lifeline, request["init_id"], groups, self._filter)
                finally:
                    os._exit(0)
            self._boxes[pidfd] = pid
            self._poller.register(pidfd, select.POLLIN)
            try:
                self._map_ids(pid, request)
            except OSError:
                os.kill(pid, signal.SIGKILL)
                raise
            os.write(let_go, b"g")
        finally:
            os.close(hold)
            os.close(let_go)
        return pid, pidfd

    def _map_ids(self, pid: int, request: dict[str, Any]) -> None:
        base = f"{environment.HOST}/proc/{pid}"
        if request["init_id"] is None:
            _write(f"{base}/setgroups", "deny")
        for name in ("uid_map", "gid_map"):
            _write(f"{base}/{name}", "\n".join(" ".join(map(str, line)) for line in request[name]))

    def _reap(self, pidfd: int) -> None:
        self._poller.unregister(pidfd)
        os.waitpid(self._boxes.pop(pidfd), 0)
        os.close(pidfd)

    def finish(self) -> None:
        """Cloche is gone: leave no process and no cgroup."""
        for pid in self._boxes.values():
            os.kill(pid, signal.SIGKILL)
        for pidfd in list(self._boxes):
            self._reap(pidfd)
        for parent in self._cgroups:
            folder = parent if os.path.isdir(parent) else environment.HOST + parent
            try:
                for name in os.listdir(folder):
                    if os.path.isdir(f"{folder}/{name}"):
                        os.rmdir(f"{folder}/{name}")
                os.rmdir(folder)
            except OSError:
                continue


def _open_id_map(inside: int, outside: int) -> int:
    """A user namespace that maps one id to another and holds no process any more."""
    pid, pidfd = syscalls.clone(syscalls.CLONE_NEWUSER)
    if pid == 0:
        try:
            syscalls.close_all_but([])
            signal.pause()
        finally:
            os._exit(0)
    base = f"{environment.HOST}/proc/{pid}"
    try:
        for name in ("uid_map", "gid_map"):
            _write(f"{base}/{name}", f"{inside} {outside} 1")
        return os.open(f"{base}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(pidfd)


def _enter_namespaces() -> None:
    """A mount namespace; where that is not allowed, in a user namespace with the caller's ids."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS)
    except PermissionError:
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def main() -> None:
    """`launcher SOCKET_DESCRIPTOR OWNER_PID [CGROUP_DIRECTORY…]`."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # Cloche's end ends it, nothing else does
    launcher = Launcher(channel, sys.argv[3:])
    try:
        try:
            _enter_namespaces()
            environment.enter_private_root()
        except OSError as error:
            wire.send(channel, wire.failure("launcher", error), [])
            return
        wire.send(channel, {"event": "serving"}, [])
        launcher.serve(os.pidfd_open(int(sys.argv[2])))
    except (BrokenPipeError, ProcessLookupError):
        pass  # Cloche was killed meanwhile
    finally:
        launcher.finish()


main()
