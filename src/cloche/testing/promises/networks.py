"""Network: none, unless it is asked for."""

from __future__ import annotations

import socket
from typing import Final

from cloche.errors import ClocheError, SandboxErrorCode
from cloche.testing.claims import describe, holds
from cloche.testing.subject import Subject, promise

# Of TEST-NET-1, which leads nowhere. Source: RFC 5737.
NOWHERE: Final = "192.0.2.1"


@promise(1601, needs=("programs", "python"))
async def there_is_no_route_and_no_name_server(subject: Subject) -> None:
    """No address but the box's own loopback can be reached, and no name is resolved.

    "False: no route, no DNS, no socket but loopback and private Unix ones."
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            "import socket\nseen = []\n"
            f"for host in ('127.0.0.1', '{NOWHERE}', '169.254.169.254', 'example.test'):\n"
            "    try:\n"
            f"        socket.create_connection((host, {port}), 2)\n"
            "        seen.append(host)\n"
            "    except OSError:\n"
            "        pass\nseen"
        )
        result = await subject.run(code, language="python", timeout_ms=15_000)
        holds(result.ok and result.value == [], f"reached: {describe(result)}")


@promise(1602, needs=("javascript",))
async def fetch_reaches_nobody(subject: Subject) -> None:
    """`fetch` is not there, or fails.

    "`fetch` only with network."
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            "let seen = 'nothing'; if (typeof fetch === 'function')"
            f" try {{ await fetch('http://127.0.0.1:{port}/'); seen = 'reached' }} catch {{}} seen"
        )
        result = await subject.run(code, language="javascript")
        holds(result.value == "nothing", describe(result))


@promise(1603, without=("network",))
async def a_network_that_cannot_be_had_is_refused(subject: Subject) -> None:
    """Where there is no network to give, asking for it is refused and not ignored.

    "A control that was asked for and cannot be enforced is a refusal. No warning-and-continue."
    """
    for fields in ({"allow_network": True}, {"allow_hosts": ["example.test"]}):
        try:
            result = await subject.run("1", **fields)
        except ClocheError as error:
            codes = (SandboxErrorCode.UNAVAILABLE, SandboxErrorCode.INVALID_REQUEST)
            holds(error.code in codes, f"{error.code}: {error}")
        else:
            raise AssertionError(f"{fields} was ignored: {describe(result)}")


@promise(1604, needs=("network", "python", "programs"))
async def private_addresses_are_refused_even_with_network(subject: Subject) -> None:
    """With `allow_network` public addresses can be reached: never the host's own or private ones.

    "Hosts: these only. True: public addresses."
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            "import socket\nseen = []\n"
            f"for host, port in (('127.0.0.1', {port}), ('169.254.169.254', 80),\n"
            "                   ('10.0.0.1', 80)):\n"
            "    try:\n"
            "        s = socket.create_connection((host, port), 2)\n"
            "        s.sendall(b'GET / HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n')\n"
            "        if s.recv(1):\n            seen.append(host)\n"
            "    except OSError:\n"
            "        pass\nseen"
        )
        result = await subject.run(code, language="python", allow_network=True, timeout_ms=15_000)
        holds(result.ok and result.value == [], f"reached: {describe(result)}")


@promise(1605, needs=("network", "python", "programs"))
async def a_host_that_is_not_named_is_denied_and_told(subject: Subject) -> None:
    """With `allow_hosts` every other name is refused, and stands in `denied`.

    "Hosts: these only"; "`denied` (refused egress)."
    """
    code = (
        "import socket\n"
        "try:\n    socket.create_connection(('other.test', 443), 2)\n    seen = 'reached'\n"
        "except OSError:\n    seen = 'nothing'\nseen"
    )
    result = await subject.run(code, language="python", allow_hosts=["named.test"])
    holds(result.ok and result.value == "nothing", describe(result))
    holds(any("other.test" in entry for entry in result.denied), f"denied: {result.denied}")
