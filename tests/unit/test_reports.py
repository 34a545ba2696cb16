"""Test counts, from what real runners printed (`tests/data/reports`), and from worse."""

import tracemalloc
from pathlib import Path

import pytest

from cloche.jobs.reports.reader import ReportReader
from cloche.model.job import TestCounts

REPORTS = Path(__file__).parents[1] / "data" / "reports"
STDERR_STARTS = "----- stderr -----"
NODE_SIGN = "\N{INFORMATION SOURCE}"

# What each runner says of itself: runner, passed, failed, skipped. The names tell the runner and
# its version, then what its tests were: `mixed` is some of each, `broken` a file that does not
# load, `color` with FORCE_COLOR; other words are reporters.
EXPECTED = {
    "ava-broken-and-pass": ("ava", 2, 1, 0),
    "ava-color": ("ava", 0, 1, 3),
    "ava-empty-and-pass": ("ava", 2, 1, 0),
    "ava-hook": ("ava", 0, 2, 0),
    "ava-mixed": ("ava", 0, 1, 3),
    "ava-none": None,
    "ava-pass": ("ava", 2, 0, 0),
    "ava-skipped": ("ava", 0, 0, 2),
    "ava-tap": ("tap", 4, 1, 2),
    "ava-timeout": ("ava", 2, 1, 0),
    "ava-uncaught": ("ava", 0, 1, 0),
    "bun-broken-and-pass": ("bun", 2, 1, 0),
    "bun-color": ("bun", 3, 1, 2),
    "bun-dots": ("bun", 3, 1, 2),
    "bun-empty-file": ("bun", 0, 0, 0),
    "bun-mixed": ("bun", 3, 1, 2),
    "bun-none-allowed": ("bun", 0, 0, 0),
    "bun-pass": ("bun", 2, 0, 0),
    "bun-skipped": ("bun", 0, 0, 2),
    "deno-broken-and-pass": ("deno", 2, 1, 0),
    "deno-mixed": ("deno", 4, 1, 1),
    "deno-none-allowed": ("deno", 0, 0, 0),
    "deno-none": ("deno", 0, 0, 0),
    "deno-pass": ("deno", 2, 0, 0),
    "deno-plain": ("deno", 4, 1, 1),
    "deno-skipped": ("deno", 0, 0, 1),
    "deno-tap": ("tap", 4, 1, 2),
    "jasmine-mixed": ("jasmine", 1, 1, 2),
    "jasmine-none": ("jasmine", 0, 0, 0),
    "jasmine-pass": ("jasmine", 1, 0, 0),
    "jasmine-skipped": ("jasmine", 0, 0, 1),
    "jest29-mixed": ("jest", 3, 1, 2),
    "jest29-none-allowed": ("jest", 0, 0, 0),
    "jest30-broken-and-pass": ("jest", 2, 1, 0),
    "jest30-broken": ("jest", 0, 1, 0),
    "jest30-color": ("jest", 3, 1, 2),
    "jest30-empty-file": ("jest", 0, 1, 0),
    "jest30-mixed": ("jest", 3, 1, 2),
    "jest30-none-allowed": ("jest", 0, 0, 0),
    "jest30-none": ("jest", 0, 0, 0),
    "jest30-pass": ("jest", 2, 0, 0),
    "jest30-skipped": ("jest", 0, 0, 2),
    "mocha-color": ("mocha", 3, 1, 2),
    "mocha-dot": ("mocha", 3, 1, 2),
    "mocha-empty-file": ("mocha", 0, 0, 0),
    "mocha-hook": ("mocha", 0, 1, 0),
    "mocha-list": ("mocha", 3, 1, 2),
    "mocha-mixed": ("mocha", 3, 1, 2),
    "mocha-none": ("mocha", 0, 0, 0),
    "mocha-skipped": ("mocha", 0, 0, 2),
    "mocha-tap": ("tap", 3, 1, 2),
    "node-broken": ("node:test", 0, 1, 0),
    "node-cancelled": ("node:test", 0, 1, 0),
    "node-color": ("node:test", 3, 1, 2),
    "node-coverage": ("node:test", 2, 0, 0),
    "node-dot": None,
    "node-mixed": ("node:test", 3, 1, 2),
    "node-nested": ("node:test", 1, 2, 0),
    "node-none": ("node:test", 0, 0, 0),
    "node-pass": ("node:test", 2, 0, 0),
    "node-skipped": ("node:test", 0, 0, 3),
    "node-tap-broken": ("node:test", 0, 1, 0),
    "node-tap-inside": ("node:test+tap", 2, 1, 0),
    "node-tap-nested": ("node:test", 1, 1, 0),
    "node-tap-none": ("node:test", 0, 0, 0),
    "node-tap-skipped": ("node:test", 0, 0, 3),
    "node-tap": ("node:test", 3, 1, 2),
    "node-todo-fails": ("node:test", 0, 0, 1),
    "one-after-another": ("vitest+node:test", 3, 2, 1),
    "playwright-broken": ("playwright", 0, 0, 0),
    "playwright-color": ("playwright", 1, 1, 2),
    "playwright-flaky": ("playwright", 1, 0, 0),
    "playwright-github": ("playwright", 1, 1, 2),
    "playwright-interrupted": ("playwright", 0, 3, 1),
    "playwright-mixed": ("playwright", 1, 1, 2),
    "playwright-none": ("playwright", 0, 0, 0),
    "playwright-pass": ("playwright", 1, 0, 0),
    "playwright-skipped": ("playwright", 0, 0, 1),
    "pnpm-workspace-color": ("node:test+mocha+vitest", 4, 2, 2),
    "pnpm-workspace": ("node:test+mocha+vitest", 4, 2, 2),
    "pytest-broken": ("pytest", 0, 1, 0),
    "pytest-color": ("pytest", 2, 2, 2),
    "pytest-deselected": ("pytest", 0, 0, 0),
    "pytest-mixed": ("pytest", 2, 2, 2),
    "pytest-none": ("pytest", 0, 0, 0),
    "pytest-quiet": ("pytest", 1, 0, 0),
    "pytest-skipped": ("pytest", 0, 0, 1),
    "qunit-color": ("tap", 1, 1, 2),
    "qunit-empty-file": ("tap", 0, 1, 0),
    "qunit-mixed": ("tap", 1, 1, 2),
    "qunit-skipped": ("tap", 0, 0, 1),
    "tap-base": ("tap", 2, 1, 2),
    "tap-broken": ("tap", 0, 1, 0),
    "tap-mixed": ("tap", 2, 1, 2),
    "tap-none": ("tap", 0, 0, 0),
    "tap-pass": ("tap", 1, 0, 0),
    "tap-skipped": ("tap", 0, 0, 1),
    "tap-terse-broken": ("tap", 1, 1, 0),
    "tape-mixed": ("tap", 3, 1, 2),
    "tape-none": ("tap", 0, 0, 0),
    "tape-skipped": ("tap", 0, 0, 0),
    "tape-todo": ("tap", 0, 0, 1),
    "tape-two": ("tap", 2, 0, 0),
    "tape-uncaught": ("tap", 1, 1, 0),
    "unittest-broken": ("unittest", 0, 1, 0),
    "unittest-class-error": ("unittest", 0, 1, 0),
    "unittest-mixed": ("unittest", 1, 3, 2),
    "unittest-none": ("unittest", 0, 0, 0),
    "unittest-pass": ("unittest", 2, 0, 1),
    "unittest-skipped": ("unittest", 0, 0, 1),
    "uvu-mixed": ("uvu", 1, 1, 1),
    "uvu-none": ("uvu", 0, 0, 0),
    "uvu-pass": ("uvu", 2, 0, 0),
    "uvu-skipped": ("uvu", 0, 0, 1),
    "ver-01-background": ("node:test", 0, 1, 0),
    "ver-01-or-true": ("node:test", 0, 1, 0),
    "ver-01-pipe": ("node:test", 0, 1, 0),
    "ver-01-semicolon": ("node:test", 0, 1, 0),
    "ver-02-echo": None,
    "ver-02-jest": ("jest", 0, 0, 0),
    "ver-02-node-no-such-folder": None,
    "ver-02-node": ("node:test", 0, 0, 0),
    "ver-02-only-skip-and-todo-jest": ("jest", 0, 0, 2),
    "ver-02-only-skip-and-todo-node": ("node:test", 0, 0, 2),
    "ver-02-only-skip-and-todo-vitest": ("vitest", 0, 0, 2),
    "ver-02-vitest": ("vitest", 0, 0, 0),
    "vitest1-broken": ("vitest", 0, 1, 0),
    "vitest1-mixed": ("vitest", 3, 1, 2),
    "vitest1-none-allowed": ("vitest", 0, 0, 0),
    "vitest2-mixed": ("vitest", 3, 1, 2),
    "vitest3-broken": ("vitest", 0, 1, 0),
    "vitest3-mixed": ("vitest", 3, 1, 2),
    "vitest4-broken-and-pass": ("vitest", 2, 1, 0),
    "vitest4-mixed": ("vitest", 3, 1, 2),
    "vitest5-broken-and-pass": ("vitest", 2, 1, 0),
    "vitest5-broken": ("vitest", 0, 1, 0),
    "vitest5-expected-fail": ("vitest", 0, 0, 1),
    "vitest5-github-actions": None,
    "vitest5-mixed": ("vitest", 3, 1, 2),
    "vitest5-none-allowed": ("vitest", 0, 0, 0),
    "vitest5-none": ("vitest", 0, 0, 0),
    "vitest5-pass": ("vitest", 4, 0, 0),
    "vitest5-plain": ("vitest", 3, 1, 2),
    "vitest5-skipped": ("vitest", 0, 0, 2),
    "vitest5-tap-broken": ("tap", 2, 1, 0),
    "vitest5-tap-flat": ("tap", 3, 1, 2),
    "vitest5-tap-hook": ("tap", 1, 1, 0),
    "vitest5-tap-nested": ("tap", 4, 2, 0),
    "vitest5-tap-skipped": ("tap", 0, 0, 2),
    "vitest5-tap": ("tap", 3, 1, 2),
    "vitest5-uncaught": ("vitest", 2, 1, 0),
}


def lines_of(name: str) -> list[tuple[str, str]]:
    """(stream, line) of a report, standard output first."""
    text = (REPORTS / f"{name}.txt").read_bytes().decode()
    output, _, errors = text.partition(STDERR_STARTS + "\n")
    return [("stdout", line) for line in output.split("\n")] + [
        ("stderr", line) for line in errors.split("\n")
    ]


def counts_of(lines: list[tuple[str, str]]) -> TestCounts | None:
    reader = ReportReader()
    for stream, line in lines:
        reader.feed(stream, line)
    return reader.counts()


def counts_of_text(text: str) -> TestCounts | None:
    return counts_of([("stdout", line) for line in text.split("\n")])


def expected(name: str) -> TestCounts | None:
    numbers = EXPECTED[name]
    return None if numbers is None else TestCounts(*numbers)


def test_every_report_has_its_counts_in_the_table() -> None:
    assert sorted(EXPECTED) == sorted(path.stem for path in REPORTS.iterdir())


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_runner_printed_is_counted(name: str) -> None:
    assert counts_of(lines_of(name)) == expected(name)


@pytest.mark.parametrize("name", EXPECTED)
def test_which_stream_came_first_does_not_matter(name: str) -> None:
    lines = lines_of(name)
    errors_first = sorted(lines, key=lambda line: line[0])
    assert errors_first != lines or len({stream for stream, _ in lines}) == 1
    assert counts_of(errors_first) == expected(name)


@pytest.mark.case("ver-01-pipe-masks-exit")
@pytest.mark.parametrize("how", ["pipe", "or-true", "semicolon", "background"])
def test_a_failure_shows_although_the_script_hides_the_exit_code(how: str) -> None:
    counts = counts_of(lines_of(f"ver-01-{how}"))
    assert counts is not None
    assert counts.failed == 1


@pytest.mark.case("ver-02-zero-tests")
@pytest.mark.parametrize("name", [name for name in EXPECTED if name.startswith("ver-02-")])
def test_a_run_without_a_test_shows_none(name: str) -> None:
    counts = counts_of(lines_of(name))
    assert counts is None or (counts.ran, counts.failed) == (0, 0)


def test_output_that_says_nothing_of_tests_has_no_counts() -> None:
    assert ReportReader().counts() is None
    assert counts_of_text("built in 1.2s\n✓ 34 modules transformed.\nok\nnot ok 2") is None


@pytest.mark.parametrize(
    "text",
    [
        "  1 failing\n  2 pending",  # mocha says first how many pass
        "  1 failed\n  2 passed (3s)",  # Playwright, how many it runs
        " 3 pass\n 1 fail",  # bun, at the end, how many ran
        "  Total:     120",  # a table of sizes
        f"{NODE_SIGN} pass 3",  # node:test, how many there are
        "  ✘ not a test",
        "FAILED (see above)",
        "OK (really)",
        "Ran 3 migrations in 2s",
        "ok 1 - the first of three",
        "1..10",
        "Tests: 3 suites",
        "3 of 4 in use",
        "12 specs",
        "1 failed, in 2 places",
        "      Tests:  5 passed, 5 total",
        "Tests  5 passed (5)",
    ],
)
def test_a_line_that_is_half_a_summary_is_none(text: str) -> None:
    assert counts_of_text(text) is None


def test_the_counts_of_several_packages_add_up_under_their_prefixes() -> None:
    summary = "Tests:       1 failed, 1 skipped, 2 passed, 4 total"
    prefixes = ("", "packages/a test: ", ". test:unit: ", "web:test: ", "[api]: ", "[0] ")
    text = "\n".join(prefix + summary for prefix in prefixes)
    assert counts_of_text(text) == TestCounts("jest", 12, 6, 6)
    assert counts_of_text(f"a sentence with words: {summary}") is None


def test_documents_of_tap_under_different_prefixes_are_told_apart() -> None:
    text = "\n".join(
        f"packages/{name} test: {line}"
        for line in ("TAP version 13", "    not ok 1 - deep", "not ok 1 - whole", "1..1")
        for name in ("a", "b")
    )
    assert counts_of_text(text) == TestCounts("tap", 0, 2, 0)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("TAP version 13\n1..2\nok 1 - one\nok 2", (2, 0, 0)),
        ("ok\nok - two\nnot ok 3 three\n1..3", (2, 1, 0)),
        ("1..0 # SKIP nothing to do", (0, 0, 0)),
        ("1..3\nok 1\nok 2 # SKIP not here\nnot ok 3 - later # TODO", (1, 0, 2)),
        ("1..1\nok 1 - links with \\# skip in their names", (1, 0, 0)),
        # A test of tests is not counted beside them, and its failure is theirs.
        ("    ok 1\n    not ok 2\n    1..2\nnot ok 1 - both\n1..1", (1, 1, 0)),
        ("    ok 1\n    1..1\nnot ok 1 - its hook\n1..1", (1, 1, 0)),
        ("    ok 1 # SKIP\n    1..1\nok 1 - all skipped\n1..1", (0, 0, 1)),
        ("        not ok 1\n    not ok 1\n    not ok 2\nnot ok 1\nok 2\n1..2", (1, 2, 0)),
        ("1..2\nnot ok 1 - a {\n    not ok 1\n    not ok 2\n}\nok 2 - b {\n    ok 1\n}", (1, 2, 0)),
        ("1..2\nok 1 - a {\n    ok 1 - b {\n        ok 1\n    }\n    ok 2\n}\nok 2", (3, 0, 0)),
        ("1..2\nnot ok 1 - a {\n    not ok 1\n}\nnot ok 2", (0, 2, 0)),
        ("    ok 1\n}\n    not ok 2\n}\nnot ok 1\n1..1", (1, 1, 0)),
        ("1..2\nnot ok 1 - handles {\nnot ok 2 - handles }", (0, 2, 0)),
        ("1..1\nok 1\nTAP version 14\n1..1\nok 1", (2, 0, 0)),
        ("        not ok 1\n    ok 1 - does not mind\nnot ok 1\n1..1", (0, 1, 0)),
        ("1..3\nnot ok 1 - its hook {\n    ok 1\n}\nok 2\n    not ok 1\nnot ok 3", (2, 2, 0)),
        ("1..2\nnot ok 1 - its hook {\n    ok 1\n}\n    not ok 1\nnot ok 2", (1, 2, 0)),
        ("1..3\nnot ok 1 - handles {\nok 2\n    not ok 1\nnot ok 3", (1, 2, 0)),
        ("1..1\nnot ok 1 {\n    ok 1 {\n        ok 1\n    }\n    not ok 2\n}", (1, 1, 0)),
        (f"1..0\n{' ' * 65}not ok 1 - deeper than tests go", (0, 0, 0)),
        # Cut short: no plan, or fewer tests than planned.
        ("TAP version 13", (0, 1, 0)),
        ("TAP version 13\nok 1", (1, 1, 0)),
        ("1..3\nok 1\nok 2", (2, 1, 0)),
        ("TAP version 13\nok 1\nTAP version 13\nok 1\n1..1", (2, 1, 0)),
    ],
)
def test_tap_is_counted_test_by_test(text: str, numbers: tuple[int, int, int]) -> None:
    assert counts_of_text(text) == TestCounts("tap", *numbers)


def test_documents_of_tap_on_two_streams_are_told_apart() -> None:
    lines = [
        (stream, line)
        for line in ("TAP version 13", "    not ok 1 - deep", "not ok 1 - whole", "1..1")
        for stream in ("stdout", "stderr")
    ]
    assert counts_of(lines) == TestCounts("tap", 0, 2, 0)


@pytest.mark.parametrize("name", [name for name, numbers in EXPECTED.items() if numbers])
def test_a_forged_summary_beside_the_real_one_can_only_add(name: str) -> None:
    forged = [
        ("stdout", line)
        for line in (
            " Test Files  9 passed (9)",
            "      Tests  90 passed (90)",
            "Tests:       90 passed, 90 total",
            f"{NODE_SIGN} tests 90",
            f"{NODE_SIGN} pass 90",
            f"{NODE_SIGN} fail 0",
            "  90 passing (1s)",
            "===== 90 passed in 0.1s =====",
            "Ran 90 tests in 0.1s",
            "OK (skipped=9)",
        )
    ]
    real, lines = expected(name), lines_of(name)
    assert real is not None
    for at in (0, len(lines) // 2, len(lines)):
        counts = counts_of(lines[:at] + forged + lines[at:])
        assert counts is not None
        assert counts.failed >= real.failed
        assert counts.passed >= real.passed


def test_numbers_of_any_length_are_bounded_and_still_count() -> None:
    digits = "9" * 5_000
    summary = f"Tests:       {digits} failed, {digits} passed, {digits} total"
    counts = counts_of_text(f"{summary}\n{summary}")
    assert counts == TestCounts("jest", 999_999_999, 999_999_999, 0)
    assert counts_of_text(f"{'0' * 5_000}7 passed in 1s") == TestCounts("pytest", 7, 0, 0)
    assert counts_of_text(f"1..{digits}\nok 1") == TestCounts("tap", 1, 1, 0)
    for digits in ("٣", "³", "３", "-3", "+3", "3.0", "1e3", "0x3", ""):  # noqa: RUF001
        assert counts_of_text(f"{digits} passed in 1s") is None
        assert counts_of_text(f"Tests:       {digits} passed, 1 total") is None


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[1m\x1b[38;5;245mTests:\x1b[0m       \x1b[31m1 failed\x1b[39m, 1 total",
        "\x9b1mTests:       1 failed, 1 total\x9b0m",
        "\x1b]8;;https://example.test\x1b\\Tests:       1 failed, 1 total\x1b]8;;\x1b\\",
        "\x1b]0;title\aTests:       1 failed, 1 total",
        "\x1b(B\x1b7Tests:       1 failed, 1 total\x1b8",
        "\x1b[2K\x1b[1G[====>   ] 40%\rTests:       1 failed, 1 total\r",
        "Tests:       1 failed, 1 total\x1b[",
    ],
)
def test_control_sequences_hide_nothing(text: str) -> None:
    assert counts_of_text(text) == TestCounts("jest", 0, 1, 0)


def test_the_memory_is_bounded_whatever_is_written() -> None:
    reader = ReportReader()
    tracemalloc.start()
    for number in range(5_000):
        reader.feed("stdout", f"{'x' * 150}{number}: {' ' * (number % 60)}not ok 1")
        reader.feed(f"stream {number}", "Tests:       1 failed, 1 total")
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 2 * 1024 * 1024
    reader.feed("stdout", "a test: 1 passed in 1s")
    counts = reader.counts()
    assert counts is not None
    assert (counts.runner, counts.passed, counts.failed) == ("jest+pytest", 1, 5_000)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "\x1b[" + "1;" * 500_000,
        "\x1b[" * 500_000,
        "\x1b]" * 500_000,
        "\x9b" * 500_000,
        "\r" * 1_000_000,
        ": " * 500_000,
        "=" * 1_000_000,
        "9" * 1_000_000,
        "ok 1" + " # " * 300_000,
        "Tests: " + "1 passed, " * 100_000 + "1 total",
    ],
)
def test_a_long_line_takes_no_longer_than_its_length(text: str) -> None:
    reader = ReportReader()
    for _ in range(20):
        reader.feed("stdout", text)
    assert reader.counts() is None


def test_the_counts_so_far_can_be_asked_for_at_any_time() -> None:
    reader = ReportReader()
    reader.feed("stdout", "TAP version 13")
    reader.feed("stdout", "ok 1")
    assert reader.counts() == reader.counts() == TestCounts("tap", 1, 1, 0)
    reader.feed("stdout", "1..1")
    assert reader.counts() == TestCounts("tap", 1, 0, 0)
