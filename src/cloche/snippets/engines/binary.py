"""Rewrites a WebAssembly binary: one whose memory is that of an instance that already ran.

A module of which an instance was made, initialised and looked at can be written down again with
that memory as its initial data. Each instance of the new module starts where the old one stood, and
is a new one all the same: the kernel maps its memory copy-on-write from one image.

Source: https://webassembly.github.io/spec/core/binary/modules.html (sections, in this order).
"""

from __future__ import annotations

from collections.abc import Iterator

TYPE, IMPORT, FUNCTION, TABLE, MEMORY, GLOBAL, EXPORT, START, ELEMENT, CODE, DATA = range(1, 12)
PAGE_BYTES = 65536
I32, I64 = 0x7F, 0x7E
_MAGIC = b"\0asm\1\0\0\0"
_BLOCK_BYTES = 4096


def unsigned(number: int) -> bytes:
    """Encode as unsigned LEB128."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def signed(number: int) -> bytes:
    """Encode as signed LEB128."""
    encoded = bytearray()
    while not -64 <= number < 64:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number & 0x7F)
    return bytes(encoded)


def read_unsigned(data: bytes, position: int) -> tuple[int, int]:
    """Return an unsigned LEB128 number, and the position behind it."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, position


class Binary:
    """The sections of a module, by number, without those of names and tools.

    Raises:
        ValueError: It is no module of the one form that is understood here.
    """

    def __init__(self, data: bytes) -> None:
        if data[:8] != _MAGIC:
            raise ValueError("this is no WebAssembly module")
        self.sections: dict[int, bytes] = {}
        position = 8
        while position < len(data):
            number = data[position]
            length, position = read_unsigned(data, position + 1)
            if number > DATA:
                raise ValueError(f"a section {number} is not expected here")
            if number:
                self.sections[number] = data[position : position + length]
            position += length

    def assemble(self) -> bytes:
        """Return the module's bytes."""
        ordered = sorted(self.sections.items())
        return _MAGIC + b"".join(bytes([n]) + unsigned(len(body)) + body for n, body in ordered)

    def append(self, section: int, entry: bytes) -> int:
        """Add an entry to a section that is a vector; return its index."""
        count, start = read_unsigned(self.sections[section], 0)
        self.sections[section] = unsigned(count + 1) + self.sections[section][start:] + entry
        return count

    def imports(self) -> list[str]:
        """Return the names of the imported functions, whose place is their index."""
        body = self.sections[IMPORT]
        count, position = read_unsigned(body, 0)
        names = []
        for _ in range(count):
            for _ in range(2):  # the module, then the name
                length, position = read_unsigned(body, position)
                name = body[position : position + length].decode()
                position += length
            if body[position] != 0:
                raise ValueError("only functions can be imported here")
            _, position = read_unsigned(body, position + 1)
            names.append(name)
        return names

    def add_function(self, parameters: bytes, code: bytes) -> int:
        """Add a function without locals and results; return the index of its place in the table.

        The one table has a fixed size and one list of elements that fills it from 1, as the
        linker leaves it; both grow by one.
        """
        kind = self.append(TYPE, b"\x60" + unsigned(len(parameters)) + parameters + b"\0")
        index = len(self.imports()) + self.append(FUNCTION, unsigned(kind))
        body = b"\0" + code + b"\x0b"
        self.append(CODE, unsigned(len(body)) + body)
        table, elements = self.sections[TABLE], self.sections[ELEMENT]
        size, _ = read_unsigned(table, 3)
        head = b"\1\0\x41\1\x0b"  # one list, active, for table 0, from (i32.const 1)
        count, start = read_unsigned(elements, len(head))
        if (
            table != b"\1\x70\1" + 2 * unsigned(size)
            or elements[: len(head)] != head
            or count != size - 1
        ):
            raise ValueError("the table is not as the linker leaves it")
        self.sections[TABLE] = b"\1\x70\1" + 2 * unsigned(size + 1)
        self.sections[ELEMENT] = head + unsigned(count + 1) + elements[start:] + unsigned(index)
        return size

    def export_number(self, name: str, number: int) -> None:
        """Let the module tell a number, as a global of this name that never changes."""
        index = self.append(GLOBAL, bytes([I32, 0, 0x41]) + signed(number) + b"\x0b")
        self.append(EXPORT, unsigned(len(name)) + name.encode() + b"\3" + unsigned(index))

    def set_memory(self, image: bytes) -> None:
        """Let instances start with `image`: whole pages."""
        self.sections[MEMORY] = b"\1\0" + unsigned(len(image) // PAGE_BYTES)
        segments = [
            b"\0\x41" + signed(start) + b"\x0b" + unsigned(end - start) + image[start:end]
            for start, end in _extents(image)
        ]
        self.sections[DATA] = unsigned(len(segments)) + b"".join(segments)


def _extents(image: bytes) -> Iterator[tuple[int, int]]:
    """Yield where `image` is not zero, in blocks."""
    empty = bytes(_BLOCK_BYTES)
    start = None
    for position in range(0, len(image), _BLOCK_BYTES):
        if image[position : position + _BLOCK_BYTES] == empty:
            if start is not None:
                yield start, position
            start = None
        elif start is None:
            start = position
    if start is not None:
        yield start, len(image)
