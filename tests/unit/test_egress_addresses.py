"""The address table, against the library's opinion and the ways around it."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import pytest

from cloche.egress import addresses
from cloche.egress.addresses import refusal

# The library says global, in one version or another, and the table refuses.
STRICTER_V4 = [
    IPv4Network(text)
    for text in (
        "168.63.129.16/32", "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24",
        "192.88.99.0/24", "192.175.48.0/24", "224.0.0.0/4",
    )
]  # fmt: skip
STRICTER_V6 = [
    IPv6Network(text)
    for text in (
        "::/8", "64:ff9b::/96", "100:0:0:1::/64", "2001::/23", "2002::/16", "2620:4f:8000::/48",
        "3ffe::/16", "3fff::/20", "5f00::/16", "fec0::/10", "ff00::/8",
    )
]  # fmt: skip


def edges(network):
    """The first and last address of a network, and their neighbours outside."""
    first, last = int(network.network_address), int(network.broadcast_address)
    kind = type(network.network_address)
    top = (1 << network.max_prefixlen) - 1
    return [kind(value) for value in (first - 1, first, last, last + 1) if 0 <= value <= top]


def samples():
    tables = [*addresses._IPV4, *addresses._IPV6]
    found = {each for network, _ in tables for each in edges(network)}
    found |= {each for network in [*STRICTER_V4, *STRICTER_V6] for each in edges(network)}
    found |= {IPv4Address(first << 24 | 0x010101) for first in range(256)}
    found |= {IPv6Address(first << 112 | 1) for first in range(0, 0x10000, 0x80)}
    return sorted(found, key=lambda each: (each.version, int(each)))


@pytest.mark.parametrize("version", [4, 6])
def test_the_table_is_as_strict_as_the_library_and_stricter_only_where_listed(version):
    wrong = []
    for address in samples():
        if address.version != version:
            continue
        stricter = STRICTER_V4 if version == 4 else STRICTER_V6
        listed = any(address in network for network in stricter)
        # Outside 2000::/3 nothing is given out, whatever the library thinks of it.
        listed |= version == 6 and address not in IPv6Network("2000::/3")
        if (refusal(address) is None) != (address.is_global and not listed):
            wrong.append((str(address), refusal(address), address.is_global))
    assert wrong == []


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "loopback"), ("127.255.255.254", "loopback"), ("::1", "loopback"),
        ("0.0.0.0", "reserved"), ("::", "reserved"), ("10.1.2.3", "private"),
        ("172.31.255.255", "private"), ("192.168.0.1", "private"), ("100.64.0.1", "private"),
        ("fd12:3456::1", "private"), ("fec0::1", "private"), ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"), ("fe80::1%eth0", "link-local"), ("2600::1%eth0", "link-local"),
        ("169.254.169.254", "metadata"), ("169.254.170.2", "metadata"),
        ("168.63.129.16", "metadata"), ("100.100.100.200", "metadata"), ("192.0.0.192", "metadata"),
        ("fd00:ec2::254", "metadata"), ("fd20:ce::254", "metadata"), ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"), ("240.0.0.1", "reserved"), ("255.255.255.255", "reserved"),
        ("192.0.2.1", "documentation"), ("2001:db8::1", "documentation"),
        ("3fff::1", "documentation"), ("198.18.0.1", "benchmarking"), ("2001:2::1", "benchmarking"),
        ("::ffff:8.8.8.8", "translated"), ("::ffff:127.0.0.1", "translated"),
        ("::127.0.0.1", "translated"), ("::ffff:0:169.254.169.254", "translated"),
        ("64:ff9b::a9fe:a9fe", "translated"), ("64:ff9b:1::a9fe:a9fe", "translated"),
        ("64:ff9b::8.8.8.8", "translated"), ("2002:7f00:1::", "translated"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "translated"),
        ("2600:1f18::5efe:127.0.0.1", "translated"),
        ("2600:1f18::200:5efe:10.0.0.1", "translated"), ("4000::1", "reserved"),
        ("5f00::1", "special"), ("100::1", "special"), ("2001:20::1", "special"),
        ("0177.0.0.1", "no address"), ("127.1", "no address"), ("0x7f000001", "no address"),
        ("2130706433", "no address"), ("localhost", "no address"), ("", "no address"),
        ("8.8.8.8 ", "no address"), ("1.1.1.1\n", "no address"),
    ],
)  # fmt: skip
def test_an_address_is_refused_and_its_kind_is_named(address, reason):
    assert reason in (refusal(address) or "not refused")


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "93.184.215.14", "2606:4700::1111", "2a00:1450::1", "2600::1"]
)
def test_a_public_address_is_not_refused_unless_it_is_the_hosts_own(address):
    assert refusal(address) is None
    assert refusal(address, {ip_address(address)}) == "address of this host"
    assert refusal(address, {ip_address("9.9.9.9")}) is None


def test_a_documentation_address_is_taken_for_a_name_that_was_allowed_and_no_other_is() -> None:
    for address in ("192.0.2.1", "198.51.100.7", "203.0.113.80", "2001:db8::1"):
        assert refusal(address) == "documentation address"
        assert refusal(address, named=True) is None
    for address in ("10.0.0.1", "127.0.0.1", "169.254.169.254", "198.18.0.1", "::1", "fd00::1"):
        assert refusal(address, named=True) == refusal(address) is not None
    own = ip_address("203.0.113.80")
    assert refusal(str(own), {own}, named=True) == "address of this host"
