"""The name server of a box: answers from Cloche's own table, and asks nobody.

An allowed name gets a placeholder, an address of the reserved range that says which name was
meant when the box connects to it. So no question of a box ever leaves the host.

Source: RFC 1035, section 4; RFC 6891 (OPT); RFC 9460 (HTTPS records).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

QUERY_BYTES_LIMIT: Final = 512
NAMES_LIMIT_COUNT: Final = 1000
TTL_S: Final = 300
_HEADER: Final = struct.Struct(">6H")
_IS_ANSWER, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0100, 0x0080
_OPCODE_SHIFT, _OPCODE_MASK = 11, 0xF
_TYPE_A, _TYPE_OPT, _CLASS_IN = 1, 41, 1
_LABEL_BYTES_LIMIT: Final = 63
_NAME_BYTES_LIMIT: Final = 255
_OPT_BYTES: Final = 11  # an empty name, then type, class, TTL and the length of its data
# The answer's name, as a pointer to the question's.
_POINTER: Final = b"\xc0\x0c"
# Source: RFC 1112, section 4: class E, never given out; Linux connects to it.
_FIRST_PLACEHOLDER: Final = int(IPv4Address("240.0.0.1"))


class ResponseCode(IntEnum):
    """How a question ended. Source: RFC 1035, section 4.1.1."""

    OK = 0
    MALFORMED = 1
    FAILED = 2
    NO_SUCH_NAME = 3
    NOT_IMPLEMENTED = 4


@dataclass(frozen=True, slots=True)
class Question:
    """What a box asks.

    Attributes:
        message_id: Its own number of it.
        flags: Of the header.
        text: The question as it was sent, for the answer.
        name: In lower case, without the last dot; what is no ASCII is escaped.
        kind: The type of record.
        kind_class: IN or another.
    """

    message_id: int
    flags: int
    text: bytes
    name: str
    kind: int
    kind_class: int


class Placeholders:
    """Name ↔ address, for one box: given out in order, never taken back."""

    def __init__(self, limit_count: int = NAMES_LIMIT_COUNT) -> None:
        self._limit_count = limit_count
        self._by_name: dict[str, IPv4Address] = {}
        self._names: list[str] = []

    def give(self, name: str) -> IPv4Address | None:
        """The name's address; None where there are too many names already."""
        address = self._by_name.get(name)
        if address is None and len(self._names) < self._limit_count:
            address = IPv4Address(_FIRST_PLACEHOLDER + len(self._names))
            self._by_name[name] = address
            self._names.append(name)
        return address

    def name_of(self, address: IPv4Address) -> str | None:
        """The name that an address stands for; None where it stands for none."""
        index = int(address) - _FIRST_PLACEHOLDER
        return self._names[index] if 0 <= index < len(self._names) else None


def answer(query: bytes, find: Callable[[str], IPv4Address | ResponseCode]) -> bytes | None:
    """The answer to a datagram of the box; None where it deserves none.

    Args:
        query: Whatever it is; never raises.
        find: The address of a full host name, or why it has none.
    """
    if not _HEADER.size <= len(query) <= QUERY_BYTES_LIMIT:
        return None
    message_id, flags, *_ = _HEADER.unpack_from(query)
    if flags & _IS_ANSWER:
        return None
    if flags >> _OPCODE_SHIFT & _OPCODE_MASK:
        return _say(message_id, flags, ResponseCode.NOT_IMPLEMENTED)
    question = read_question(query)
    if question is None:
        return _say(message_id, flags, ResponseCode.MALFORMED)
    if question.kind_class != _CLASS_IN:
        return _say(message_id, flags, ResponseCode.NOT_IMPLEMENTED, question.text)
    found = find(question.name)
    if isinstance(found, ResponseCode):
        return _say(message_id, flags, found, question.text)
    # No AAAA, so that clients use IPv4 at once; no HTTPS record, which could ask for ECH.
    record = b""
    if question.kind == _TYPE_A:
        record = _POINTER + struct.pack(">2HIH", _TYPE_A, _CLASS_IN, TTL_S, 4) + found.packed
    return _say(message_id, flags, ResponseCode.OK, question.text, record)


def _say(
    message_id: int, flags: int, code: ResponseCode, question: bytes = b"", record: bytes = b""
) -> bytes:
    kept = flags & (_OPCODE_MASK << _OPCODE_SHIFT | _RECURSION_DESIRED)
    told = _IS_ANSWER | kept | _RECURSION_AVAILABLE | code
    header = _HEADER.pack(message_id, told, bool(question), bool(record), 0, 0)
    return header + question + record


def read_question(query: bytes) -> Question | None:
    """The one question of a query; None where it is malformed.

    Nothing may follow it but one OPT record. Labels are counted, not pointed to: compression has
    no use in a first name.
    """
    message_id, flags, questions_count, *counts = _HEADER.unpack_from(query)
    additional_count = counts[2]
    if questions_count != 1 or counts[:2] != [0, 0] or additional_count > 1:
        return None
    labels: list[bytes] = []
    offset = _HEADER.size
    while True:
        length = query[offset] if offset < len(query) else _LABEL_BYTES_LIMIT + 1
        if length > _LABEL_BYTES_LIMIT:
            return None
        label = query[offset + 1 : offset + 1 + length]
        offset += 1 + length
        if not length:
            break
        labels.append(label)
    end = offset + 4
    if offset - _HEADER.size > _NAME_BYTES_LIMIT or end > len(query):
        return None
    rest = query[end:]
    if bool(rest) != bool(additional_count) or (rest and not _is_opt(rest)):
        return None
    kind, kind_class = struct.unpack_from(">2H", query, offset)
    name = ".".join(ascii(label.decode("latin-1"))[1:-1] for label in labels).lower()
    # A label with a dot in it would read as two.
    if any(b"." in label for label in labels):
        return None
    return Question(message_id, flags, query[_HEADER.size : end], name, kind, kind_class)


def _is_opt(record: bytes) -> bool:
    return (
        len(record) >= _OPT_BYTES
        and record[0] == 0
        and int.from_bytes(record[1:3]) == _TYPE_OPT
        and int.from_bytes(record[9:11]) == len(record) - _OPT_BYTES
    )
