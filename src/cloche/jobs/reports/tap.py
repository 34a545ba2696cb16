"""TAP: no sums are printed, so the tests are counted, those within tests too."""

from __future__ import annotations

from cloche.jobs.reports.lines import Summary, Sums, TapEnd, TapMark, TapPlan, TapTest


class TapCounter:
    """Counts the tests of the documents that come one after the other in one output.

    A test that has tests of its own is not counted beside them, and a failure that shows on
    several levels is counted once. A document that ends before its plan is a failure.

    Source: https://testanything.org/tap-version-14-specification.html
    """

    def __init__(self) -> None:
        self._runner = "tap"
        self._ended = Sums(seen=False)
        self._start_document(has_version=False)

    def _start_document(self, *, has_version: bool) -> None:
        self._has_version = has_version
        self._sums = Sums()
        self._planned_count: int | None = None
        self._outermost_count = 0
        # The indents that are open, rising, each with whether anything failed there or deeper.
        self._levels: list[tuple[int, bool]] = []
        self._braced_indents: set[int] = set()
        # The indent of a failure that was counted before its own tests: the next of them is it.
        self._owed_indent: int | None = None

    def add(self, fact: TapTest | TapEnd | TapPlan | TapMark) -> None:
        """Takes what the next line said."""
        if isinstance(fact, TapTest):
            self._add_test(fact)
        elif isinstance(fact, TapEnd):
            self._end_braces(fact.indent)
        elif isinstance(fact, TapPlan):
            self._planned_count = (self._planned_count or 0) + fact.tests_count
        elif fact is TapMark.NODE:
            self._runner = "node:test"
        else:
            self._ended.add(self._document())
            self._start_document(has_version=True)

    def _add_test(self, test: TapTest) -> None:
        self._outermost_count += test.indent == 0
        has_tests, has_failures = self._close_levels(test.indent, failed=test.failed)
        if test.opens:
            self._braced_indents.add(test.indent)
        is_owed = self._owed_indent is not None and test.indent > self._owed_indent
        if test.failed:
            self._sums.failed += not (has_failures or is_owed)
            self._owed_indent = test.indent if test.opens else None
            return
        if not is_owed:
            self._owed_indent = None
        if not (has_tests or test.opens):
            self._sums.skipped += test.skipped
            self._sums.passed += not test.skipped

    def _end_braces(self, indent: int) -> None:
        if indent in self._braced_indents:  # else it is a brace in some other output
            self._braced_indents.discard(indent)
            self._close_levels(indent, failed=False)
            if self._owed_indent is not None and self._owed_indent >= indent:
                self._owed_indent = None

    def _close_levels(self, indent: int, *, failed: bool) -> tuple[bool, bool]:
        """Goes back to `indent`; whether deeper tests came before, and whether any failed."""
        has_tests = has_failures = failed_beside = False
        while self._levels and self._levels[-1][0] >= indent:
            level, failed_there = self._levels.pop()
            if level == indent:
                failed_beside = failed_there
            else:
                has_tests, has_failures = True, has_failures or failed_there
        self._levels.append((indent, failed_beside or has_failures or failed))
        return has_tests, has_failures

    def _document(self) -> Sums:
        """The sums of the document so far, as if it ended here."""
        planned_count, found_count = self._planned_count, self._outermost_count
        is_planned = planned_count == 0 or (planned_count is not None and found_count > 0)
        if not self._has_version and not is_planned:
            return Sums(seen=False)  # `ok` or `1..3` in some other output
        is_cut_short = planned_count is None or found_count < planned_count
        sums = Sums(failed=int(is_cut_short))
        sums.add(self._sums)
        return sums

    def summary(self) -> Summary:
        """What has been counted so far."""
        sums = self._document()
        sums.add(self._ended)
        return Summary(self._runner, sums)
