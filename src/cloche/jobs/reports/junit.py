"""Test counts from JUnit's XML, as test runners write it; a stranger's, read in bounds."""

from __future__ import annotations

from typing import Final
from xml.parsers import expat

from cloche.model.job import TestCounts

REPORT_BYTES_LIMIT: Final = 16 * 1024 * 1024
_DEPTH_LIMIT: Final = 1_000
_FAILED: Final = ("failure", "error")


def read_junit(data: bytes) -> TestCounts | None:
    """Counts the test cases of a report; None for what is no such report.

    Each `testcase` counts, whatever the sums in its suites' attributes say. One without
    `failure`, `error` or `skipped` in it has passed; an `error` of a suite has failed.

    Source: https://github.com/testmoapp/junitxml, the common ground of what runners write.
    """
    counter = _Counter()
    parser = expat.ParserCreate()
    parser.StartElementHandler = counter.open
    parser.EndElementHandler = counter.close
    # Without a document type there are no entities to expand.
    parser.StartDoctypeDeclHandler = _refuse_doctype
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError):  # the last for an encoding that is none
        return None
    return counter.counts()


def _refuse_doctype(*_: object) -> None:
    raise ValueError("a document type")


class _Counter:
    def __init__(self) -> None:
        self._is_report = False
        self._in_case = False
        self._fate = "passed"
        self._depth = 0
        self._counted = {"passed": 0, "failed": 0, "skipped": 0}

    def open(self, name: str, _: dict[str, str]) -> None:
        if self._depth == 0:
            self._is_report = name in ("testsuites", "testsuite")
        self._depth += 1
        if self._depth > _DEPTH_LIMIT:
            raise ValueError("elements in elements, without an end")
        if name == "testcase":
            self._in_case, self._fate = True, "passed"
        elif name in _FAILED and self._in_case:
            self._fate = "failed"
        elif name in _FAILED:
            self._counted["failed"] += 1
        elif name == "skipped" and self._fate == "passed":
            self._fate = "skipped"

    def close(self, name: str) -> None:
        self._depth -= 1
        if name == "testcase":
            self._in_case = False
            self._counted[self._fate] += 1

    def counts(self) -> TestCounts | None:
        return TestCounts("junit", **self._counted) if self._is_report else None


def add(counts: TestCounts, other: TestCounts | None) -> TestCounts:
    """The sums of two reports."""
    if other is None:
        return counts
    return TestCounts(
        counts.runner,
        passed=counts.passed + other.passed,
        failed=counts.failed + other.failed,
        skipped=counts.skipped + other.skipped,
    )


def combine(told: TestCounts | None, written: TestCounts | None) -> TestCounts | None:
    """What a runner told and what it wrote, as one; of each number the larger one."""
    if told is None or written is None:
        return told or written
    return TestCounts(
        runner=f"{told.runner}+{written.runner}",
        passed=max(told.passed, written.passed),
        failed=max(told.failed, written.failed),
        skipped=max(told.skipped, written.skipped),
    )
