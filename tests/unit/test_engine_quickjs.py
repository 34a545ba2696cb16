"""The JavaScript engine of the worker sandbox: values and errors."""

from collections.abc import Iterator
from typing import Any

import pytest
from engine_driver import Recorder, end, error, value

SCRIPTS = ("javascript", "typescript")
EXECUTION = "SANDBOX_EXECUTION_ERROR"

VALUES: list[tuple[str, Any]] = [
    ("1 + 1", 2),
    ("-0", 0),
    ("0.1 + 0.2", 0.1 + 0.2),
    ("2 ** 53", 2**53),
    ("1e21", 1e21),
    ("true", True),
    ("null", None),
    ("undefined", None),
    ("() => 1", None),
    ("Symbol('s')", None),
    ("NaN", None),
    ("[NaN, Infinity, -Infinity]", [None, None, None]),
    ("[undefined, () => 1, Symbol('s')]", [None, None, None]),
    ("({ u: undefined, f() {}, [Symbol('k')]: 1, kept: 1 })", {"kept": 1}),
    ("new Date(0)", "1970-01-01T00:00:00.000Z"),
    ("[new Date(NaN)]", [None]),
    ("new Map([[1, 2]])", {}),
    ("new Set([1])", {}),
    ("/x/g", {}),
    ("new Error('e')", {}),
    ("new Uint8Array([1, 2])", {"0": 1, "1": 2}),
    ("[new Number(1), new String('s'), new Boolean(false)]", [1, "s", False]),
    ("({ toJSON() { return { inner: 1 } } })", {"inner": 1}),
    ("({ a: { toJSON(key) { return key } } })", {"a": "a"}),
    ("class A { x = 1; #y = 2; get z() { return 3 } }; new A()", {"x": 1}),
    ("Object.create({ inherited: 1 })", {}),
    ("[1, , 3]", [1, None, 3]),
    ("({ ['__proto__']: 1, '': 2, 'a b': 3 })", {"__proto__": 1, "": 2, "a b": 3}),
    ("'é😀\\u0000\\u2028'", "é😀\0\u2028"),
    ("const shared = { a: 1 }; [shared, shared]", [{"a": 1}, {"a": 1}]),
    ("new Proxy({ a: 1 }, {})", {"a": 1}),
    ("Promise.resolve([Promise.resolve(1)])", [{}]),
    ("let x = 5; x", 5),
    ("5; const a = 1", None),
    ("if (true) { 5 }", None),
    ("return 5", 5),
    ("for (const x of [1, 2]) { if (x === 2) return x }", 2),
    ("const f = async () => 9; f()", 9),
    ("await Promise.resolve(3)", 3),
    ("const v = await new Promise(r => setTimeout(r, 5, 4)); v", 4),
    ("for await (const x of [Promise.resolve(6)]) { return x }", 6),
    ("'use strict'; 3", 3),
    ("export const q = 3; q", 3),
    ("#!/usr/bin/env bun\n1", 1),
    ("\ufeff1", 1),
    ("1\r\n+ 1\r\n", 2),
    ("", None),
    ("// c", None),
    ("(function () { return this === undefined })()", True),
    ("let n = null; n ??= 1_000; n", 1000),
    ("[1, 2, 3].at(-1) + 'ab'.replaceAll('a', 'b')", "3bb"),
    ("Object.groupBy([1, 2, 3], x => x % 2 ? 'odd' : 'even')", {"odd": [1, 3], "even": [2]}),
    ("/^\\p{Lu}(?<rest>.)$/u.exec('Äb').groups.rest", "b"),
    ("class A { static #n = 1; static { A.#n = 2 } static get n() { return A.#n } } A.n", 2),
    ("new Function('a', 'return a + 1')(1) + eval('2')", 4),
]

WITHOUT_JSON_FORM = [
    ("10n", "value: a BigInt has no JSON form"),
    ("({ list: [0, { big: 2n }] })", "value.list[1].big: a BigInt has no JSON form"),
    ("Object(1n)", "value: a BigInt has no JSON form"),
    ("const o = { a: [] }; o.a.push(o); o", "value.a[0]: the value holds itself"),
    ("({ a: { toJSON() { throw new Error('mine') } } })", "value.a: toJSON threw mine"),
    ("[{ get x() { throw new Error('mine') } }]", "value[0].x: reading it threw mine"),
    ("({ 'a b': { '1': 1n } })", 'value["a b"]["1"]: a BigInt has no JSON form'),
    (
        "new Proxy({}, { ownKeys() { throw new Error('mine') } })",
        "the value has no JSON form: mine",
    ),
]

# Lines are the engine's; a column is that of the expression, or else of its statement.
POSITIONS = [
    ("null.x", 1, 1),
    ("const a = 1;\n  null.x", 2, 3),
    ("const b = null;\n\nconst c = b.x;\nc", 3, None),
    ("const b = null;\nif (b.x) {\n  1\n}", 2, None),
    ("let b;\nfunction f() {\n  const z = 1;\n  return b.x + z;\n}\nf()", 4, None),
    ("export const a = 1;\nreturn null.x", 2, None),
    ("function f() {\n  null.x\n}\n\nf()", 2, 3),
    ("'use strict';\r\nnull.x", 2, 1),
    ("await 1;\n({ a: null.x })", 2, 1),
    ("throw new Error('e')", 1, None),
    ("\n\nconst e = new Error('made here');\nthrow e", 3, None),
    ("1;\n\nJSON.parse('{')", 3, None),
    ("const o = {};\no.f()", 2, 3),
]


@pytest.fixture(scope="module", autouse=True)
def _engine_ends() -> Iterator[None]:
    yield
    end()


@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize(("code", "expected"), VALUES, ids=range(len(VALUES)))
def test_a_value_is_what_json_makes_of_it(language: str, code: str, expected: Any) -> None:
    assert value(code, language) == expected


@pytest.mark.parametrize(("code", "message"), WITHOUT_JSON_FORM)
def test_a_value_without_json_form_is_an_error_that_names_the_path(code: str, message: str) -> None:
    told = error(code)
    assert (told["code"], told["name"], told["message"]) == (EXECUTION, "TypeError", message)


@pytest.mark.case("res-20-huge-return")
@pytest.mark.case("res-23-cyclic-deep-return")
@pytest.mark.parametrize(
    "code",
    [
        "'x'.repeat(1 << 20)",
        "'é'.repeat(1 << 19)",
        "({ a: 'x'.repeat(24e5), b: new Array(2e5).fill(7) })",
        "let d = []; for (let i = 0; i < 256; i++) d = [d]; d",
        "const d = {}; let p = d; for (let i = 0; i < 50000; i++) p = p.n = {}; d",
        "await new Promise(r => setTimeout(r, 1));"
        "let d = []; for (let i = 0; i < 50000; i++) d = [d]; d",
    ],
)
def test_a_value_that_is_too_large_or_too_deep_is_told_as_that(code: str) -> None:
    assert error(code)["code"] == "SANDBOX_VALUE_TOO_LARGE"


@pytest.mark.parametrize(
    "code",
    [
        "'x'.repeat((1 << 20) - 2)",
        "let d = []; for (let i = 0; i < 255; i++) d = [d]; d",
        "'[{'.repeat(10_000)",
        "'\\\\\"['.repeat(1000)",
        "Array.from({ length: 1000 }, () => [])",
    ],
)
def test_a_value_within_its_limits_is_whole(code: str) -> None:
    assert value(code) is not None


@pytest.mark.parametrize(("code", "line", "column"), POSITIONS, ids=range(len(POSITIONS)))
def test_an_error_points_to_its_place(code: str, line: int, column: int | None) -> None:
    told = error(code)
    assert (told["code"], told["line"]) == (EXECUTION, line), told
    assert column is None or told["column"] == column
    assert f"snippet.js:{line}:" in told["stack"]
    assert "eval_script" not in told["stack"]


def test_a_stack_names_every_frame_of_the_callers_and_no_other() -> None:
    code = "function inner() {\n  null.x;\n}\nfunction outer() {\n  [1].map(inner);\n}\nouter();"
    for language, name in (("javascript", "snippet.js"), ("typescript", "snippet.ts")):
        lines = error(code, language)["stack"].splitlines()
        assert lines[0].startswith("TypeError: ")
        assert [line.split("(")[-1].rpartition(":")[0] for line in lines[1:3]] == [
            f"{name}:2",
            f"{name}:5",
        ]
        assert lines[3].startswith(f"    at {name}:7:")
        assert len(lines) == 4


@pytest.mark.case("api-02-syntax-error")
@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("const a = 1;\nconst b = 2;\nconst c = = 3;", 3),
        ("let x;\nlet x;", 2),
        ("x = 'unclosed", 1),
        ("await = 3; break", 1),
        ("1;\n/(/", None),
        ("console.log('ran');\n})(); globalThis.hit = 1; (async () => {", 2),
        ("console.log('ran');\n}}}; globalThis.hit = 1; {{{", 2),
        ("console.log('ran');\n*/ globalThis.hit = 1 /*", 2),
    ],
)
def test_code_that_does_not_parse_is_told_with_its_place_and_does_not_run(
    code: str, line: int | None
) -> None:
    host = Recorder()
    told = error(code, host=host)
    assert (told["code"], told["name"], told["line"]) == (
        "SANDBOX_INVALID_CODE",
        "SyntaxError",
        line,
    )
    assert host.stdout == ""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("throw 5", "threw 5, which is no Error"),
        ("throw 'text'", "text"),
        ("throw null", "null"),
        ("throw undefined", "undefined"),
        ("throw { code: 42 }", "42"),
        ("throw Symbol('s')", "Symbol(s)"),
        ("throw Object.create(null)", ""),
        ("class Mine extends Error { name = 'Mine' }; throw new Mine('told')", "told"),
        ("throw new AggregateError([new Error('one')], 'several')", "several"),
        ("throw { get message() { throw 1 }, name: 'x' }", ""),
        ("throw new Proxy({}, { get() { throw 1 }, has() { throw 1 } })", "cannot be read"),
        ("const e = new Error('own'); e.stack = 5; throw e", "own"),
        ("(function f() { f() })()", "Maximum call stack size exceeded"),
        ("JSON.parse('['.repeat(100000))", "Maximum call stack size exceeded"),
        ("Promise.reject(new Error('unseen')); 1", "unseen"),
        ("(async () => { await 1; throw new Error('unseen') })(); 1", "unseen"),
        ("new Promise(() => { throw new Error('unseen') }); 1", "unseen"),
        ("for (let i = 0; i < 5000; i++) Promise.reject(new Error(`no ${i}`)); 1", "no 0"),
        ("setTimeout(() => { throw new Error('late') });"
         " await new Promise(r => setTimeout(r, 1000)); 1", "late"),
        ("queueMicrotask(() => { throw new Error('soon') }); 1", "soon"),
        ("throw new InternalError('out of memory')", "out of memory"),
    ],
)  # fmt: skip
def test_whatever_is_thrown_is_an_execution_error_with_a_message(code: str, told: str) -> None:
    failed = error(code)
    assert failed["code"] == EXECUTION
    assert told in failed["message"]


@pytest.mark.parametrize(
    "code",
    [
        "const p = Promise.reject(new Error('x')); p.catch(() => {}); 1",
        "const p = Promise.reject(new Error('x')); await 0; try { await p } catch {} 1",
        "await Promise.allSettled([Promise.reject(1), Promise.reject(new Error('x'))]); 1",
        "await Promise.any([Promise.reject(1), 2]); 1",
        "let n = 0; for (let i = 0; i < 200000; i++)"
        " try { await Promise.reject(new Error('e' + i)) } catch { n++ } n - 199999",
    ],
)
def test_a_rejection_that_is_handled_in_time_is_no_error(code: str) -> None:
    assert value(code) == 1


def test_causes_and_errors_inside_are_in_the_stack() -> None:
    stack = error("throw new Error('outer', { cause: new RangeError('inner') })")["stack"]
    assert "Caused by: RangeError: inner" in stack
    stack = error("throw new AggregateError([new Error('one')], 'several')")["stack"]
    assert "One of the errors: Error: one" in stack


def test_an_error_is_bounded() -> None:
    code = "const e = new Error('m'.repeat(1e6)); e.name = e.stack = 'n'.repeat(1e6); throw e"
    told = error(code)
    assert 0 < len(told["message"]) <= 8 * 1024
    assert len(told["stack"]) <= 16 * 1024
    assert len(told["name"]) <= 256
