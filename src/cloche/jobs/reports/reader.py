"""Test counts, from what test runners print.

Each line is read on its own and says nothing or adds to a runner's sums; what they amount to is
decided at the end. So a line that only looks like a summary can add to what the runner said of its
failures and takes nothing away, wherever it stands. There are two exceptions, where a failure is
what is missing: uvu prints a total and what passed of it, and TAP a plan that may not be kept to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cloche.jobs.reports.lines import NUMBER_LIMIT, Fact, Summary, Sums, read_line
from cloche.jobs.reports.tap import TapCounter
from cloche.model.job import TestCounts

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE_LIMIT_CHARACTERS: Final = 16 * 1024
_PREFIX_LIMIT_CHARACTERS: Final = 200
_SOURCES_LIMIT_COUNT: Final = 256


@dataclass(slots=True)
class _Source:
    """What one stream of one package of a workspace has said."""

    sums_of: dict[str, Sums] = field(default_factory=dict)
    tap: TapCounter = field(default_factory=TapCounter)

    def add(self, fact: Fact) -> None:
        if isinstance(fact, Summary):
            self.sums_of.setdefault(fact.runner, Sums(seen=False)).add(fact.sums)
        else:
            self.tap.add(fact)

    def summaries(self) -> Iterator[Summary]:
        for runner, sums in self.sums_of.items():
            yield Summary(runner, sums)
        yield self.tap.summary()


class ReportReader:
    """Reads the output of a step and says what its test runners said of themselves.

    Takes time in proportion to what it reads, and bounded memory, whatever is written.
    """

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str], _Source] = {}

    def feed(self, stream: str, text: str) -> None:
        """Reads the next line of `stream`, without its end; control characters and all."""
        for prefix, rest in _views(_shown(text[:_LINE_LIMIT_CHARACTERS])):
            fact = read_line(rest)
            if fact is not None:
                self._source(stream, prefix).add(fact)
                return

    def _source(self, stream: str, prefix: str) -> _Source:
        is_full = len(self._sources) >= _SOURCES_LIMIT_COUNT
        key = ("", "") if is_full and (stream, prefix) not in self._sources else (stream, prefix)
        return self._sources.setdefault(key, _Source())

    def counts(self) -> TestCounts | None:
        """What was counted so far, all runners together; None when none was seen.

        The names of several runners are joined by `+`.
        """
        runners: dict[str, None] = {}
        passed = failed = skipped = 0
        for source in self._sources.values():
            for summary in source.summaries():
                sums = summary.sums
                if sums.seen:
                    runners[summary.runner] = None
                    passed += max(0, sums.passed)
                    failed += max(0, sums.failed, sums.broken)
                    skipped += max(0, sums.skipped)
        if not runners:
            return None
        return TestCounts(
            runner="+".join(runners),
            passed=min(passed, NUMBER_LIMIT),
            failed=min(failed, NUMBER_LIMIT),
            skipped=min(skipped, NUMBER_LIMIT),
        )


def _shown(text: str) -> str:
    """What a terminal would show: no escape sequences, and what the last return has left.

    Source: ECMA-48, 5.4 (control sequences) and 5.6 (control strings).
    """
    if "\x1b" in text or "\x9b" in text:
        first, *rest = text.replace("\x9b", "\x1b[").split("\x1b")
        text = first + "".join(map(_after_escape, rest))
    return text.rstrip("\r").rpartition("\r")[2]


def _after_escape(text: str) -> str:
    """What follows the escape sequence that `text` is the rest of."""
    if text.startswith("]"):  # up to a BEL, or to the escape before which `text` was cut off
        return text.partition("\a")[2]
    end, last = (1, "?") if text.startswith("[") else (0, "/")
    while end < len(text) and " " <= text[end] <= last:
        end += 1
    return text[end + 1 :]


def _views(line: str) -> Iterator[tuple[str, str]]:
    """("", the line), then (prefix, the line without the prefix that a workspace's runner adds).

    `packages/a test: …` (pnpm, Lerna), `a:test: …` (Turborepo), `[a]: …` (Yarn), `[a] …`
    (concurrently).
    """
    yield "", line
    start = line[:_PREFIX_LIMIT_CHARACTERS]
    if start.startswith("["):
        name, separator, _ = start.partition("]")
        prefix = f"{name}]: " if start.startswith(f"{name}]: ") else f"{name}] "
    else:
        name, separator, _ = start.partition(": ")
        prefix = f"{name}: "
    if separator and name.count(" ") <= 1 and line.startswith(prefix):
        yield prefix, line[len(prefix) :]
