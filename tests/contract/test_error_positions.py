"""Errors: what is told, and where in the caller's own text it points."""

from typing import Any

import pytest
from dialects import assert_unknown_to_the_engine

from cloche import SandboxErrorCode

SCRIPTS = ("javascript", "typescript")
V8 = ("process-node", "process-deno")
# Signs of code that the worker's engine does not know.
NOT_IN_MONTY = ("class Mine(Exception)", "__str__", "BaseExceptionGroup", "object()")

# Code whose last line starts with `null.x` or `1/0` marks the column by itself.
RUN_TIME: list[tuple[str, str, int, int]] = [
    ("javascript", "null.x", 1, 1),
    ("javascript", "const a = 1;\n  null.x", 2, 3),
    ("javascript", "import fs from 'fs';\n\nnull.x", 3, 1),
    ("javascript", "export const a = 1;\nreturn null.x", 2, 8),
    ("javascript", "function f() {\n  null.x\n}\n\nf()", 2, 3),
    ("javascript", "'use strict';\r\nnull.x", 2, 1),
    ("javascript", "/* éé */ null.x", 1, 10),
    ("javascript", "await 1;\n({ a: null.x })", 2, 7),
    ("typescript", "enum A { X }\nconst a: A = A.X;\n(null as any).x", 3, 2),
    ("typescript", "namespace N { export const x = 1 }\nnull.x", 2, 1),
    ("typescript", "interface I { a: 1 }\n\nconst f = <T,>(x: T): T => { return null.x };\n"
     "f<I>({ a: 1 })", 3, 37),
    ("python", "1/0", 1, 1),
    ("python", "x = 1\n\ny = [1/0]", 3, 6),
    ("python", "def f():\n    return 1/0\n\nf()", 2, 12),
    ("python", "a = 'é😀'; 1/0", 1, 11),
    ("python", "# one\r\n1/0", 2, 1),
    ("python", "return 1/0", 1, 8),
    ("python", "import asyncio\nawait asyncio.sleep(0)\n1/0", 3, 1),
    ("python", "import json\njson.loads('{')", 2, 1),
]  # fmt: skip

SYNTAX: list[tuple[str, str, int, int | None]] = [
    ("javascript", "const a = 1;\nconst b = 2;\nconst c = = 3;", 3, 11),
    ("typescript", "const a: number = 1;\nconst b: = 3;", 2, 10),
    ("javascript", "let x;\nlet x;", 2, 5),
    ("javascript", "if (true) {\n  1", 2, None),
    ("javascript", "x = 'unclosed", 1, None),
    ("javascript", "1\n<!-- old\n2", 2, None),
    ("javascript", "await = 3; break", 1, None),
    ("python", "a = 1\nb = = 2", 2, 5),
    ("python", "é = (\n", 1, 5),
    ("python", "if True:\npass", 2, None),
    ("python", "x = '''unclosed", 1, 5),
    ("python", "break", 1, None),
    ("python", "return 1\ny = = 2", 2, 5),
    ("python", "yield 1", 1, 1),
    ("python", "nonlocal x", 1, None),
    ("python", "(" * 300, 1, None),
]


@pytest.mark.every_runtime
@pytest.mark.parametrize(("language", "code", "line", "column"), RUN_TIME, ids=range(len(RUN_TIME)))
def test_an_error_points_to_its_place_in_the_callers_text(
    sandbox: Any, kind: str, language: str, code: str, line: int, column: int
) -> None:
    result = sandbox.run(code, language=language)
    if kind == "worker" and code.startswith("import fs"):
        assert_unknown_to_the_engine(result)
        return
    assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
    assert result.error_line == line, result.error_stack
    if kind == "worker" and language != "python":  # QuickJS tells where the statement starts
        assert 1 <= result.error_column <= column, result.error_stack
    elif kind in V8:  # which tells where the property is that was read
        assert result.error_column == code.splitlines()[line - 1].index(".x") + 2
    else:
        assert result.error_column == column, result.error_stack
    assert f"{line}" in result.error_stack
    assert_nothing_of_the_box(result)


def assert_nothing_of_the_box(result: Any) -> None:
    for text in (result.error, result.error_stack or "", result.stdout, result.stderr):
        for path in ("/opt/cloche", "bun.mjs", "python.py", "/work", "/root", "site-packages"):
            assert path not in text, text


@pytest.mark.every_runtime
@pytest.mark.case("api-02-syntax-error")
@pytest.mark.parametrize(("language", "code", "line", "column"), SYNTAX, ids=range(len(SYNTAX)))
def test_code_that_does_not_parse_is_told_with_its_place(
    sandbox: Any, kind: str, language: str, code: str, line: int, column: int | None
) -> None:
    result = sandbox.run(code, language=language)
    if kind == "worker" and "<!--" in code:  # QuickJS reads operators, as the standard has it
        assert result.error == "ReferenceError: old is not defined"
        return
    assert result.error_code is SandboxErrorCode.INVALID_CODE, result.error
    assert result.error_line == line
    if kind == "process" or language == "python":
        assert column is None or result.error_column == column
    assert result.error_column is None or result.error_column >= 1
    assert_nothing_of_the_box(result)


def test_a_stack_names_every_frame_of_the_callers(sandbox: Any) -> None:
    code = "function inner() {\n  null.x;\n}\nfunction outer() {\n  inner();\n}\nouter();"
    for language, name in (("javascript", "snippet.js"), ("typescript", "snippet.ts")):
        stack = sandbox.run(code, language=language).error_stack
        places = [f"{name}:2:", f"{name}:5:", f"{name}:7:"]
        assert [place for place in places if place in stack] == places
    code = "def inner():\n    1/0\ndef outer():\n    inner()\nouter()"
    stack = sandbox.run(code, language="python").error_stack
    for line in (2, 4, 5):
        assert f'"snippet.py", line {line}' in stack
    assert stack.startswith("Traceback") and stack.rstrip().endswith("division by zero")


@pytest.mark.parametrize(
    ("language", "code", "told"),
    [
        ("javascript", "throw 5", "5"),
        ("javascript", "throw 'text'", "text"),
        ("javascript", "throw null", "null"),
        ("javascript", "throw undefined", "undefined"),
        ("javascript", "throw { code: 42 }", "42"),
        ("javascript", "throw Symbol('s')", "Symbol"),
        ("javascript", "throw Object.create(null)", ""),
        ("javascript", "class Mine extends Error { name = 'Mine' }; throw new Mine('told')",
         "Mine: told"),
        ("javascript", "throw new AggregateError([new Error('one')], 'several')", "several"),
        ("javascript", "throw new Error('outer', { cause: new Error('inner') })", "outer"),
        ("javascript", "throw { get message() { throw 1 }, name: 'x' }", ""),
        ("javascript", "throw new Proxy({}, { get() { throw 1 }, has() { throw 1 } })", ""),
        ("javascript", "const e = new Error('own'); e.stack = 5; throw e", "own"),
        ("javascript", "const e = new Error(); e.message = { toString() { return 5 } }; throw e",
         ""),
        ("javascript", "(function f() { f() })()", "RangeError"),
        ("javascript", "Promise.reject(new Error('unseen')); 1", "unseen"),
        ("javascript", "setTimeout(() => { throw new Error('late') });"
         " await new Promise(r => setTimeout(r, 1000)); 1", "late"),
        ("python", "raise ValueError", "ValueError"),
        ("python", "raise KeyError('k')", "KeyError: 'k'"),
        ("python", "class Mine(Exception): pass\nraise Mine('told')", "Mine: told"),
        ("python", "class Bad(Exception):\n    def __str__(self): raise 1\nraise Bad", "Bad"),
        ("python", "raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("python", "raise BaseExceptionGroup('several', [KeyboardInterrupt(), ValueError('one')])",
         "several"),
        ("python", "raise ValueError('outer') from LookupError('inner')", "outer"),
        ("python", "def f(): f()\nf()", "RecursionError"),
        ("python", "assert False, 'told'", "AssertionError: told"),
        ("python", "x = object()\nx.missing", "AttributeError"),
    ],
)  # fmt: skip
def test_whatever_is_thrown_is_an_execution_error_with_a_message(
    sandbox: Any, kind: str, language: str, code: str, told: str
) -> None:
    result = sandbox.run(code, language=language)
    if kind == "worker" and any(sign in code for sign in NOT_IN_MONTY):
        assert_unknown_to_the_engine(result)
        return
    assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
    assert result.error and told in result.error
    assert (result.ok, result.value) == (False, None)
    assert result.exit_code == (None if kind == "worker" else 1)
    assert_nothing_of_the_box(result)


def test_chains_of_errors_are_in_the_stack(sandbox: Any, kind: str) -> None:
    code = "throw new Error('outer', { cause: new Error('inner') })"
    assert "inner" in sandbox.run(code).error_stack
    code = "raise ValueError('outer') from LookupError('inner')"
    stack = sandbox.run(code, language="python").error_stack
    assert ("inner" in stack) or kind == "worker"  # its Python knows no causes


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "throw new Error('m'.repeat(5e6))"),
        ("javascript", "const e = new Error('m'); e.name = e.stack = 'n'.repeat(5e6); throw e"),
        ("python", "raise ValueError('m' * 5_000_000)"),
        ("python", "raise type('N' * 5_000_000, (Exception,), {})('m')"),
    ],
)
def test_an_error_is_bounded(sandbox: Any, kind: str, language: str, code: str) -> None:
    result = sandbox.run(code, language=language)
    if kind == "worker" and "type(" in code:
        assert_unknown_to_the_engine(result)
        return
    assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
    assert 0 < len(result.error) < 20_000
    assert len(result.error_stack or "") < 40_000


def test_the_sandbox_knows_the_error_as_an_exception(sandbox: Any) -> None:
    import cloche

    result = sandbox.run("null.x")
    with pytest.raises(cloche.ExecutionError, match="TypeError") as caught:
        result.raise_for_error()
    assert caught.value.code is SandboxErrorCode.EXECUTION_ERROR
    fine = sandbox.run("1")
    assert fine.raise_for_error() is fine
