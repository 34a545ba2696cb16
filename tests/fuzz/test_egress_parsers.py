"""What a box sends before anything is passed on: DNS questions, the start of TLS, host names."""

import struct
from ipaddress import IPv4Address

from hypothesis import example, given
from hypothesis import strategies as st

from cloche.egress.addresses import refusal
from cloche.egress.hello import HELLO_BYTES_LIMIT, Hello, HelloRefusal, read_hello
from cloche.egress.names import QUERY_BYTES_LIMIT, answer
from cloche.egress.rules import is_name, read_host

NAME = b"\3api\7example\3org\0"
QUERY = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + NAME + struct.pack(">2H", 1, 1)
SNI = b"\0\0\0\x14\0\x12\0\0\x0fapi.example.org"
BODY = b"\3\3" + b"r" * 32 + b"\0" + b"\0\2\x13\1" + b"\1\0" + struct.pack(">H", len(SNI)) + SNI
MESSAGE = b"\1" + len(BODY).to_bytes(3, "big") + BODY
HELLO = b"\x16\3\1" + struct.pack(">H", len(MESSAGE)) + MESSAGE


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    data = good
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        until = draw(st.integers(at, min(len(data), at + 4)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[until:]
    return data


@given(damaged(QUERY) | st.binary(max_size=600))
@example(QUERY)
def test_an_answer_is_small_well_formed_and_to_what_was_asked(query: bytes) -> None:
    asked: list[str] = []

    def find(name: str) -> IPv4Address:
        asked.append(name)
        return IPv4Address("240.0.0.1")

    told = answer(query, find)
    assert all(name.isprintable() and name == name.lower() for name in asked)
    if told is None:
        return
    assert 12 <= len(told) <= QUERY_BYTES_LIMIT + 16
    assert told[:2] == query[:2] and told[2] & 0x80
    questions, answers, *rest = struct.unpack_from(">4H", told, 4)
    assert questions <= 1 and answers <= questions and rest == [0, 0]
    if questions:
        end = len(told) - 16 * answers
        assert told[12:end] == query[12:end]
    assert bool(answers) <= (len(asked) == 1)


@given(damaged(HELLO) | st.binary(max_size=400).map(lambda data: b"\x16\3\1" + data))
@example(HELLO)
def test_the_start_of_tls_is_judged_the_same_however_it_is_cut(data: bytes) -> None:
    data = data[:HELLO_BYTES_LIMIT]
    whole = read_hello(data)
    verdicts = [read_hello(data[:end]) for end in range(1, len(data) + 1)]
    final = next((verdict for verdict in verdicts if verdict is not None), None)
    assert final == whole
    if isinstance(whole, Hello):
        # The name stands in the bytes, as text.
        assert whole.name.encode() in data.lower()
    elif isinstance(whole, HelloRefusal):
        assert whole.why.isprintable()


@given(st.text(max_size=80) | st.from_regex(r"\A[a-z0-9.*:x-]{1,30}\Z"))
@example("0x7f.1")
@example("127.0.0.1:80")
def test_a_host_is_a_name_or_a_public_address_or_refused_in_print(text: str) -> None:
    try:
        rule = read_host(text)
    except ValueError as error:
        assert str(error).isprintable() and len(str(error)) < 1000
        return
    assert rule.name in text.lower()
    assert rule.with_subdomains or is_name(rule.name) or refusal(rule.name) is None
    assert rule.port is None or 0 < rule.port < 65536
