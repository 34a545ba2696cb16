"""A job's events as they come: plain lines, or JSON; and the thread that prints them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from cloche.cli.job_words import (
    describe_artifacts,
    describe_end,
    describe_step,
    show_count,
    show_downloads,
    show_duration,
    show_line,
    to_json,
)
from cloche.model.events import LogEvent, StateEvent, StepEvent
from cloche.model.job import StepStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self, TextIO

    from cloche.model.events import Event
    from cloche.model.job import JobResult

DETAILS_LIMIT_COUNT: Final = 5
"""How many of the skipped files and refused requests are named."""

ABORTING: Final = "aborting: once more ends Cloche at once"
_PERIOD_S = 0.1
_BACKLOG_LIMIT_CHARS = 16 * 1024 * 1024
_PROGRESS_PERIOD_S = 5.0


class View(Protocol):
    """Shows a job. Its methods are called from one thread at a time; OSError: it cannot."""

    def show(self, events: Sequence[Event], now: float) -> None:
        """Shows what came since the last call; called some ten times a second.

        Args:
            events: In their order; may be none.
            now: Seconds since the epoch.
        """

    def say_aborting(self) -> None:
        """Says that the job is being ended."""

    def close(self, result: JobResult | None) -> None:
        """Shows how the job ended; None when Cloche could not run it."""


class Printer:
    """Hands events to a view from a thread of its own, so that no terminal holds a job up.

    Attributes:
        error: What kept the view from showing; nothing is shown from then on.
    """

    def __init__(self, view: View, on_error: Callable[[], None]) -> None:
        """Made by the caller of a job; `on_error` is called from the thread."""
        self.error: BaseException | None = None
        self._view = view
        self._on_error = on_error
        self._lock = threading.Lock()
        self._waiting: list[Event] = []
        self._waiting_chars = 0
        self._dropped_count = 0
        self._is_aborting = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._print, name="cloche-printer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def tell(self, event: Event) -> None:
        """Takes an event; never blocks. Log lines are dropped where the reader is far behind."""
        with self._lock:
            if self.error is not None:
                return
            if isinstance(event, LogEvent):
                if self._waiting_chars > _BACKLOG_LIMIT_CHARS:
                    self._dropped_count += 1
                    return
                self._waiting_chars += len(event.text) + 100
            self._waiting.append(event)

    def say_aborting(self) -> None:
        """Takes note that the job is being ended; may be called by a signal handler."""
        self._is_aborting = True

    def _print(self) -> None:
        told = is_last = False
        try:
            while not is_last:
                is_last = self._done.wait(_PERIOD_S)
                if self._is_aborting and not told:
                    told = True
                    self._view.say_aborting()
                self._view.show(self._take(), time.time())
        except BaseException as error:  # it is for whoever waits for this thread
            with self._lock:
                self.error = error
                self._waiting.clear()
            self._on_error()

    def _take(self) -> list[Event]:
        with self._lock:
            events, self._waiting = self._waiting, []
            dropped, self._dropped_count = self._dropped_count, 0
            self._waiting_chars = 0
        if dropped:
            lines = show_count(dropped, "line")
            message = f"{lines} of the log not shown here: they came faster than they were read"
            events.append(StateEvent(time.time(), "note", message=message))
        return events


class PlainView:
    """One line for each thing that happens, the same on every run.

    A line of a guest always starts with `[its step] | `, so that none can pass for Cloche's own.
    """

    def __init__(self, stream: TextIO, out: str | None) -> None:
        """Writes to `stream`; `out` is where the artifacts go."""
        self._stream = stream
        self._out = out
        self._progress: dict[str, StepEvent] = {}
        self._progress_time: float | None = None  # of the last one that was written
        self._told: set[str] = set()

    def show(self, events: Sequence[Event], now: float) -> None:
        """See `View`."""
        self._write([line for event in events for line in self._lines(event)])

    def say_aborting(self) -> None:
        """See `View`."""
        self._write([ABORTING])

    def close(self, result: JobResult | None) -> None:
        """See `View`."""
        if result is None:
            return
        lines = []
        for step in result.steps:
            if step.name not in self._told:
                lines += self._lines(StepEvent(0.0, step.name, "ended", result=step))
        lines += describe_details(result)
        if result.ok:
            end = f": {describe_artifacts(result.artifacts, self._out, 'artifact')}"
        else:
            end = describe_end(result)
        lines.append(f"job {result.verdict} in {show_duration(result.duration_ms)}{end}")
        self._write(lines)

    def _lines(self, event: Event) -> list[str]:
        if isinstance(event, LogEvent):
            source = "cloche: " if event.stream == "cloche" else ""
            return [f"[{event.step}] | {source}{show_line(event.text)}"]
        if isinstance(event, StateEvent):
            if event.state == "started":
                return [f"job started: {', '.join(event.steps)}"]
            return [f"note: {show_line(event.message)}"] if event.state == "note" else []
        if event.state == "started":
            return [f"[{event.step}] started"]
        if event.state == "progress":
            return self._progress_lines(event)
        self._told.add(event.step)
        result = event.result
        if result is None or result.status is StepStatus.SKIPPED:
            return [f"[{event.step}] skipped"]
        detail = describe_step(result, self._progress.get(event.step))
        took = f"{result.status} in {show_duration(result.duration_ms)}"
        return [f"[{event.step}] {took}{f' ({detail})' if detail else ''}"]

    def _progress_lines(self, event: StepEvent) -> list[str]:
        self._progress[event.step] = event
        if self._progress_time is None:
            self._progress_time = event.time
        if event.time < self._progress_time + _PROGRESS_PERIOD_S:
            return []
        self._progress_time = event.time
        return [f"[{event.step}] {show_downloads(event)}"]

    def _write(self, lines: list[str]) -> None:
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()


class JsonView:
    """Each event as one line of JSON in ASCII; at the end the result, its `type` `result`."""

    def __init__(self, stream: TextIO) -> None:
        """Writes to `stream`."""
        self._stream = stream

    def show(self, events: Sequence[Event], now: float) -> None:
        """See `View`."""
        for event in events:
            self._stream.write(json.dumps(to_json(event)) + "\n")
        self._stream.flush()

    def say_aborting(self) -> None:
        """Its reader learns it from the result."""

    def close(self, result: JobResult | None) -> None:
        """See `View`."""
        if result is not None:
            fields: dict[str, Any] = {"type": "result", "ok": result.ok, **to_json(result)}
            self._stream.write(json.dumps(fields) + "\n")
            self._stream.flush()


def describe_details(result: JobResult) -> list[str]:
    """What was not delivered and what was refused: the first ones, a line each."""
    lines = []
    for label, (items, count) in (
        ("skipped", list_skipped(result)),
        ("denied", list_denied(result)),
    ):
        lines += [f"{label}: {item}" for item in items]
        if count > len(items):
            lines.append(f"{label}: and {count - len(items)} more")
    return lines


def list_skipped(result: JobResult) -> tuple[list[str], int]:
    """(`path: why` of the first files that matched and were not delivered, number of them all)."""
    skipped = result.manifest.get("skipped", {})
    first = islice(skipped.items(), DETAILS_LIMIT_COUNT)
    count = max(len(skipped), result.manifest.get("skipped_count", 0))
    return [show_line(f"{path}: {why}") for path, why in first], count


def list_denied(result: JobResult) -> tuple[list[str], int]:
    """(`step: request: rule` of the first requests that were refused, number of them all)."""
    first = result.denied[:DETAILS_LIMIT_COUNT]
    lines = [show_line(f"{each.step}: {each.what}: {each.why}") for each in first]
    return lines, len(result.denied)


def drop_output(stream: TextIO) -> None:
    """Lets nothing more come out of a stream that broke; closing it must not fail again."""
    with contextlib.suppress(OSError, ValueError):
        broken = stream.fileno()
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, broken)
        os.close(descriptor)
