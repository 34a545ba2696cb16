"""Tar archives of strangers, from bytes: POSIX ustar and pax, and GNU's long names.

`tarfile` is not for these: some bytes of a header make it search for minutes, or give out a file of
holes that fills the memory.

Source: POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES: Final = 512
_POSIX: Final = b"ustar\0"
_FILES: Final = (b"0", b"\0", b"7")
_KINDS: Final = {
    b"1": stat.S_IFLNK,
    b"2": stat.S_IFLNK,
    b"3": stat.S_IFCHR,
    b"4": stat.S_IFBLK,
    b"5": stat.S_IFDIR,
    b"6": stat.S_IFIFO,
}
_LONG_NAME, _LONG_LINK, _PAX, _PAX_FOR_ALL = b"L", b"K", b"x", b"g"
_ABOUT_THE_NEXT: Final = (_LONG_NAME, _LONG_LINK, _PAX, _PAX_FOR_ALL)
_ABOUT_LIMIT_COUNT: Final = 4
_SPARSE: Final = b"S"
_RECORDS_LIMIT_COUNT: Final = 1_000_000


@dataclass(slots=True)
class _About:
    """What stands before an entry about it."""

    count: int = 0
    path: bytes | None = None
    size_bytes: int | None = None


@dataclass(slots=True)
class _Reader:
    """Goes through an archive once."""

    data: bytes
    at: int = 0
    about: _About = field(default_factory=_About)
    records_left_count: int = _RECORDS_LIMIT_COUNT

    def read(self) -> Iterator[tuple[str, int, bytes]]:
        while (header := self._take(BLOCK_BYTES)) != bytes(BLOCK_BYTES):
            _check_sum(header)
            kind, size_bytes = header[156:157], _number(header[124:136])
            if kind in _ABOUT_THE_NEXT:
                self._read_about(kind, self._take_padded(size_bytes))
                continue
            if kind == _SPARSE:
                raise ValueError("it has a file of holes; pack it without --sparse")
            name = _name_of(header) if self.about.path is None else self.about.path
            mode, content = _kind_of(kind, name), b""
            if kind in _FILES or kind not in _KINDS:  # of the others nothing follows
                if self.about.size_bytes is not None:
                    size_bytes = self.about.size_bytes
                content = self._take_padded(size_bytes)
            mode |= stat.S_IMODE(_number(header[100:108]))
            self.about = _About()
            yield _text(name), mode, content if stat.S_ISREG(mode) else b""
        if self.about.count or self.data.count(b"\0", self.at) != len(self.data) - self.at:
            raise ValueError("something follows its end")

    def _take(self, count_bytes: int) -> bytes:
        taken = self.data[self.at : self.at + count_bytes]
        if len(taken) != count_bytes:
            raise ValueError("it ends early, or has no end")
        self.at += count_bytes
        return taken

    def _take_padded(self, size_bytes: int) -> bytes:
        content = self._take(size_bytes)
        self._take(-size_bytes % BLOCK_BYTES)
        return content

    def _read_about(self, kind: bytes, content: bytes) -> None:
        self.about.count += 1
        if self.about.count > _ABOUT_LIMIT_COUNT:
            raise ValueError("too much stands before an entry about it")
        if kind == _LONG_NAME:
            self.about.path = content.partition(b"\0")[0]
        elif kind != _LONG_LINK:
            self._read_records(content, of_all=kind == _PAX_FOR_ALL)

    def _read_records(self, content: bytes, *, of_all: bool) -> None:
        """Reads `LENGTH KEY=VALUE` and a line's end, again and again."""
        at = 0
        while at < len(content) and content[at]:
            self.records_left_count -= 1
            if self.records_left_count < 0:
                raise ValueError(f"it has more than {_RECORDS_LIMIT_COUNT} pax records")
            length, space, _ = content[at : at + 12].partition(b" ")
            end = at + _digits(length, 10)
            record = content[at + len(length) + 1 : end - 1]
            key, equals, value = record.partition(b"=")
            if not space or not equals or content[end - 1 : end] != b"\n":
                raise ValueError("a pax record has another length than it says")
            at = end
            if key.startswith(b"GNU.sparse"):
                raise ValueError("it has a file of holes; pack it without --sparse")
            if key in (b"path", b"size"):
                if of_all:
                    raise ValueError("it gives all its entries one name or size")
                if key == b"path":
                    self.about.path = value
                else:
                    self.about.size_bytes = _digits(value, 10)


def read_tar(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Reads a tar in its order, in time and memory in proportion to it.

    Yields:
        The path as it stands there, what is not UTF-8 as lone surrogates; kind and permissions, as
        in `st_mode` (a hard link counts as a link, what is unknown as a device); the content of a
        file, empty for all else.

    Raises:
        ValueError: it is damaged, has no end or something behind it, or has a file of holes.
    """
    return _Reader(data).read()


def _check_sum(header: bytes) -> None:
    if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise ValueError("what follows its last entry is no entry and no end")


def _kind_of(kind: bytes, name: bytes) -> int:
    if kind == b"\0" and name.endswith(b"/"):  # as it was before there were kinds
        return stat.S_IFDIR
    return stat.S_IFREG if kind in _FILES else _KINDS.get(kind, stat.S_IFCHR)


def _name_of(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == _POSIX else b""
    return prefix + b"/" + name if prefix else name


def _number(field: bytes) -> int:
    """A number in a header: octal digits, or, where it is large, its bytes behind a mark."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    return _digits(field.partition(b"\0")[0].strip(b" ") or b"0", 8)


def _digits(text: bytes, base: int) -> int:
    if not text.isdigit() or len(text) > 20:
        raise ValueError("a number in it is none")
    return int(text, base)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
