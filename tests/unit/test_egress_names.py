"""The name server of a box: what it answers, and what it takes for a question."""

import struct
from ipaddress import IPv4Address, IPv4Network

import pytest

from cloche.egress.names import Placeholders, ResponseCode, answer

A, AAAA, HTTPS, TXT, PTR = 1, 28, 65, 16, 12
PLACE = IPv4Address("240.0.0.7")


def name_of(text):
    return b"".join(bytes([len(part)]) + part for part in text.encode().split(b".")) + b"\0"


def query(name=b"\3api\7example\3org\0", kind=A, *, flags=0x0100, counts=(1, 0, 0, 0), rest=b""):
    return struct.pack(">6H", 0xBEEF, flags, *counts) + name + struct.pack(">2H", kind, 1) + rest


def find(name):
    return PLACE if name == "api.example.org" else ResponseCode.NO_SUCH_NAME


def code_of(told):
    return struct.unpack_from(">H", told, 2)[0] & 15


def test_an_allowed_name_gets_its_placeholder_in_an_answer_to_its_question():
    asked = query(b"\3aPi\7eXample\3ORG\0")  # letters as they were sent: resolvers check it
    told = answer(asked, find)
    assert struct.unpack_from(">6H", told) == (0xBEEF, 0x8180, 1, 1, 0, 0)
    assert told[12 : len(asked)] == asked[12:]
    record = struct.pack(">3HIH", 0xC00C, A, 1, 300, 4) + PLACE.packed
    assert told[len(asked) :] == record


@pytest.mark.parametrize("kind", [AAAA, HTTPS, 64, TXT, PTR, 255])
def test_other_records_of_an_allowed_name_are_none(kind):
    told = answer(query(kind=kind), find)
    assert struct.unpack_from(">6H", told) == (0xBEEF, 0x8180, 1, 0, 0, 0)


def test_another_name_does_not_exist():
    told = answer(query(name_of("evil.example")), find)
    assert (code_of(told), told[6:8]) == (ResponseCode.NO_SUCH_NAME, b"\0\0")


OPT = b"\0" + struct.pack(">HHIH", 41, 1232, 0, 0)


def test_an_opt_record_is_taken_and_not_answered():
    told = answer(query(counts=(1, 0, 0, 1), rest=OPT), find)
    assert struct.unpack_from(">4H", told, 4) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    "asked",
    [
        query(counts=(0, 0, 0, 0)),
        query(counts=(2, 0, 0, 0), rest=b"\1a\0\0\1\0\1"),
        query(counts=(1, 1, 0, 0)),
        query(counts=(1, 0, 1, 0)),
        query(counts=(1, 0, 0, 2), rest=OPT + OPT),
        query(counts=(1, 0, 0, 1)),
        query(counts=(1, 0, 0, 1), rest=OPT[:-1]),
        query(counts=(1, 0, 0, 1), rest=OPT + b"x"),
        query(counts=(1, 0, 0, 1), rest=b"\0" + struct.pack(">HHIH", 1, 1, 0, 0)),
        query(rest=b"trailing"),
        query(b"\xc0\x0c"),
        query(b"\3api\xc0\x0c"),
        query(b"\x40" + b"a" * 64 + b"\0"),
        query(b"\7a.b.c.d\3org\0"),
        query((b"\x3f" + b"a" * 63) * 5 + b"\0"),
        query()[:-1],
        query()[:20],
        query()[:12],
    ],
)
def test_a_malformed_question_is_told_so(asked):
    asked_names = []
    told = answer(asked, asked_names.append)
    assert code_of(told) == ResponseCode.MALFORMED
    assert len(told) == 12 and asked_names == []


@pytest.mark.parametrize("asked", [b"", b"x" * 11, query(flags=0x8180), b"\0" * 513, query() * 20])
def test_what_is_no_query_gets_no_answer(asked):
    assert answer(asked, find) is None


def test_other_operations_and_classes_are_not_implemented():
    assert code_of(answer(query(flags=0x2800), find)) == ResponseCode.NOT_IMPLEMENTED
    chaos = query()[:-1] + b"\3"
    assert code_of(answer(chaos, find)) == ResponseCode.NOT_IMPLEMENTED


def test_a_name_that_is_no_text_is_asked_for_in_printable_form():
    seen = []

    def refuse(name):
        seen.append(name)
        return ResponseCode.NO_SUCH_NAME

    answer(query(b"\4a\n\xffb\3org\0"), refuse)
    answer(query(b"\0"), refuse)
    assert seen == ["a\\n\\xffb.org", ""]


def test_placeholders_are_one_a_name_and_end_at_their_limit():
    places = Placeholders(3)
    given = [places.give(name) for name in ("a.test", "b.test", "a.test", "c.test", "d.test")]
    assert given[0] == given[2] and given[4] is None
    assert len({given[0], given[1], given[3]}) == 3
    assert all(each in IPv4Network("240.0.0.0/4") for each in given[:4])
    assert [places.name_of(each) for each in given[:4]] == ["a.test", "b.test", "a.test", "c.test"]
    for address in ("240.0.0.0", "240.0.0.4", "255.255.255.255", "127.0.0.1", "8.8.8.8"):
        assert places.name_of(IPv4Address(address)) is None
