"""TypeScript becomes JavaScript in place: types are blanks, the rest is compiled on its lines."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.source import Refused, Transformed, decorators, map_position, transform

SNIPPETS = Path(__file__).parent.parent / "data" / "typescript_snippets.txt"
WORDS = (
    "enum namespace class { } ( ) [ ] < > : ; , ! ? = => as satisfies any T x y @d constructor "
    "private readonly static accessor async function return export import type interface abstract "
    "declare let const var ` ${ // /* */ é 😀 extends implements this super() . #p 1 using await"
).split()

OURS = {"export", "default", "await", "function", "return", "static", "const", "class"}


def snippets() -> list[str]:
    codes, lines = [], []
    for line in SNIPPETS.read_text().splitlines():
        if line.startswith("=== "):
            codes.append("\n".join(lines))
            lines = []
        elif lines or not line.startswith("# "):
            lines.append(line)
    return codes


def count_lines(text: str) -> int:
    for terminator in ("\r\n", "\r", "\u2028", "\u2029"):
        text = text.replace(terminator, "\n")
    return text.count("\n")


def place(text: str, offset: int) -> tuple[int, int]:
    head = text[:offset]
    return head.count("\n") + 1, len(head[head.rfind("\n") + 1 :].encode("utf-16-le")) // 2 + 1


@pytest.mark.parametrize("code", snippets())
def test_a_snippet_keeps_its_lines_and_every_word_its_place(code: str) -> None:
    result = transform(code, "typescript")
    if isinstance(result, Refused):
        assert 1 <= result.line <= count_lines(code) + 1
        return
    assert result.erased and result.check is None
    assert count_lines(result.code) - count_lines(code) in (0, 1)
    for word in {
        word for word in code.replace("(", " ").replace(".", " ").split() if len(word) > 3
    }:
        if (
            word not in OURS
            and word not in decorators._RUN_TIME
            and code.count(word) == result.code.count(word) == 1
        ):
            mapped = map_position(
                *place(result.code, result.code.index(word)), line_offset=0, edits=result.edits
            )
            assert mapped == place(code, code.index(word)), word


@pytest.mark.parametrize(
    ("code", "line", "column", "told"),
    [
        ("1;\n import fs = require('fs')", 2, 2, "import … from"),
        ("export = 5", 1, 1, "export default"),
        ("namespace N {\n export { a } }", 2, 2, "declarations only"),
        ("class A { constructor(private { a }) {} }", 1, 23, "pattern"),
        ("class A extends B { constructor(private a) { f(() => super()) } }", 1, 21, "super()"),
        ("function f(private a) {}", 1, 12, "constructor"),
        ("enum E { A = f(), B }", 1, 19, "needs a value"),
        ("enum E { [f()] = 1 }", 1, 10, "computed"),
        ("class A { accessor [f()] = 1 }", 1, 20, "computed"),
        ("class A { m(@d p) {} }", 1, 13, "parameter"),
        ("class A { @d #m() {} }", 1, 11, "private method"),
        ("@d export default class {}", 1, 19, "name"),
    ],
)
def test_what_has_no_form_in_javascript_is_refused_where_it_stands(
    code: str, line: int, column: int, told: str
) -> None:
    refused = transform(code, "typescript")
    assert isinstance(refused, Refused)
    assert told in refused.message
    assert (refused.line, refused.column) == (line, column)


def test_types_in_javascript_are_not_taken_away() -> None:
    for code in ("let x: number = 1", "class A { accessor x: number = 1 }"):
        result = transform(code, "javascript")
        assert isinstance(result, Transformed)
        assert "number" in result.code


def test_names_of_the_compiler_are_none_of_the_texts() -> None:
    result = transform(
        "let $cloche0_1 = 5; namespace N { export const x = $cloche0_1 } N.x", "typescript"
    )
    assert isinstance(result, Transformed)
    assert "$cloche1_1.x=x" in result.code


@pytest.mark.parametrize("language", ["typescript", "javascript"])
@given(words=st.lists(st.sampled_from([*WORDS, "\n", "\r\n", "\u2028"]), max_size=14))
def test_no_text_is_too_odd(language: str, words: list[str]) -> None:
    code = " ".join(words)
    result = transform(code, language)
    if isinstance(result, Transformed):
        assert count_lines(result.code) - count_lines(code) in (0, 1)
        assert list(result.edits) == sorted(result.edits)
        assert len(result.code) < 20 * len(code) + 5000


@pytest.mark.parametrize(
    "code",
    [
        "x" + " as any" * 4000,
        "<any>" * 4000 + "x",
        "let x:T" + "[K]" * 8000,
        "class A{@d m(){" * 1500 + "}}" * 1500,
        "class A{constructor(private a){" * 1000 + "}}" * 1000,
        "enum A{B=1" + "+1" * 10_000 + "}",
        "(a:T)\n=>" * 3000 + "1",
    ],
    ids=lambda code: code[:12],
)
def test_a_text_as_deep_as_it_is_long_takes_time_by_its_length(code: str) -> None:
    started = time.process_time()
    assert isinstance(transform(code, "typescript"), Transformed)
    assert time.process_time() - started < 2  # quadratic ones took ten
