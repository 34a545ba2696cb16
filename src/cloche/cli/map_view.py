"""What `cloche map` shows beside its results: a bar while it runs, one line at the end."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from cloche.cli.job_words import show_count, show_duration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

Progress = Callable[[int], None]
"""Called with the size of each line of the input whose result is written."""


class Tally:
    """Counts results.

    Attributes:
        failed_count: Results that are not ok.
        started_at: When the first run of this command could start, by the monotonic clock.
    """

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self.started_at = time.monotonic()
        self.failed_count = 0
        self._count = 0
        self._old_count = 0
        self._codes: Counter[str] = Counter()

    def add(self, ok: bool, error_code: object, *, is_old: bool = False) -> None:
        """Counts a result; `is_old`: it was there before."""
        self._count += 1
        self._old_count += is_old
        if not ok:
            self.failed_count += 1
            self._codes[str(error_code)] += 1

    def describe(self, *, is_interrupted: bool = False) -> str:
        """One line: `20 results in 1.2 s, 16.7/s: 18 ok, 2 failed (2 SANDBOX_TIMEOUT)`."""
        elapsed_s = max(time.monotonic() - self.started_at, 0.001)
        new_count = self._count - self._old_count
        took = f"in {show_duration(elapsed_s * 1000)}, {_show_rate(new_count / elapsed_s)}/s"
        if self._old_count and not new_count:
            took = "(all were there)"
        elif self._old_count:
            took = f"({self._old_count:,} were there, {new_count:,} more {took})"
        told = f"{show_count(self._count, 'result')} {took}: {self._count - self.failed_count:,} ok"
        if self.failed_count:
            codes = ", ".join(f"{n:,} {code}" for code, n in self._codes.most_common())
            told += f", {self.failed_count:,} failed ({codes})"
        return f"interrupted after {told}" if is_interrupted else told

    def describe_shortly(self) -> str:
        """For the bar."""
        rate = (self._count - self._old_count) / max(time.monotonic() - self.started_at, 0.001)
        failed = f", {self.failed_count:,} failed" if self.failed_count else ""
        return f"{show_count(self._count, 'result')}{failed}, {_show_rate(rate)}/s"


@contextlib.contextmanager
def show_progress(tally: Tally, source: FileIO, *, is_shown: bool) -> Iterator[Progress]:
    """A bar on standard error while it is a terminal; nothing else otherwise."""
    if not is_shown or not sys.stderr.isatty() or os.environ.get("TERM") in (None, "", "dumb"):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    status = os.fstat(source.fileno())
    size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None
    columns = [BarColumn(), TextColumn("{task.description}")]
    if size_bytes:
        columns.append(TimeRemainingColumn())
    console = Console(file=sys.stderr, highlight=False)
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(tally.describe_shortly(), total=size_bytes)

        def progress(line_bytes: int) -> None:
            bar.update(task, advance=line_bytes, description=tally.describe_shortly())

        yield progress


def _show_rate(rate: float) -> str:
    return f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}"
