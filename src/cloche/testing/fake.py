"""A backend in memory, for tests of what is above backends: no process, no clock, no root.

What a box does is a script: an async function that plays the program in the box. It reads the
frames of fd 3, writes those of fd 4, and returns how it ended:

    async def script(program: FakeProgram) -> Outcome:
        request = await program.receive()
        program.send({"ok": True, "value": request["context"]["x"]})
        return ended()

    sandbox = ProcessSandbox(SandboxOptions(language="python"), FakeBackend(script))
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import struct
from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cloche.backends.base import CollectedFiles
from cloche.errors import InternalError
from cloche.frames import NONCE_BYTES
from cloche.model.outcome import Cause, Outcome, Usage
from cloche.model.plan import Control, Isolation, Strength

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from cloche.backends.base import Sinks
    from cloche.linux.gathering import GuestFile, TreeCopy
    from cloche.linux.netns import CaughtSockets
    from cloche.model.plan import BoxPlan, Command, Environment
    from cloche.model.policy import Limits

    Script = Callable[["FakeProgram"], Awaitable[Outcome | None]]

_HEADER = struct.Struct(">I")
USED: Final = Usage(cpu_ms=1.0, peak_memory_bytes=1 << 20)
ISOLATION: Final = Isolation(
    "fake", MappingProxyType({"memory": Control("script", Strength.NONE, "nothing is enforced")})
)


def ended(exit_code: int | None = 0, *, cause: Cause = Cause.EXITED) -> Outcome:
    """How a command ended: by itself, or with a cause, which has no exit code."""
    is_exit = cause is Cause.EXITED
    signal = None if is_exit else 9
    return Outcome(cause, exit_code if is_exit else None, signal, 1.0, USED)


class FakeProgram:
    """What a script plays: the program of one `exec`.

    Attributes:
        command: What was asked to run.
        box: Where.
        stdin: What it would read on fd 0.
    """

    def __init__(self, box: FakeBox, command: Command, stdin: bytes, sinks: Sinks) -> None:
        """Has read nothing yet."""
        self.box = box
        self.command = command
        self.stdin = stdin
        self._sinks = sinks
        self._nonce = bytes(NONCE_BYTES)
        self._unread = bytearray()
        self._more = asyncio.Event()
        self._is_open = True

    # What the host writes on fd 3: a `ControlFeed`.
    def write(self, data: bytes) -> None:
        """Takes bytes of the host's; dropped when it has ended."""
        if self._is_open:
            self._unread += data
            self._more.set()

    def close(self) -> None:
        """Takes the end of the host's bytes."""
        self._is_open = False
        self._more.set()

    async def receive(self) -> dict[str, Any]:
        """The next frame of fd 3; its nonce, if it has one, is that of `send` from now on.

        Raises:
            EOFError: the host has closed it.
        """
        while (frame := self._take_frame()) is None:
            if not self._is_open:
                raise EOFError("fd 3 is closed")
            self._more.clear()
            await self._more.wait()
        if isinstance(frame.get("nonce"), str):
            self._nonce = bytes.fromhex(frame["nonce"])
        return frame

    def _take_frame(self) -> dict[str, Any] | None:
        if len(self._unread) < _HEADER.size:
            return None
        end = _HEADER.size + _HEADER.unpack_from(self._unread)[0]
        if len(self._unread) < end:
            return None
        frame = json.loads(self._unread[_HEADER.size : end])
        del self._unread[:end]
        assert isinstance(frame, dict)
        return frame

    def send(self, frame: Mapping[str, Any] | str, *, nonce: bytes | None = None) -> None:
        """Writes a frame on fd 4: an object, or the text of one that is malformed."""
        body = (frame if isinstance(frame, str) else json.dumps(frame)).encode()
        start = self._nonce if nonce is None else nonce
        self.write_result(start + _HEADER.pack(len(body)) + body)

    def write_result(self, data: bytes) -> None:
        """Writes bytes on fd 4."""
        self._sinks.result(data)

    def print(self, text: str, *, stream: str = "stdout") -> None:
        """Writes on fd 1 or 2."""
        (self._sinks.stderr if stream == "stderr" else self._sinks.stdout)(text.encode())


class FakeBox:
    """A box in memory.

    Attributes:
        plan: What it was made of.
        programs: What has been started in it.
        limits: Those given to `limit`, in order.
        killed: The cause of the first kill.
        is_destroyed: Nothing of it is left.
        is_finished: `finish` has been called.
        used: What `usage` tells; a test may change it.
    """

    def __init__(self, backend: FakeBackend, plan: BoxPlan) -> None:
        """Runs nothing yet."""
        self.plan = plan
        self.programs: list[FakeProgram] = []
        self.limits: list[Limits] = []
        self.killed: Cause | None = None
        self.is_destroyed = False
        self.is_finished = False
        self.used = USED
        self._backend = backend
        self._playing: asyncio.Future[Outcome | None] | None = None

    @property
    def is_running(self) -> bool:
        """True while a command is in it."""
        return self._playing is not None

    async def exec(
        self,
        command: Command,
        *,
        stdin: bytes,
        control: bytes | Awaitable[bytes],
        sinks: Sinks,
        on_waiting: Callable[[], None] | None = None,
    ) -> Outcome:
        """Plays the backend's script; see `backends.base.Box.exec`."""
        assert self._playing is None, "one command at a time"
        assert not self.is_destroyed, "the box is gone"
        program = FakeProgram(self, command, stdin, sinks)
        self.programs.append(program)
        self.is_finished = False
        self._playing = asyncio.ensure_future(self._play(program, control, sinks, on_waiting))
        if self.killed is not None:
            self._playing.cancel()
        try:
            await asyncio.wait([self._playing])
            if self.killed is not None:
                self._playing.cancelled() or self._playing.exception()
                return ended(cause=self.killed)
            if self._playing.cancelled():  # by `finish`
                return ended(None)
            return self._playing.result() or ended()
        except asyncio.CancelledError:
            self.kill(Cause.ABORTED)
            await asyncio.wait([self._playing])
            raise
        finally:
            program.close()
            self._playing = None

    async def _play(
        self,
        program: FakeProgram,
        control: bytes | Awaitable[bytes],
        sinks: Sinks,
        on_waiting: Callable[[], None] | None,
    ) -> Outcome | None:
        if on_waiting is not None:
            await self._backend.starts.wait()
            on_waiting()
        program.write(control if isinstance(control, bytes) else await control)
        if sinks.control is not None:
            sinks.control(program)
        return await self._backend.script(program)

    @property
    def isolation(self) -> Isolation:
        """What the backend was told to report: it may be a lie."""
        return self._backend.isolation

    def kill(self, cause: Cause) -> None:
        """Ends the command in flight; the box runs nothing more."""
        if self.killed is None:
            self.killed = cause
        if self._playing is not None:
            self._playing.cancel()

    def die(self, cause: Cause = Cause.SIGNALLED) -> None:
        """Lets it end by itself, as by the kernel's hand."""
        self.kill(cause)

    def finish(self) -> None:
        """Ends the command after its last word."""
        self.is_finished = True
        if self._backend.finishes and self._playing is not None and self.killed is None:
            self._playing.cancel()

    @property
    def is_lost(self) -> bool:
        """Never: a box in memory dies by its script."""
        return False

    @property
    def is_dead(self) -> bool:
        """Whether it was killed, or its command has died."""
        return self.killed is not None

    def limit(self, limits: Limits) -> None:
        """Notes the limits, or raises the backend's `limit_error`."""
        if self._backend.limit_error is not None:
            raise self._backend.limit_error
        self.limits.append(limits)

    def usage(self) -> Usage:
        """What it has used."""
        return self.used

    async def collect(
        self, globs: Sequence[str], *, limit_bytes: int, limit_count: int
    ) -> CollectedFiles:
        """The plan's own files that match."""
        found = {
            path: content
            for path, content in self.plan.files.items()
            if any(fnmatch.fnmatchcase(path, glob) for glob in globs)
        }
        return CollectedFiles(found, {})

    async def gather(
        self, globs: Sequence[str], take: Callable[[GuestFile], str | None]
    ) -> tuple[dict[str, str], int]:
        """Nothing."""
        return {}, 0

    async def copy_folders(self, box_paths: Sequence[str], target: int, counts: TreeCopy) -> None:
        """Nothing."""

    def scratch_left(self) -> tuple[int, int]:
        """Enough."""
        return 1 << 30, 1 << 20

    async def listen(self, port: int) -> socket.socket:
        """There is no network.

        Raises:
            InternalError: always.
        """
        raise InternalError("a box in memory has no network")

    async def catch(self) -> CaughtSockets:
        """There is no network.

        Raises:
            InternalError: always.
        """
        raise InternalError("a box in memory has no network")

    async def destroy(self) -> None:
        """Ends it; idempotent."""
        self.kill(Cause.ABORTED)
        if self._playing is not None:
            await asyncio.wait([self._playing])
        self.is_destroyed = True


async def answer_nothing(program: FakeProgram) -> Outcome:
    """The script of who has none: reads its request, and ends with no value."""
    await program.receive()
    program.send({"ok": True})
    return ended()


class FakeBackend:
    """Makes boxes in memory.

    Attributes:
        boxes: All that were made, in order.
        script: What the programs in them do; a test may replace it.
        isolation: What they report.
        create_errors: Raised by the next calls of `create`; None lets one through.
        limit_error: Raised by every `limit`.
        finishes: `finish` ends a program; False where its usage is not known before its end.
        creates, starts: Set: `create` returns at once, and a program that is started ahead gets
            to its wait at once. A test clears them to hold either up.
        is_closed: It makes no more.
    """

    name = "fake"

    def __init__(
        self,
        script: Script = answer_nothing,
        *,
        isolation: Isolation = ISOLATION,
        create_errors: Iterable[Exception | None] = (),
        limit_error: Exception | None = None,
        finishes: bool = True,
    ) -> None:
        """Makes none yet."""
        self.finishes = finishes
        self.boxes: list[FakeBox] = []
        self.script = script
        self.isolation = isolation
        self.create_errors = deque(create_errors)
        self.limit_error = limit_error
        self.creates, self.starts = asyncio.Event(), asyncio.Event()
        self.creates.set()
        self.starts.set()
        self.is_closed = False
        self.prepared: list[Environment] = []

    @property
    def left(self) -> list[FakeBox]:
        """Boxes that nobody has destroyed."""
        return [box for box in self.boxes if not box.is_destroyed]

    async def prepare(self, environment: Environment) -> None:
        """Notes it."""
        self.prepared.append(environment)

    async def create(self, plan: BoxPlan) -> FakeBox:
        """Makes a box, or raises the next of `create_errors`."""
        await self.creates.wait()
        if self.is_closed:
            raise InternalError("the backend is closed", retry_safe=True)
        error = self.create_errors.popleft() if self.create_errors else None
        if error is not None:
            raise error
        box = FakeBox(self, plan)
        self.boxes.append(box)
        return box

    async def close(self) -> None:
        """Ends every box; idempotent."""
        self.is_closed = True
        for box in self.left:
            await box.destroy()
