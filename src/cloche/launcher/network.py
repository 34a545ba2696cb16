"""The network of a box: its own loopback and, where it may have more, where its connects arrive.

There is no link to the host. A box that has egress gets a route that makes every IPv4 address one
of its own, and sockets that Cloche serves from outside; no packet leaves the namespace.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_BACKLOG_COUNT = 128
# Holds every connection that a box has by default: past it the kernel answers with cookies, and a
# client that only listens then waits forever.
_CATCH_BACKLOG_COUNT = 1024
_DNS_PORT = 53
# Source: include/uapi/linux/{netlink,rtnetlink}.h; man 7 rtnetlink.
_RTM_NEWROUTE, _NLMSG_ERROR = 24, 2
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_EXCL, _NLM_F_CREATE = 0x1, 0x4, 0x200, 0x400
_RT_TABLE_LOCAL, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL, _RTA_OIF = 255, 4, 254, 2, 4
_HEADER = struct.Struct("=IHHII")


def raise_loopback() -> None:
    """Sets `lo` up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as handle:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack_from("16sH", fcntl.ioctl(handle, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def open_listener(
    port: int, address: str = "127.0.0.1", backlog_count: int = _BACKLOG_COUNT
) -> int:
    """A listening socket for Cloche to serve from outside; by default on the box's loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(backlog_count)
        return listener.detach()


def catch(ports: list[int]) -> list[int]:
    """Makes every IPv4 connect of the box to these ports arrive at Cloche.

    IPv6 gets no route, so that connects fail at once and clients fall back.

    Returns:
        The socket of the box's name server, then a listener a port; none without ports.
    """
    if not ports:
        return []
    _route_all_to_loopback()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as names:
        names.bind(("127.0.0.1", _DNS_PORT))
        caught = [open_listener(port, "0.0.0.0", _CATCH_BACKLOG_COUNT) for port in ports]
        return [names.detach(), *caught]


def _route_all_to_loopback() -> None:
    """`ip route add local 0.0.0.0/0 dev lo`."""
    route = struct.pack(
        "=8BI", socket.AF_INET, 0, 0, 0, _RT_TABLE_LOCAL, _RTPROT_STATIC, _RT_SCOPE_HOST,
        _RTN_LOCAL, 0,
    )  # fmt: skip
    body = route + struct.pack("=HHI", 8, _RTA_OIF, socket.if_nametoindex("lo"))
    flags = _NLM_F_REQUEST | _NLM_F_ACK | _NLM_F_CREATE | _NLM_F_EXCL
    header = _HEADER.pack(_HEADER.size + len(body), _RTM_NEWROUTE, flags, 1, 0)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE) as kernel:
        kernel.send(header + body)
        answer = kernel.recv(4096)
    if len(answer) < _HEADER.size + 4 or _HEADER.unpack_from(answer)[1] != _NLMSG_ERROR:
        raise OSError(errno.EPROTO, "rtnetlink: an answer that is none")
    (refused,) = struct.unpack_from("=i", answer, _HEADER.size)
    if refused:
        raise OSError(-refused, f"rtnetlink: {os.strerror(-refused)}")
