"""A job's log: lines with time, step and stream, told as they come and kept within a bound."""

from __future__ import annotations

import codecs
import json
from collections import deque
from typing import IO, TYPE_CHECKING, Literal

from cloche.model.events import LogEvent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cloche.model.events import Event

Stream = Literal["stdout", "stderr", "cloche"]
_LINE_LIMIT_CHARACTERS = 16 * 1024
# How much of one step is told line by line; of what follows only the end is. A flood of short lines
# would else keep Cloche busier than the step.
_TOLD_LINES_COUNT = 50_000
_TOLD_BYTES = 32 * 1024 * 1024
_HELD_BYTES = 256 * 1024
_HELD_LINES_COUNT = 5_000


class JobLog:
    """Takes lines; keeps the first and the last half of the limit as stored, and marks the cut.

    In `log.ndjson` each line is one object: `time` (seconds since the epoch), `step`, `stream`
    (`stdout`, `stderr`, `cloche`), `offset` (bytes of text before it, each line's end counted as
    one) and `text`.
    """

    def __init__(
        self,
        limit_bytes: int,
        tell: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        """Tells each line by `tell`; `clock` gives seconds since the epoch."""
        self._head_left_bytes = limit_bytes // 2
        self._tail_limit_bytes = limit_bytes - self._head_left_bytes
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._file: IO[bytes] | None = None
        self._tell = tell
        self._clock = clock
        self.offset_bytes = 0
        self.cut_bytes = 0
        # A full disk is noticed in the middle of a step, where nobody is there to catch it.
        self.failure: OSError | None = None

    def open(self, path: Path) -> None:
        """Writes to a new file from now on.

        Raises:
            OSError: it could not be made.
        """
        self._file = path.open("xb")

    def add(self, step: str, stream: Stream, text: str) -> None:
        """Adds one line, without its end."""
        event = LogEvent(self._clock(), step, stream, text, self.offset_bytes)
        self.offset_bytes += len(text.encode("utf-8", "replace")) + 1
        self._keep(event)
        self._tell(event)

    def leave_out(self, step: str, count_bytes: int) -> None:
        """Says that the next bytes of a step are not kept."""
        self.add(step, "cloche", f"{count_bytes} bytes of output are left out here")
        self.offset_bytes += count_bytes

    def _keep(self, event: LogEvent) -> None:
        if self._file is None or self.failure is not None:
            return
        line = _to_json(event)
        size = len(line)
        if size <= self._head_left_bytes and not self._tail:
            self._head_left_bytes -= size
            self._write(line)
            return
        self._head_left_bytes = 0  # what comes after a line that was left out is the tail
        self._tail.append(line)
        self._tail_bytes += size
        while self._tail_bytes > self._tail_limit_bytes and self._tail:
            left_out = len(self._tail.popleft())
            self._tail_bytes -= left_out
            self.cut_bytes += left_out

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        try:
            self._file.write(data)
            self._file.flush()  # somebody may be following it
        except OSError as error:
            self.failure = error

    def close(self) -> None:
        """Writes what is kept of the end. Idempotent.

        Raises:
            OSError: the log could not be written, now or before.
        """
        if self._file is None:
            return
        file = self._file
        if self.cut_bytes and self.failure is None:
            text = f"{self.cut_bytes} bytes of this file are left out here"
            self._write(_to_json(LogEvent(self._clock(), "", "cloche", text, -1)))
        for line in self._tail:
            if self.failure is None:
                self._write(line)
        self._tail.clear()
        self._file = None
        try:
            file.close()
        except OSError as error:
            self.failure = self.failure or error
        if self.failure is not None:
            raise self.failure

    def open_step(self, step: str, on_line: Callable[[str, str], None] | None = None) -> StepLog:
        """The log of one step; `on_line` sees (stream, text) of what the step itself writes."""
        return StepLog(self, step, on_line)


def _to_json(event: LogEvent) -> bytes:
    fields = {
        "time": round(event.time, 6),
        "step": event.step,
        "stream": event.stream,
        "offset": event.offset_bytes,
        "text": event.text,
    }
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


class StepLog:
    """Turns the bytes of a step's two streams into lines."""

    def __init__(self, log: JobLog, step: str, on_line: Callable[[str, str], None] | None) -> None:
        """See `JobLog.open_step`."""
        self._log = log
        self._step = step
        self._on_line = on_line
        self._decoders = {
            stream: codecs.getincrementaldecoder("utf-8")("replace")
            for stream in ("stdout", "stderr")
        }
        self._pending = {"stdout": "", "stderr": ""}
        self._told_left_count = _TOLD_LINES_COUNT
        self._told_left_bytes = _TOLD_BYTES
        self._held: deque[tuple[Literal["stdout", "stderr"], bytes]] = deque()
        self._held_bytes = 0
        self._left_out_bytes = 0
        self.started_at_bytes = log.offset_bytes

    @property
    def size_bytes(self) -> int:
        """How much log the step has made so far."""
        return self._log.offset_bytes - self.started_at_bytes

    def stdout(self, data: bytes) -> None:
        """Takes what the step wrote on fd 1."""
        self._take("stdout", data)

    def stderr(self, data: bytes) -> None:
        """Takes what the step wrote on fd 2."""
        self._take("stderr", data)

    def _take(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        if self._told_left_count > 0 and self._told_left_bytes > 0:
            told, data = _split_lines(data, self._told_left_count)
            self._told_left_bytes -= len(told)
            self._feed(stream, told)
            if not data:
                return
        self._held.append((stream, data))
        self._held_bytes += len(data)
        while self._held_bytes - len(self._held[0][1]) >= _HELD_BYTES:
            left_out = len(self._held.popleft()[1])
            self._held_bytes -= left_out
            self._left_out_bytes += left_out

    def _feed(
        self, stream: Literal["stdout", "stderr"], data: bytes, *, final: bool = False
    ) -> None:
        text = self._pending[stream] + self._decoders[stream].decode(data, final)
        *lines, rest = text.split("\n")
        for line in lines:
            self._add(stream, line.removesuffix("\r"))
        while len(rest) > _LINE_LIMIT_CHARACTERS:
            self._add(stream, rest[:_LINE_LIMIT_CHARACTERS])
            rest = rest[_LINE_LIMIT_CHARACTERS:]
        self._pending[stream] = rest

    def _add(self, stream: Literal["stdout", "stderr"], line: str) -> None:
        for start in range(0, max(len(line), 1), _LINE_LIMIT_CHARACTERS):
            part = line[start : start + _LINE_LIMIT_CHARACTERS]
            self._log.add(self._step, stream, part)
            self._told_left_count -= 1
            if self._on_line is not None:
                self._on_line(stream, part)

    def note(self, text: str) -> None:
        """Adds a line of Cloche's own."""
        self._log.add(self._step, "cloche", text)

    def close(self) -> None:
        """Adds what was held back, and what came without a line's end."""
        last: deque[tuple[Literal["stdout", "stderr"], bytes]] = deque()
        left_count = _HELD_LINES_COUNT
        while self._held:
            stream, data = self._held.pop()
            kept = _last_lines(data, left_count)
            left_count -= kept.count(b"\n")
            self._left_out_bytes += len(data) - len(kept)
            if kept:
                last.appendleft((stream, kept))
        if self._left_out_bytes:
            self._log.leave_out(self._step, self._left_out_bytes)
            self._left_out_bytes = 0
        for stream, data in last:
            self._feed(stream, data)
        for stream in ("stdout", "stderr"):
            self._feed(stream, b"", final=True)
            if self._pending[stream]:
                self._add(stream, self._pending[stream].removesuffix("\r"))
                self._pending[stream] = ""


def _split_lines(data: bytes, count: int) -> tuple[bytes, bytes]:
    """(what lies up to the end of that many lines, the rest)."""
    if data.count(b"\n") <= count:
        return data, b""
    told = b"\n".join(data.split(b"\n", count)[:count]) + b"\n"
    return told, data[len(told) :]


def _last_lines(data: bytes, count: int) -> bytes:
    """The last lines, no more than that many."""
    if count <= 0:
        return b""
    parts = data.rsplit(b"\n", count + 1)
    return data if len(parts) <= count + 1 else b"\n".join(parts[1:])
