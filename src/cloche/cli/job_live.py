"""A job on a terminal: what has ended stays above, what runs is redrawn below it in place."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cloche.cli.job_view import ABORTING, list_denied, list_skipped
from cloche.cli.job_words import (
    describe_artifacts,
    describe_step,
    show_count,
    show_downloads,
    show_duration,
    show_line,
    show_status,
)
from cloche.model.events import LogEvent, StateEvent
from cloche.model.job import StepStatus, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from rich.console import RenderableType

    from cloche.model.events import Event, StepEvent
    from cloche.model.job import JobResult, StepResult

LINES_WHILE_RUNNING_COUNT: Final = 6
LINES_OF_A_FAILURE_COUNT: Final = 40
NOTES_LIMIT_COUNT: Final = 8
_LINE_CHARS_LIMIT = 400
_NAME_CELLS_LIMIT = 20
_BAR_CELLS = 24
# Source: ECMA-48 and xterm's ctlseqs (7: a line that is too long is cut instead of wrapped);
# 2026 shows what lies between in one go, where the terminal knows it.
_BEGIN, _END = "\x1b[?2026h\x1b[?7l", "\x1b[?7h\x1b[?2026l"
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"


@dataclass(frozen=True, slots=True)
class _Marks:
    """The signs of a terminal's character set."""

    passed: str = "✓"
    failed: str = "✗"
    skipped: str = "–"  # noqa: RUF001 (a dash is what is meant)
    pending: str = "·"
    spinner: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    bar: str = "━"
    bar_left: str = "─"


_ASCII_MARKS = _Marks("+", "x", "-", ".", "-\\|/", "=", ".")


@dataclass(slots=True)
class _Step:
    """What is known of a step that has not ended.

    Attributes:
        started_time: Seconds since the epoch; None: it waits.
        tail: Its last lines.
    """

    started_time: float | None = None
    progress: StepEvent | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_OF_A_FAILURE_COUNT))


class LiveView:
    """Shows a job on a terminal. See `View` for its methods."""

    def __init__(self, stream: TextIO, out: str | None, console: Console | None = None) -> None:
        """Writes to `stream`, a terminal; `out` is where the artifacts go."""
        self._stream = stream
        self._out = out
        self._console = console or Console(file=stream, highlight=False, emoji=False, markup=False)
        is_unicode = (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
        self._marks = _Marks() if is_unicode else _ASCII_MARKS
        self._steps: dict[str, _Step] = {}
        self._ended: set[str] = set()
        self._name_cells = 0
        self._drawn_cells: list[int] = []  # of each line that is drawn in place
        self._notes_count = 0
        self._is_aborting = False

    def show(self, events: Sequence[Event], now: float) -> None:
        """See `View`."""
        kept: list[RenderableType] = []
        for event in events:
            kept += self._take(event)
        self._draw(kept, self._running(now))

    def say_aborting(self) -> None:
        """See `View`."""
        self._is_aborting = True

    def close(self, result: JobResult | None) -> None:
        """See `View`."""
        kept: list[RenderableType] = []
        if result is not None:
            for step in result.steps:
                if step.name not in self._ended:
                    kept += self._end_step(step.name, step)
            kept += self._summary(result)
        self._draw(kept, [])

    # What happens

    def _take(self, event: Event) -> list[RenderableType]:
        """Keeps in mind what an event tells; returns what stays on the screen for good."""
        if isinstance(event, StateEvent):
            if event.state == "started":
                for name in event.steps:
                    self._step(name)
            return self._note(event.message) if event.state == "note" else []
        step = self._step(event.step)
        if isinstance(event, LogEvent):
            # As a terminal would show it: what comes after a carriage return overwrites.
            text = event.text.rstrip("\r").rpartition("\r")[2][:_LINE_CHARS_LIMIT]
            step.tail.append(show_line(text.expandtabs(4)))
        elif event.state == "ended":
            return self._end_step(event.step, event.result)
        elif event.state == "progress":
            step.progress = event
        if step.started_time is None:
            step.started_time = event.time
        return []

    def _note(self, message: str) -> list[RenderableType]:
        self._notes_count += 1
        shown = self._notes_count <= NOTES_LIMIT_COUNT
        return [self._row(" note", show_line(message), "dim")] if shown else []

    def _step(self, name: str) -> _Step:
        if name not in self._steps:
            self._name_cells = min(_NAME_CELLS_LIMIT, max(self._name_cells, cell_len(name)))
            if name in self._ended:
                return _Step()  # a line that comes late
            self._steps[name] = _Step()
        return self._steps[name]

    def _end_step(self, name: str, result: StepResult | None) -> list[RenderableType]:
        step = self._step(name)
        self._steps.pop(name, None)
        self._ended.add(name)
        if result is None or result.status is StepStatus.SKIPPED:
            return [self._step_line(self._marks.skipped, "dim", name, "", "skipped")]
        took = show_duration(result.duration_ms)
        detail = describe_step(result, step.progress)
        if result.status is StepStatus.PASSED:
            return [self._step_line(self._marks.passed, "green", name, took, detail)]
        status = show_status(result.status)
        detail = f"{status}, {detail}" if detail else status
        head = self._step_line(self._marks.failed, "bold red", name, took, detail)
        if result.status is StepStatus.ABORTED:
            return [head]
        tail = "\n".join(step.tail).strip("\n")
        return [head, Padding(Text(tail), (0, 0, 1, 3))] if tail else [head]

    # What it looks like

    def _running(self, now: float) -> list[Text]:
        """The lines that are drawn in place: running steps with their last lines, and the rest."""
        height = max(2, self._console.size.height - 1)
        lines: list[Text] = []
        waiting = [name for name, step in self._steps.items() if step.started_time is None]
        mark = self._marks.spinner[int(now * 10) % len(self._marks.spinner)]
        if len(waiting) == len(self._steps) and (waiting or not self._ended):
            lines.append(Text.assemble((f" {mark} ", "cyan"), ("preparing", "dim")))
        for name, step in self._steps.items():
            if step.started_time is not None:
                took = f"{max(0, int(now - step.started_time))} s"
                line = self._step_line(mark, "cyan", name, took, "")
                lines.append(self._add_progress(line, step.progress))
                room = min(LINES_WHILE_RUNNING_COUNT, height - len(lines) - min(3, len(waiting)))
                tail = [text for text in step.tail if text.strip()][-room:] if room > 0 else []
                lines += [Text(f"     {text}", style="dim") for text in tail]
        room = height - len(lines) - self._is_aborting
        if len(waiting) > room:
            shown = waiting[: max(0, room - 1)]
            more = f"   and {show_count(len(waiting) - len(shown), 'more step')}"
        else:
            shown, more = waiting, ""
        mark = self._marks.pending
        lines += [self._step_line(mark, "dim", name, "", "", "dim") for name in shown]
        lines += [Text(more, style="dim")] if more else []
        if self._is_aborting:
            lines.append(Text(f" {ABORTING}", style="yellow"))
        return lines[:height]

    def _step_line(
        self, mark: str, style: str, name: str, took: str, detail: str, name_style: str = ""
    ) -> Text:
        cells = self._name_cells
        line = Text.assemble((f" {mark} ", style), (f"{name[:cells]:<{cells}}", name_style))
        line.append(f"  {took:>6}")
        line.append(f"  {detail}" if detail else "", style="dim")
        return line

    def _add_progress(self, line: Text, progress: StepEvent | None) -> Text:
        if progress is None or not progress.total_count:
            return line
        words = show_downloads(progress)
        free_cells = self._console.size.width - line.cell_len - cell_len(words) - 5
        if progress.done_count < progress.total_count and free_cells >= 8:
            cells = min(_BAR_CELLS, free_cells)
            full = cells * progress.done_count // progress.total_count
            line.append("  ").append(self._marks.bar * full, style="green")
            line.append(self._marks.bar_left * (cells - full), style="bright_black")
        return line.append(f"  {words}", style="dim")

    def _summary(self, result: JobResult) -> list[RenderableType]:
        at = f" at {result.failed_step}" if result.failed_step else ""
        style = "bold green" if result.ok else "bold red"
        word = result.verdict.value.replace("_", " ")
        head = Text.assemble((f" {word}", style), f"{at} in {show_duration(result.duration_ms)}")
        rows: list[RenderableType] = [Text(""), head]
        if result.reason is not None and result.verdict is not Verdict.ABORTED:
            head.append(f"  {result.reason.code}", style="dim")
            rows.append(self._row(" why", show_line(result.reason.message)))
        if result.verdict is Verdict.INFRA_FAILED and result.retry_safe:
            rows.append(self._row("", "The same job may well pass when it is run again."))
        if result.ok:
            rows.append(
                self._row(" artifacts", describe_artifacts(result.artifacts, self._out, "file"))
            )
        rows += self._list(" skipped", list_skipped(result))
        rows += self._list(" denied", list_denied(result))
        if self._notes_count > NOTES_LIMIT_COUNT:
            more = self._notes_count - NOTES_LIMIT_COUNT
            rows.append(self._row(" notes", f"{more:,} more: --plain and --json tell them all"))
        if not result.ok and self._out is not None:
            rows.append(self._row(" log", f"{self._out.rstrip('/')}/log.ndjson"))
        return rows

    def _list(self, label: str, listed: tuple[list[str], int]) -> list[RenderableType]:
        items, count = listed
        if not count:
            return []
        rows = [self._row(label, f"{count:,}")]
        rows += [self._row("", item, "dim") for item in items]
        more = count - len(items)
        return [*rows, self._row("", f"and {more:,} more", "dim")] if more > 0 else rows

    def _row(self, label: str, text: str, style: str = "") -> RenderableType:
        """A label and a text that folds into lines beside it."""
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=10, no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        grid.add_row(Text(label), Text(text, style=style))
        return grid

    # How it gets there

    def _draw(self, kept: list[RenderableType], lines: list[Text]) -> None:
        """Replaces what was drawn in place by what is kept for good and the new lines below it."""
        if not kept and not lines and not self._drawn_cells:
            return
        width = self._console.size.width
        with self._console.capture() as capture:
            for renderable in kept:
                self._console.print(renderable)
            for line in lines:
                line.truncate(width - 1, overflow="ellipsis")
                self._console.print(line, no_wrap=True, overflow="crop")
        text = capture.get()
        # A terminal that became narrower has folded what was too long for it.
        up = sum(max(1, -(-cells // width)) for cells in self._drawn_cells)
        start = f"\x1b[{up}A" if up else ""
        body = text.replace("\n", f"{_CLEAR_LINE}\n")
        self._stream.write(f"{_BEGIN}\r{start}{body}{_CLEAR_BELOW}{_END}")
        self._stream.flush()
        self._drawn_cells = [line.cell_len for line in lines]
