"""A job's log: lines from bytes, the bound on what is kept, floods."""

import itertools
import json

import pytest

from cloche.jobs.log import JobLog
from cloche.model.events import LogEvent


class Listener:
    def __init__(self):
        self.events = []

    def __call__(self, event):
        assert isinstance(event, LogEvent)
        self.events.append(event)

    @property
    def lines(self):
        return [(event.stream, event.text) for event in self.events]


def make_log(listener, limit_bytes=1 << 20, path=None):
    log = JobLog(limit_bytes, listener, itertools.count(1).__next__)
    if path is not None:
        log.open(path)
    return log


def read(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.case("out-01-invalid-utf8")
def test_bytes_become_lines_of_text_whatever_chunks_they_come_in():
    listener = Listener()
    step = make_log(listener).open_step("s")
    for chunk in (b"a\xff\xfe\x97b\n", b"\xe2\x82", b"\xac euro\r\n", b"\n", b"end"):
        step.stdout(chunk)
    step.stderr(b"\xc0\x80 tail\n")
    assert ("stdout", "end") not in listener.lines
    step.close()
    assert listener.lines == [
        ("stdout", "a���b"),
        ("stdout", "€ euro"),
        ("stdout", ""),
        ("stderr", "�� tail"),
        ("stdout", "end"),
    ]


def test_each_line_says_when_and_where_it_was_and_the_file_has_them_all(tmp_path):
    listener = Listener()
    log = make_log(listener, path=tmp_path / "log")
    step = log.open_step("s")
    step.stdout("é\n\x1b[31mred\n".encode())
    step.note("of Cloche's own")
    log.close()
    log.close()  # idempotent
    assert read(tmp_path / "log") == [
        {"time": 1, "step": "s", "stream": "stdout", "offset": 0, "text": "é"},
        {"time": 2, "step": "s", "stream": "stdout", "offset": 3, "text": "\x1b[31mred"},
        {"time": 3, "step": "s", "stream": "cloche", "offset": 12, "text": "of Cloche's own"},
    ]
    assert [event.offset_bytes for event in listener.events] == [0, 3, 12]
    assert (step.started_at_bytes, step.size_bytes) == (0, 28)


def test_a_line_without_an_end_is_cut_into_parts():
    listener = Listener()
    step = make_log(listener).open_step("s")
    for _ in range(100):
        step.stdout(b"x" * 1000)
    step.close()
    assert "".join(text for _, text in listener.lines) == "x" * 100_000
    assert max(len(text) for _, text in listener.lines) <= 16 * 1024


@pytest.mark.parametrize("line", [b"y\n", b"a longer line than that\n"])
def test_the_file_keeps_both_ends_within_its_limit_and_marks_the_cut(tmp_path, line):
    log = make_log(Listener(), 10_000, tmp_path / "log")
    step = log.open_step("s")
    step.stdout(b"first\n")
    for _ in range(5_000):
        step.stdout(line)
    step.stdout(b"last\n")
    step.close()
    log.close()
    kept = read(tmp_path / "log")
    assert kept[0]["text"] == "first"
    assert kept[-1]["text"] == "last"
    marks = [each for each in kept if each["stream"] == "cloche"]
    assert [each["text"] for each in marks] == [
        f"{log.cut_bytes} bytes of this file are left out here"
    ]
    assert 8_000 < (tmp_path / "log").stat().st_size < 10_500


def test_of_a_flood_the_end_is_told_at_the_end():
    listener = Listener()
    log = make_log(listener)
    seen = []
    step = log.open_step("s", lambda stream, text: seen.append(text))
    for _ in range(100):
        step.stdout(b"y\n" * 50_000)
    step.stdout(b"Tests 3 passed\n")
    told_count = len(listener.events)
    assert told_count < 200_000
    step.close()
    assert len(listener.events) < told_count + 200_000
    assert listener.lines[-1] == ("stdout", "Tests 3 passed")
    assert seen[-1] == "Tests 3 passed"
    left_out = [event for event in listener.events if event.stream == "cloche"]
    assert len(left_out) == 1
    assert "left out here" in left_out[0].text
    whole = 100 * 100_000 + len("Tests 3 passed\n")
    assert step.size_bytes == whole + len(left_out[0].text) + 1
    assert log.offset_bytes == step.size_bytes


def test_a_step_after_a_flood_is_told_line_by_line_again():
    listener = Listener()
    log = make_log(listener)
    flood = log.open_step("flood")
    for _ in range(100):
        flood.stdout(b"y\n" * 50_000)
    flood.close()
    log.open_step("next").stdout(b"hello\n")
    assert listener.lines[-1] == ("stdout", "hello")


def test_a_disk_that_is_full_is_remembered_and_told_at_the_end(tmp_path):
    log = make_log(Listener())

    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    log._file = Full()
    log.add("s", "stdout", "x")
    assert log.failure is not None
    log.add("s", "stdout", "y")  # does not fail in the middle of a step
    with pytest.raises(OSError, match="No space"):
        log.close()
