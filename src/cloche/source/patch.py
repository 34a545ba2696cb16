"""Changes to one text, gathered in any order: pieces blanked out, words put in between."""

from collections.abc import Iterator

from tree_sitter import Node

from .positions import Splice, blank, locate


class RefusalError(Exception):
    """The text is not run: why, and at which node. Never leaves `cloche.source`."""

    def __init__(self, message: str, node: Node) -> None:
        """Keeps both."""
        super().__init__(message)
        self.message = message
        self.node = node


class Patch:
    """Gathers what becomes of one text. What stands inside a blanked piece goes with it."""

    def __init__(self, source: bytes) -> None:
        """Nothing is changed yet. Requires: `source` is UTF-8."""
        self.source = source
        self._erased: list[tuple[int, int, str, str]] = []
        self._inserted: list[tuple[int, int, str]] = []
        self._fresh = _fresh_word(source)
        self._fresh_count = 0

    def __bool__(self) -> bool:
        """Tell whether anything changes."""
        return bool(self._erased or self._inserted)

    def text(self, node: Node) -> str:
        """The source of a node."""
        return self.source[node.start_byte : node.end_byte].decode()

    def fresh_name(self) -> str:
        """A name that the text does not hold."""
        self._fresh_count += 1
        return f"{self._fresh}_{self._fresh_count}"

    def erase(self, start: int, end: int, first: str = "", last: str = "") -> None:
        """Blank the bytes from `start` to `end`; `first` and `last` overwrite its ends."""
        if start < end:
            self._erased.append((start, end, first, last))

    def erase_node(self, node: Node, first: str = "") -> None:
        """Blank a node."""
        self.erase(node.start_byte, node.end_byte, first)

    def before(self, node: Node, text: str) -> None:
        """Insert what opens at a node: what encloses more stands before what encloses less."""
        self._inserted.append((node.start_byte, node.start_byte - node.end_byte, text))

    def after(self, node: Node, text: str) -> None:
        """Insert what closes a node: what encloses less stands before what encloses more."""
        # A length of 2^40 keeps every closing before every opening of the same place.
        self._inserted.append((node.end_byte, node.end_byte - node.start_byte - (1 << 40), text))

    def before_all(self, node: Node, text: str) -> None:
        """Insert before a node and before all that `before` puts there."""
        self._inserted.append((node.start_byte, -(1 << 62), text))

    def after_brace(self, node: Node, text: str) -> None:
        """Insert right after a node, before all that `after` puts there."""
        self._inserted.append((node.end_byte, -(1 << 42), text))

    def close(self, node: Node, text: str) -> None:
        """Insert right at the end of a node, before all that `after` puts there."""
        self._inserted.append((node.end_byte, -(1 << 41), text))

    def splices(self) -> list[Splice]:
        """All of it, in the order of the text, none inside of another."""
        result: list[Splice] = []
        inserted = iter(sorted(self._inserted, key=lambda entry: entry[:2]))
        waiting = next(inserted, None)
        done = 0
        for start, end, first, last in self._outermost():
            while waiting is not None and waiting[0] <= start:
                if waiting[0] >= done:
                    result.append(Splice(waiting[0], waiting[0], waiting[2]))
                waiting = next(inserted, None)
            spaces = blank(self.source[start:end].decode())
            kept = spaces[len(first) : len(spaces) - len(last)]
            result.append(Splice(start, end, first + kept + last))
            done = end
        while waiting is not None:
            if waiting[0] >= done:
                result.append(Splice(waiting[0], waiting[0], waiting[2]))
            waiting = next(inserted, None)
        return result

    def locate(self, node: Node) -> tuple[int, int]:
        """Line and column where a node begins."""
        return locate(self.source, node.start_byte)

    def _outermost(self) -> Iterator[tuple[int, int, str, str]]:
        done = -1
        for piece in sorted(self._erased, key=lambda piece: (piece[0], -piece[1], piece[2] == "")):
            if piece[0] >= done:
                yield piece
                done = piece[1]


def _fresh_word(source: bytes) -> str:
    """Return `$cloche` and a number that never stand together in the text; in linear time."""
    taken = set()
    for piece in source.split(b"$cloche")[1:]:
        digits = piece[:8].split(b"_")[0]
        if digits.isdigit():
            taken.add(int(digits))
    number = next(number for number in range(len(taken) + 1) if number not in taken)
    return f"$cloche{number}"
