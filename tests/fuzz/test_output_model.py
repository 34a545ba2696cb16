"""The output recorder against a model that may hold everything."""

from hypothesis import given
from hypothesis import strategies as st

from cloche.snippets.output import OutputRecorder

STREAMS = ("stdout", "stderr")
pieces = st.binary(max_size=12) | st.text(max_size=6).map(
    lambda text: text.encode("utf-8", "replace")
)
writes = st.lists(st.tuples(st.sampled_from(STREAMS), pieces), max_size=25)


def cut_model(data: bytes, limit: int) -> str:
    """First half, marker line, last half; characters that the cuts went through are left out."""
    if len(data) <= limit:
        return data.decode("utf-8", "replace")
    head_size = (limit + 1) // 2
    head, tail = data[:head_size], data[len(data) - (limit - head_size) :]
    # The head may end inside of a character: then its last 1 to 3 bytes start one.
    for size in (1, 2, 3):
        start = head[-size:] if size <= len(head) else b""
        if start and is_start_of_character(start):
            head = head[:-size]
            break
    skipped = 0
    while skipped < min(3, len(tail)) and tail[skipped] & 0xC0 == 0x80:
        skipped += 1
    marker = f"\n[… {len(data) - limit} bytes cut …]\n"
    return head.decode("utf-8", "replace") + marker + tail[skipped:].decode("utf-8", "replace")


def is_start_of_character(data: bytes) -> bool:
    """True when some bytes could follow that make it one character."""
    for follow in (b"\x80", b"\xa0", b"\x90", b"\xbf"):
        for count in (1, 2, 3):
            try:
                if len((data + follow[:1] + b"\x80" * (count - 1)).decode()) == 1:
                    return True
            except UnicodeDecodeError:
                continue
    return False


@given(writes, st.integers(1, 60))
def test_the_recorder_equals_its_model(written: list[tuple[str, bytes]], limit: int) -> None:
    heard: list[tuple[str, str]] = []
    recorder = OutputRecorder(limit, lambda stream, text: heard.append((stream, text)), lambda: 0.5)
    for stream, data in written:
        getattr(recorder, stream)(data)
    recorder.finish()
    for stream in STREAMS:
        whole = b"".join(data for which, data in written if which == stream)
        assert recorder.total_bytes(stream) == len(whole)  # type: ignore[arg-type]
        assert recorder.truncated(stream) == (len(whole) > limit)  # type: ignore[arg-type]
        assert recorder.text(stream) == cut_model(whole, limit)  # type: ignore[arg-type]
        told = "".join(text for which, text in heard if which == stream)
        assert told == whole.decode("utf-8", "replace")
        shown = "".join(chunk.text for chunk in recorder.interleaved() if chunk.stream == stream)
        assert shown == recorder.text(stream)  # type: ignore[arg-type]


@given(writes)
def test_uncut_output_is_interleaved_as_it_came(written: list[tuple[str, bytes]]) -> None:
    recorder = OutputRecorder(10_000, None, lambda: 0.0)
    expected: list[tuple[str, str]] = []
    for stream, data in written:
        text = data.decode("ascii", "ignore")
        getattr(recorder, stream)(text.encode())
        if text and expected and expected[-1][0] == stream:
            expected[-1] = (stream, expected[-1][1] + text)
        elif text:
            expected.append((stream, text))
    merged: list[tuple[str, str]] = []
    for chunk in recorder.interleaved():
        if merged and merged[-1][0] == chunk.stream:
            merged[-1] = (chunk.stream, merged[-1][1] + chunk.text)
        else:
            merged.append((chunk.stream, chunk.text))
    assert merged == expected
