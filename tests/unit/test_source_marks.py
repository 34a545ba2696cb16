"""Marks give statements a position of their own, and change nothing else."""

import pytest

from cloche.source.marks import mark_statements
from cloche.source.positions import map_position


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("let a = b.c", "let a = b.c"),
        ("\nlet a = b.c", "\n0;let a = b.c"),
        ("f()\nreturn_()\nvar a", "f()\nreturn_()\n0;var a"),
        ("\nif (a) return; else { return 1 }", "\n0;if (a) return; else { 0;return 1 }"),
        ("\nfor (let i = 0; i < 1; i++) for (const x of y) throw x",
         "\n0;for (let i = 0; i < 1; i++) for (const x of y) throw x"),
        ("function f() {\n  'use strict'\n  return a.b\n}",
         "function f() {\n  'use strict'\n  0;return a.b\n}"),
        ("\nexport default await (a.b)", "\n0;export default await (a.b)"),
        ("export {};\nlabel: for (;;) break label", "export {};\nlabel: for (;;) break label"),
        ("\nswitch (a) { case 1: let b }", "\n0;switch (a) { case 1: let b }"),
        ("\nconst f = async () => { return 1 }, g = () => 1",
         "\n0;const f = async () => { 0;return 1 }, g = () => 1"),
        ("\r\nclass A { static { return_; let x } m() { return 1 } }",
         "\r\n0;class A { static { return_; 0;let x } m() { 0;return 1 } }"),
        ("\n'é😀'; let x", "\n'é😀'; 0;let x"),
    ],
)  # fmt: skip
def test_statements_that_an_engine_does_not_note_are_marked(text: str, marked: str) -> None:
    result, edits = mark_statements(text)
    assert result == marked
    assert all(delta == -2 for _, _, delta in edits)


def test_positions_lead_back() -> None:
    result, edits = mark_statements("\n'é😀'; let x = a.b; let y")
    line = result.split("\n")[1]
    for word in ("let x", "a.b", "let y"):
        column = len(line[: line.index(word)].encode("utf-16-le")) // 2 + 1
        back = map_position(2, column, line_offset=0, edits=edits)
        plain = "'é😀'; let x = a.b; let y"
        assert back == (2, len(plain[: plain.index(word)].encode("utf-16-le")) // 2 + 1)
    assert map_position(2, 7, line_offset=0, edits=edits)[0] == 2
