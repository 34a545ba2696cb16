"""Whatever a guest writes as a report, it is counted in bounds or counts nothing."""

import time
import tracemalloc
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloche.jobs.reports.junit import read_junit

pieces = st.sampled_from(
    [
        b"<testsuites>",
        b"</testsuites>",
        b"<testsuite>",
        b"</testsuite>",
        b"<testcase/>",
        b"<testcase>",
        b"</testcase>",
        b"<failure/>",
        b"<error/>",
        b"<skipped/>",
        b"<!--",
        b"-->",
        b"<![CDATA[",
        b"]]>",
        b"<?xml version='1.0'?>",
        b"<?xml version='1.0' encoding='nope'?>",
        b"<!DOCTYPE a>",
        b"&a;",
        b"<!DOCTYPE a [<!ENTITY a 'b'>]>",
        b"<a:b/>",
        b"<testsuite xmlns='urn:x'>",
        b"\xff",
        b"\0",
    ]
) | st.binary(max_size=4)


@given(st.lists(pieces, max_size=20).map(b"".join))
@example(b"<?xml version='1.0' encoding='nope'?><testsuite/>")
@example(b"<?xml version='1.0' encoding='rot13'?><testsuite/>")
def test_any_bytes_are_a_report_or_none(data: bytes) -> None:
    found = read_junit(data)
    if found is not None:
        numbers = (found.passed, found.failed, found.skipped)
        assert min(numbers) >= 0
        assert sum(numbers) <= data.count(b"<")


fates = st.lists(st.sampled_from(["", "<failure/>", "<error/>", "<skipped/>"]), max_size=8)


@given(fates, st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=5))
def test_a_report_counts_its_cases_whatever_their_names_are(cases: list[str], name: str) -> None:
    body = "".join(f"<testcase name={quoteattr(name)}>{fate}</testcase>" for fate in cases)
    text = f"<testsuite name={quoteattr(name)}>{body}</testsuite>"
    failed = cases.count("<failure/>") + cases.count("<error/>")
    counted = read_junit(text.encode())
    if counted is None:  # a name of characters that XML does not know
        assert not name.isprintable()
        return
    assert (counted.failed, counted.skipped) == (failed, cases.count("<skipped/>"))
    assert counted.passed == len(cases) - failed - counted.skipped


LAUGHS = "".join(f"<!ENTITY a{at} '{f'&a{at - 1};' * 10}'>" for at in range(1, 12))


@pytest.mark.parametrize(
    "text",
    [
        f"<!DOCTYPE x [<!ENTITY a0 'ha'>{LAUGHS}]><testsuite>&a11;</testsuite>",
        "<!DOCTYPE x SYSTEM 'file:///etc/passwd'><testsuite/>",
        "<testsuite>" + "<a>" * 1_000_000,
        f"<testsuite a='{'x' * 4_000_000}'/>",
        "<testsuite>" + "<testcase/>" * 100_000 + "</testsuite>",
    ],
    ids=["laughs", "system", "deep", "attribute", "many"],
)
def test_a_report_made_to_be_heavy_is_light(text: str) -> None:
    data = text.encode()
    started_at = time.monotonic()
    tracemalloc.start()
    try:
        read_junit(data)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data) + 1_000_000
    finally:
        tracemalloc.stop()
    assert time.monotonic() - started_at < 3
