"""Whatever a guest writes, the host's decoders answer with a value or with their one error."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from cloche.errors import SandboxErrorCode
from cloche.frames import DEPTH_LIMIT, NONCE_BYTES, FrameError, ResultReader, decode_json
from cloche.model.outcome import Cause, Outcome, Usage
from cloche.model.snippet import SandboxOptions
from cloche.snippets.verdict import judge

NONCE = bytes(range(NONCE_BYTES))
EXITED = Outcome(Cause.EXITED, 1, None, 1.0, Usage(1.0, 1))
SNIPPET = SandboxOptions()

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
# Pieces that make parsers stumble, in any order.
json_shrapnel = st.lists(
    st.sampled_from(
        [b"[", b"]", b"{", b"}", b'"', b":", b",", b"\\", b"\\u", b"\\ud800", b"\\udc00", b"\xff",
         b"1", b"-", b"e", b".", b"0" * 50, b"1e999", b"NaN", b"Infinity", b"true", b"null",
         b"\0", b"\n", b" ", b'"a":', b"[" * 400, b'{"":' * 400, b"9" * 5000, "é".encode(),
         b"\xef\xbb\xbf", b"\xed\xa0\x80"]
    ),
    max_size=30,
).map(b"".join)  # fmt: skip


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def is_plain(value: Any) -> bool:
    """Finite JSON of valid Unicode text."""
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(each) for key, each in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, str):
        return value.encode().decode() == value
    if isinstance(value, float):
        return value - value == 0
    return value is None or isinstance(value, bool | int)


@given(st.binary() | json_shrapnel | json_values.map(lambda value: json.dumps(value).encode()))
def test_json_from_a_guest_decodes_to_plain_bounded_data_or_is_a_frame_error(data: bytes) -> None:
    try:
        value = decode_json(data)
    except FrameError:
        return
    assert is_plain(value)
    assert depth_of(value) <= DEPTH_LIMIT + 1


@given(json_values)
def test_strict_json_decodes_as_the_standard_library_has_it(value: Any) -> None:
    text = json.dumps(value)
    try:
        decoded = decode_json(text.encode())
    except FrameError:
        assert not is_plain(value)
        return
    # Lone surrogates apart, which are replaced.
    if is_plain(value):
        assert decoded == json.loads(text)


@given(st.lists(st.binary() | st.just(NONCE) | json_shrapnel, max_size=8), st.integers(0, 100))
def test_any_bytes_on_the_result_channel_are_an_object_or_a_frame_error(
    chunks: list[bytes], value_limit_bytes: int
) -> None:
    reader = ResultReader(NONCE, value_limit_bytes)
    for chunk in chunks:
        reader.feed(chunk)
    try:
        result = reader.result()
    except FrameError:
        return
    assert result is None or isinstance(result, dict)


@given(json_values, st.data())
def test_a_whole_frame_is_read_however_its_bytes_arrive(value: Any, data: st.DataObject) -> None:
    body = json.dumps({"value": value}, allow_nan=True).encode()
    raw = NONCE + len(body).to_bytes(4, "big") + body
    reader = ResultReader(NONCE, 1000)
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        reader.feed(raw[:size])
        raw = raw[size:]
    try:
        result = reader.result()
    except FrameError:
        assert not is_plain(value)
    else:
        assert result is not None and result.keys() == {"value"}


errors = st.dictionaries(
    st.sampled_from(["code", "name", "message", "stack", "line", "column"]), json_values
)
frames = st.dictionaries(
    st.sampled_from(["ok", "value", "error"]), json_values | errors | st.just(True)
)


@given(frames, st.sampled_from(["snippet", "program"]), st.integers(0, 2))
@example({"ok": False, "error": {"code": []}}, "snippet", 1)
def test_any_object_in_a_frame_leads_to_a_verdict(frame: Any, mode: Any, exit_code: int) -> None:
    body = json.dumps(frame).encode()
    reader = ResultReader(NONCE, 1 << 20)
    reader.feed(NONCE + len(body).to_bytes(4, "big") + body)
    outcome = Outcome(Cause.EXITED, exit_code, None, 1.0, Usage(1.0, 1))
    verdict = judge(outcome, reader, SandboxOptions(mode=mode))
    if exit_code:
        assert verdict.code in {
            SandboxErrorCode.EXECUTION_ERROR,
            SandboxErrorCode.INVALID_CODE,
            SandboxErrorCode.VALUE_TOO_LARGE,
        }
        assert verdict.value is None
    assert (verdict.code is None) == (verdict.error is None)
    for place in (verdict.line, verdict.column):
        assert place is None or (type(place) is int and 0 < place < 2**31)
    for text in (verdict.error, verdict.stack):
        assert text is None or len(text) <= 17 * 1024


@given(st.binary() | json_shrapnel)
def test_any_bytes_lead_to_a_verdict(data: bytes) -> None:
    reader = ResultReader(NONCE, 100)
    reader.feed(data)
    assert judge(EXITED, reader, SNIPPET).code is SandboxErrorCode.EXECUTION_ERROR
