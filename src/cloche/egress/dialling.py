"""The host's side of egress: looking names up and connecting to an address, nothing else."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Final

# Of all boxes together: a box that asks for slow names holds up other look-ups, never Cloche's
# other threads.
_LOOKUPS: Final = ThreadPoolExecutor(8, thread_name_prefix="cloche-lookup")
_ADDRESSES_LIMIT_COUNT: Final = 8


async def resolve(name: str) -> tuple[str, ...]:
    """The addresses of a full host name, the preferred first, by the host's own resolver.

    Search domains of the host have no say.

    Raises:
        OSError: there are none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_LOOKUPS, _look_up, f"{name}.".encode("ascii"))
    return tuple(dict.fromkeys(found))[:_ADDRESSES_LIMIT_COUNT]


def _look_up(name: bytes) -> list[str]:
    answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(place[0]) for _, _, _, _, place in answers]


async def dial(address: str, port: int) -> socket.socket:
    """A connection to an address, which is no name; non-blocking; the caller closes it.

    Raises:
        OSError: there is none.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    channel = socket.socket(family, socket.SOCK_STREAM)
    try:
        channel.setblocking(False)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(channel, (address, port))
    except BaseException:
        channel.close()
        raise
    return channel
