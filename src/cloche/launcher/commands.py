"""Runs commands in a box, one after another, on behalf of its init.

A command starts as a fork of init, gives up everything, waits for its order, waits until Cloche has
looked at it, and becomes the guest. The first is forked ahead, while the box is still empty: a fork
is what takes longest. When a command ends, all that it started is killed before its end is told.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket

import syscalls
import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GUEST_ID = 1000
# What the launcher or its interpreter ignores or handles; exec would pass "ignored" on.
_IGNORED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGCHLD,
)


def tell(
    channel: socket.socket, event: dict[str, Any], descriptors: list[int] | None = None
) -> None:
    """Sends an event; ends the box when nobody is there to hear it."""
    try:
        wire.send(channel, event, descriptors or [])
    except OSError:  # Cloche is gone: so is this box
        os._exit(0)


class Commands:
    """Runs commands in the box, never two at once, and leaves nothing of one behind."""

    def __init__(self, channel: socket.socket, lifeline: int, program: bytes) -> None:
        self._channel = channel
        self._lifeline = lifeline
        self._filter = program
        self._wakeup, sender = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._guest, self._gate = self._fork()

    def _fork(self) -> tuple[int, int]:
        """Forks what will become the next command; it reads its order once the gate is open."""
        waiting, gate = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _become_guest(self._channel, waiting, self._filter)
        os.close(waiting)
        return pid, gate

    def _open_gate(self) -> None:
        os.write(self._gate, b"g")
        os.close(self._gate)

    def serve(self) -> None:
        """Returns when Cloche or the launcher is gone. The box must be complete by now."""
        self._open_gate()
        channel = self._channel.fileno()
        poller = select.poll()
        poller.register(self._lifeline, select.POLLIN)
        poller.register(self._wakeup, select.POLLIN)
        while True:
            # While there is a command, orders are for it to read: only the end is told here.
            poller.register(channel, 0 if self._guest else select.POLLIN)
            ready = dict(poller.poll())
            if self._lifeline in ready or ready.get(channel, 0) & select.POLLHUP:
                return
            if self._wakeup in ready:
                os.read(self._wakeup, 512)
                self._reap()
            if channel in ready:
                self._guest, self._gate = self._fork()
                self._open_gate()

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._guest:
                self._end(status, usage)

    def _end(self, status: int, usage: resource.struct_rusage) -> None:
        """The command's own process is gone: so must be all it started, before it is told."""
        cpu = usage.ru_utime + usage.ru_stime
        peak = usage.ru_maxrss
        while True:
            _kill_all()
            try:
                _, _, usage = os.wait4(-1, 0)
            except ChildProcessError:
                break
            cpu += usage.ru_utime + usage.ru_stime
            peak = max(peak, usage.ru_maxrss)
        self._guest = 0
        tell(
            self._channel,
            {
                "event": "ended",
                "status": status,
                "cpu_ms": round(cpu * 1000, 3),
                "peak_memory_bytes": peak * 1024,
            },
        )


def _kill_all() -> None:
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _become_guest(channel: socket.socket, gate: int, program: bytes) -> None:
    """Gives up everything, reads its order, is let go, becomes the command. Never returns."""
    step = "credentials"
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in _IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        # Out of the way of the guest's own numbers, which are filled in below.
        talk = socket.socket(fileno=fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, 64))
        gate = fcntl.fcntl(gate, fcntl.F_DUPFD_CLOEXEC, 64)
        syscalls.close_all_but([talk.fileno(), gate])
        os.umask(0o022)
        if os.getuid() != GUEST_ID:
            os.setresgid(GUEST_ID, GUEST_ID, GUEST_ID)
            os.setresuid(GUEST_ID, GUEST_ID, GUEST_ID)
        syscalls.drop_capabilities()
        # An undumpable process may not write its own /proc files; exec makes it dumpable anyway.
        syscalls.allow_inspection()
        step = "seccomp"
        syscalls.install_filter(program)
        if os.read(gate, 1) != b"g":
            os._exit(127)
        order, descriptors = wire.receive(talk)
        if order is None:
            os._exit(127)
        step = "limits"
        for kind, limit in order["rlimits"]:
            resource.setrlimit(kind, (limit, limit))
        if order["nice"]:
            os.setpriority(os.PRIO_PROCESS, 0, order["nice"])
        _prefer_for_oom()
        step = "working directory"
        os.chdir(order["cwd"])
        step = "descriptors"
        # Move all out of the way first: a target may be another's source.
        *guest_ends, go = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 64) for each in descriptors]
        for target, descriptor in enumerate(guest_ends):
            os.dup2(descriptor, target)
        syscalls.close_all_but([*range(len(guest_ends)), talk.fileno(), go])
        step = "handshake"
        wire.send(talk, {"event": "held"}, [])
        if os.read(go, 1) != b"g":
            os._exit(127)
        step = "exec"
        os.execve(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        try:
            wire.send(talk, wire.failure(step, error), [])
        except OSError:
            pass
    finally:
        os._exit(127)


def _prefer_for_oom() -> None:
    """Out of memory, the kernel takes the guest before its init."""
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"1000")
    finally:
        os.close(descriptor)
