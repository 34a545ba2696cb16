"""Lines of files and pipes, read and written as they come, without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO

_CHUNK_BYTES = 256 * 1024
# A pipe that is ready takes this much without blocking. Source: man 7 pipe, PIPE_BUF.
_PIPE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        data: Without its end; None when it is over the limit.
        size_bytes: With its end.
        is_whole: It has an end.
    """

    data: bytes | None
    size_bytes: int
    is_whole: bool


class LineReader:
    """Reads lines; holds no more than one line of `limit_bytes` and a chunk."""

    def __init__(self, source: FileIO, limit_bytes: int) -> None:
        """Reads `source`, which is not buffered."""
        self._source = source
        self._limit_bytes = limit_bytes
        self._data = bytearray()
        self._searched_bytes = 0
        self._dropped_bytes = 0
        self._is_at_end = False

    @property
    def ended(self) -> bool:
        """True when there is nothing more to come."""
        return self._is_at_end and not self._data and not self._dropped_bytes

    def pop(self) -> Line | None:
        """The next line, of what was read; None when more has to be read first."""
        end = self._data.find(b"\n", self._searched_bytes)
        if end < 0 and not self._is_at_end:
            self._searched_bytes = len(self._data)
            if len(self._data) > self._limit_bytes:
                self._dropped_bytes += len(self._data)
                self._data.clear()
                self._searched_bytes = 0
            return None
        if self.ended:
            return None
        is_whole = end >= 0
        size = end + 1 if is_whole else len(self._data)
        is_long = self._dropped_bytes > 0 or size > self._limit_bytes
        data = None if is_long else bytes(self._data[: size - is_whole])
        line = Line(data, self._dropped_bytes + size, is_whole)
        del self._data[:size]
        self._searched_bytes = self._dropped_bytes = 0
        return line

    async def fill(self) -> None:
        """Reads more, as soon as there is more.

        Raises:
            OSError: it cannot be read.
        """
        loop = asyncio.get_running_loop()
        await _wait_until_ready(self._source, loop.add_reader, loop.remove_reader)
        chunk = self._source.read(_CHUNK_BYTES)
        if not chunk:
            self._is_at_end = True
            self._searched_bytes = 0
            return
        self._data += chunk


async def write_all(target: FileIO, data: bytes) -> None:
    """Writes all of it; a file at once, a pipe as fast as its reader reads.

    Raises:
        OSError: it cannot be written; what was written of it stays.
    """
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        waited = await _wait_until_ready(target, loop.add_writer, loop.remove_writer)
        rest = rest[target.write(rest[:_PIPE_BYTES] if waited else rest) or 0 :]


async def _wait_until_ready(
    file: FileIO, add: Callable[..., None], remove: Callable[[int], bool]
) -> bool:
    """Waits until a pipe or a terminal is ready; False, at once, for a file that always is."""
    ready = asyncio.get_running_loop().create_future()
    descriptor = file.fileno()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    # Source: man 2 epoll_ctl, EPERM: the file does not support epoll, as regular files.
    with contextlib.suppress(PermissionError):
        add(descriptor, wake)
        try:
            await ready
        finally:
            remove(descriptor)
        return True
    return False
