"""What a box asks for over HTTP: the one form of request that is taken, and why others are not.

Not a parser of HTTP but of the part of it that package managers use, as an allowlist: a GET or
HEAD without a body, one spelling of everything. What is read here goes nowhere but into a lookup.

Source: RFC 9112, sections 2 to 7 and 11.2.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Final

HEAD_BYTES_LIMIT: Final = 16 * 1024
HEADERS_LIMIT_COUNT: Final = 100
HEAD_END: Final = b"\r\n\r\n"
_SHOWN_LENGTH: Final = 200
_TOKEN: Final = frozenset((string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~").encode())
_VISIBLE: Final = frozenset(range(0x21, 0x7F))
_VALUE: Final = _VISIBLE | frozenset(b" \t")
# What asks for more than an answer, or says where another request begins.
_REFUSED_HEADERS: Final = frozenset({"transfer-encoding", "upgrade", "expect"})


@dataclass(frozen=True, slots=True)
class Request:
    """A request in the one form that is taken.

    Attributes:
        method: `GET` or `HEAD`.
        path: Begins with a slash; printable ASCII, nothing decoded.
        keeps_open: The box wants to ask more on this connection.
    """

    method: str
    path: str
    keeps_open: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not taken; the connection ends with it.

    Attributes:
        status: The HTTP status to answer with.
        what: The request as far as it was understood: short, printable.
        why: The rule that it met.
    """

    status: int
    what: str
    why: str


def show(data: bytes) -> str:
    """A box's bytes for a log: short, printable."""
    text = data[:_SHOWN_LENGTH].decode("latin-1")
    shown = ascii(text)[1:-1][:_SHOWN_LENGTH]
    return shown if len(data) <= _SHOWN_LENGTH else f"{shown}..."


def read_request(head: bytes, port: int) -> Request | Refusal:
    """Judges the head of a request.

    Args:
        head: All bytes up to and with the empty line; never raises, whatever they are.
        port: Where the box believes to have connected to.
    """
    first, *lines = head.removesuffix(HEAD_END).split(b"\r\n")
    what = show(first)

    def refuse(status: int, why: str) -> Refusal:
        return Refusal(status, what, why)

    words = first.split(b" ")
    if (
        len(words) != 3
        or words[2] != b"HTTP/1.1"
        or not words[0]
        or not _TOKEN.issuperset(words[0])
    ):
        return refuse(400, "its first line is no request of HTTP/1.1")
    method, target = words[0].decode("ascii"), words[1]
    if not _VISIBLE.issuperset(target) or not target.startswith(b"/"):
        return refuse(400, "its target is no plain path")
    if method not in ("GET", "HEAD"):
        return refuse(405, "only GET and HEAD are allowed")
    if len(lines) > HEADERS_LIMIT_COUNT:
        return refuse(400, f"more than {HEADERS_LIMIT_COUNT} headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        # Also refuses folded lines, and what has a bare CR, LF or NUL in it.
        if not colon or not _is_token(name) or not _VALUE.issuperset(value):
            return refuse(400, f"'{show(line)}' is no header")
        key = name.decode("ascii").lower()
        if key in headers and key in ("host", "content-length", "connection"):
            return refuse(400, f"{key} is given twice")
        headers[key] = value.decode("ascii").strip(" \t")
    for key in sorted(_REFUSED_HEADERS & headers.keys()):
        return refuse(400, f"{key} is not allowed")
    if headers.get("content-length", "0") != "0":
        return refuse(400, "a body is not allowed")
    if headers.get("host", "").lower() not in (f"127.0.0.1:{port}", f"localhost:{port}"):
        return refuse(403, f"its host is not 127.0.0.1:{port}")
    options = [each.strip(" \t").lower() for each in headers.get("connection", "").split(",")]
    return Request(method, target.decode("ascii"), "close" not in options)


def _is_token(data: bytes) -> bool:
    return bool(data) and _TOKEN.issuperset(data)
