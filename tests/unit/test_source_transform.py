"""What a snippet becomes: its value, its imports and exports, and who says that it is invalid."""

import pytest

from cloche.source import Transformed, transform

MARK = "export {};"


def module_of(code: str, language: str = "javascript") -> str:
    result = transform(code, language)
    assert isinstance(result, Transformed), result
    assert result.code.startswith(MARK)
    return result.code.removeprefix(MARK)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("5", "export default await (5)"),
        ("({ a: 1 });", "export default await (({ a: 1 }));"),
        ("1, 2;;", "export default await (1, 2);;"),
        ("x = 5 // five", "export default await (x = 5) // five"),
        ("f\n(4)", "export default await (f\n(4))"),
        ("let i = 1\n++i", "let i = 1\nexport default await (++i)"),
        ("'use strict'", "export default await ('use strict')"),
        ("let a = 1/* \n*/a + 1", "let a = 1/* \n*/export default await (a + 1)"),
        ("f()\nfunction f() {}", "export default await (f())\nfunction f() {}"),
        ("\ufeff5", "\ufeffexport default await (5)"),
    ],
)
def test_a_final_expression_becomes_the_default_export(code: str, expected: str) -> None:
    assert module_of(code) == expected


@pytest.mark.parametrize(
    "code",
    ["", "  \n", "// c", ";", "{ a: 1 }", "function f() {}", "a: 1", "5; const a = 1", "if (1) 5"],
)
def test_what_is_no_final_expression_is_left_as_it_stands(code: str) -> None:
    assert module_of(code) == code


@pytest.mark.parametrize("code", ["{ a: 1, b: 2 }", "function () {}", "class {}", "{}.x"])
def test_what_no_statement_can_begin_with_is_not_made_valid_by_parentheses(code: str) -> None:
    assert "export default" not in module_of(code)


def test_a_top_level_return_puts_the_code_into_a_function_after_its_imports() -> None:
    assert module_of("import a from 'a';\nif (a) return 1;\n2") == (
        "import a from 'a';\nexport default await (async () => {if (a) return 1;\nreturn (2)\n})();"
    )


@pytest.mark.parametrize(
    "code",
    [
        "(() => { return 1 })",
        "class A { m() { return 1 } }",
        "'return'",
        "f(function () { return 1 })",
    ],
)
def test_a_return_in_a_function_is_not_a_top_level_one(code: str) -> None:
    assert "async () => {" not in module_of(code)


def test_an_import_below_other_statements_moves_out_of_the_function() -> None:
    code = module_of("g();\nimport { a, // one\n b } from 'x';\nreturn a")
    assert code == (
        "import { a , b } from 'x' ;export default await (async () => {g();\n"
        "                  \n              \nreturn a\n})();"
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("export const a = 1;", "       const a = 1;"),
        ("export { a as default };", " " * 24),
        ("export { default } from 'x';", "import                  'x';"),
        ("export * from 'x';", "import        'x';"),
        ("export default function f() {}", "               function f() {}"),
        ("export default 5; 6", ";void  (       5); export default await (6)"),
        ("export default a", "export default await (a)"),
        ("if (0) return 1; export default 5", None),
    ],
)
def test_exports_go_and_what_they_declare_stays(code: str, expected: str | None) -> None:
    if expected is None:
        assert "return (       5)" in module_of(code)
    else:
        assert module_of(code) == expected


def test_types_become_blanks_and_a_namespace_may_stand_beside_a_return() -> None:
    assert module_of("const y: number = a!;\ny as any", "typescript") == (
        "const y         = a ;\nexport default await (y) ;     "
    )
    result = transform("f();\n  namespace N { export const x = 1 }\nreturn 1", "typescript")
    assert isinstance(result, Transformed) and result.erased


def test_what_the_grammar_does_not_know_stays_typescript() -> None:
    result = transform("let as = 1; as as number", "typescript")
    assert isinstance(result, Transformed)
    assert (result.erased, result.check) == (False, "let as = 1; as as number")
    plain = transform("x = = 1", "javascript")
    assert isinstance(plain, Transformed) and plain.erased


def test_imports_are_listed_with_their_places() -> None:
    code = "import a from 'a'\n  export * from \"b\";\nimport type c from 'c'; import('d')"
    result = transform(code, "typescript")
    assert isinstance(result, Transformed)
    found = [(i.specifier, i.line, i.column) for i in result.imports]
    assert found == [("a", 1, 15), ("b", 2, 17), ("c", 3, 20)]


@pytest.mark.parametrize(
    "code",
    [
        "})(); evil(); (async () => {",
        "}}}; evil(); {{{",
        "const c = = 3",
        "`",
        "return 1\n})(); (() => {",
    ],
)
def test_the_text_alone_is_put_to_the_runtime_when_it_does_not_parse(code: str) -> None:
    result = transform(code, "javascript")
    assert isinstance(result, Transformed)
    assert result.check == code
    assert result.suspect is not None


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("class A { accessor x = 1 }", "javascript"),
        ("import { 'x y' as a } from 'x'", "typescript"),
        ("for (using x of []) {}", "typescript"),
        ("x\u2028y", "typescript"),
        ("var a = 1\rb", "javascript"),
        ("a/*\n*/b", "typescript"),
    ],
)
def test_what_only_one_grammar_or_neither_knows_is_still_read(code: str, language: str) -> None:
    result = transform(code, language)
    assert isinstance(result, Transformed)
    assert result.check is None


def test_a_lone_surrogate_is_read_as_a_replacement_character() -> None:
    assert module_of("'\ud800'") == "export default await ('\ufffd')"


def test_a_hash_bang_line_becomes_a_comment() -> None:
    assert module_of("#!/usr/bin/bun\n5") == "///usr/bin/bun\nexport default await (5)"


def test_an_export_that_is_not_valid_is_left_for_the_runtime_to_refuse() -> None:
    assert module_of("export default const d = 1") == "export default const d = 1"
