"""The server name in the first bytes of a TLS connection, before any of them is passed on.

An allowlist of one form: a ClientHello that is whole, alone in its records, and names one host in
the clear. Whatever else comes is refused, whoever would understand it.

Source: RFC 8446, sections 4.1.2 and 5.1; RFC 6066, section 3; RFC 9849 (ECH).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HELLO_BYTES_LIMIT: Final = 16 * 1024
# Programs send one, or two for a hello of over 16 KiB; a walk of thousands would cost CPU time.
RECORDS_LIMIT_COUNT: Final = 16
_RECORD_HEADER_BYTES: Final = 5
_HANDSHAKE_HEADER_BYTES: Final = 4
_RECORD_BYTES_LIMIT: Final = 1 << 14
_HANDSHAKE: Final = 22
_MAJOR_VERSION: Final = 3
_CLIENT_HELLO: Final = 1
_RANDOM_BYTES: Final = 32
_SESSION_BYTES_LIMIT: Final = 32
_SERVER_NAME: Final = 0x0000
_HOST_NAME: Final = 0
# encrypted_client_hello, and encrypted_server_name of its drafts.
_ENCRYPTED: Final = frozenset({0xFE0D, 0xFFCE})
_TOO_LONG: Final = "its TLS ClientHello is too long"
_NAME: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")


@dataclass(frozen=True, slots=True)
class Hello:
    """A ClientHello in the one form that is taken; `name` is lower case."""

    name: str


@dataclass(frozen=True, slots=True)
class HelloRefusal:
    """Why the first bytes are not passed on."""

    why: str


class _CutError(Exception):
    """A structure is longer than what it lies in."""


def may_be_tls(data: bytes) -> bool:
    """Whether a connection's first bytes (one or more) may begin a TLS handshake."""
    return data[0] == _HANDSHAKE and data[1:2] in (b"", bytes([_MAJOR_VERSION]))


def read_hello(data: bytes) -> Hello | HelloRefusal | None:
    """Judges the first bytes of a connection.

    Args:
        data: All that has come so far, HELLO_BYTES_LIMIT bytes at most; never raises.

    Returns:
        None as long as more is needed.
    """
    message = bytearray()
    offset = 0
    for _ in range(RECORDS_LIMIT_COUNT):
        header = data[offset : offset + _RECORD_HEADER_BYTES]
        if header and not may_be_tls(header):
            return HelloRefusal("no TLS")
        if len(header) < _RECORD_HEADER_BYTES:
            return _more(data)
        length = int.from_bytes(header[3:])
        if not 0 < length <= _RECORD_BYTES_LIMIT:
            return HelloRefusal("no TLS")
        offset += _RECORD_HEADER_BYTES
        message += data[offset : offset + length]
        if message[:1] != bytes([_CLIENT_HELLO]) and message:
            return HelloRefusal("no TLS ClientHello")
        if offset + length > len(data):
            return _more(data)
        offset += length
        if len(message) < _HANDSHAKE_HEADER_BYTES:
            continue
        whole_bytes = _HANDSHAKE_HEADER_BYTES + int.from_bytes(message[1:4])
        if whole_bytes > HELLO_BYTES_LIMIT:
            return HelloRefusal(_TOO_LONG)
        if len(message) > whole_bytes:
            return HelloRefusal("something follows in the record of its TLS ClientHello")
        if len(message) == whole_bytes:
            try:
                return _read_body(bytes(message[_HANDSHAKE_HEADER_BYTES:]))
            except _CutError:
                return HelloRefusal("its TLS ClientHello is malformed")
    return HelloRefusal("its TLS ClientHello is in too many pieces")


def _more(data: bytes) -> HelloRefusal | None:
    return None if len(data) < HELLO_BYTES_LIMIT else HelloRefusal(_TOO_LONG)


class _Reader:
    """Reads a structure from its start; every length is checked."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def take(self, count: int) -> bytes:
        end = self._offset + count
        if end > len(self._data):
            raise _CutError
        taken = self._data[self._offset : end]
        self._offset = end
        return taken

    def number(self, size_bytes: int) -> int:
        return int.from_bytes(self.take(size_bytes))

    def vector(self, length_bytes: int) -> bytes:
        return self.take(self.number(length_bytes))

    @property
    def is_empty(self) -> bool:
        return self._offset == len(self._data)


def _read_body(body: bytes) -> Hello | HelloRefusal:
    reader = _Reader(body)
    reader.take(2)  # the version: TLS 1.3 says 1.2 here
    reader.take(_RANDOM_BYTES)
    session, ciphers, compressions = reader.vector(1), reader.vector(2), reader.vector(1)
    if len(session) > _SESSION_BYTES_LIMIT or not ciphers or len(ciphers) % 2 or not compressions:
        raise _CutError
    extensions = {} if reader.is_empty else _read_extensions(reader.vector(2))
    if not reader.is_empty or extensions is None:
        raise _CutError
    if _ENCRYPTED & extensions.keys():
        return HelloRefusal("TLS hides its server name (ECH)")
    if _SERVER_NAME not in extensions:
        return HelloRefusal("TLS names no server (no SNI)")
    return _read_server_name(extensions[_SERVER_NAME])


def _read_extensions(data: bytes) -> dict[int, bytes] | None:
    reader = _Reader(data)
    found: dict[int, bytes] = {}
    while not reader.is_empty:
        kind, content = reader.number(2), reader.vector(2)
        if kind in found:
            return None
        found[kind] = content
    return found


def _read_server_name(data: bytes) -> Hello | HelloRefusal:
    outer = _Reader(data)
    entries = _Reader(outer.vector(2))
    kind, name = entries.number(1), entries.vector(2).lower()
    if not outer.is_empty or not entries.is_empty or kind != _HOST_NAME:
        raise _CutError
    if not 0 < len(name) <= 253 or not _NAME.issuperset(name):
        return HelloRefusal("TLS names a server that is no host name")
    return Hello(name.decode("ascii"))
