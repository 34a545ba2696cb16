"""The first bytes of TLS: those of real clients are read, everything else is refused."""

import ssl
import struct

import pytest

from cloche.egress.hello import HELLO_BYTES_LIMIT, Hello, HelloRefusal, may_be_tls, read_hello


def from_openssl(name, **settings):
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for key, value in settings.items():
        setattr(context, key, value)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def vector(length_bytes, data):
    return len(data).to_bytes(length_bytes, "big") + data


def extension(kind, data):
    return struct.pack(">H", kind) + vector(2, data)


def sni(*names, kind=0):
    return extension(0, vector(2, b"".join(bytes([kind]) + vector(2, name) for name in names)))


GREASE = extension(0x0A0A, b"") + extension(0x1A1A, b"\0")


def hello(extensions=None, *, session=b"s" * 32, ciphers=b"\x0a\x0a\x13\x01", tail=b""):
    body = b"\3\3" + b"r" * 32 + vector(1, session) + vector(2, ciphers) + vector(1, b"\0")
    if extensions is not None:
        body += vector(2, extensions)
    return b"\1" + vector(3, body + tail)


def records(message, size=1 << 14):
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\3\1" + vector(2, piece) for piece in pieces)


GOOD = records(hello(GREASE + sni(b"Api.Example.org") + extension(43, b"\x02\x03\x04")))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_name_of_a_real_client_is_read(version):
    first = from_openssl("api.example.org", maximum_version=version)
    assert read_hello(first) == Hello("api.example.org")


def test_grease_and_letters_do_not_matter():
    assert read_hello(GOOD) == Hello("api.example.org")


@pytest.mark.parametrize("data", [GOOD, from_openssl("api.example.org")], ids=["made", "openssl"])
def test_more_is_waited_for_up_to_the_last_byte(data):
    assert [read_hello(data[:end]) for end in range(len(data))] == [None] * len(data)
    assert read_hello(data) == Hello("api.example.org")


def test_a_hello_in_several_records_is_read_and_one_in_very_many_is_not():
    message = hello(sni(b"api.example.org"))
    assert read_hello(records(message, 20)) == Hello("api.example.org")
    assert read_hello(records(message, 3)) == HelloRefusal(
        "its TLS ClientHello is in too many pieces"
    )


def test_what_follows_in_other_records_is_of_no_concern():
    early_data = b"\x14\3\3\0\1\1" + b"\x17\3\3\0\5hello"
    assert read_hello(GOOD + early_data) == Hello("api.example.org")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "no TLS"), (b"\x80\x2e\1\3\1", "no TLS"), (b"\x16\2\0", "no TLS"),
        (b"\x17\3\3\0\1x", "no TLS"), (b"\x16\3\1\0\0", "no TLS"), (b"\x16\3\1\x40\1x", "no TLS"),
        (records(b"\2" + hello()[1:]), "no TLS ClientHello"),
        (from_openssl(None), "no SNI"), (records(hello()), "no SNI"),
        (records(hello(GREASE)), "no SNI"),
        (records(hello(sni(b"a.test") + extension(0xFE0D, b"x"))), "ECH"),
        (records(hello(extension(0xFE0D, b"x"))), "ECH"),
        (records(hello(sni(b"a.test") + extension(0xFFCE, b"x"))), "ECH"),
        (records(hello(sni(b"a.test") + sni(b"b.test"))), "malformed"),
        (records(hello(sni(b"a.test", b"b.test"))), "malformed"),
        (records(hello(sni(b"a.test", kind=1))), "malformed"),
        (records(hello(sni())), "malformed"), (records(hello(extension(0, b""))), "malformed"),
        (records(hello(extension(0, sni(b"a.test")[4:] + b"x"))), "malformed"),
        (records(hello(sni(b""))), "no host name"), (records(hello(sni(b"a\0.test"))), "no host"),
        (records(hello(sni("ä.test".encode()))), "no host name"),
        (records(hello(sni(b"a" * 254))), "no host name"),
        (records(hello(sni(b"a.test"), tail=b"x")), "malformed"),
        (records(hello(sni(b"a.test")[:-1])), "malformed"),
        (records(hello(sni(b"a.test"), session=b"s" * 33)), "malformed"),
        (records(hello(sni(b"a.test"), ciphers=b"")), "malformed"),
        (records(hello(sni(b"a.test"), ciphers=b"\x13")), "malformed"),
        (records(hello(sni(b"a.test")) + b"x"), "something follows"),
        (records(hello(sni(b"a.test")) * 2), "something follows"),
        (records(b"\1\0\0\0"), "malformed"),
        (records(hello(sni(b"a.test") + extension(21, b"\0" * HELLO_BYTES_LIMIT))), "too long"),
        (b"\x16\3\1\0\5\1\xff\xff\xff", "too many pieces or long"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_its_reason(data, why):
    told = read_hello(data)
    if why == "too many pieces or long":
        assert told is None  # the record is not whole yet
        told, why = read_hello(data + b"x"), "too long"
    assert isinstance(told, HelloRefusal) and why in told.why


def test_the_longest_hello_that_is_taken_ends_the_wait():
    data = records(hello(sni(b"a.test") + extension(21, b"\0" * 16200)))
    assert len(data) <= HELLO_BYTES_LIMIT and read_hello(data) == Hello("a.test")
    endless = b"\x16\3\1\x40\0\1\0\x3f\xf0" + b"\0" * HELLO_BYTES_LIMIT
    assert read_hello(endless[: HELLO_BYTES_LIMIT - 1]) is None
    assert isinstance(read_hello(endless[:HELLO_BYTES_LIMIT]), HelloRefusal)


def test_tls_is_told_from_other_protocols_by_its_first_two_bytes():
    assert may_be_tls(b"\x16") and may_be_tls(GOOD)
    assert not any(map(may_be_tls, (b"\x16\2", b"G", b"SSH-2.0", b"\0\3")))
