"""What is kept of a run's output, and what the caller hears of it as it comes."""

from collections.abc import Iterable

import pytest

from cloche.snippets.output import OutputRecorder


class Heard:
    """A caller's `on_output`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __call__(self, stream: str, text: str) -> None:
        self.calls.append((stream, text))

    def text(self, stream: str) -> str:
        return "".join(text for which, text in self.calls if which == stream)


def record(
    chunks: Iterable[tuple[str, bytes]], limit_bytes: int = 1000, heard: Heard | None = None
) -> OutputRecorder:
    ticks = iter(range(10**6))
    recorder = OutputRecorder(limit_bytes, heard, lambda: next(ticks) / 1000)
    for stream, data in chunks:
        getattr(recorder, stream)(data)
    recorder.finish()
    return recorder


def joined(recorder: OutputRecorder, stream: str) -> str:
    return "".join(chunk.text for chunk in recorder.interleaved() if chunk.stream == stream)


def test_streams_are_kept_apart_and_interleaved_with_their_times() -> None:
    recorder = record([("stdout", b"a\n"), ("stderr", b"b\n"), ("stdout", b"c\n")])
    assert (recorder.text("stdout"), recorder.text("stderr")) == ("a\nc\n", "b\n")
    chunks = recorder.interleaved()
    assert [(chunk.stream, chunk.text) for chunk in chunks] == [
        ("stdout", "a\n"),
        ("stderr", "b\n"),
        ("stdout", "c\n"),
    ]
    assert [chunk.time_ms for chunk in chunks] == sorted(chunk.time_ms for chunk in chunks)


@pytest.mark.case("out-01-invalid-utf8")
def test_a_character_split_over_writes_is_heard_whole() -> None:
    heard = Heard()
    euro = "€".encode()
    record([("stdout", b"1" + euro[:1]), ("stderr", b"x"), ("stdout", euro[1:])], heard=heard)
    assert heard.calls == [("stdout", "1"), ("stderr", "x"), ("stdout", "€")]


@pytest.mark.case("out-01-invalid-utf8")
def test_bytes_that_are_no_text_become_the_replacement_character() -> None:
    heard = Heard()
    recorder = record([("stdout", b"a\xff\xfe"), ("stdout", b"b\xe2\x82")], heard=heard)
    assert recorder.text("stdout") == heard.text("stdout") == joined(recorder, "stdout") == "a��b�"


def test_a_stream_at_its_limit_is_whole_and_one_byte_more_is_cut_in_the_middle() -> None:
    whole = record([("stdout", b"0123456789")], 10)
    assert (whole.text("stdout"), whole.truncated("stdout")) == ("0123456789", False)
    cut = record([("stdout", b"0123456789a")], 10)
    assert cut.text("stdout") == "01234\n[… 1 bytes cut …]\n6789a"
    assert (cut.truncated("stdout"), cut.total_bytes("stdout")) == (True, 11)
    assert joined(cut, "stdout") == cut.text("stdout")


@pytest.mark.parametrize(
    ("limit_bytes", "text"),
    [
        (1, "0\n[… 9 bytes cut …]\n"),
        (2, "0\n[… 8 bytes cut …]\n9"),
        (3, "01\n[… 7 bytes cut …]\n9"),
    ],
)
def test_the_smallest_limits_hold(limit_bytes: int, text: str) -> None:
    for step in (1, 3, 10):
        chunks = [("stdout", b"0123456789"[i : i + step]) for i in range(0, 10, step)]
        assert record(chunks, limit_bytes).text("stdout") == text


def test_the_limit_is_per_stream() -> None:
    recorder = record([("stdout", b"x" * 100), ("stderr", b"y" * 10)], 10)
    assert recorder.truncated("stdout") and not recorder.truncated("stderr")
    assert recorder.text("stderr") == "y" * 10


def test_a_cut_makes_no_characters_that_were_not_there() -> None:
    text = "é" * 50
    for limit_bytes in range(2, 100):
        recorder = record([("stdout", text.encode())], limit_bytes)
        assert set(recorder.text("stdout").partition("\n")[0]) <= {"é"}
        assert set(recorder.text("stdout").rpartition("\n")[2]) <= {"é"}
        assert joined(recorder, "stdout") == recorder.text("stdout")


def test_a_cut_stream_of_wrong_bytes_reads_the_same_both_ways() -> None:
    for data in (b"\xff" + "é".encode() * 20, b"\x80" * 40, b"a\xe2\x82" * 20):
        for limit_bytes in range(1, 39):
            recorder = record([("stdout", data)], limit_bytes)
            assert joined(recorder, "stdout") == recorder.text("stdout")


def test_the_caller_hears_everything_though_only_a_part_is_kept() -> None:
    heard = Heard()
    record([("stdout", b"x" * 100)] * 100, 10, heard)
    assert len(heard.text("stdout")) == 10_000


def test_a_callback_that_raises_is_called_no_more_and_told_to_the_caller() -> None:
    calls = []

    def on_output(stream: str, text: str) -> None:
        calls.append(text)
        raise KeyError("mine")

    recorder = OutputRecorder(100, on_output, lambda: 0.0)
    recorder.stdout(b"a")
    recorder.stdout(b"b")
    recorder.finish()
    assert calls == ["a"]
    assert isinstance(recorder.callback_error, KeyError)
    assert recorder.text("stdout") == "ab"


def test_a_flood_is_held_in_bounded_memory() -> None:
    recorder = OutputRecorder(1 << 16, None, lambda: 0.0)
    for number in range(2000):
        recorder.stdout(b"x" * 65536)
        recorder.stderr(b"%d\n" % number)
    kept = sum(len(kept.head) + len(kept.tail) for kept in recorder._kept.values())
    assert kept < 1 << 19
    assert recorder.total_bytes("stdout") == 2000 * 65536
    assert len(recorder.interleaved()) <= 10_002
    assert recorder.text("stderr").endswith("1998\n1999\n")


def test_many_small_pieces_make_a_bounded_number_of_chunks() -> None:
    recorder = OutputRecorder(1 << 20, None, lambda: 0.0)
    for _ in range(50_000):
        recorder.stdout(b"a")
        recorder.stderr(b"b")
    assert len(recorder.interleaved()) <= 10_002
