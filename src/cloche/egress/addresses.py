"""Which addresses nobody in a box may be connected to: our own table, not the library's.

`ipaddress.is_global` is True for NAT64 and 6to4 forms of private addresses, multicast, and places
of cloud providers that only the machine itself should reach.

Source: IANA, IPv4 and IPv6 Special-Purpose Address Registries and the IPv6 unicast assignments
(2025-10); the document behind each line is named there.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

IPAddress = IPv4Address | IPv6Address

_PRIVATE = "private address"
_LOOPBACK = "loopback address"
_LINK_LOCAL = "link-local address"
_MULTICAST = "multicast address"
_METADATA = "cloud metadata address"
_DOCUMENTATION = "documentation address"
_BENCHMARK = "benchmarking address"
_TRANSLATED = "translated address"
_SPECIAL = "special-purpose address"
_RESERVED = "reserved address"
_OWN = "address of this host"
_NO_ADDRESS = "no address"

# The first line that holds an address tells its reason, so single addresses come first.
_IPV4: Final = tuple(
    (IPv4Network(network), reason)
    for network, reason in (
        ("169.254.169.254", _METADATA),  # AWS, Azure, GCP, Oracle and others
        ("169.254.170.2", _METADATA),  # AWS ECS task credentials
        ("169.254.170.23", _METADATA),  # AWS EKS pod identity
        ("168.63.129.16", _METADATA),  # Azure's host, in public space
        ("100.100.100.200", _METADATA),  # Alibaba Cloud
        ("192.0.0.192", _METADATA),  # Oracle Cloud, classic
        ("0.0.0.0/8", _RESERVED),  # RFC 791, 1122: this network; connects to loopback
        ("10.0.0.0/8", _PRIVATE),  # RFC 1918
        ("100.64.0.0/10", _PRIVATE),  # RFC 6598: carriers' NAT
        ("127.0.0.0/8", _LOOPBACK),  # RFC 1122
        ("169.254.0.0/16", _LINK_LOCAL),  # RFC 3927
        ("172.16.0.0/12", _PRIVATE),  # RFC 1918
        ("192.0.0.0/24", _SPECIAL),  # RFC 6890: protocol assignments, DS-Lite, NAT64 discovery
        ("192.0.2.0/24", _DOCUMENTATION),  # RFC 5737
        ("192.31.196.0/24", _SPECIAL),  # RFC 7535: AS112
        ("192.52.193.0/24", _SPECIAL),  # RFC 7450: multicast tunnelling
        ("192.88.99.0/24", _TRANSLATED),  # RFC 7526: relays of 6to4
        ("192.168.0.0/16", _PRIVATE),  # RFC 1918
        ("192.175.48.0/24", _SPECIAL),  # RFC 7534: AS112
        ("198.18.0.0/15", _BENCHMARK),  # RFC 2544
        ("198.51.100.0/24", _DOCUMENTATION),  # RFC 5737
        ("203.0.113.0/24", _DOCUMENTATION),  # RFC 5737
        ("224.0.0.0/4", _MULTICAST),  # RFC 5771
        ("240.0.0.0/4", _RESERVED),  # RFC 1112; the broadcast address, RFC 919
    )
)
_IPV6: Final = tuple(
    (IPv6Network(network), reason)
    for network, reason in (
        ("fd00:ec2::254", _METADATA),  # AWS
        ("fd00:ec2::23", _METADATA),  # AWS EKS pod identity
        ("fd20:ce::254", _METADATA),  # GCP
        ("fd00:42::42", _METADATA),  # Scaleway
        ("::1", _LOOPBACK),  # RFC 4291
        ("::", _RESERVED),  # RFC 4291: unspecified; connects to loopback
        ("::/96", _TRANSLATED),  # RFC 4291: IPv4-compatible
        ("::ffff:0:0/96", _TRANSLATED),  # RFC 4291: IPv4-mapped
        ("::ffff:0:0:0/96", _TRANSLATED),  # RFC 2765: IPv4-translated
        ("64:ff9b::/96", _TRANSLATED),  # RFC 6052: NAT64
        ("64:ff9b:1::/48", _TRANSLATED),  # RFC 8215: local NAT64
        ("100::/64", _SPECIAL),  # RFC 6666: discard
        ("100:0:0:1::/64", _SPECIAL),  # RFC 9780: dummy prefix
        ("2001::/32", _TRANSLATED),  # RFC 4380: Teredo
        ("2001:2::/48", _BENCHMARK),  # RFC 5180
        ("2001::/23", _SPECIAL),  # RFC 2928: protocol assignments, ORCHID, drones, AS112
        ("2001:db8::/32", _DOCUMENTATION),  # RFC 3849
        ("2002::/16", _TRANSLATED),  # RFC 3056: 6to4
        ("2620:4f:8000::/48", _SPECIAL),  # RFC 7534: AS112
        ("3ffe::/16", _RESERVED),  # RFC 3701: 6bone, given back
        ("3fff::/20", _DOCUMENTATION),  # RFC 9637
        ("5f00::/16", _SPECIAL),  # RFC 9602: segment routing
        ("fc00::/7", _PRIVATE),  # RFC 4193
        ("fe80::/10", _LINK_LOCAL),  # RFC 4291
        ("fec0::/10", _PRIVATE),  # RFC 3879: site-local
        ("ff00::/8", _MULTICAST),  # RFC 4291
    )
)
# What IANA gives out to be routed; all else is reserved. Source: RFC 4291, section 2.4.
_IPV6_UNICAST: Final = IPv6Network("2000::/3")
# Upper half of an interface identifier that holds an IPv4 address, its universal bit either way.
# Source: RFC 5214, section 6.1 (ISATAP).
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})


def refusal(
    address: str | IPAddress,
    own_addresses: Collection[IPAddress] = (),
    *,
    named: bool = False,
) -> str | None:
    """Why a connection to an address is not made; None where it is public.

    Args:
        address: A text is taken only in a form that `ipaddress` takes: no octal, no short forms.
        own_addresses: Of the host's interfaces.
        named: It is the address of a name that the caller has allowed. Documentation addresses,
            which nothing routes and laboratories give to their mirrors, are then taken.
    """
    reason = _find_reason(address, own_addresses)
    if named and reason == _DOCUMENTATION:
        return _OWN if ip_address(address) in own_addresses else None
    return reason


def _find_reason(address: str | IPAddress, own_addresses: Collection[IPAddress]) -> str | None:
    try:
        known = ip_address(address) if isinstance(address, str) else address
    except ValueError:
        return _NO_ADDRESS
    if isinstance(known, IPv4Address):
        return _table_reason(known, _IPV4) or (_OWN if known in own_addresses else None)
    if known.scope_id is not None:
        return _LINK_LOCAL
    reason = _table_reason(known, _IPV6)
    if reason is None and known not in _IPV6_UNICAST:
        reason = _RESERVED
    if reason is None and (int(known) >> 32 & 0xFFFF_FFFF) in _ISATAP:
        reason = _TRANSLATED
    return reason or (_OWN if known in own_addresses else None)


def _table_reason(
    address: IPAddress, table: tuple[tuple[IPv4Network | IPv6Network, str], ...]
) -> str | None:
    return next((reason for network, reason in table if address in network), None)
