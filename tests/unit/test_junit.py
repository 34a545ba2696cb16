"""Test counts from JUnit's XML: each test case counts, and no sum that a file states of itself."""

import pytest

from cloche.jobs.reports.junit import add, combine, read_junit
from cloche.model.job import TestCounts


def counts(text):
    found = read_junit(text.encode())
    return None if found is None else (found.passed, found.failed, found.skipped)


VITEST = """<?xml version="1.0" encoding="UTF-8" ?>
<testsuites name="vitest tests" tests="4" failures="1" errors="0" time="0.01">
  <testsuite name="a.test.ts" tests="4" failures="1" errors="0" skipped="1" time="0.006">
    <testcase classname="a.test.ts" name="adds" time="0.001"></testcase>
    <testcase classname="a.test.ts" name="fails" time="0.003">
      <failure message="expected 1 to be 2" type="AssertionError">at a.test.ts:5</failure>
    </testcase>
    <testcase classname="a.test.ts" name="later" time="0"><skipped/></testcase>
    <testcase classname="a.test.ts" name="works &amp; more" time="0"/>
  </testsuite>
</testsuites>
"""
PYTEST = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" errors="1"
failures="0" skipped="0" tests="2"><testcase classname="t" name="a" time="0.0"/><testcase
classname="t" name="b"><error message="failed on setup">boom</error></testcase></testsuite>
</testsuites>"""
NODE = """<?xml version="1.0" encoding="utf-8"?>
<testsuites>
  <testcase name="holds" time="0.001" classname="test"/>
  <testsuite name="nested"><testcase name="x" classname="test"/></testsuite>
</testsuites>"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VITEST, (2, 1, 1)),
        (PYTEST, (1, 1, 0)),
        (NODE, (2, 0, 0)),
        ("<testsuite/>", (0, 0, 0)),
        ('<testsuite tests="99" failures="0"/>', (0, 0, 0)),
        ("<testsuites><testsuite><error>not loaded</error></testsuite></testsuites>", (0, 1, 0)),
        ("<testsuite><testcase><skipped/><failure/></testcase></testsuite>", (0, 1, 0)),
        ("<testsuite><testcase><failure/><skipped/></testcase></testsuite>", (0, 1, 0)),
        ("<testsuite><properties><skipped/></properties><testcase/></testsuite>", (1, 0, 0)),
    ],
)
def test_the_cases_of_a_report_are_counted(text, expected):
    assert counts(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no xml",
        "<html><testcase/></html>",
        VITEST[:-20],
        "<!DOCTYPE x [<!ENTITY a 'aaa'>]><testsuite><testcase name='&a;'/></testsuite>",
        "<testsuite><testcase name='&unknown;'/></testsuite>",
    ],
)
def test_what_is_no_whole_report_counts_nothing(text):
    assert counts(text) is None


def test_a_report_is_as_deep_as_reports_are_and_no_deeper():
    for depth, expected in ((999, (1, 0, 0)), (1_000, None), (1_000_000, None)):
        text = "<testsuite>" * depth + "<testcase/>" + "</testsuite>" * depth
        assert counts(text) == expected


@pytest.mark.parametrize("name", ["nope", "rot13", "zip", "utf-7", "idna", "", "../x", "x.y"])
def test_an_encoding_that_is_none_is_no_error_of_ours(name):
    assert counts(f"<?xml version='1.0' encoding='{name}'?><testsuite/>") is None
    assert counts("<?xml version='1.0' encoding='latin-1'?><testsuite/>") == (0, 0, 0)


def test_what_was_told_and_what_was_written_become_one_and_neither_hides_a_failure():
    told, written = TestCounts("vitest", 3, 0, 0), TestCounts("junit", 2, 1, 0)
    assert combine(told, written) == TestCounts("vitest+junit", 3, 1, 0)
    assert combine(told, None) == told
    assert combine(None, written) == written
    assert combine(None, None) is None
    assert add(written, written) == TestCounts("junit", 4, 2, 0)
    assert add(written, None) == written
