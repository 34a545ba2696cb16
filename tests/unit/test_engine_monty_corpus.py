"""What Monty makes of Python, measured against CPython on the same snippets."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("pydantic_monty", reason="the worker's Python engine is not installed")

import monty_corpus as corpus

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("monty_corpus")]

# Constructs that must be refused, and not merely fail: the corpus has a snippet for each.
MUST_REFUSE = (
    "def gen():\n    yield 1\n    yield 2\nlist(gen())",
    "class A: pass\nclass B(A): pass\nB()",
    "class A:\n    @property\n    def x(self): return 5\nA().x",
    "g = (x for x in range(3))\nlist(g), list(g)",
    "import string",
    'eval("1 + 1")',
    'open("/etc/passwd")',
)


def test_no_snippet_gives_another_result_than_cpython_unless_it_is_listed() -> None:
    exact = sys.version_info[:2] == corpus.MEASURED_ON
    found = {
        snippet.code: kind
        for snippet, kind, _, _ in corpus.measured()
        if kind not in ("same", "refused") and (exact or kind not in corpus.WORDING)
    }
    listed = {
        code: kind for code, kind in corpus.known().items() if exact or kind not in corpus.WORDING
    }
    assert found == listed


def test_a_place_is_cpython_s_or_not_told() -> None:
    for snippet, kind, _, (body, _, _) in corpus.measured():
        if kind == "line":
            assert (body["error"]["line"], body["error"]["column"]) == (None, None), snippet.code


def test_the_corpus_is_broad_and_most_of_it_works() -> None:
    kinds = [kind for _, kind, _, _ in corpus.measured()]
    assert len(kinds) >= 400
    assert kinds.count("same") > 0.7 * len(kinds)


def test_a_refusal_names_the_construct_and_its_place_and_says_what_helps() -> None:
    for snippet, kind, _, (body, out, _) in corpus.measured():
        if kind != "refused":
            continue
        error = body["error"]
        assert error["code"] == "SANDBOX_INVALID_CODE", snippet.code
        assert error["message"].endswith(corpus.HINT), snippet.code
        assert isinstance(error["line"], int), snippet.code
        assert f"line {error['line']}" in error["message"], snippet.code
        # Nothing ran, but for the few things that only show on the way.
        assert out == "" or "this (" in error["message"] or "recursion" in error["message"]


@pytest.mark.parametrize("code", MUST_REFUSE)
def test_what_monty_cannot_do_is_refused(code: str) -> None:
    kinds = {snippet.code: kind for snippet, kind, _, _ in corpus.measured()}
    assert kinds[code] == "refused"


def test_a_difference_is_seen() -> None:
    # The positive control: the comparison tells values, types, output and errors apart.
    one = ({"ok": True, "value": 1}, "", "")
    error = {"code": "C", "name": "N", "message": "m", "line": 1, "column": 1}
    failed = ({"ok": False, "error": error}, "", "")
    assert corpus.kind_of(one, one) == corpus.kind_of(failed, failed) == "same"
    assert corpus.kind_of(one, ({"ok": True, "value": 1.0}, "", "")) == "result"
    assert corpus.kind_of(one, ({"ok": True, "value": True}, "", "")) == "result"
    assert corpus.kind_of(one, (one[0], "x", "")) == "output"
    assert corpus.kind_of(one, failed) == "result"
    for field, kind in (("name", "result"), ("line", "line"), ("message", "words")):
        other = ({"ok": False, "error": {**error, field: "other"}}, "", "")
        assert corpus.kind_of(failed, other) == kind


@pytest.mark.skipif(
    sys.version_info[:2] != corpus.MEASURED_ON, reason="the page tells what CPython 3.11 says"
)
def test_the_page_about_the_subset_is_what_was_measured() -> None:
    assert corpus.DOCUMENT.read_text() == corpus.document()
