"""Networks: the sockets of a box's own that Cloche serves, and the addresses of this host."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# Source: include/uapi/linux/{netlink,rtnetlink,if_addr}.h; man 7 netlink, rtnetlink.
_RTM_GETADDR: Final = 22
_RTM_NEWADDR: Final = 20
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEADER: Final = struct.Struct("=IHHII")
_ADDRESS_BYTES: Final = 8  # struct ifaddrmsg
_ATTRIBUTE: Final = struct.Struct("=HH")


@dataclass(frozen=True, slots=True)
class CaughtSockets:
    """Where a box's network ends.

    Attributes:
        dns: A UDP socket, 127.0.0.1:53 in the box.
        listeners: Port → a socket that listens there on every IPv4 address; the local address of
            what it accepts is the one that the box meant.
    """

    dns: socket.socket
    listeners: Mapping[int, socket.socket]

    def copy(self) -> CaughtSockets:
        """The same sockets once more, to be closed on their own."""
        return CaughtSockets(
            self.dns.dup(), {port: listener.dup() for port, listener in self.listeners.items()}
        )

    def drain(self) -> None:
        """Ends the connections that wait to be accepted, and forgets questions.

        Requires: nothing in the box makes new ones meanwhile.
        """
        for waiting in (self.dns, *self.listeners.values()):
            waiting.setblocking(False)
        with contextlib.suppress(OSError):  # there are no more
            while True:
                self.dns.recv(1)
        for listener in self.listeners.values():
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

    def close(self) -> None:
        """Closes them all. Idempotent."""
        self.dns.close()
        for listener in self.listeners.values():
            listener.close()


def own_addresses() -> frozenset[IPAddress]:
    """Every address of this host's interfaces.

    Raises:
        OSError: the kernel does not tell them.
    """
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    body = struct.pack("=8x")  # of any family
    request = _HEADER.pack(
        _HEADER.size + len(body), _RTM_GETADDR, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0
    )
    found: set[IPAddress] = set()
    with socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE) as kernel:
        kernel.send(request + body)
        while True:
            data = kernel.recv(64 * 1024)
            while len(data) >= _HEADER.size:
                length, message_kind, *_ = _HEADER.unpack_from(data)
                if message_kind == _NLMSG_DONE:
                    return frozenset(found)
                if message_kind == _NLMSG_ERROR or not _HEADER.size <= length <= len(data):
                    raise OSError(errno.EPROTO, "rtnetlink does not list the addresses")
                if message_kind == _RTM_NEWADDR:
                    found |= _read_addresses(data[_HEADER.size + _ADDRESS_BYTES : length])
                data = data[_align(length) :]


def _read_addresses(attributes: bytes) -> set[IPAddress]:
    found: set[IPAddress] = set()
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if length < _ATTRIBUTE.size:
            break
        # A point-to-point link has its peer as ADDRESS and its own as LOCAL: neither is outside.
        if kind in (_IFA_ADDRESS, _IFA_LOCAL):
            found.add(ipaddress.ip_address(attributes[_ATTRIBUTE.size : length]))
        attributes = attributes[_align(length) :]
    return found


def _align(length: int) -> int:
    return (length + 3) & ~3
