"""The reader of test counts, on lines that a guest makes up between those of a real runner."""

from functools import cache
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cloche.jobs.reports.reader import ReportReader
from cloche.model.job import TestCounts

REPORTS = Path(__file__).parents[1] / "data" / "reports"
# What is missing is a failure there, so that a line more can mend it.
MENDABLE = ("uvu", "tape-uncaught")
NAMES = sorted(path.stem for path in REPORTS.iterdir() if not path.stem.startswith(MENDABLE))

Line = tuple[str, str]
streams = st.sampled_from(("stdout", "stderr"))
numbers = st.sampled_from(("0", "1", "2", "90", "9" * 30, "x", "-1"))
shapes = st.sampled_from(
    [
        " Test Files  {} failed | {} passed (9)",
        "      Tests  {} failed | {} passed (9)",
        "      Tests  no tests",
        "     Errors  {} errors",
        "Test Suites: {} failed, {} total",
        "Tests:       {} failed, {} passed, 9 total",
        "\N{INFORMATION SOURCE} tests {}",
        "\N{INFORMATION SOURCE} pass {}",
        "\N{INFORMATION SOURCE} fail {}",
        "  {} passing (1s)",
        "  {} failing",
        "  {} tests passed",
        "  {} failed",
        "  {} passed (1s)",
        "Running {} tests using {} workers",
        " {} pass",
        " {} fail",
        "Ran {} tests across {} files. [1s]",
        "Ran {} tests in 0.1s",
        "OK (skipped={})",
        "FAILED (failures={}, errors={})",
        "==== {} failed, {} passed in 0.1s ====",
        "no tests ran in 0.1s",
        "ok | {} passed | {} failed (1s)",
        "{} specs, {} failures",
        "Asserts:  {} pass  {} fail",
        "Suites:   {} pass  {} fail",
        "No test files found, exiting with code 0",
        "TAP version 13",
        "1..{}",
        "ok {} - made up",
        "not ok {} - made up",
        "ok {} - made up # SKIP",
        "not ok {} - made up # TODO",
        "ok {} - opened {{",
        "not ok {} - opened {{",
        "}}",
        "  ---",
        "# cancelled {}",
    ]
)
summaries = st.builds(
    lambda prefix, indent, shape, first, second: prefix + indent + shape.format(first, second),
    st.sampled_from(("", "", "packages/a test: ", "[0] ")),
    st.sampled_from(("", "", "    ", "        ")),
    shapes,
    numbers,
    numbers,
)
lines = st.tuples(streams, summaries | st.text(max_size=30))


@cache
def lines_of(name: str) -> tuple[Line, ...]:
    output, _, errors = (
        (REPORTS / f"{name}.txt").read_bytes().decode().partition("----- stderr -----\n")
    )
    return (
        *(("stdout", line) for line in output.split("\n")),
        *(("stderr", line) for line in errors.split("\n")),
    )


def counts_of(read: list[Line]) -> TestCounts | None:
    reader = ReportReader()
    for stream, line in read:
        reader.feed(stream, line)
    return reader.counts()


@given(st.lists(lines, max_size=40))
def test_counts_are_numbers_within_bounds_whatever_is_written(written: list[Line]) -> None:
    counts = counts_of(written)
    if counts is not None:
        assert counts.runner
        for number in (counts.passed, counts.failed, counts.skipped):
            assert 0 <= number < 10**9


@given(st.sampled_from(NAMES), st.lists(st.tuples(st.integers(0, 10**6), lines), max_size=8))
def test_no_line_takes_a_failure_away(name: str, inserted: list[tuple[int, Line]]) -> None:
    read = list(lines_of(name))
    real = counts_of(read)
    for at, line in inserted:
        read.insert(at % (len(read) + 1), line)
    counts = counts_of(read)
    if real is not None:
        assert counts is not None
        assert counts.failed >= real.failed


@given(
    st.sampled_from(NAMES),
    st.lists(
        st.tuples(
            st.integers(0, 10**6),
            st.integers(0, 10**6),
            st.sampled_from(
                ("\x1b[31m", "\x1b[0m", "\x1b[38;5;245m", "\x9b1m", "\x1b]0;x\a", "\x1b7")
            ),
        ),
        max_size=20,
    ),
)
def test_escape_sequences_change_nothing(name: str, inserted: list[tuple[int, int, str]]) -> None:
    read = list(lines_of(name))
    real = counts_of(read)
    for number, at, sequence in inserted:
        stream, line = read[number % len(read)]
        if not {"\x1b", "\x9b"} & set(line):
            at %= len(line) + 1
            read[number % len(read)] = stream, line[:at] + sequence + line[at:]
    assert counts_of(read) == real


@given(st.sampled_from(NAMES), st.randoms(use_true_random=False))
def test_how_the_streams_are_mixed_changes_nothing(name: str, random: Random) -> None:
    waiting = {
        stream: [line for line in lines_of(name) if line[0] == stream][::-1]
        for stream in ("stdout", "stderr")
    }
    read = []
    while any(waiting.values()):
        stream = random.choice([each for each in waiting if waiting[each]])
        read.append(waiting[stream].pop())
    mixed, real = counts_of(read), counts_of(list(lines_of(name)))
    assert (mixed is None) == (real is None)
    if mixed is not None and real is not None:
        assert sorted(mixed.runner.split("+")) == sorted(real.runner.split("+"))
        assert (mixed.passed, mixed.failed, mixed.skipped) == (
            *(real.passed, real.failed),
            real.skipped,
        )
