"""What the host makes of the bytes that a guest writes on its result channel."""

import json

import pytest

from cloche.frames import (
    DEPTH_LIMIT,
    NONCE_BYTES,
    FrameError,
    ResultReader,
    decode_json,
    encode_request,
)

NONCE = bytes(range(NONCE_BYTES))


def frame(body: bytes, nonce: bytes = NONCE, length: int | None = None) -> bytes:
    return nonce + (len(body) if length is None else length).to_bytes(4, "big") + body


def read(*chunks: bytes, value_limit_bytes: int = 1000) -> dict[str, object] | None:
    reader = ResultReader(NONCE, value_limit_bytes)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.result()


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_a_request_is_its_length_and_its_json() -> None:
    data = encode_request({"code": "é\n"})
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert json.loads(data[4:]) == {"code": "é\n"}


def test_a_frame_may_come_byte_by_byte() -> None:
    data = frame(b'{"ok":true,"value":[1,"\xc3\xa9"]}')
    assert read(*(data[i : i + 1] for i in range(len(data)))) == {"ok": True, "value": [1, "é"]}


def test_nothing_written_is_no_result() -> None:
    assert read() is None
    assert read(b"") is None


@pytest.mark.parametrize(
    "written",
    [
        b"{",
        NONCE,
        NONCE + b"\0\0\0",
        frame(b'{"ok":true}', nonce=bytes(NONCE_BYTES)),
        frame(b'{"ok":true}', length=10),
        frame(b'{"ok":true}', length=12),
        frame(b'{"ok":true}', length=2**32 - 1),
        frame(b'{"ok":true}') + b"x",
        frame(b'{"ok":true}') * 2,
        b"noise" + frame(b'{"ok":true}'),
        frame(b""),
        frame(b"[]"),
        frame(b"null"),
        frame(b'"text"'),
        frame(b"{'ok':true}"),
    ],
)
def test_anything_but_one_whole_frame_is_refused(written: bytes) -> None:
    with pytest.raises(FrameError):
        read(written)


def test_a_flood_is_counted_and_not_kept() -> None:
    reader = ResultReader(NONCE, 1000)
    reader.feed(frame(b"{}"))
    for _ in range(100):
        reader.feed(bytes(1 << 20))
    assert len(reader._data) <= reader.limit_bytes < 1 << 20
    assert reader.body_bytes() == 100 * (1 << 20) + 2
    with pytest.raises(FrameError):
        reader.result()


@pytest.mark.parametrize(
    "text",
    [
        b"NaN",
        b"[Infinity]",
        b'{"a":-Infinity}',
        b"1e999",
        b"-1e309",
        b"9" * 4301,
        b'{"a":1,}',
        b"[1,]",
        b"01",
        b"'a'",
        b'"\n"',
        b"1 2",
        b"\xef\xbb\xbf1",
        b"",
        b"nul",
        nested(100_000),
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        nested(DEPTH_LIMIT + 3),
    ],
)
def test_what_is_not_strict_json_is_refused(text: bytes) -> None:
    with pytest.raises(FrameError):
        decode_json(text)


def test_depth_and_digits_at_their_limits_pass() -> None:
    value = decode_json(b'{"value":' + nested(DEPTH_LIMIT) + b"}")
    for _ in range(DEPTH_LIMIT - 1):
        (value,) = value.values() if isinstance(value, dict) else value
    assert value == [[]]
    assert decode_json(b"9" * 4300) == 10**4300 - 1
    # Brackets in text are no depth.
    assert decode_json(b'"' + b"[" * 1000 + b'"') == "[" * 1000


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (rb'"\ud800"', "�"),
        (rb'"\udc00\ud800"', "��"),
        (rb'"\uD83D\uDE00"', "😀"),
        (rb'"\uD83Dx\uDE00"', "�x�"),
        (rb'"\uDBFFf"', "�f"),
        (b'"\xff\xfe"', "��"),
        (b'"\xed\xa0\x80"', "���"),
        (b'"\xf0\x9f\x98"', "�"),
        (rb'"\\ud800"', r"\ud800"),
    ],
)
def test_what_is_no_unicode_text_becomes_the_replacement_character(data: bytes, text: str) -> None:
    assert decode_json(data) == text
    assert decode_json(b'{"a":[{' + data + b":" + data + b"}]}") == {"a": [{text: text}]}


def test_a_frame_larger_than_may_be_is_the_last_word_at_once() -> None:
    """Nobody waits for the rest of it: the run would hang until its deadline."""
    ended: list[bool] = []
    reader = ResultReader(NONCE, 1000, on_result=lambda: ended.append(True))
    reader.feed(NONCE + (reader.limit_bytes - NONCE_BYTES - 4).to_bytes(4, "big"))
    assert ended == []  # the control: one that may still come
    reader = ResultReader(NONCE, 1000, on_result=lambda: ended.append(True))
    reader.feed(NONCE + reader.limit_bytes.to_bytes(4, "big"))
    assert ended == [True]
    with pytest.raises(FrameError):
        reader.result()
