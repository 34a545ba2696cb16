"""When the text of `cloche repl` is whole."""

import pytest

from cloche.cli.repl_input import is_whole

WHOLE = {
    "javascript": [
        "1 + 1",
        "f(1, [2, {a: 3}])",
        "'(' + \"[\" + `{`",
        "`a ${[1, `${2}`].map(x => `}`)} b`",
        "1 // (",
        "1 /* ( */",
        "/[(]/.test('(')",
        "const a = /\\/(/",
        "return /[/(]/",
        "a / b / (c)",
        "(a) / 2 / b",
        "x[0] / (2)",
        "'it is \\' still'",
        "'unended",
        "f)",
        "(]",
        "if (a) {\n  b()\n\n}",
    ],
    "typescript": ["const f = <T,>(x: T): T[] => [x]"],
    "python": [
        "1 + 1",
        "f(1,\n 2)",
        "'('",
        '"""\n(\n"""',
        "'''a\n''' + 'b'",
        "x = 1 # (",
        "'unended",
        "'it is \\' still'",
        "{'a': [1]}",
        "]",
        "a[1:]",
        "for i in x:\n  print(i)\n",
        "if a:\n  b\nelse:\n  c\n",
        "@f\ndef g():\n  pass\n",
    ],
}
OPEN = {
    "javascript": [
        "f(",
        "[1,",
        "if (a) {\n",
        "`text",
        "`text ${1 + ",
        "`text ${`inner`",
        "/* comment",
        "'goes on \\",
        "{ // }",
        "f(/[)]/",
        "if (a) {\n  b()\n",
    ],
    "typescript": ["enum A {"],
    "python": [
        "f(",
        "{'a':",
        '"""text',
        "'''text\n''",
        "a = 1 + \\",
        "if a:",
        "if a: # why",
        "for i in x:\n  print(i)",
        "@f",
        "if a:\n  b\nelse:",
        "if a:\n  b\nc",
        "f('(', \"[\"",
        "( # )",
    ],
}


@pytest.mark.parametrize(
    ("language", "text"), [(each, text) for each, texts in WHOLE.items() for text in texts]
)
def test_a_whole_text_runs(language: str, text: str):
    assert is_whole(text.split("\n"), language)


@pytest.mark.parametrize(
    ("language", "text"), [(each, text) for each, texts in OPEN.items() for text in texts]
)
def test_an_open_text_goes_on_until_two_blank_lines(language: str, text: str):
    lines = text.split("\n")
    assert not is_whole(lines, language)
    assert is_whole([*lines, "", " "], language)
