"""The results of `cloche map`: one JSON line each, in a file that can be continued."""

from __future__ import annotations

import contextlib
import json
import sys
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cloche.cli.lines import LineReader
from cloche.errors import InvalidRequestError
from cloche.linux.locks import try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Of a line that is read back: 64 MiB of collected files, each byte at most six characters.
RESULT_LIMIT_BYTES: Final = 512 * 1024 * 1024
# JSON allows these in a string, but many readers of lines end a line at them.
_LINE_ENDS = ("\x85", "\u2028", "\u2029")


@contextlib.contextmanager
def open_output(path: str | None, *, resume: bool) -> Iterator[FileIO]:
    """The file of the results, held by this command alone; standard output for None.

    Raises:
        InvalidRequestError: it cannot be opened, holds something that is not to be continued, or
            is being written by another command.
    """
    if path is None:
        with FileIO(sys.stdout.fileno(), "wb", closefd=False) as output:
            yield output
        return
    try:
        Path(path).touch()
        if not Path(path).is_file():
            raise InvalidRequestError(f"--out: {path} is no regular file")
        descriptor = try_lock(Path(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRequestError(f"--out: {path}: {reason}") from error
    if descriptor is None:
        raise InvalidRequestError(f"--out: {path} is being written by another command")
    with FileIO(descriptor, "rb+") as output:
        if not resume and output.seek(0, 2):
            raise InvalidRequestError(
                f"--out: {path} is there already; continue it with --resume, or name a new file"
            )
        output.seek(0)
        yield output


class Continued:
    """What a file of results holds already, checked line by line.

    Attributes:
        count: Whole results.
    """

    def __init__(self, output: FileIO) -> None:
        """Reads from the start of the file."""
        self.count = 0
        self._output = output
        self._reader = LineReader(output, RESULT_LIMIT_BYTES)
        self._whole_bytes = 0

    async def next(self) -> dict[str, Any] | None:
        """The next whole result; None when there is no other one.

        Raises:
            InvalidRequestError: a line that is no result of this place.
        """
        while (line := self._reader.pop()) is None:
            if self._reader.ended:
                return None
            await self._reader.fill()
        if not line.is_whole:
            return None
        try:
            result = json.loads(line.data or b"")
        except (ValueError, RecursionError):
            result = None
        if not isinstance(result, dict) or result.get("index") != self.count:
            raise InvalidRequestError(
                f"--resume: line {self.count + 1} of the output is not the result of index"
                f" {self.count}; name another file"
            )
        self.count += 1
        self._whole_bytes += line.size_bytes
        return result

    def cut(self) -> None:
        """Drops what follows the last whole result; what is written next comes there."""
        self._output.truncate(self._whole_bytes)
        self._output.seek(self._whole_bytes)


def check_same(result: Mapping[str, Any], identifier: Any) -> None:
    """Raises InvalidRequestError when a result has another id than its line of the input."""
    if json.dumps(result.get("id"), sort_keys=True) != json.dumps(identifier, sort_keys=True):
        index = result["index"]
        raise InvalidRequestError(
            f"--resume: the result of index {index} has the id {json.dumps(result.get('id'))[:80]},"
            f" its line of the input {json.dumps(identifier)[:80]}; the input is another one"
        )


def encode_result(fields: Mapping[str, Any]) -> bytes:
    """A result as one line."""
    text = json.dumps(fields, ensure_ascii=False)
    for end in _LINE_ENDS:
        text = text.replace(end, f"\\u{ord(end):04x}")
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:  # an id with a lone surrogate
        return f"{json.dumps(fields)}\n".encode()
