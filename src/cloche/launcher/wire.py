"""Messages between Cloche and the launcher: one JSON object a datagram, descriptors beside it.

The sockets are SOCK_SEQPACKET, so a message arrives whole or not at all.
Only Cloche and the launcher's own code ever hold an end of one.
"""

from __future__ import annotations

import array
import json
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MESSAGE_LIMIT_BYTES = 256 * 1024
DESCRIPTOR_LIMIT = 64


def send(channel: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
    """Sends one message; raises OSError when the other side is gone."""
    data = json.dumps(message, separators=(",", ":")).encode()
    ancillary = (
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        if descriptors
        else []
    )
    channel.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Waits for one message. Returns (None, []) when the other side is gone."""
    space = socket.CMSG_SPACE(DESCRIPTOR_LIMIT * 4)
    try:
        data, ancillary, flags, _ = channel.recvmsg(
            MESSAGE_LIMIT_BYTES, space, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionError:
        return None, []
    received = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(payload[: len(payload) - len(payload) % 4])
    descriptors = received.tolist()
    if not data:
        return None, descriptors
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for descriptor in descriptors:
            os.close(descriptor)
        raise ValueError("a message was cut")
    message = json.loads(data)
    if not isinstance(message, dict):
        raise ValueError("a message is no object")
    return message, descriptors


def failure(step: str, error: OSError) -> dict[str, Any]:
    """The event that tells which step the kernel refused, and how."""
    message = f"{error.strerror} {error.filename or ''}".strip()
    return {"event": "failed", "step": step, "errno": error.errno, "message": message}
