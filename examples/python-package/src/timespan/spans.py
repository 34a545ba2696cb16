"""Between a span's text and its number of seconds."""

from itertools import groupby

_UNITS = {"week": 604_800, "day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
_NAMES = {
    spelling: seconds
    for name, seconds in _UNITS.items()
    for spelling in (name, f"{name}s", name[0], f"{name[:3]}", f"{name[:3]}s")
}


class SpanError(ValueError):
    """The text is no span of time."""


def parse(text: str) -> int:
    """The seconds in a span such as `1h30m`, `2 days` or `1 week, 3 days`.

    Raises:
        SpanError: It is none; a unit is unknown, or there twice.
    """
    words = ["".join(word) for _, word in groupby(text.replace(",", " "), key=str.isalpha)]
    words = [word.strip().lower() for word in words if word.strip()]
    if not words or len(words) % 2:
        raise SpanError(f"{text!r} is no span: write numbers with units, such as 1h30m")
    found: dict[int, int] = {}
    for number, unit in zip(words[::2], words[1::2], strict=True):
        seconds = _NAMES.get(unit)
        if seconds is None or not number.isdecimal():
            raise SpanError(f"{number} {unit} is no number with a unit")
        if seconds in found:
            raise SpanError(f"{unit} is there twice")
        found[seconds] = int(number) * seconds
    return sum(found.values())


def spell(seconds: int) -> str:
    """A span in words, the largest unit first: `1 hour 30 minutes`; `0 seconds` for none."""
    if seconds < 0:
        raise SpanError("a span is not negative")
    parts = []
    for name, size in _UNITS.items():
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {name}{'s' if count > 1 else ''}")
    return " ".join(parts) or "0 seconds"
