"""The runs of `cloche map`: several at a time, results in order, memory bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cloche.cli.lines import write_all
from cloche.cli.map_output import encode_result
from cloche.cli.map_request import make_request, parse_line
from cloche.cli.results import result_to_json
from cloche.errors import ClocheError, InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    from io import FileIO

    from cloche.cli.lines import LineReader
    from cloche.cli.map_request import Defaults
    from cloche.cli.map_view import Progress, Tally
    from cloche.model.abort import AbortSignal

# A slow run holds back the results of those behind it: so many per run at a time, and so many bytes
# of lines and results together, before no more lines are read.
WINDOW_PER_RUN_COUNT: Final = 64
WINDOW_BYTES: Final = 256 * 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A line that asks for a run, blank ones not counted.

    Attributes:
        fields: Its object, or why it has none.
        size_bytes: Of the line, with the blank ones before it.
    """

    index: int
    fields: dict[str, Any] | InvalidRequestError
    size_bytes: int

    @property
    def identifier(self) -> Any:
        """What the line says as `id`."""
        return None if isinstance(self.fields, InvalidRequestError) else self.fields.get("id")


@dataclass(frozen=True, slots=True)
class _Ended:
    """A run that has its result.

    Attributes:
        encoded: The line of the output.
        line_bytes: Of the line of the input.
    """

    encoded: bytes
    ok: bool
    error_code: str | None
    line_bytes: int


class Runs:
    """Takes lines, runs them, writes results. Used once.

    Attributes:
        signal: Ends them all.
    """

    def __init__(self, defaults: Defaults, concurrency: int, signal: AbortSignal) -> None:
        """At most `concurrency` runs at a time."""
        self._defaults = defaults
        self.signal = signal
        self._concurrency = concurrency
        self._window: deque[asyncio.Task[_Ended]] = deque()
        self._running: set[asyncio.Task[_Ended]] = set()
        self._held_bytes = 0  # of lines that run, and of results that wait
        self._index = 0
        self._line_number = 0

    def take(self, lines: LineReader) -> Numbered | None:
        """The next line that was read already."""
        size_bytes = 0
        while (line := lines.pop()) is not None:
            self._line_number += 1
            size_bytes += line.size_bytes
            data = line.data
            if data is not None and self._line_number == 1:
                data = data.removeprefix(_BYTE_ORDER_MARK)
            if data is not None and not data.strip():
                continue
            try:
                fields: dict[str, Any] | InvalidRequestError = parse_line(data, self._line_number)
            except InvalidRequestError as error:
                fields = error
            self._index += 1
            return Numbered(self._index - 1, fields, size_bytes)
        return None

    async def skip(self, lines: LineReader) -> Numbered | None:
        """The next line, read when needed; None when there is none."""
        while (line := self.take(lines)) is None:
            if lines.ended:
                return None
            await lines.fill()
        return line

    async def run(
        self,
        sandbox: Any,
        lines: LineReader,
        output: FileIO,
        tally: Tally,
        progress: Progress,
    ) -> None:
        """Runs all lines, or until the signal fires; what has ended is written, in order.

        Raises:
            OSError: the input cannot be read or the output not be written.
            UnavailableError: the host cannot do what the command line asks.
        """
        loop = asyncio.get_running_loop()
        stopped = loop.create_future()

        def stop() -> None:
            if not stopped.done():
                stopped.set_result(None)

        def fire() -> None:
            loop.call_soon_threadsafe(stop)

        self.signal.subscribe(fire)
        reading: asyncio.Task[None] | None = None
        try:
            while not stopped.done():
                while self._has_room() and (line := self.take(lines)) is not None:
                    self._held_bytes += line.size_bytes
                    task = asyncio.create_task(self._run_line(sandbox, line))
                    self._window.append(task)
                    self._running.add(task)
                if reading is None and self._has_room() and not lines.ended:
                    reading = asyncio.create_task(lines.fill())
                if reading is None and not self._window:
                    break
                awaited = {stopped, *self._running, *([reading] if reading else ())}
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                self._running = {task for task in self._running if not task.done()}
                if reading is not None and reading.done():
                    reading.result()
                    reading = None
                while self._window and self._window[0].done():
                    ended = self._window.popleft().result()
                    await write_all(output, ended.encoded)
                    self._held_bytes -= len(ended.encoded)
                    tally.add(ended.ok, ended.error_code)
                    progress(ended.line_bytes)
        finally:
            self.signal.unsubscribe(fire)
            left = [*self._window, *([reading] if reading else ())]
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _has_room(self) -> bool:
        """True when one more run may start."""
        if not self._window:
            return True
        is_short = len(self._window) < self._concurrency * WINDOW_PER_RUN_COUNT
        is_small = self._held_bytes < WINDOW_BYTES
        return is_short and is_small and len(self._running) < self._concurrency

    async def _run_line(self, sandbox: Any, line: Numbered) -> _Ended:
        head = {"index": line.index, "id": line.identifier}
        result = await self._result_of(sandbox, line)
        encoded = encode_result(head | result)
        self._held_bytes += len(encoded) - line.size_bytes
        return _Ended(encoded, result["ok"], result["error_code"], line.size_bytes)

    async def _result_of(self, sandbox: Any, line: Numbered) -> dict[str, Any]:
        if isinstance(line.fields, InvalidRequestError):
            return _refusal_to_json(line.fields)
        is_plain = False
        try:
            request = make_request(line.fields, self._defaults)
            is_plain = request.is_plain
            result = await sandbox.run(request.code, request.context, **request.fields)
        except ClocheError as error:
            if is_plain and isinstance(error, UnavailableError):
                raise
            return _refusal_to_json(error)
        return result_to_json(result)


def _refusal_to_json(error: ClocheError) -> dict[str, Any]:
    """An error of the request, of the host or of Cloche, in the fields that results have."""
    return {
        "ok": False,
        "value": None,
        "error": error.message,
        "error_code": str(error.code),
        "retry_safe": error.retry_safe,
    }
