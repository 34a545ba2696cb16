"""The one way out of a box that installs: a registry on its loopback with the lockfile in it.

The listening socket is the box's, whoever answers it is the host. A box's bytes choose which of
the lockfile's packages it is given, and do nothing else: no byte of them is sent anywhere.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from cloche.egress.registry import PackageError
from cloche.egress.requests import HEAD_BYTES_LIMIT, Refusal, Request, read_request, show
from cloche.model.job import ReasonCode

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import BinaryIO, Self

    from cloche.model.package import Package

IDLE_TIMEOUT_S: Final = 30.0
DENIALS_LIMIT_COUNT: Final = 100
_CHUNK_BYTES: Final = 256 * 1024
# How long, and for how much, a refused box is listened to so that it reads the refusal.
# At a time; as many as a registry's connections.
_FETCHES_COUNT: Final = 24
_LINGER_S: Final = 0.5
_LINGER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the fetching is.

    Attributes:
        done_count: Packages that are there.
        total_count: Packages that were wanted or asked for.
        done_bytes: Of those that are there.
    """

    done_count: int
    total_count: int
    done_bytes: int


class Served(Protocol):
    """Something that a lockfile names; hashable, and its text tells people which."""

    @property
    def wanted(self) -> bool:
        """Whether it is worth fetching before it is asked for."""

    @property
    def media_type(self) -> str:
        """Of its file, as it is served."""

    @property
    def is_counted(self) -> bool:
        """Whether it is a package of those that progress is told of."""


_Item = TypeVar("_Item", bound=Served)


def tarball_paths(packages: Iterable[Package]) -> dict[str, Package]:
    """Where package managers look for npm packages; of two with one path, the first counts."""
    found: dict[str, Package] = {}
    for package in packages:
        path = f"/{package.tarball_path}"
        for spelling in (path, *_escaped(path)):
            found.setdefault(spelling, package)
    return found


class Mirror(Generic[_Item]):
    """Serves what one lockfile names to one box.

    Args:
        items: What may be had, by the path that is asked for.
        fetch: Gives an item's file, its hash checked; raises PackageError.
        port: Of the listening socket, as the box sees it.
        limit_bytes: For all answers together, heads included.
        connections_count: How many connections the box may have at a time.
        on_progress: Told after each package that has come.
        on_denied: Told (what, why) of each denial that is kept.

    Attributes:
        served_bytes: Of all answers so far.
        denials: (What was asked for, why it was refused): the first ones; printable, short.
        denied_count: How many there were.
        is_exhausted: An answer was refused because of `limit_bytes`.
        failure: Why a package was not to be had that the box asked for; the first one.
    """

    def __init__(
        self,
        items: Mapping[str, _Item],
        fetch: Callable[[_Item], Awaitable[Path]],
        *,
        port: int,
        limit_bytes: int,
        connections_count: int,
        on_progress: Callable[[Progress], None] | None = None,
        on_denied: Callable[[str, str], None] | None = None,
    ) -> None:
        self._items = items
        self._fetch = fetch
        self._port = port
        self._limit_bytes = limit_bytes
        self._connections_count = connections_count
        self._on_progress = on_progress
        self._on_denied = on_denied
        self._fetches: dict[_Item, asyncio.Task[Path]] = {}
        self._fetching = asyncio.Semaphore(_FETCHES_COUNT)
        self._conversations: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._done_count = 0
        self._done_bytes = 0
        self.served_bytes = 0
        self.denials: list[tuple[str, str]] = []
        self.denied_count = 0
        self.is_exhausted = False
        self.failure: PackageError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def progress(self) -> Progress:
        """How far the fetching is."""
        total_count = sum(item.is_counted for item in self._fetches)
        return Progress(self._done_count, total_count, self._done_bytes)

    def prefetch(self, at_hand: Container[_Item] = ()) -> None:
        """Starts to fetch what is wanted and not at hand, before it is asked for."""
        for item in self._items.values():
            if item.wanted and item not in at_hand:
                self._start_fetch(item)

    async def start(self, listener: socket.socket) -> None:
        """Serves whoever connects; the listener is the mirror's from here on."""
        self._server = await asyncio.start_server(
            self._accept, sock=listener, limit=HEAD_BYTES_LIMIT
        )

    async def close(self) -> None:
        """Ends the serving and the fetching; nothing is open or running after it."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._conversations, *self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    # Upstream

    def _start_fetch(self, item: _Item) -> asyncio.Task[Path]:
        if item not in self._fetches:
            task = asyncio.create_task(self._fetch_one(item))
            # A failure matters only if the box asks for the package.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._fetches[item] = task
        return self._fetches[item]

    async def _fetch_one(self, item: _Item) -> Path:
        async with self._fetching:
            # What is fetched ahead counts: a stranger's lockfile must not fill the host's disk.
            if self._done_bytes >= self._limit_bytes:
                self.is_exhausted = True
                raise PackageError(
                    ReasonCode.EGRESS_LIMIT, f"{item}: over {self._limit_bytes} bytes of egress"
                )
            path = await self._fetch(item)
        self._done_count += item.is_counted
        with suppress(OSError):
            self._done_bytes += path.stat().st_size
        if self._on_progress is not None:
            self._on_progress(self.progress)
        return path

    async def _open(self, item: _Item) -> BinaryIO:
        path = await asyncio.shield(self._start_fetch(item))
        try:
            return path.open("rb")
        except OSError as error:
            raise PackageError(
                ReasonCode.HOST_FAILED,
                f"{item}: the cache folder fails: {error.strerror}",
                retry_safe=True,
            ) from error

    # The box's side

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._conversations) >= self._connections_count:
            self._deny("a connection", f"more than {self._connections_count} at a time")
            writer.write(_head(503, 0, keeps_open=False))
            writer.close()
            return
        task = asyncio.create_task(self._converse(reader, writer))
        self._conversations.add(task)
        task.add_done_callback(self._conversations.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request after another, each judged by itself."""
        try:
            while await self._answer(reader, writer):
                pass
            async with asyncio.timeout(_LINGER_S):
                await _part(reader, writer)
        except OSError:  # also a timeout: the box has gone, or does not read
            pass
        except Exception as error:
            self._fail(PackageError(ReasonCode.HOST_FAILED, f"the mirror failed: {error!r}"))
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; False when no other may follow on this connection."""
        head = await self._read_head(reader)
        if head is None:
            return False
        request = read_request(head, self._port) if isinstance(head, bytes) else head
        if isinstance(request, Refusal):
            self._deny(request.what, request.why)
            await self._refuse(writer, request.status, request.why)
            return False
        what = f"{request.method} {show(request.path.encode())}"
        item = self._items.get(request.path)
        if item is None:
            why = "nothing that the lockfile names"
            self._deny(what, why)
            return await self._refuse(writer, 404, why, request)
        try:
            with await self._open(item) as file:
                return await self._give(writer, request, what, file, item.media_type)
        except PackageError as error:
            self._fail(error)
            return await self._refuse(writer, 502, "the registry did not give it", request)

    async def _read_head(self, reader: asyncio.StreamReader) -> bytes | Refusal | None:
        """The bytes up to and with an empty line; None where nothing is asked, or too slowly."""
        head = b""
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                while True:
                    line = await reader.readuntil(b"\n")
                    head += line
                    if len(head) > HEAD_BYTES_LIMIT:
                        break
                    if not line.endswith(b"\r\n"):
                        return Refusal(400, show(head), "a line ends without CR LF")
                    if line == b"\r\n":
                        return head
        except asyncio.LimitOverrunError:
            pass
        except asyncio.IncompleteReadError as error:
            head += error.partial
            return Refusal(400, show(head), "it ends within its head") if head else None
        except TimeoutError:
            return None
        return Refusal(431, show(head), f"its head is over {HEAD_BYTES_LIMIT} bytes")

    async def _give(
        self,
        writer: asyncio.StreamWriter,
        request: Request,
        what: str,
        file: BinaryIO,
        media_type: str,
    ) -> bool:
        size_bytes = file.seek(0, 2)
        file.seek(0)
        head = _head(200, size_bytes, media_type, keeps_open=request.keeps_open)
        answer_bytes = len(head) + (size_bytes if request.method == "GET" else 0)
        if not self._reserve(answer_bytes):
            why = f"over the limit of {self._limit_bytes} bytes of egress"
            self.is_exhausted = True
            self._deny(what, why)
            await self._refuse(writer, 403, why)
            return False
        writer.write(head)
        while request.method == "GET" and (chunk := file.read(_CHUNK_BYTES)):
            writer.write(chunk)
            async with asyncio.timeout(IDLE_TIMEOUT_S):
                await writer.drain()
        return request.keeps_open

    async def _refuse(
        self, writer: asyncio.StreamWriter, status: int, why: str, request: Request | None = None
    ) -> bool:
        """Says no; False when no other request may follow on this connection."""
        keeps_open = request is not None and request.keeps_open
        body = f"{why}\n".encode()
        answer = _head(status, len(body), keeps_open=keeps_open)
        if request is None or request.method != "HEAD":
            answer += body
        # Past the limit a refusal is a closed connection.
        if not self._reserve(len(answer)):
            return False
        writer.write(answer)
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            await writer.drain()
        return keeps_open

    def _reserve(self, count_bytes: int) -> bool:
        if self.served_bytes + count_bytes > self._limit_bytes:
            return False
        self.served_bytes += count_bytes
        return True

    def _deny(self, what: str, why: str) -> None:
        self.denied_count += 1
        if len(self.denials) < DENIALS_LIMIT_COUNT:
            self.denials.append((what, why))
            if self._on_denied is not None:
                self._on_denied(what, why)

    def _fail(self, error: PackageError) -> None:
        if self.failure is None:
            self.failure = error


def _escaped(path: str) -> tuple[str, ...]:
    """The other spellings that package managers use for the slash behind a scope."""
    if not path.startswith("/@"):
        return ()
    scope, _, rest = path[1:].partition("/")
    return f"/{scope}%2f{rest}", f"/{scope}%2F{rest}"


def _head(
    status: int, size_bytes: int, media_type: str = "text/plain", *, keeps_open: bool
) -> bytes:
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"Content-Type: {media_type}\r\n"
        f"Content-Length: {size_bytes}\r\n"
        f"Connection: {'keep-alive' if keeps_open else 'close'}\r\n\r\n"
    ).encode("ascii")


async def _part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Lets the box read the last answer: unread bytes of its own would take it away."""
    await writer.drain()
    writer.write_eof()
    left_bytes = _LINGER_BYTES
    while left_bytes > 0 and (data := await reader.read(left_bytes)):
        left_bytes -= len(data)
