"""Cloche's end of the launcher: starting it, asking it for boxes, talking with a box's init.

The messages are those of `launcher/wire.py`; the launcher is an island, so its few lines of
framing are stated here again rather than imported.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cloche.model.plan import Environment

LAUNCHER = Path(__file__).parent.parent / "launcher"
MESSAGE_LIMIT_BYTES = 256 * 1024
_DESCRIPTOR_LIMIT = 64
_START_TIMEOUT_S = 20.0
_END_TIMEOUT_S = 5.0
_CREDENTIALS = struct.Struct("3i")


class LauncherError(Exception):
    """The launcher could not be started, or did not do what it was asked."""


class PeerGoneError(LauncherError):
    """Nobody is at the other end of a channel any more."""


def _send(channel: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    # As it is, not escaped: what is not ASCII would take up to three times its bytes.
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > MESSAGE_LIMIT_BYTES:
        raise LauncherError(f"a request of {len(data)} bytes is over {MESSAGE_LIMIT_BYTES}")
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    try:
        channel.sendmsg([data], [rights] if descriptors else [], socket.MSG_NOSIGNAL)
    except OSError as error:
        raise PeerGoneError(f"the launcher is gone ({error.strerror})") from error


def _receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int], int]:
    """One message: (message or None at the end, descriptors, the sender's pid)."""
    space = socket.CMSG_SPACE(_DESCRIPTOR_LIMIT * 4) + socket.CMSG_SPACE(_CREDENTIALS.size)
    try:
        data, ancillary, _, _ = channel.recvmsg(MESSAGE_LIMIT_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # The other side went without reading all; this error comes before its last words.
        data, ancillary, _, _ = channel.recvmsg(MESSAGE_LIMIT_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    pid = 0
    for level, kind, payload in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) // 4 * 4])
        elif kind == socket.SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack_from(payload)[0]
    return (json.loads(data) if data else None), descriptors.tolist(), pid


def make_file_bundle(files: Mapping[str, bytes], executables: frozenset[str]) -> int:
    """A memory file with the caller's files, as the box's init reads it (`scratch.lay_files`)."""
    descriptor = os.memfd_create("cloche-files", os.MFD_CLOEXEC)
    header = json.dumps(
        [[path, len(content), path in executables] for path, content in files.items()]
    ).encode()
    with open(descriptor, "wb", closefd=False) as writer:
        writer.write(struct.pack(">I", len(header)) + header)
        for content in files.values():
            writer.write(content)
    return descriptor


@dataclass(frozen=True, slots=True)
class Folder:
    """A host folder for a box.

    Attributes:
        host_path: Absolute.
        read_only: Whether the box may not write there.
        owner_map: (uid on disk, uid that it is for the box), both as the host counts; None where
            they are the same.
    """

    host_path: str
    read_only: bool = True
    owner_map: tuple[int, int] | None = None


class BoxChannel:
    """Talks with one box: events come by callback, on the loop that made it.

    Args:
        on_event: Called with (event, descriptors, sender's pid as the kernel vouches for it);
            event None means that the other side is gone.
    """

    def __init__(self, on_event: Callable[[dict[str, Any] | None, list[int], int], None]) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._ours.setblocking(False)
        for end in (self._ours, self.theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE_LIMIT_BYTES)
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._read)

    def _read(self) -> None:
        while self._ours.fileno() >= 0:
            try:
                message, descriptors, pid = _receive(self._ours)
            except BlockingIOError:
                return
            if message is None:
                self.close()
            self._on_event(message, descriptors, pid)

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Raises PeerGoneError when the box is gone; the last event says so too."""
        if self._ours.fileno() < 0:
            raise PeerGoneError("the box is gone")
        _send(self._ours, message, descriptors)

    def close(self) -> None:
        """Lets go; the box's init ends when nobody holds this end. Idempotent."""
        if self._ours.fileno() >= 0:
            self._loop.remove_reader(self._ours)
            self._ours.close()
        self.theirs.close()


class Launcher:
    """The launcher's process. Thread-safe; start it once, ask it for any number of boxes."""

    def __init__(self, cgroup_folders: Iterable[Path], program: bytes) -> None:
        """Starts the launcher and waits until it serves.

        Args:
            cgroup_folders: Removed by the launcher when Cloche is gone.
            program: The seccomp filter of every guest.

        Raises:
            LauncherError: with what the launcher or the kernel said.
        """
        self._lock = threading.Lock()
        self._environments: set[str] = set()
        # Not a temporary file: one could stay behind when Cloche is killed while it makes it.
        self._errors = os.fdopen(os.memfd_create("launcher-errors", os.MFD_CLOEXEC), "r+b")
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE_LIMIT_BYTES)
        folders = [str(folder) for folder in cgroup_folders]
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-B",
                    str(LAUNCHER),
                    str(theirs.fileno()),
                    str(os.getpid()),
                    *folders,
                ],
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a terminal's Ctrl-C is for Cloche, not for boxes
            )
        except OSError as error:
            raise LauncherError(f"cannot start the launcher: {error}") from error
        finally:
            theirs.close()
        self._channel.settimeout(_START_TIMEOUT_S)
        try:
            message, _, _ = _receive(self._channel)
        except TimeoutError:
            message = None
        self._channel.settimeout(None)
        if message is None or message["event"] != "serving":
            told = message["message"] if message else self._last_words()
            self.close()
            raise LauncherError(told or "the launcher ended without a word")
        _send(self._channel, {"op": "filter", "program": program.hex()}, ())

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-2000:]

    @property
    def pid(self) -> int:
        """The launcher's process."""
        return self._process.pid

    def is_alive(self) -> bool:
        """False once the launcher's process has ended."""
        return self._process.poll() is None

    def add_environment(self, environment: Environment) -> bool:
        """Builds a base tree for boxes made from now on. Blocks for some 20 ms.

        Returns:
            False when it was there already.

        Raises:
            LauncherError: it could not be built, or the launcher is gone.
        """
        with self._lock:
            if environment.name in self._environments:
                return False
            request = {"op": "environment", "id": environment.name}
            _send(self._channel, {**request, "entries": environment.entries}, ())
            answer, _, _ = _receive(self._channel)
            if answer is None:
                raise PeerGoneError("the launcher is gone")
            if answer["event"] != "built":
                raise LauncherError(answer["message"])
            self._environments.add(environment.name)
            return True

    def clone_folders(self, folders: Sequence[Folder]) -> list[int]:
        """Detached clones of host folders; the caller closes them. Blocks.

        Raises:
            LauncherError: a folder could not be opened, or the launcher is gone.
        """
        request = {"op": "clone-folders", "folders": [asdict(folder) for folder in folders]}
        with self._lock:
            _send(self._channel, request, ())
            answer, clones, _ = _receive(self._channel)
        if answer is None:
            raise PeerGoneError("the launcher is gone")
        if answer["event"] != "cloned":
            raise LauncherError(answer["message"])
        return clones

    def has_environment(self, environment: Environment) -> bool:
        """True when boxes made from now on can have it."""
        return environment.name in self._environments

    def create(
        self, ids: Mapping[str, Any], channel: BoxChannel, groups: Sequence[int]
    ) -> frozenset[str]:
        """Asks for a box with nothing in it yet; what becomes of it arrives on `channel`.

        Args:
            ids: `uid_map`, `gid_map` (lines of inside, outside, count) and `init_id`.
            channel: The box's own; the plan follows on it.
            groups: `cgroup.procs` of every cgroup that it joins.

        Returns:
            The names of the environments that it can become: those built before it.

        Raises:
            LauncherError: the launcher is gone; no box was made.
        """
        with self._lock:
            _send(self._channel, {"op": "create", **ids}, [channel.theirs.fileno(), *groups])
            environments = frozenset(self._environments)
        channel.theirs.close()
        return environments

    def close(self) -> None:
        """Ends the launcher, which ends its boxes and removes their cgroups. Idempotent."""
        with self._lock:
            self._channel.close()
        if self._process.poll() is None:
            ended = os.pidfd_open(self._process.pid)
            poller = select.poll()
            poller.register(ended, select.POLLIN)
            try:
                if not poller.poll(_END_TIMEOUT_S * 1000):
                    self._process.kill()
            finally:
                os.close(ended)
            self._process.wait()
        self._errors.close()
