"""What one line of a test runner's output says of its tests; pure, in linear time.

Counted as passed is what ran and passed, after a retry too; as failed what failed, was cancelled or
interrupted, and an error outside of any test; as skipped what was not run, is still to be written,
or was expected to fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

NUMBER_LIMIT: Final = 999_999_999
_INDENT_LIMIT: Final = 64


@dataclass(slots=True)
class Sums:
    """What lines add up to.

    Attributes:
        broken: Failures that the runner may have counted under `failed` too, such as suites; the
            larger of the two is what failed.
        seen: A line that no other program prints was among them; nothing counts before that.
    """

    passed: int = 0
    failed: int = 0
    broken: int = 0
    skipped: int = 0
    seen: bool = True

    def add(self, other: Sums) -> None:
        """Adds what other lines said."""
        self.passed += other.passed
        self.failed += other.failed
        self.broken += other.broken
        self.skipped += other.skipped
        self.seen = self.seen or other.seen


@dataclass(frozen=True, slots=True)
class Summary:
    """A runner's own counts, or a part of them."""

    runner: str
    sums: Sums


@dataclass(frozen=True, slots=True)
class TapTest:
    """`ok` or `not ok`; `opens` when its own tests follow it, within braces."""

    indent: int
    failed: bool
    skipped: bool
    opens: bool


@dataclass(frozen=True, slots=True)
class TapPlan:
    """How many outermost tests there are to be."""

    tests_count: int


@dataclass(frozen=True, slots=True)
class TapEnd:
    """The closing brace of a test's own tests."""

    indent: int


class TapMark(Enum):
    """A new document; a line that only Node's runner prints."""

    START = 1
    NODE = 2


Fact = Summary | TapTest | TapEnd | TapPlan | TapMark


def read_line(line: str) -> Fact | None:
    """What a line without control characters says, if anything."""
    body = line.strip(" ")
    indent = len(line) - len(line.lstrip(" "))
    if not body or indent > _INDENT_LIMIT:
        return None
    if "0" <= body[0] <= "9":
        return _read_numbered(indent, body)
    if body.startswith("=="):
        return _read_pytest(0, body.strip("= "))
    reader = _READERS.get(body.partition(" ")[0])
    return reader(indent, body) if reader else None


def _number(text: str) -> int | None:
    """A whole number of ASCII digits, as far as Cloche counts."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    return int(digits or "0") if len(digits) <= len(str(NUMBER_LIMIT)) else NUMBER_LIMIT


def _words(**words_of: str) -> Mapping[str, str]:
    """From words to the field of `Sums` that they count for."""
    return MappingProxyType(
        {words: name for name, several in words_of.items() for words in several.split(", ")}
    )


_COUNTED: Final = _words(
    passed="passed, pass, xpassed, subtests passed",
    failed="failed, fail, error, errors, subtests failed",
    skipped="skipped, skip, todo, pending, ignored, expected fail, xfailed, subtests skipped",
)


def _sums_of(parts: Iterable[str], known: Mapping[str, str] = _COUNTED) -> Sums | None:
    """The sums of `1 failed`, `2 passed (2 steps)`, …; None when a part has another form."""
    sums = Sums()
    for part in parts:
        digits, _, words = part.strip(" ").partition(" ")
        number = _number(digits)
        if number is None:
            return None
        name = known.get(words.partition(" (")[0])
        if name is not None:
            setattr(sums, name, getattr(sums, name) + number)
    return sums


def _tests(runner: str, sums: Sums | None) -> Summary | None:
    return None if sums is None else Summary(runner, sums)


def _suites(runner: str, sums: Sums | None) -> Summary | None:
    """Of suites only the failures count, for one that was not loaded has no tests."""
    return None if sums is None else Summary(runner, Sums(broken=sums.failed))


def _lines(
    runner: str, indents: tuple[int, ...], *, is_proof: bool = True, **words_of: str
) -> dict[tuple[int, str], tuple[str, str, bool]]:
    """From (indent, words) to (runner, field, whether no other program prints such a line)."""
    fields = _words(**words_of)
    return {
        (indent, words): (runner, name, is_proof)
        for words, name in fields.items()
        for indent in indents
    }


# Lines of one number and words.
# Source: lib/reporters of mocha and ava, Playwright's base reporter, the output of `bun test`.
_NUMBERED: Final = MappingProxyType(
    _lines("mocha", (2,), passed="passing")
    | _lines("mocha", (2,), is_proof=False, failed="failing", skipped="pending")
    | _lines(
        "bun",
        (0, 1),
        is_proof=False,
        passed="pass",
        failed="fail",
        broken="error, errors",
        skipped="skip, todo",
    )
    | _lines(
        "playwright",
        (2,),
        is_proof=False,
        passed="passed, flaky",
        failed="failed, interrupted, error was not a part of any test, "
        "errors were not a part of any test",
        skipped="skipped, did not run",
    )
    | _lines(
        "ava",
        (2,),
        passed="test passed, tests passed",
        failed="test failed, tests failed, hook failed, hooks failed, unhandled rejection, "
        "unhandled rejections, uncaught exception, uncaught exceptions",
        skipped="test skipped, tests skipped, test todo, tests todo, known failure, known failures",
    )
)


def _read_numbered(indent: int, body: str) -> Fact | None:
    digits, _, words = body.partition(" ")
    number = _number(digits)
    if number is None:
        return _read_tap_plan(indent, digits)
    counted = words.partition(" (")[0].removesuffix(", see above for details")
    known = _NUMBERED.get((indent, counted))
    if known is None:
        return _read_jasmine(indent, body) or _read_pytest(indent, body)
    runner, name, is_proof = known
    sums = Sums(seen=is_proof)
    setattr(sums, name, number)
    return Summary(runner, sums)


_JASMINE_PARTS: Final = _words(failed="failure, failures", skipped="pending spec, pending specs")


def _read_jasmine(indent: int, body: str) -> Summary | None:
    """`4 specs, 1 failure, 2 pending specs`: the first number is that of all."""
    total, *parts = body.split(", ")
    digits, _, words = total.partition(" ")
    sums = _sums_of(parts, _JASMINE_PARTS)
    if indent or words not in ("spec", "specs") or not parts or sums is None:
        return None
    sums.passed = (_number(digits) or 0) - sums.failed - sums.skipped
    return Summary("jasmine", sums)


def _read_pytest(indent: int, body: str) -> Summary | None:
    """`1 failed, 2 passed in 0.10s`, also `in 61.00s (0:01:01)`."""
    counts, _, duration = body.rpartition(" in ")
    seconds = duration.partition(" (")[0]
    if indent or not seconds.endswith("s") or _number(seconds[:-1].replace(".", "", 1)) is None:
        return None
    return _tests("pytest", Sums() if counts == "no tests ran" else _sums_of(counts.split(", ")))


def _read_deno(indent: int, body: str) -> Summary | None:
    """`ok | 3 passed (1 step) | 0 failed | 1 ignored (5ms)`."""
    verdict, _, counts = body.partition(" | ")
    is_verdict = indent == 0 and verdict in ("ok", "FAILED")
    return _tests("deno", _sums_of(counts.split(" | "))) if is_verdict else None


_NODE_LINES: Final = _words(passed="pass", failed="fail, cancelled", skipped="skipped, todo")


def _read_node(indent: int, body: str) -> Summary | None:
    """`tests 3`, `pass 3`, …, each after the sign by which the reader was chosen."""
    name, _, digits = body.partition(" ")[2].partition(" ")
    sums = _sums_of([f"{digits} {name}"], _NODE_LINES)
    if indent or sums is None or not (name == "tests" or name in _NODE_LINES):
        return None
    sums.seen = name == "tests"
    return Summary("node:test", sums)


def _read_vitest(indent: int, body: str) -> Summary | None:
    """`Test Files  1 failed (1)`, `Tests  no tests`, `Errors  1 error`; titles end in a column."""
    title, separator, rest = body.partition("  ")
    if not separator or indent + len(title) != len(" Test Files"):
        return None
    sums = Sums() if rest == "no tests" else _sums_of(rest.split(" | "))
    return _suites("vitest", sums) if title == "Test Files" else _tests("vitest", sums)


def _read_jest(indent: int, body: str) -> Summary | None:
    """`Test Suites: 1 failed, 1 total` and `Tests:       1 failed, 2 passed, 3 total`."""
    title, _, rest = body.partition(":")
    if indent or not body.endswith(" total"):
        return None
    sums = _sums_of(rest.split(", "))
    return _suites("jest", sums) if title == "Test Suites" else _tests("jest", sums)


def _read_tap_totals(indent: int, body: str) -> Summary | None:
    """`Asserts:  2 pass  1 fail  3 of 5 complete`, of those reporters of tap that print no TAP."""
    title, *parts = [part for part in body.split("  ") if part]
    sums = None if indent or not parts else _sums_of(parts)
    return _suites("tap", sums) if title == "Suites:" else _tests("tap", sums)


def _read_uvu(indent: int, body: str) -> Summary | None:
    """`Total:     3`, `Passed:    2`, in columns: what is missing has failed."""
    width = len("Skipped:   ")
    title, number = body[:width].rstrip(" "), _number(body[width:])
    if indent != 2 or number is None:
        return None
    if title == "Passed:":
        return Summary("uvu", Sums(passed=number, failed=-number))
    is_total = title == "Total:"
    sums = Sums(failed=number, seen=False) if is_total else Sums(skipped=number, seen=False)
    return Summary("uvu", sums)


def _read_ran(indent: int, body: str) -> Summary | None:
    """`Ran 3 tests across 1 file.` of bun; `Ran 3 tests in 0.1s` of unittest."""
    words = body.split(" ", 4)
    number = _number(words[1]) if len(words) == 5 else None
    if indent or number is None or words[2] not in ("test", "tests"):
        return None
    if words[3] == "across":
        return Summary("bun", Sums())
    return Summary("unittest", Sums(passed=number)) if words[3] == "in" else None


_UNITTEST_PARTS: Final = _words(
    failed="failures, errors, unexpected successes", skipped="skipped, expected failures"
)


def _read_unittest(indent: int, body: str) -> Summary | None:
    """`OK (skipped=1)`, `FAILED (failures=1, errors=1)`: what did not pass of those that ran."""
    listed = body.removesuffix(")").partition(" (")[2]
    named = [part.rpartition("=") for part in listed.split(", ")]
    sums = _sums_of((f"{number} {name}" for name, _, number in named), _UNITTEST_PARTS)
    if indent or sums is None:
        return None
    sums.passed = -sums.failed - sums.skipped
    return Summary("unittest", sums)


def _read_running(indent: int, body: str) -> Summary | None:
    """`Running 3 tests using 1 worker`, before Playwright's first test."""
    words = body.split(" ", 4)
    is_start = len(words) == 5 and words[3] == "using" and _number(words[1]) is not None
    return Summary("playwright", Sums()) if is_start and indent == 0 else None


def _read_cross(indent: int, body: str) -> Summary | None:
    """A test, a file or a process that ava marks as failed."""
    return Summary("ava", Sums(broken=1, seen=False)) if indent == 2 else None


# With what a line starts by which a runner says that it has found nothing to run.
_NOTHING_FOUND: Final = (
    ("No test files found, exiting ", "vitest"),
    ("No test files found", "tap"),
    ("No tests found, exiting ", "jest"),
    ("No tests found!", "bun"),
    ("No specs found", "jasmine"),
    ("NO TESTS RAN", "unittest"),
    ("Error: No test files found", "mocha"),
    ("Error: No tests found", "playwright"),
    ("error: No test modules found", "deno"),
)


def _read_nothing_found(indent: int, body: str) -> Summary | None:
    runners = (runner for opening, runner in _NOTHING_FOUND if body.startswith(opening))
    runner = None if indent else next(runners, None)
    return None if runner is None else Summary(runner, Sums())


def _read_tap_test(indent: int, body: str) -> TapTest | None:
    """`ok` and `not ok`, with or without a number; a directive may say: skipped, or to do."""
    failed = body.startswith("not ok")
    rest = body.removeprefix("not ok" if failed else "ok")
    word = rest[1:].partition(" ")[0]
    if rest and not (rest[0] == " " and (word in ("-", "#") or _number(word) is not None)):
        return None
    directives = rest.lower().split(" # ")[1:]
    skipped = any(each.lstrip(" ").startswith(("skip", "todo")) for each in directives)
    return TapTest(indent, failed and not skipped, skipped, opens=rest.endswith(" {"))


def _read_tap_end(indent: int, body: str) -> TapEnd | None:
    return TapEnd(indent) if body == "}" else None


def _read_tap_plan(indent: int, word: str) -> TapPlan | None:
    """`1..3`; that of tests within a test is indented, and not of interest."""
    count = _number(word.removeprefix("1.."))
    return None if indent or count is None else TapPlan(count)


def _read_tap_start(indent: int, body: str) -> TapMark | None:
    is_start = indent == 0 and _number(body.removeprefix("TAP version ")) is not None
    return TapMark.START if is_start else None


def _read_tap_comment(indent: int, body: str) -> TapMark | None:
    return TapMark.NODE if indent == 0 and body.startswith("# cancelled ") else None


def _first_of(*readers: Callable[[int, str], Fact | None]) -> Callable[[int, str], Fact | None]:
    def read(indent: int, body: str) -> Fact | None:
        facts = (reader(indent, body) for reader in readers)
        return next((fact for fact in facts if fact is not None), None)

    return read


# By a line's first word.
_READERS: Final[Mapping[str, Callable[[int, str], Fact | None]]] = MappingProxyType(
    {
        "ok": _first_of(_read_deno, _read_tap_test),
        "not": _read_tap_test,
        "}": _read_tap_end,
        "TAP": _read_tap_start,
        "#": _read_tap_comment,
        "\N{INFORMATION SOURCE}": _read_node,
        "Test": _first_of(_read_jest, _read_vitest),
        "Tests": _read_vitest,
        "Errors": _read_vitest,
        "Tests:": _read_jest,
        "Asserts:": _read_tap_totals,
        "Suites:": _read_tap_totals,
        "Total:": _read_uvu,
        "Passed:": _read_uvu,
        "Skipped:": _read_uvu,
        "Ran": _read_ran,
        "OK": _read_unittest,
        "FAILED": _first_of(_read_deno, _read_unittest),
        "Running": _read_running,
        "✘": _read_cross,
        "no": _read_pytest,
        "No": _read_nothing_found,
        "NO": _read_nothing_found,
        "Error:": _read_nothing_found,
        "error:": _read_nothing_found,
    }
)
