"""Which hosts may be written, and what they allow."""

import pytest

from cloche.egress.rules import EgressRules, HostRule, is_name, read_host, read_rules


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("api.example.org", HostRule("api.example.org")),
        ("API.Example.ORG.", HostRule("api.example.org")),
        ("example.org:8443", HostRule("example.org", 8443)),
        ("*.example.org", HostRule("example.org", with_subdomains=True)),
        ("*.example.org:80", HostRule("example.org", 80, with_subdomains=True)),
        ("xn--bcher-kva.example", HostRule("xn--bcher-kva.example")),
        ("a_b.example.org", HostRule("a_b.example.org")),
        ("8.8.8.8", HostRule("8.8.8.8")),
        ("8.8.8.8:443", HostRule("8.8.8.8", 443)),
    ],
)
def test_a_host_is_read(text, rule):
    assert read_host(text) == rule


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("https://example.org", "leave out the scheme"), ("example.org/path", "and the path"),
        ("user@example.org", "leave out the user"), ("bücher.example", "xn--"),
        ("example.org:0", "1 to 65535"), ("example.org:65536", "1 to 65535"),
        ("example.org:http", "1 to 65535"), ("example.org:", "1 to 65535"),
        ("example.org:080", "1 to 65535"), ("example.org:53", "name server"),
        ("[2606:4700::1]:443", "no IPv6"), ("2606:4700::1", "no IPv6"), ("::1", "no IPv6"),
        ("127.0.0.1", "loopback"), ("10.0.0.8:80", "private"), ("169.254.169.254", "metadata"),
        ("0.0.0.0", "reserved"), ("127.1", "full one"), ("0x7f.0.0.1", "full one"),
        ("0177.0.0.1", "full one"), ("2130706433", "full one"), ("1.2.3.0x4", "full one"),
        ("*", "wildcard"), ("*.*.org", "wildcard"), ("a.*.org", "wildcard"),
        ("*example.org", "wildcard"), ("*.8.8.8.8", "no subdomains"), ("localhost", "full one"),
        ("", "full one"), (".", "full one"), ("*.", "wildcard"), ("*.org", "full one"),
        ("a..b", "full one"), ("-a.org", "full one"), ("a-.org", "full one"),
        ("a b.org", "full one"), ("a\0.org", "full one"), (f"{'a' * 64}.org", "full one"),
        (".".join(["a" * 60] * 5), "full one"), ("example.org..", "full one"),
    ],
)  # fmt: skip
def test_what_is_no_public_host_is_refused_with_advice(text, advice):
    with pytest.raises(ValueError, match=advice) as caught:
        read_host(text)
    assert str(caught.value).isprintable()


def test_a_rule_covers_its_name_and_no_other():
    rules = read_rules(["example.org", "*.example.net", "only.example.com:8443"])
    allowed = [("example.org", 80), ("example.org", 443), ("a.example.net", 443)]
    allowed += [("a.b.example.net", 80), ("only.example.com", 8443)]
    refused = [
        ("a.example.org", 443), ("example.net", 443), ("notexample.org", 443),
        ("badexample.net", 443), ("example.org.evil.test", 443), ("a.example.net.evil.test", 80),
        ("example.org", 8443), ("only.example.com", 443), ("8.8.8.8", 443), ("", 443),
    ]  # fmt: skip
    assert [rules.decide(*each) for each in allowed] == [None] * len(allowed)
    assert all(rules.decide(*each) for each in refused)
    assert rules.decide("example.org", 8443) == "not on this port in allow_hosts"
    assert rules.decide("evil.test") == "not in allow_hosts"
    assert rules.decide("only.example.com") is None
    assert rules.ports == (80, 443, 8443)


def test_without_hosts_nothing_is_allowed_and_with_any_public_every_name():
    assert EgressRules().decide("example.org", 443) == "no network is allowed"
    assert EgressRules().ports == ()
    whole = read_rules(any_public=True)
    assert whole.decide("example.org", 443) is None and whole.decide("8.8.8.8", 80) is None
    assert whole.ports == (80, 443, 8080, 8443)
    assert 9000 in read_rules(["example.org:9000"], any_public=True).ports


def test_too_many_hosts_or_ports_are_refused():
    read_rules([f"example.org:{port}" for port in range(1000, 1032)])
    with pytest.raises(ValueError, match="33 different ports are over 32"):
        read_rules([f"example.org:{port}" for port in range(1000, 1033)])
    with pytest.raises(ValueError, match="257 hosts are over 256"):
        read_rules([f"h{number}.example.org" for number in range(257)])
    assert len(read_rules(["example.org"] * 300).hosts) == 1


def test_a_name_that_a_resolver_takes_for_an_address_is_no_name():
    assert is_name("a.b") and is_name("0x7g.example") and is_name("7.example")
    for text in ("127.1", "1.2.3.4", "a.0x7f", "a.0x", "a.08", "a", "", "a.", ".a", "A.b", "a.b."):
        assert not is_name(text), text
