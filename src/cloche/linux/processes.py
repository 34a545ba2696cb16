"""Pipes and processes of a box, watched from an asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloche.linux.files import make_memory_file

if TYPE_CHECKING:
    from collections.abc import Callable

SIGKILL = int(signal.SIGKILL)
_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class GuestPipes:
    """The descriptors of one command; whoever takes one of ours closes it.

    Attributes:
        stdin, let_go: Ours to write.
        stdout, stderr, result: Ours to read.
        control: Ours to write: a pipe, or a memory file that the guest reads when it is filled.
        guest: The guest's ends: its fds 0 to 4, then the one that it is held by.
    """

    stdin: int
    stdout: int
    stderr: int
    control: int
    result: int
    let_go: int
    guest: tuple[int, ...]

    def close_guest(self) -> None:
        """Closes the guest's ends here, once it has its own."""
        for descriptor in self.guest:
            os.close(descriptor)


def open_guest_pipes(*, control_is_pipe: bool) -> GuestPipes:
    """Opens the descriptors of one command.

    Raises:
        OSError: this process may have no more descriptors; none is left open.
    """
    opened: list[int] = []
    ours: list[int] = []
    guest: list[int] = []
    try:
        for guest_reads in (True, False, False, True, False, True):
            if len(ours) == 3 and not control_is_pipe:
                # Read in one go; a pipe would have to be waited for.
                file = make_memory_file("request")
                opened.append(file)
                mine, theirs = file, os.dup(file)
                opened.append(theirs)
            else:
                reader, writer = os.pipe2(os.O_CLOEXEC)
                opened += (reader, writer)
                mine, theirs = (writer, reader) if guest_reads else (reader, writer)
            ours.append(mine)
            guest.append(theirs)
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        raise
    stdin, stdout, stderr, control, result, let_go = ours
    return GuestPipes(stdin, stdout, stderr, control, result, let_go, tuple(guest))


class Pump:
    """Reads a pipe as its bytes come; `done` is set at the end of the pipe."""

    def __init__(self, descriptor: int, sink: Callable[[bytes], None]) -> None:
        self._descriptor = descriptor
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self.done = asyncio.Event()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            chunk = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if chunk:
            self._sink(chunk)
        else:
            self.close()

    def drain(self) -> None:
        """Reads all that is there now. After the last writer's death that is the rest."""
        while not self.done.is_set():
            before = self._descriptor
            try:
                chunk = os.read(before, _CHUNK_BYTES)
            except OSError:
                break
            if not chunk:
                break
            self._sink(chunk)
        self.close()

    def close(self) -> None:
        """Stops reading and closes the pipe; idempotent."""
        if not self.done.is_set():
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self.done.set()


class Feeder:
    """Writes bytes into a pipe as the reader takes them.

    The pipe stays open until `finish` or `close`.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = memoryview(b"")
        self._loop = asyncio.get_running_loop()
        self._finishing = False
        self._waiting = False
        os.set_blocking(descriptor, False)

    def write(self, data: bytes) -> None:
        """Adds bytes; dropped when the reader is gone."""
        if self._descriptor >= 0:
            self._data = memoryview(bytes(self._data) + data)
            self._flush()

    def finish(self, data: bytes = b"") -> None:
        """Adds the last bytes; the pipe is closed once the reader has taken all."""
        self._finishing = True
        self.write(data)

    def _flush(self) -> None:
        try:
            while self._data:
                self._data = self._data[os.write(self._descriptor, self._data) :]
        except BlockingIOError:
            if not self._waiting:
                self._waiting = True
                self._loop.add_writer(self._descriptor, self._flush)
            return
        except OSError:  # the reader closed its end: its right
            self.close()
            return
        self._stop_waiting()
        if self._finishing:
            self.close()

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._descriptor)

    def close(self) -> None:
        """Stops writing and closes the pipe; idempotent."""
        if self._descriptor >= 0:
            self._stop_waiting()
            os.close(self._descriptor)
            self._descriptor = -1


class Handle:
    """A process that can be killed, and is not watched; it must be alive when this is made."""

    def __init__(self, pid: int) -> None:
        """Raises OSError: there is no such process, or no descriptor left."""
        self._pidfd = -1
        self._pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        """SIGKILL; no error when it is gone already, or let go of."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Lets go. Idempotent."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def __del__(self) -> None:
        """Of one that was forgotten."""
        self.close()


class Process:
    """A process held by its pidfd, so that its pid cannot be taken by another."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self.dead = asyncio.Event()
        self._loop.add_reader(pidfd, self._on_death)

    def _on_death(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self.dead.set()

    def kill(self) -> None:
        """SIGKILL; no error when it is gone already, or let go of."""
        if self._pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def is_dead(self) -> bool:
        """Asks the kernel now, without the loop."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Lets go of the pidfd. Idempotent."""
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def __del__(self) -> None:
        """Of one that was forgotten, together with its loop."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
