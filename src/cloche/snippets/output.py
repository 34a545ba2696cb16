"""A run's output: streamed to the caller as it comes, kept within its limit."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from cloche.model.snippet import OutputChunk, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNKS_LIMIT_COUNT = 10_000


class _Kept:
    """The first half and the last half of a stream."""

    def __init__(self, limit_bytes: int) -> None:
        self.head_limit = (limit_bytes + 1) // 2
        self.tail_limit = limit_bytes - self.head_limit
        self.head = bytearray()
        self.tail = bytearray()
        self.total_bytes = 0
        self.decoder: codecs.IncrementalDecoder | None = None  # made with the first bytes

    def add(self, chunk: bytes) -> bytes:
        """Keeps what may be kept; returns the part that went into the first half."""
        self.total_bytes += len(chunk)
        room = self.head_limit - len(self.head)
        first, rest = chunk[:room], chunk[room:]
        self.head += first
        if rest:
            self.tail += rest[-self.tail_limit :] if self.tail_limit else b""
            if len(self.tail) > 2 * self.tail_limit + 65536:
                self._trim()
        return first

    def _trim(self) -> None:
        del self.tail[: max(0, len(self.tail) - self.tail_limit)]

    @property
    def cut_bytes(self) -> int:
        self._trim()
        return self.total_bytes - len(self.head) - len(self.tail)

    def texts(self) -> list[str]:
        """The whole text, or first half, marker line and last half."""
        cut = self.cut_bytes
        if not cut:
            return [(self.head + self.tail).decode("utf-8", "replace")]
        marker = f"\n[… {cut} bytes cut …]\n"
        # A character that was cut is left out at both ends; it has three bytes more at most.
        tail = self.tail[:3].lstrip(bytes(range(0x80, 0xC0))) + self.tail[3:]
        return [_new_decoder().decode(self.head), marker, tail.decode("utf-8", "replace")]


def _new_decoder() -> codecs.IncrementalDecoder:
    """Holds back a character that is not whole yet."""
    return codecs.getincrementaldecoder("utf-8")("replace")


class OutputRecorder:
    """Takes the bytes of both streams of a run.

    Args:
        limit_bytes: Kept per stream.
        on_output: Called with (stream, text); what it raises is kept in `callback_error` and it
            is not called again.
        clock: Seconds since the start of the code.
    """

    def __init__(
        self,
        limit_bytes: int,
        on_output: Callable[[Stream, str], None] | None,
        clock: Callable[[], float],
    ) -> None:
        """A recorder for one run."""
        self._kept: dict[Stream, _Kept] = {
            "stdout": _Kept(limit_bytes),
            "stderr": _Kept(limit_bytes),
        }
        self._on_output = on_output
        self._clock = clock
        self._chunks: list[tuple[float, Stream, bytearray]] = []
        self._last: dict[Stream, bytearray] = {}  # the newest chunk of each stream
        self.callback_error: Exception | None = None

    def stdout(self, chunk: bytes) -> None:
        """Takes bytes of fd 1."""
        self._add("stdout", chunk)

    def stderr(self, chunk: bytes) -> None:
        """Takes bytes of fd 2."""
        self._add("stderr", chunk)

    def _add(self, stream: Stream, chunk: bytes) -> None:
        kept = self._kept[stream]
        if self._on_output is not None:
            kept.decoder = kept.decoder or _new_decoder()
            self._tell(stream, kept.decoder.decode(chunk))
        first = kept.add(chunk)
        if not first:
            return
        last = self._last.get(stream)
        is_newest = last is not None and self._chunks[-1][2] is last
        full = len(self._chunks) >= _CHUNKS_LIMIT_COUNT
        if last is not None and (full or (is_newest and len(last) < 1024)):
            last += first
            return
        last = self._last[stream] = bytearray(first)
        self._chunks.append((self._clock() * 1000, stream, last))

    def _tell(self, stream: Stream, text: str) -> None:
        if text and self._on_output is not None:
            try:
                self._on_output(stream, text)
            except Exception as error:
                self.callback_error = error
                self._on_output = None

    def finish(self) -> None:
        """Hands out what an unfinished character held back."""
        for stream, kept in self._kept.items():
            if kept.decoder is not None:
                self._tell(stream, kept.decoder.decode(b"", final=True))

    def text(self, stream: Stream) -> str:
        """What was kept of a stream, with a marker line where it was cut."""
        kept = self._kept[stream]
        return "".join(kept.texts()) if kept.total_bytes else ""

    def total_bytes(self, stream: Stream) -> int:
        """How much the stream had."""
        return self._kept[stream].total_bytes

    def truncated(self, stream: Stream) -> bool:
        """True when something was cut."""
        return self._kept[stream].cut_bytes > 0

    def interleaved(self) -> tuple[OutputChunk, ...]:
        """Both streams as they came; the last half of a cut stream is one chunk at the end."""
        if not self._chunks:
            return ()
        decoders = {stream: _new_decoder() for stream in self._kept}
        chunks = [
            OutputChunk(round(time_ms, 3), stream, decoders[stream].decode(data))
            for time_ms, stream, data in self._chunks
        ]
        now_ms = round(self._clock() * 1000, 3)
        for stream, kept in self._kept.items():
            if kept.cut_bytes:
                texts = kept.texts()
                chunks.append(OutputChunk(now_ms, stream, texts[1] + texts[2]))
            else:
                rest = decoders[stream].decode(bytes(kept.tail), final=True)
                if rest:
                    chunks.append(OutputChunk(now_ms, stream, rest))
        return tuple(chunk for chunk in chunks if chunk.text)
