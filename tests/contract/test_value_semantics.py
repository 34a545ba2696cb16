"""A snippet's value: `JSON.parse(JSON.stringify(v))` in JavaScript, what `json` takes in Python."""

from typing import Any

import pytest
from dialects import assert_unknown_to_the_engine

from cloche import SandboxErrorCode

SCRIPTS = ("javascript", "typescript")
# Signs of code that the worker's engine does not know.
NOT_IN_MONTY = (
    "True: 'd'", "\\ud8", "(dict)", "(str)", "enum", "OrderedDict", "1j", "for x in [])",
    "object()",
)  # fmt: skip
MIB = 1024 * 1024

JAVASCRIPT: list[tuple[str, Any]] = [
    ("1 + 1", 2),
    ("-0", 0),
    ("0.1 + 0.2", 0.1 + 0.2),
    ("2 ** 53", 2**53),
    ("1e21", 1e21),
    ("true", True),
    ("null", None),
    ("undefined", None),
    ("void 0", None),
    ("() => 1", None),
    ("Symbol('s')", None),
    ("[NaN, Infinity, -Infinity]", [None, None, None]),
    ("[undefined, () => 1, Symbol('s')]", [None, None, None]),
    ("({ u: undefined, f() {}, s: Symbol('s'), [Symbol('k')]: 1, kept: 1 })", {"kept": 1}),
    ("new Date(0)", "1970-01-01T00:00:00.000Z"),
    ("[new Date(NaN)]", [None]),
    ("new Map([[1, 2]])", {}),
    ("new Set([1])", {}),
    ("new WeakMap()", {}),
    ("/x/g", {}),
    ("new Error('e')", {}),
    ("new Uint8Array([1, 2])", {"0": 1, "1": 2}),
    ("[new Number(1), new String('s'), new Boolean(false)]", [1, "s", False]),
    ("({ toJSON() { return { inner: 1 } } })", {"inner": 1}),
    ("({ toJSON(key) { return key } })", ""),
    ("({ a: { toJSON(key) { return key } } })", {"a": "a"}),
    ("class A { x = 1; #y = 2; get z() { return 3 } }; new A()", {"x": 1}),
    ("Object.create({ inherited: 1 })", {}),
    ("[1, , 3]", [1, None, 3]),
    ("Object.assign([1], { extra: 2 })", [1]),
    ("({ ['__proto__']: 1, '': 2, 'a b': 3 })", {"__proto__": 1, "": 2, "a b": 3}),
    ("({ b: 1, a: 2, 1: 3 })", {"1": 3, "b": 1, "a": 2}),
    ("'é😀\\u0000\\u2028'", "é😀\0\u2028"),
    ("'\\ud800'", "\ufffd"),
    ("['\\ude00\\ud83d', '\\ud83d\\ude00']", ["\ufffd\ufffd", "😀"]),
    ("({ '\\udfff': 1 })", {"\ufffd": 1}),
    ("const shared = { a: 1 }; [shared, shared]", [{"a": 1}, {"a": 1}]),
    ("new Proxy({ a: 1 }, {})", {"a": 1}),
    ("Promise.resolve([Promise.resolve(1)])", [{}]),
]

PYTHON: list[tuple[str, Any]] = [
    ("1 + 1", 2),
    ("True", True),
    ("None", None),
    ("1.5", 1.5),
    ("10 ** 30", 10**30),
    ("10 ** 4300 - 1", 10**4300 - 1),
    ("float('nan')", None),
    ("[float('inf'), -float('inf')]", [None, None]),
    ("(1, (2, 3))", [1, [2, 3]]),
    ("{1: 'a', 1.5: 'b', None: 'c', True: 'd'}", {"1": "d", "1.5": "b", "null": "c"}),
    ("{'__proto__': 1, '': 2}", {"__proto__": 1, "": 2}),
    ("'é😀\\0'", "é😀\0"),
    ("'\\ud800'", "\ufffd"),
    ("['\\ud83d\\ude00', {'\\udfff': 1}]", ["😀", {"\ufffd": 1}]),
    ("class D(dict): pass\nclass L(list): pass\nL([D(a=1)])", [{"a": 1}]),
    ("class S(str): pass\nclass I(int): pass\nclass F(float): pass\n[S('s'), I(2), F(.5)]",
     ["s", 2, 0.5]),
    ("import enum\nclass E(enum.IntEnum):\n    A = 3\nE.A", 3),
    ("import collections\ncollections.OrderedDict(b=1, a=2)", {"b": 1, "a": 2}),
    ("import collections\ncollections.namedtuple('P', 'x y')(1, 2)", [1, 2]),
    ("shared = {'a': 1}\n[shared, shared]", [{"a": 1}, {"a": 1}]),
]  # fmt: skip


@pytest.mark.every_runtime
@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize(("code", "value"), JAVASCRIPT, ids=[code for code, _ in JAVASCRIPT])
def test_a_javascript_value_is_what_json_makes_of_it(
    sandbox: Any, language: str, code: str, value: Any
) -> None:
    result = sandbox.run(code, language=language)
    assert (result.ok, result.error, result.value) == (True, None, value)
    assert type(result.value) is type(value) or value == 0


@pytest.mark.parametrize(("code", "value"), PYTHON, ids=range(len(PYTHON)))
def test_a_python_value_is_what_json_makes_of_it(
    sandbox: Any, kind: str, code: str, value: Any
) -> None:
    result = sandbox.run(code, language="python")
    if kind == "worker" and any(sign in code for sign in NOT_IN_MONTY):
        assert_unknown_to_the_engine(result)
        return
    assert (result.ok, result.error, result.value) == (True, None, value)
    assert type(result.value) is type(value)


@pytest.mark.every_runtime
@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("10n", "value:"),
        ("({ list: [0, { big: 2n }] })", "value.list[1].big"),
        ("Object(1n)", "value:"),
        ("const o = { a: [] }; o.a.push(o); o", "value.a[0]"),
        ("({ a: { toJSON() { throw new Error('mine') } } })", "value.a"),
        ("[{ get x() { throw new Error('mine') } }]", "value[0].x"),
        ("({ 'a b': { '1': 1n } })", 'value["a b"]'),
        ("new Proxy({}, { ownKeys() { throw new Error('mine') } })", "value"),
    ],
)
def test_a_javascript_value_without_json_form_is_an_error_that_names_the_path(
    sandbox: Any, language: str, code: str, path: str
) -> None:
    result = sandbox.run(code, language=language)
    assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
    assert path in result.error
    assert result.value is None


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("{1, 2}", "value: set"),
        ("b'x'", "value: bytes"),
        ("object()", "value: object"),
        ("1j", "value: complex"),
        ("range(3)", "value: range"),
        ("(x for x in [])", "value: generator"),
        ("lambda: 1", "value: function"),
        ("import json\njson", "value: module"),
        ("{'a': [1, {2}]}", "value['a'][1]: set"),
        ("{(1, 2): 3}", "value: a key"),
        ("a = [0]\na.append({'x': a})\na", "value[1]['x']"),
        ("import datetime\ndatetime.date(2020, 1, 1)", "value: date"),
        ("import decimal\n[decimal.Decimal(1)]", "value[0]: Decimal"),
    ],
)
def test_a_python_value_without_json_form_is_an_error_that_names_the_path(
    sandbox: Any, kind: str, code: str, path: str
) -> None:
    result = sandbox.run(code, language="python")
    if kind == "worker" and any(sign in code for sign in NOT_IN_MONTY):
        assert_unknown_to_the_engine(result)
        return
    assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
    assert path in result.error
    assert result.value is None


@pytest.mark.parametrize(
    "code", ["async def f(): return 3\nf()", "import asyncio\nasyncio.sleep(0)"]
)
def test_a_coroutine_that_nobody_awaited_says_so_and_prints_nothing(
    sandbox: Any, code: str
) -> None:
    result = sandbox.run(code, language="python")
    assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
    assert "await" in result.error
    assert "/opt/" not in result.stderr


NESTED = {
    "javascript": "let v = 1; for (let i = 0; i < {}; i++) v = [v]; v",
    "typescript": "let v: any = 1; for (let i = 0; i < {}; i++) v = {{ v }}; v",
    "python": "v = 1\nfor _ in range({}): v = [v]\nv",
}


@pytest.mark.every_runtime
@pytest.mark.parametrize("language", NESTED)
def test_a_value_may_be_256_levels_deep_and_no_deeper(sandbox: Any, language: str) -> None:
    deep = sandbox.run(NESTED[language].format(256), language=language)
    assert deep.ok, deep.error
    for depth in (257, 20_000):
        deeper = sandbox.run(NESTED[language].format(depth), language=language)
        assert deeper.error_code is SandboxErrorCode.VALUE_TOO_LARGE, (depth, deeper.error)
        assert "256" in deeper.error and deeper.value is None


@pytest.mark.parametrize(
    ("language", "code"), [("javascript", "'é'.repeat({})"), ("python", "'é' * {}")]
)
def test_the_limit_of_a_value_is_in_bytes_of_its_json(
    sandbox: Any, language: str, code: str
) -> None:
    fits = sandbox.run(code.format(49), language=language, value_limit_bytes=100)
    assert fits.value == "é" * 49  # with its quotes, 100 bytes
    over = sandbox.run(code.format(50), language=language, value_limit_bytes=100)
    assert over.error_code is SandboxErrorCode.VALUE_TOO_LARGE
    assert "100" in over.error and over.value is None


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "'x'.repeat(1024 * 1024)"),
        ("javascript", "new Array(600_000).fill(0)"),
        ("python", "'x' * 1024 * 1024"),
        ("python", "[0] * 600_000"),
        ("python", "10 ** 4300"),
        ("python", "{'a': [-10 ** 5000]}"),
    ],
)
def test_a_value_over_a_default_limit_is_too_large(sandbox: Any, language: str, code: str) -> None:
    result = sandbox.run(code, language=language)
    assert result.error_code is SandboxErrorCode.VALUE_TOO_LARGE


def test_a_large_value_comes_whole_where_it_is_allowed(sandbox: Any) -> None:
    for language, code in (("javascript", "'x'.repeat(8e6)"), ("python", "'x' * 8_000_000")):
        result = sandbox.run(
            code, language=language, value_limit_bytes=10 * MIB, memory_limit_mb=256
        )
        assert result.ok, result.error
        assert len(result.value) == 8_000_000


@pytest.mark.every_runtime
@pytest.mark.parametrize(
    "breakage",
    [
        "JSON.stringify = () => 'forged'",
        "globalThis.JSON = null",
        "Array.prototype.push = Array.prototype.join = () => { throw 1 }",
        "Promise.prototype.then = Promise.resolve = null",
        "String.prototype.charCodeAt = () => 0",
        "Uint8Array.prototype.set = null; globalThis.Uint8Array = null",
        "Object.defineProperty = Object.keys = null",
        "Reflect.apply = Reflect.ownKeys = null; Array.prototype[Symbol.iterator] = null",
        "Object.freeze(globalThis); Object.freeze(Object.prototype)",
        "Object.defineProperty(Object.prototype, 'value', { value: 'forged', writable: false })",
    ],
)
def test_code_that_breaks_its_own_globals_still_has_its_value(sandbox: Any, breakage: str) -> None:
    result = sandbox.run(f"{breakage};\n({{ a: [1, 'x'] }})")
    assert (result.ok, result.value) == (True, {"a": [1, "x"]}), result.error
