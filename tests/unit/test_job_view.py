"""What a job shows: plain lines, JSON, a terminal; nothing of a guest can act on any of them."""

import io
import json
import threading
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest
from rich.console import Console

from cloche.cli import job_view
from cloche.cli.job_live import LINES_OF_A_FAILURE_COUNT, NOTES_LIMIT_COUNT, LiveView
from cloche.cli.job_view import ABORTING, JsonView, PlainView, Printer
from cloche.cli.job_words import show_duration, show_line, show_size
from cloche.model.events import Event, LogEvent, StateEvent, StepEvent
from cloche.model.job import (
    Artifact,
    Denial,
    JobResult,
    Reason,
    ReasonCode,
    StepResult,
    StepStatus,
    TestCounts,
    Verdict,
)

# Moves the cursor, clears, sets a title, rings, turns the direction of text, ends lines.
NASTY = "a\x1b[2J\x1b]0;t\x07\x9b1A\r\nb\u202ec\u200ed\u2028e\x7f"
NASTY_SHOWN = "a␛[2J␛]0;t␇\\x9b1A␍␊b\\u202ec\\u200ed\\u2028e␡"


def result_of(
    verdict: Verdict = Verdict.PASSED,
    steps: Sequence[StepResult] = (),
    reason: Reason | None = None,
    failed_step: str | None = None,
    **fields: Any,
) -> JobResult:
    artifacts = (Artifact("dist/a", 200_000, "0" * 64), Artifact("dist/b", 20_000, "1" * 64))
    values: dict[str, Any] = {
        "artifacts": artifacts if verdict is Verdict.PASSED else (),
        "manifest": MappingProxyType({"artifacts": [], "skipped": {}}),
        "denied": (),
        **fields,
    }
    return JobResult(
        run_id="r",
        verdict=verdict,
        failed_step=failed_step,
        reason=reason,
        retry_safe=verdict is Verdict.INFRA_FAILED,
        steps=tuple(steps),
        audit=MappingProxyType({}),
        isolation=None,
        duration_ms=3400.0,
        **values,
    )


INSTALL = StepResult("install", StepStatus.PASSED, duration_ms=2100, exit_code=0)
TEST = StepResult("test", StepStatus.PASSED, duration_ms=1200, tests=TestCounts("vitest", 10, 0, 0))
FAILED = StepResult(
    "test", StepStatus.FAILED, exit_code=1, duration_ms=1200, tests=TestCounts("vitest", 9, 1, 2)
)
TESTS_FAILED = Reason(ReasonCode.TESTS_FAILED, "1 of 10 tests failed")


def started(*names: str) -> list[Event]:
    return [StateEvent(0, "started", names), StepEvent(0, names[0], "started")]


def ended(result: StepResult) -> Event:
    return StepEvent(9, result.name, "ended", result=result)


def log(text: str, step: str = "test") -> LogEvent:
    return LogEvent(1, step, "stdout", text)


def plain(events: Sequence[Event], result: JobResult | None = None, out: str | None = None) -> str:
    stream = io.StringIO()
    view = PlainView(stream, out)
    view.show(events, 0)
    view.close(result)
    return stream.getvalue()


# Words


def test_a_guests_text_becomes_one_harmless_line() -> None:
    assert show_line(NASTY) == NASTY_SHOWN
    assert show_line("é 語 \t 👩\u200d💻") == "é 語 \t 👩\u200d💻"


def test_colours_go_and_everything_else_that_looks_like_them_stays() -> None:
    assert show_line("\x1b[32m✓\x1b[39m \x1b[1;38;5;208mx\x1b[m\x1b[4:3my") == "✓ xy"
    for text in ("\x1b[2Jm", "\x1b[?25m", "\x1b[3", "\x1b[31 m", "\x1b]8;;m"):
        assert show_line(text) == text.replace("\x1b", "␛")


def test_durations_and_sizes_read_well() -> None:
    durations = (0, 85.4, 100, 1234, 59_949, 59_951, 125_000, 3_599_600, 3_723_000)
    assert [show_duration(duration) for duration in durations] == [
        "0 ms", "85 ms", "0.1 s", "1.2 s", "59.9 s", "1 min 00 s", "2 min 05 s", "1 h 00 min",
        "1 h 02 min",
    ]  # fmt: skip
    sizes = (0, 999, 1000, 99_940, 220_000, 999_600, 12_400_000, 5 * 10**9)
    assert [show_size(size) for size in sizes] == [
        "0 B", "999 B", "1.0 kB", "99.9 kB", "220 kB", "1.0 MB", "12.4 MB", "5.0 GB",
    ]  # fmt: skip


# Plain lines


def test_plain_lines_tell_a_job_from_its_start_to_its_artifacts() -> None:
    events = [
        *started("install", "test"),
        StateEvent(0, "note", message="`.npmrc` has no say here"),
        StepEvent(1, "install", "progress", 1, 54, 1000),
        StepEvent(4, "install", "progress", 20, 54, 5_000_000),
        StepEvent(7, "install", "progress", 23, 54, 6_000_000),
        StepEvent(8, "install", "progress", 54, 54, 12_400_000),
        ended(INSTALL),
        StepEvent(9, "test", "started"),
        log("vitest output line"),
        LogEvent(9, "test", "cloche", "a note"),
        ended(TEST),
        StateEvent(9, "ended", verdict=Verdict.PASSED),
    ]
    assert plain(events, result_of(steps=[INSTALL, TEST]), "out/").splitlines() == [
        "job started: install, test",
        "[install] started",
        "note: `.npmrc` has no say here",
        "[install] 23 of 54 packages, 6.0 MB",
        "[install] passed in 2.1 s (54 packages, 12.4 MB)",
        "[test] started",
        "[test] | vitest output line",
        "[test] | cloche: a note",
        "[test] passed in 1.2 s (10 tests)",
        "job passed in 3.4 s: 2 artifacts, 220 kB → out/",
    ]


def test_plain_lines_end_with_where_and_why_a_job_failed() -> None:
    skipped = StepResult("build", StepStatus.SKIPPED)
    result = result_of(Verdict.FAILED, [INSTALL, FAILED, skipped], TESTS_FAILED, "test")
    assert plain([ended(INSTALL), ended(FAILED)], result).splitlines()[1:] == [
        "[test] failed in 1.2 s (exit code 1, 9 passed, 1 failed, 2 skipped)",
        "[build] skipped",
        "job failed in 3.4 s at test: tests_failed: 1 of 10 tests failed",
    ]


def test_a_signal_is_told_only_where_it_was_not_cloches_own() -> None:
    statuses = (StepStatus.FAILED, StepStatus.TIMED_OUT, StepStatus.MEMORY_EXCEEDED)
    results = [StepResult("x", status, signal=9, duration_ms=500) for status in statuses]
    assert plain([ended(result) for result in results]).splitlines() == [
        "[x] failed in 0.5 s (signal 9)",
        "[x] timed_out in 0.5 s",
        "[x] memory_exceeded in 0.5 s",
    ]


def test_no_line_of_a_guest_passes_for_one_of_cloches() -> None:
    forged = "ok\n[test] passed in 1 ms\r\njob passed in 1 ms\u2028\x85[build] passed"
    text = plain([log(forged)])
    assert len(text.splitlines()) == 1
    assert text.startswith("[test] | ok␊[test]")


def test_every_text_that_a_guest_may_have_made_is_shown_harmless() -> None:
    result = result_of(
        Verdict.FAILED,
        reason=Reason(ReasonCode.BUNDLE_REFUSED, NASTY),
        denied=(Denial("install", NASTY, NASTY),),
        manifest={"skipped": {NASTY: NASTY}},
    )
    events = [log(NASTY), StateEvent(0, "note", message=NASTY)]
    shown = screen_of(events, result, width=200)  # its log line is gone with the running step
    for text, count in ((plain(events, result), 7), (shown.text(), 6)):
        assert text.count(NASTY_SHOWN) == count
        assert all(line.isprintable() for line in text.splitlines())


def test_the_first_of_many_skipped_and_refused_are_named_and_the_others_counted() -> None:
    result = result_of(
        manifest={"skipped": {f"dist/{i}": "a link" for i in range(7)}, "skipped_count": 9000},
        denied=tuple(Denial("install", f"GET /{i}", "not in the lockfile") for i in range(8)),
    )
    lines = plain([], result).splitlines()
    assert lines[0] == "skipped: dist/0: a link"
    assert lines[5] == "skipped: and 8995 more"
    assert lines[6] == "denied: install: GET /0: not in the lockfile"
    assert lines[11] == "denied: and 3 more"
    shown = screen_of([], result).text()
    assert "GET /4" in shown and "GET /5" not in shown and "and 8,995 more" in shown


def test_artifacts_without_a_folder_are_said_to_be_gone() -> None:
    assert "2 artifacts, 220 kB (not kept: --out DIR keeps them)" in plain([], result_of())
    assert plain([], result_of(artifacts=())).endswith("in 3.4 s: no artifacts\n")


# JSON


def test_json_lines_hold_the_events_and_at_the_end_the_result() -> None:
    stream = io.StringIO()
    view = JsonView(stream)
    view.show([*started("test"), log(NASTY + "é"), ended(FAILED)], 0)
    view.close(
        result_of(
            Verdict.FAILED,
            [FAILED],
            TESTS_FAILED,
            "test",
            manifest=MappingProxyType({"skipped": MappingProxyType({"a": "b"})}),
        )
    )
    assert stream.getvalue().isascii()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["type"] for line in lines] == ["state", "step", "log", "step", "result"]
    assert lines[2]["text"] == NASTY + "é"
    assert lines[3]["result"]["tests"] == {
        "runner": "vitest", "passed": 9, "failed": 1, "skipped": 2,
    }  # fmt: skip
    last = lines[-1]
    assert (last["ok"], last["verdict"], last["failed_step"]) == (False, "failed", "test")
    assert last["reason"] == {"code": "tests_failed", "message": "1 of 10 tests failed"}
    assert last["manifest"] == {"skipped": {"a": "b"}}


# A terminal


class Screen(io.StringIO):
    """As much of a terminal as a calm view needs; anything else that is sent to it is an error."""

    encoding = "utf-8"

    def __init__(self, width: int, height: int) -> None:
        super().__init__()
        self.width, self.height = width, height
        self.rows: list[str] = [""]
        self.row = self.column = 0
        self.sent = ""

    def write(self, text: str) -> int:
        self.sent += text
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                end = next(i for i in range(at + 2, len(text)) if text[i].isalpha())
                self._obey(text[at + 2 : end], text[end])
                at = end + 1
                continue
            self._put(text[at])
            at += 1
        return len(text)

    def _put(self, character: str) -> None:
        if character == "\n":
            self.row, self.column = self.row + 1, 0
            self.rows += [""] * (self.row + 1 - len(self.rows))
        elif character == "\r":
            self.column = 0
        else:
            assert character.isprintable(), repr(character)
            assert self.column < self.width, "a line is too long"
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def _obey(self, parameters: str, final: str) -> None:
        match final:
            case "m":
                pass
            case "h" | "l":
                assert parameters in ("?7", "?2026")
            case "A":
                assert int(parameters) < self.height, "no terminal goes up past its top"
                self.row -= int(parameters)
                assert self.row >= 0
            case "K":
                self.rows[self.row] = self.rows[self.row][: self.column]
            case "J":
                self.rows[self.row] = self.rows[self.row][: self.column]
                del self.rows[self.row + 1 :]
            case _:
                raise AssertionError(f"{parameters!r} {final!r}")

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        return "\n".join(row.rstrip() for row in self.rows).rstrip("\n")


def live(screen: Screen, out: str | None = None, **environment: str) -> LiveView:
    console = Console(
        file=screen,
        width=screen.width,
        height=screen.height,
        force_terminal=True,
        highlight=False,
        emoji=False,
        markup=False,
        _environ={"TERM": "xterm-256color", **environment},
    )
    return LiveView(screen, out, console)


def screen_of(
    events: Sequence[Event], result: JobResult | None, width: int = 80, height: int = 24
) -> Screen:
    screen = Screen(width, height)
    view = live(screen, "out")
    view.show(events, 9)
    view.close(result)
    return screen


def test_a_running_step_shows_its_last_lines_and_what_waits_below_it() -> None:
    screen = Screen(80, 24)
    view = live(screen)
    view.show([*started("test", "build")], 0.0)
    for number in range(20):
        view.show([log(f"line {number}"), log(" ")], 3.2)
    assert screen.text().splitlines() == [
        " ⠹ test      3 s",
        *(f"     line {number}" for number in range(14, 20)),
        " · build",
    ]


def test_what_has_ended_stays_above_and_nothing_else_is_left_at_the_end() -> None:
    screen = Screen(80, 24)
    view = live(screen, "out/")
    view.show([StateEvent(0, "note", message="a note"), *started("install", "test")], 0)
    for count in (1, 27, 54):
        view.show([StepEvent(1, "install", "progress", count, 54, count * 230_000)], 1)
    view.show([ended(INSTALL), StepEvent(2, "test", "started"), log("some line")], 2)
    view.show([ended(TEST)], 3)
    view.close(result_of(steps=[INSTALL, TEST]))
    assert screen.text().splitlines() == [
        " note      a note",
        " ✓ install   2.1 s  54 packages, 12.4 MB",
        " ✓ test      1.2 s  10 tests",
        "",
        " passed in 3.4 s",
        " artifacts 2 files, 220 kB → out/",
    ]


def test_a_failed_step_leaves_the_end_of_its_log_on_the_screen() -> None:
    lines = [log(f"line {number}") for number in range(100)]
    skipped = StepResult("build", StepStatus.SKIPPED)
    result = result_of(Verdict.FAILED, [FAILED, skipped], TESTS_FAILED, "test")
    screen = screen_of([*started("test", "build"), *lines, ended(FAILED)], result)
    first = 100 - LINES_OF_A_FAILURE_COUNT
    assert screen.text().splitlines() == [
        " ✗ test    1.2 s  failed, exit code 1, 9 passed, 1 failed, 2 skipped",
        *(f"   line {number}" for number in range(first, 100)),
        "",
        " – build          skipped",  # noqa: RUF001
        "",
        " failed at test in 3.4 s  tests_failed",
        " why       1 of 10 tests failed",
        " log       out/log.ndjson",
    ]


def test_downloads_have_a_bar_where_there_is_room_for_it() -> None:
    events = [*started("install"), StepEvent(1, "install", "progress", 27, 54, 6_200_000)]
    for width, bar in ((80, "━" * 12 + "─" * 12), (56, "━━━━────"), (40, "")):
        screen = Screen(width, 24)
        live(screen).show(events, 1)
        line = screen.text()
        assert line.replace(" ", "").startswith(f"⠋install1s{bar}27of"), line


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (20, 5), (10, 3)])
def test_a_small_terminal_is_never_overrun(width: int, height: int) -> None:
    """`Screen` refuses lines that are too long and ways up past its top."""
    screen = Screen(width, height)
    view = live(screen, "a/long/name/of/a/folder")
    names = [f"step-{number:02}" for number in range(60)]
    view.show(started(*names), 0)
    view.say_aborting()
    for number in range(200):
        view.show([log(f"{number} " + "x" * 20_000, names[0]), log("\t\t語", names[0])], number)
        view.show([StateEvent(0, "note", message="n" * 300)], number)
    assert ABORTING[: width - 5] in screen.text() or height < 5
    view.show([StepEvent(1, names[0], "progress", 1, 2, 3)], 1)
    view.close(result_of(Verdict.ABORTED, reason=Reason(ReasonCode.ABORTED, "x" * 500)))
    assert "step-01" not in screen.text()


def test_many_steps_are_counted_where_there_is_no_room_to_list_them() -> None:
    screen = Screen(80, 12)
    live(screen).show(started(*(f"s{number}" for number in range(41))), 0)
    lines = screen.text().splitlines()
    assert len(lines) == 11
    assert lines[-1] == "   and 31 more steps"


def test_many_notes_are_counted() -> None:
    notes = [StateEvent(0, "note", message=f"note-{number}") for number in range(5000)]
    text = screen_of(notes, result_of()).text()
    assert f"note-{NOTES_LIMIT_COUNT - 1}" in text
    assert f"note-{NOTES_LIMIT_COUNT}" not in text
    assert "4,992 more: --plain and --json tell them all" in text
    assert plain(notes).count("note-") == 5000


def test_a_terminal_that_became_narrower_is_cleared_to_the_top_of_the_old_lines() -> None:
    screen = Screen(80, 24)
    view = live(screen)
    view.show([*started("test"), log("x" * 70)], 0)
    screen.sent = ""
    view._console.width = 40  # the line of 75 cells takes two rows now, the step's one
    screen.rows += ["", ""]
    screen.row += 1
    view.show([], 0)
    assert "\x1b[3A" in screen.sent
    assert "…" in screen.text()


def test_after_a_carriage_return_a_line_starts_anew_on_a_terminal_only() -> None:
    events = [*started("test"), log("10%\r50%\r100%\r")]
    screen = Screen(80, 24)
    live(screen).show(events, 0)
    assert screen.text().splitlines()[1] == "     100%"
    assert "[test] | 10%␍50%␍100%␍" in plain(events)


def test_before_the_first_step_and_in_between_it_says_that_it_prepares() -> None:
    screen = Screen(80, 24)
    view = live(screen)
    view.show([], 0)
    assert screen.text() == " ⠋ preparing"
    view.show([StateEvent(0, "started", ("test",))], 0)
    assert screen.text().splitlines() == [" ⠋ preparing", " · test"]
    view.show([StepEvent(0, "test", "started")], 0)
    assert "preparing" not in screen.text()


def test_a_terminal_without_unicode_gets_plain_marks() -> None:
    screen = Screen(80, 24)
    screen.encoding = "ANSI_X3.4-1968"
    live(screen).show([ended(TEST), *started("install", "x")], 0)
    screen.text().encode("ascii")


def test_without_colour_there_are_no_colours() -> None:
    for environment, colours in (({}, True), ({"NO_COLOR": "1"}, False)):
        screen = Screen(80, 24)
        live(screen, **environment).show([ended(TEST)], 0)
        assert ("\x1b[32m" in screen.sent) is colours


def test_a_job_that_cloche_could_not_run_leaves_only_what_had_ended() -> None:
    screen = screen_of([*started("install", "test"), log("x", "install")], None)
    assert screen.text() == ""


def test_the_registrys_failure_says_that_another_try_may_help_and_an_abort_does_not() -> None:
    reason = Reason(ReasonCode.REGISTRY_FAILED, "no answer")
    again = "The same job may well pass when it is run again."
    assert again in screen_of([], result_of(Verdict.INFRA_FAILED, reason=reason)).text()
    assert again not in screen_of([], result_of(Verdict.ABORTED)).text()


# The thread that prints


class Stuck(PlainView):
    """A view whose terminal takes nothing until it is let go."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        super().__init__(self.text, None)
        self.free = threading.Event()

    def show(self, events: Sequence[Event], now: float) -> None:
        assert self.free.wait(20)
        super().show(events, now)


def test_a_reader_that_stands_still_never_holds_the_job_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_view, "_BACKLOG_LIMIT_CHARS", 100_000)
    view = Stuck()
    with Printer(view, lambda: None) as printer:
        for number in range(20_000):  # more than it may keep; this returns all the same
            printer.tell(log(f"line {number}"))
        printer.tell(ended(TEST))
        view.free.set()
    lines = view.text.getvalue().splitlines()
    assert lines[0] == "[test] | line 0"
    assert "[test] passed in 1.2 s (10 tests)" in lines  # only lines of the log are dropped
    dropped = 20_000 - sum("| line" in line for line in lines)
    assert dropped > 10_000
    # One note, or two where the thread had taken what there was before all was told.
    notes = [line.split()[1] for line in lines if "lines of the log not shown here" in line]
    assert sum(int(count.replace(",", "")) for count in notes) == dropped
    assert lines[-1].startswith("note: ")


def test_all_that_was_told_is_printed_before_the_printer_ends() -> None:
    stream = io.StringIO()
    with Printer(PlainView(stream, None), lambda: None) as printer:
        for number in range(1000):
            printer.tell(log(f"line {number}"))
        printer.say_aborting()
    assert stream.getvalue().count("[test] | line") == 1000
    assert stream.getvalue().count(ABORTING) == 1


def test_an_output_that_breaks_ends_the_job_and_takes_nothing_more() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    called = threading.Event()
    with Printer(PlainView(Broken(), None), called.set) as printer:
        printer.tell(log("x"))
        assert called.wait(20)
        for _ in range(1000):
            printer.tell(log("x"))
    assert isinstance(printer.error, BrokenPipeError)
    assert printer._waiting == []
