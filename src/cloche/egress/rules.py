"""What a box may connect to: host names, ports, amounts. Pure."""

from __future__ import annotations

import string
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from cloche.egress.addresses import refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

HOST_PORTS: Final = (80, 443)
NETWORK_PORTS: Final = (80, 443, 8080, 8443)
# Each takes a listener in the box: see `BoxPlan.catch_ports`.
PORTS_LIMIT_COUNT: Final = 32
HOSTS_LIMIT_COUNT: Final = 256
# Source: RFC 1035, section 2.3.4; a name of 255 bytes on the wire has 253 characters.
NAME_LENGTH_LIMIT: Final = 253
_LABEL_LENGTH_LIMIT: Final = 63
_LETTERS_DIGITS: Final = frozenset(string.ascii_lowercase + string.digits)
_LABEL: Final = _LETTERS_DIGITS | {"-", "_"}
_SHOWN_LENGTH: Final = 80


@dataclass(frozen=True, slots=True)
class HostRule:
    """One allowed host.

    Attributes:
        name: Lower case, no trailing dot; an address is in the form that `ipaddress` writes.
        port: None for `HOST_PORTS`.
        with_subdomains: Every name below `name`, and not `name` itself.
    """

    name: str
    port: int | None = None
    with_subdomains: bool = False

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that it is about."""
        return HOST_PORTS if self.port is None else (self.port,)

    def covers(self, name: str) -> bool:
        """Whether a name (lower case, no trailing dot) is meant."""
        return name.endswith(f".{self.name}") if self.with_subdomains else name == self.name


@dataclass(frozen=True, slots=True)
class EgressRules:
    """What a box may connect to; without hosts and `any_public`, nothing.

    Attributes:
        hosts: By name.
        any_public: Whatever has a public address, on every port that is caught.
        limit_bytes: Both ways, all connections together.
        limit_count: Connections in all, refused ones included.
        concurrent_count: Connections at a time; more wait.
    """

    hosts: tuple[HostRule, ...] = ()
    any_public: bool = False
    limit_bytes: int = 256 * 1024 * 1024
    limit_count: int = 1000
    concurrent_count: int = 64

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports to catch, ascending; none where nothing is allowed."""
        ports = {port for rule in self.hosts for port in rule.ports}
        return tuple(sorted(ports.union(NETWORK_PORTS if self.any_public else ())))

    def names(self, name: str) -> bool:
        """Whether a name is allowed by name, and not as one of all."""
        return any(rule.covers(name) for rule in self.hosts)

    def decide(self, name: str, port: int | None = None) -> str | None:
        """Why a host may not be reached; None where it may.

        Args:
            name: Lower case, no trailing dot; or an address.
            port: None: whether there is any on which it may.
        """
        if self.any_public:
            return None
        rules = [rule for rule in self.hosts if rule.covers(name)]
        if not rules:
            return "not in allow_hosts" if self.hosts else "no network is allowed"
        if port is not None and all(port not in rule.ports for rule in rules):
            return "not on this port in allow_hosts"
        return None


def read_rules(hosts: Iterable[str] = (), *, any_public: bool = False) -> EgressRules:
    """Rules from what a caller writes.

    Args:
        hosts: `name`, `name:port`, `*.name`, `*.name:port`, a public IPv4 address, with or
            without a port.
        any_public: Every public address, too.

    Raises:
        ValueError: one of them is no host, or they are too many; tells what to write.
    """
    rules = dict.fromkeys(map(read_host, hosts))
    if len(rules) > HOSTS_LIMIT_COUNT:
        raise ValueError(f"{len(rules)} hosts are over {HOSTS_LIMIT_COUNT}: use *.domain")
    found = EgressRules(tuple(rules), any_public)
    if len(found.ports) > PORTS_LIMIT_COUNT:
        raise ValueError(f"{len(found.ports)} different ports are over {PORTS_LIMIT_COUNT}")
    return found


def read_host(text: str) -> HostRule:
    """One allowed host; see `read_rules`."""
    shown = ascii(text[:_SHOWN_LENGTH])
    if not text.isascii():
        raise ValueError(f"{shown} is not ASCII: write the name's xn--… form")
    if "://" in text or "/" in text:
        raise ValueError(f"{shown} is no host name: leave out the scheme and the path")
    if "@" in text:
        raise ValueError(f"{shown} is no host name: leave out the user")
    if text.startswith("[") or text.count(":") > 1:
        raise ValueError(f"{shown}: boxes have no IPv6; write a name or an IPv4 address")
    host, colon, port_text = text.partition(":")
    port = _read_port(port_text, shown) if colon else None
    name = host.lower().removesuffix(".")
    with_subdomains = name.startswith("*.")
    name = name.removeprefix("*.")
    if _is_address(name):
        why = refusal(name)
        if with_subdomains:
            raise ValueError(f"{shown}: an address has no subdomains")
        if why is not None:
            raise ValueError(f"{shown} is not allowed: {why}; only public ones can be reached")
        return HostRule(name, port)
    if "*" in name:
        raise ValueError(f"{shown}: a wildcard stands first and alone, as in *.example.org")
    if not is_name(name):
        raise ValueError(f"{shown} is no host name: write a full one, as in api.example.org")
    return HostRule(name, port, with_subdomains)


def is_name(name: str) -> bool:
    """Whether a text is a full host name: ASCII, lower case, two labels or more, no last dot.

    No resolver takes it for an address, in whatever spelling: 0x7f.1, 127.1, 0177.0.0.1.
    """
    labels = name.split(".")
    return (
        len(name) <= NAME_LENGTH_LIMIT
        and len(labels) > 1
        and all(map(_is_label, labels))
        and not _is_number(labels[-1])
    )


def _is_label(label: str) -> bool:
    return (
        0 < len(label) <= _LABEL_LENGTH_LIMIT
        and _LABEL.issuperset(label)
        and not label.startswith("-")
        and not label.endswith("-")
    )


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_number(label: str) -> bool:
    """Source: WHATWG URL, "ends in a number"; man 3 inet_aton."""
    return label.isdigit() or (label.startswith("0x") and set(label[2:]) <= set(string.hexdigits))


def _read_port(text: str, shown: str) -> int:
    if not text.isdigit() or text.startswith("0") or len(text) > 5 or int(text) > 65535:
        raise ValueError(f"{shown}: a port is a number from 1 to 65535, as in example.org:443")
    port = int(text)
    if port == 53:
        raise ValueError(f"{shown}: port 53 is the box's own name server")
    return port
