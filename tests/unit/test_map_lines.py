"""Lines of `cloche map`: read as they come, bounded, from files and pipes."""

import asyncio
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.cli.lines import Line, LineReader, write_all


@pytest.fixture
def pipe() -> Iterator[tuple[FileIO, FileIO]]:
    ends = os.pipe()
    with FileIO(ends[0], "rb") as reader, FileIO(ends[1], "wb") as writer:
        yield reader, writer


async def read_all(reader: LineReader) -> list[Line]:
    lines = []
    while not reader.ended:
        if (line := reader.pop()) is None:
            await reader.fill()
        else:
            lines.append(line)
    return lines


def read_file(path: Path, limit_bytes: int) -> list[Line]:
    with FileIO(str(path), "rb") as source:
        return asyncio.run(read_all(LineReader(source, limit_bytes)))


def test_lines_come_whole_and_the_last_one_says_when_it_has_no_end(tmp_path: Path):
    path = tmp_path / "lines"
    path.write_bytes(b"one\n\r\n\ntwo\r\ntorn")
    assert read_file(path, 100) == [
        Line(b"one", 4, True),
        Line(b"\r", 2, True),
        Line(b"", 1, True),
        Line(b"two\r", 5, True),
        Line(b"torn", 4, False),
    ]
    path.write_bytes(b"")
    assert read_file(path, 100) == []


def test_a_line_over_the_limit_is_dropped_and_the_next_one_is_not(tmp_path: Path):
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 2_000_000 + b"\nshort\n" + b"y" * 1001 + b"\n" + b"z" * 1_000_000)
    assert read_file(path, 1000) == [
        Line(None, 2_000_001, True),
        Line(b"short", 6, True),
        Line(None, 1002, True),
        Line(None, 1_000_000, False),
    ]


def test_a_line_over_the_limit_is_not_held(tmp_path: Path):
    path = tmp_path / "zeros"
    with path.open("wb") as writer:
        writer.truncate(64_000_000)

    async def read(reader: LineReader) -> int:
        largest = 0
        while not reader.ended and reader.pop() is None:
            await reader.fill()
            largest = max(largest, len(reader._data))
        return largest

    with FileIO(str(path), "rb") as source:
        assert asyncio.run(read(LineReader(source, 1000))) < 1_000_000


@given(st.binary(max_size=200), st.integers(1, 20), st.integers(1, 30))
def test_no_byte_is_lost_however_the_pieces_come(data: bytes, limit_bytes: int, piece_bytes: int):
    class Pieces(FileIO):
        at = 0

        def read(self, _size: int | None = -1, /) -> bytes:
            self.at += piece_bytes
            return data[self.at - piece_bytes : self.at]

    with Pieces(os.devnull, "rb") as source:
        lines = asyncio.run(read_all(LineReader(source, limit_bytes)))
    expected = data.split(b"\n")
    assert [line.is_whole for line in lines] == [True] * data.count(b"\n") + [False] * bool(
        expected[-1]
    )
    assert sum(line.size_bytes for line in lines) == len(data)
    for line, whole in zip(lines, expected, strict=False):
        assert line.data == (whole if line.size_bytes <= limit_bytes else None)


def test_a_pipe_is_read_as_it_comes_and_waiting_blocks_nobody(pipe: tuple[FileIO, FileIO]):
    source, target = pipe

    async def read() -> list[bytes | None]:
        reader = LineReader(source, 100)
        filling = asyncio.create_task(reader.fill())
        await asyncio.sleep(0)
        assert not filling.done()
        target.write(b"a\nb")
        await filling
        first = reader.pop()
        assert first is not None and reader.pop() is None
        cut_short = asyncio.create_task(reader.fill())
        await asyncio.sleep(0)
        cut_short.cancel()
        await asyncio.gather(cut_short, return_exceptions=True)
        target.close()
        return [first.data, *[line.data for line in await read_all(reader)]]

    assert asyncio.run(read()) == [b"a", b"b"]


def test_a_slow_reader_of_a_pipe_holds_up_the_writer_alone(pipe: tuple[FileIO, FileIO]):
    source, target = pipe
    data = bytes(range(256)) * 4096  # more than a pipe holds

    async def write_and_read() -> bytes:
        writing = asyncio.create_task(write_all(target, data))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not writing.done()
        got = b""
        os.set_blocking(source.fileno(), False)
        while len(got) < len(data):
            got += source.read(65536) or b""
            await asyncio.sleep(0)
        await writing
        return got

    assert asyncio.run(write_and_read()) == data
