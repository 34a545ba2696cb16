"""Text splices, and the way back from a position in the spliced text to the caller's.

Lines are counted from 1 and end as JavaScript says: LF, CR, CRLF, U+2028, U+2029. Columns are
counted from 1 in UTF-16 code units, which is what every JavaScript engine reports.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Edit = tuple[int, int, int]
"""(line, column, delta): at `column` of `line` of the spliced text, `-delta` units were inserted.

`line` and `column` are 1-based and name the first inserted unit; `delta` is never positive.
"""


@dataclass(frozen=True, slots=True)
class Splice:
    """Put `text` in place of the bytes `start` to `end` of the source.

    Requires: `text` holds no line terminator unless it ends the source, or it stands for a
    piece with the same line terminators; a piece that is replaced (`start` < `end`) has the
    same length in UTF-16 units as `text`, so that only insertions move columns.
    """

    start: int
    end: int
    text: str


def apply_splices(source: bytes, splices: Iterable[Splice]) -> tuple[str, list[Edit]]:
    """Return the spliced text and its edits, in the order of the text.

    Requires: `source` is UTF-8; no two splices overlap. Of several insertions at one place the
    first given comes first.
    """
    pieces: list[str] = []
    edits: list[Edit] = []
    line, column, done = 1, 1, 0
    for splice in sorted(splices, key=lambda splice: splice.start):
        kept = source[done : splice.start].decode()
        pieces += (kept, splice.text)
        line, column = _advance(line, column, kept)
        if splice.start == splice.end and splice.text:
            edits.append((line, column, -_units(splice.text)))
        line, column = _advance(line, column, splice.text)
        done = splice.end
    pieces.append(source[done:].decode())
    return "".join(pieces), edits


def compose_edits(first: Sequence[Edit], second: Sequence[Edit]) -> list[Edit]:
    """Return the edits of a text that was spliced twice.

    Args:
        first: Those of the first time, whose result was spliced again.
        second: Those of the second time.
    """
    if not first or not second:
        return list(first or second)
    result: list[Edit] = []
    waiting = list(reversed(first))
    line = shift = 0  # of the second text against the first, on this line
    for edit in (*second, None):
        if edit is None or edit[0] != line:
            limit = edit[0] if edit is not None else None
            while waiting and (limit is None or waiting[-1][0] < limit):
                early_line, column, delta = waiting.pop()
                result.append((early_line, column + (shift if early_line == line else 0), delta))
            if edit is None:
                break
            line, shift = edit[0], 0
        place = edit[1] - shift
        while waiting and waiting[-1][0] == line and waiting[-1][1] < place:
            _, column, delta = waiting.pop()
            head = min(-delta, place - column)
            result.append((line, column + shift, -head))
            if head < -delta:  # the second insertion is inside of the first
                waiting.append((line, column + head, delta + head))
        result.append(edit)
        shift -= edit[2]
    return result


def map_position(
    line: int, column: int, *, line_offset: int, edits: Sequence[Sequence[int]]
) -> tuple[int, int]:
    """Map a position in the transformed text to the caller's text.

    The whole of it, for a harness in another language (`edits` in order, all integers):

        shift = 0
        for each [l, c, delta] of edits:
            if l == line and column >= c: shift += max(delta, c - column)
        return (line - line_offset, column + shift)

    Ensures: a position inside inserted text maps to the place of the insertion. A line after the
    caller's last one (the end of the text) is passed through.
    """
    shift = 0
    for edit_line, start, delta in edits:
        if edit_line == line and column >= start:
            shift += max(delta, start - column)
    return line - line_offset, column + shift


def blank(text: str) -> str:
    """Return spaces for `text`, as many UTF-16 units and with the same line terminators."""
    if text.isascii() and text.isprintable():
        return " " * len(text)
    return "".join(
        character if character in "\r\n\u2028\u2029" else " " * _units(character)
        for character in text
    )


def locate(source: bytes, offset: int) -> tuple[int, int]:
    """Return line and column of the byte `offset`, which starts a character."""
    return _advance(1, 1, source[:offset].decode())


def _advance(line: int, column: int, text: str) -> tuple[int, int]:
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = text.replace("\u2028", "\n").replace("\u2029", "\n")
    newlines = text.count("\n")
    if not newlines:
        return line, column + _units(text)
    return line + newlines, 1 + _units(text[text.rindex("\n") + 1 :])


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
