"""What a span of time is, and what it is not."""
# ruff: noqa: D103 (a test's name says what it promises)

import pytest
from timespan import SpanError, parse, spell


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1h30m", 5_400),
        ("2 days", 172_800),
        ("1 week, 3 days", 864_000),
        ("5 MIN", 300),
    ],
)
def test_a_span_is_read_as_people_write_it(text: str, seconds: int) -> None:
    assert parse(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "h", "1 parsec", "-1h", "1h 2h"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(SpanError):
        parse(text)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 seconds"),
        (1, "1 second"),
        (5_400, "1 hour 30 minutes"),
        (694_861, "1 week 1 day 1 hour 1 minute 1 second"),
    ],
)
def test_a_span_is_spelled_with_its_largest_unit_first(seconds: int, words: str) -> None:
    assert spell(seconds) == words


def test_what_was_spelled_can_be_read_again() -> None:
    assert all(parse(spell(seconds)) == seconds for seconds in range(0, 1_000_000, 997))
