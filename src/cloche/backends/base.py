"""The contract between Cloche and whatever makes its boxes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cloche.errors import UnavailableError
from cloche.model.outcome import Cause, Outcome, Usage
from cloche.model.plan import BoxPlan, Command, Environment, Isolation

if TYPE_CHECKING:
    import socket

    from cloche.linux.gathering import GuestFile, TreeCopy
    from cloche.linux.netns import CaughtSockets
    from cloche.model.policy import Limits


_FIXES = {
    "memory": "run where a memory cgroup is writable (as root, or with systemd's Delegate=yes)",
    "pids": "run where a pids cgroup is writable (as root, or with systemd's Delegate=yes)",
    "cpu": "run where a cpu cgroup is writable (as root, or with systemd's Delegate=yes)",
}


class ControlFeed(Protocol):
    """The writing end of a command's fd 3."""

    def write(self, data: bytes) -> None:
        """Adds bytes; dropped when the command does not read any more."""
        ...

    def close(self) -> None:
        """Ends the stream. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Sinks:
    """Where a command's bytes go as they come; each callable must not block.

    Attributes:
        stdout, stderr: What it writes on fds 1 and 2.
        result: What it writes on fd 4; the sink itself bounds what it keeps.
        control: None when the `control` of `exec` is all that fd 3 gets. Otherwise called once,
            with the feed that takes more.
    """

    stdout: Callable[[bytes], None]
    stderr: Callable[[bytes], None]
    result: Callable[[bytes], None]
    control: Callable[[ControlFeed], None] | None = None


@dataclass(frozen=True, slots=True)
class CollectedFiles:
    """Files copied out of a box, by path relative to /workspace; what was left, and why."""

    files: dict[str, bytes]
    skipped: dict[str, str]


class Box(Protocol):
    """A live isolated place. One command at a time; nothing of one is left when it ends."""

    async def exec(
        self,
        command: Command,
        *,
        stdin: bytes,
        control: bytes | Awaitable[bytes],
        sinks: Sinks,
        on_waiting: Callable[[], None] | None = None,
    ) -> Outcome:
        """Runs a command to its end.

        Args:
            command: What to run.
            stdin: What it reads on fd 0.
            control: What it reads on fd 3. An awaitable is waited for while the box is set up,
                before the command starts; what it raises is raised here, and nothing has run.
            sinks: Where its output goes.
            on_waiting: Given, the command is started ahead, at the lowest CPU weight, and waits
                on fd 3, a pipe, for `control`; until that comes no time counts, and CPU time is
                not the run's. Called when it has been let go: from then on `limit` may be used.

        Ensures: when it returns or raises, no process of the command exists; its whole
            output has reached the sinks. When the awaiting task is cancelled, the box dies.

        A box that `kill` has ended runs nothing more: the Outcome has the cause of that kill.

        Raises:
            InternalError: the box was lost, or is not what was asked (`retry_safe` tells
                whether the command had started).
            UnavailableError: the host refused a step of the set-up.
        """
        ...

    @property
    def isolation(self) -> Isolation:
        """What was enforced on the last command, as read back before it started.

        No controls before the first one.
        """
        ...

    async def listen(self, port: int) -> socket.socket:
        """The listening socket on a port of the box's loopback; once for each of the plan's.

        It lives in the box's network; whoever asked serves it, and closes it.

        Raises:
            InternalError: the box was lost.
        """
        ...

    async def catch(self) -> CaughtSockets:
        """The sockets where the box's connects and DNS questions arrive; once, with catch_ports.

        Whoever asked serves them, and closes them.

        Raises:
            InternalError: the box was lost.
        """
        ...

    def kill(self, cause: Cause) -> None:
        """Ends the command in flight, and the box, at once; its Outcome has this cause."""
        ...

    def finish(self) -> None:
        """The command has said its last word: ends it, where its usage is known without its end.

        Its Outcome then is that of a kill with `Cause.EXITED`, and has no exit code. Elsewhere
        nothing happens: it ends by itself, or by its limits.
        """
        ...

    @property
    def killed(self) -> Cause | None:
        """What `kill` has ended it for; None while nobody has."""
        ...

    @property
    def is_lost(self) -> bool:
        """True when it has died, or will at once: asks the kernel."""
        ...

    @property
    def is_dead(self) -> bool:
        """True once nothing of the box lives, and nothing can start in it any more."""
        ...

    def limit(self, limits: Limits) -> None:
        """Replaces the limits of a box whose command waits for its control (`exec`, `on_waiting`).

        Raises:
            UnavailableError: the host does not take them.
            InternalError: they do not hold, as read back.
        """
        ...

    def usage(self) -> Usage:
        """What the box has used up to now: CPU time, and the most memory that it held."""
        ...

    async def collect(
        self, globs: Sequence[str], *, limit_bytes: int, limit_count: int
    ) -> CollectedFiles:
        """Copies regular files below /workspace that match a glob; follows no link.

        Requires: no command is running.
        """
        ...

    async def gather(
        self, globs: Sequence[str], take: Callable[[GuestFile], str | None]
    ) -> tuple[dict[str, str], int]:
        """Offers every regular file below /workspace that matches; see `linux.gathering.gather`.

        `take` is called in a thread. Requires: no command is running.
        """
        ...

    async def copy_folders(self, box_paths: Sequence[str], target: int, counts: TreeCopy) -> None:
        """Copies folders below /workspace into a folder of Cloche's; what is not there is left out.

        Args:
            box_paths: Relative to /workspace.
            target: A descriptor of an empty folder.
            counts: See `linux.gathering.copy_tree`.

        Raises:
            TreeRefusedError, OSError: as `linux.gathering.copy_tree`.

        Requires: no command is running.
        """
        ...

    def scratch_left(self) -> tuple[int, int]:
        """(bytes, inodes) that are free in its scratch."""
        ...

    async def destroy(self) -> None:
        """Ends the box; idempotent.

        Ensures: no process, mount, cgroup or descriptor of the box is left.
        """
        ...


def require_mechanisms(isolation: Isolation, require: Mapping[str, str]) -> None:
    """Holds a report against what a caller demands.

    Raises:
        UnavailableError: a control is not enforced by the mechanism that it must have.
    """
    for name, mechanism in require.items():
        control = isolation.controls.get(name)
        found = "nothing" if control is None else control.mechanism
        if found != mechanism:
            raise UnavailableError(
                f"{name} was to be enforced by {mechanism}, but is by {found}",
                fact=f"{mechanism}-{name}",
                fix=_FIXES.get(name, "see `cloche doctor` for what this host can enforce"),
            )


class Backend(Protocol):
    """Makes boxes."""

    name: str

    async def prepare(self, environment: Environment) -> None:
        """Makes ready what boxes of an environment share. Optional: `create` does it too.

        Raises:
            UnavailableError, InternalError: as `create`.
        """
        ...

    async def create(self, plan: BoxPlan) -> Box:
        """Makes a box.

        Raises:
            UnavailableError: a control that the plan asks for cannot be enforced here.
            InternalError: the backend itself failed.
        """
        ...

    async def close(self) -> None:
        """Ends every box and whatever serves them; idempotent."""
        ...
