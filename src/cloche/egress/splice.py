"""Passing the bytes of one connection on: first bytes judged, both ways, each way ends alone."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cloche.egress.hello import HELLO_BYTES_LIMIT, HelloRefusal, may_be_tls, read_hello

if TYPE_CHECKING:
    from collections.abc import Callable

# Long answers and event streams are silent for minutes; the end of the box ends all anyway.
IDLE_TIMEOUT_S: Final = 300.0
HELLO_TIMEOUT_S: Final = 30.0
_CHUNK_BYTES: Final = 64 * 1024
# Closing sends RST. Source: man 7 socket, SO_LINGER.
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class RefusedError(Exception):
    """A connection goes no further; the text tells why."""


def reset(channel: socket.socket) -> None:
    """Closes with a reset, so that nobody takes it for a plain end."""
    with suppress(OSError):
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    channel.close()


async def read_tls_start(guest: socket.socket, name: str) -> bytes:
    """The first bytes of a connection that must be TLS to a name.

    Raises:
        RefusedError: it is another, or none.
    """
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            return await _read_start(guest, name, must_be_tls=True)
    except TimeoutError:
        raise RefusedError("sends no TLS ClientHello") from None


async def _read_start(guest: socket.socket, name: str, *, must_be_tls: bool) -> bytes:
    """The first bytes, once it is known where they lead; empty at the end of the stream."""
    loop = asyncio.get_running_loop()
    start = b""
    while True:
        data = await loop.sock_recv(guest, HELLO_BYTES_LIMIT - len(start))
        if not data:
            if start or must_be_tls:
                raise RefusedError("it ends before its TLS ClientHello does")
            return b""
        start += data
        if not must_be_tls and not may_be_tls(start):
            return start
        hello = read_hello(start)
        if isinstance(hello, HelloRefusal):
            raise RefusedError(hello.why)
        if hello is not None:
            if hello.name != name:
                raise RefusedError(f"TLS asks for {hello.name}")
            return start


async def splice(
    guest: socket.socket,
    upstream: socket.socket,
    spend: Callable[[int], None],
    *,
    start: bytes = b"",
    name: str | None = None,
) -> None:
    """Passes bytes on until both sides have ended.

    Args:
        guest, upstream: The two sides, non-blocking; the caller closes them.
        spend: Told the size of each chunk before it is passed on; raises RefusedError to stop.
        start: What the guest has sent already.
        name: The name that TLS must have, should the guest's first bytes be TLS.

    Raises:
        ExceptionGroup: of RefusedError, or of OSError where a side is gone.
        TimeoutError: nothing was passed on for IDLE_TIMEOUT_S.
    """
    loop = asyncio.get_running_loop()

    async def send(data: bytes, target: socket.socket) -> None:
        idle.reschedule(loop.time() + IDLE_TIMEOUT_S)
        spend(len(data))
        await loop.sock_sendall(target, data)

    async def pump(source: socket.socket, target: socket.socket) -> None:
        while data := await loop.sock_recv(source, _CHUNK_BYTES):
            await send(data, target)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    async def pump_guest() -> None:
        first = start if name is None else await _read_start(guest, name, must_be_tls=False)
        if first:
            await send(first, upstream)
        await pump(guest, upstream)

    async with asyncio.timeout(IDLE_TIMEOUT_S) as idle, asyncio.TaskGroup() as ways:
        ways.create_task(pump_guest())
        ways.create_task(pump(upstream, guest))
