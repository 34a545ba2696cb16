"""Value: what comes back of a snippet."""

from __future__ import annotations

from typing import Any, Final

from cloche.errors import SandboxErrorCode
from cloche.testing.claims import describe, has_code, has_value, holds
from cloche.testing.subject import Subject, promise

SCRIPTS: Final[tuple[tuple[str, Any], ...]] = (
    ("-0", 0),
    ("0.1 + 0.2", 0.1 + 0.2),
    ("2 ** 53", 2**53),
    ("true", True),
    ("null", None),
    ("undefined", None),
    ("() => 1", None),
    ("Symbol('s')", None),
    ("[NaN, Infinity, -Infinity]", [None, None, None]),
    ("[undefined, () => 1, Symbol('s')]", [None, None, None]),
    ("({ u: undefined, f() {}, kept: 1 })", {"kept": 1}),
    ("new Date(0)", "1970-01-01T00:00:00.000Z"),
    ("[new Date(NaN)]", [None]),
    ("new Map([[1, 2]])", {}),
    ("new Set([1])", {}),
    ("new Error('e')", {}),
    ("new Uint8Array([1, 2])", {"0": 1, "1": 2}),
    ("[new Number(1), new String('s'), new Boolean(false)]", [1, "s", False]),
    ("({ a: { toJSON(key) { return key } } })", {"a": "a"}),
    ("class A { x = 1; #y = 2; get z() { return 3 } }; new A()", {"x": 1}),
    ("[1, , 3]", [1, None, 3]),
    ("({ ['__proto__']: 1, '': 2, 'a b': 3 })", {"__proto__": 1, "": 2, "a b": 3}),
    ("({ b: 1, a: 2, 1: 3 })", {"1": 3, "b": 1, "a": 2}),
    ("'é😀\\u0000\\u2028'", "é😀\0\u2028"),
    ("'\\ud800'", "\ufffd"),
    ("({ '\\udfff': 1 })", {"\ufffd": 1}),
    ("const shared = { a: 1 }; [shared, shared]", [{"a": 1}, {"a": 1}]),
    ("new Proxy({ a: 1 }, {})", {"a": 1}),
    ("Promise.resolve([Promise.resolve(1)])", [{}]),
)
PYTHON: Final[tuple[tuple[str, Any], ...]] = (
    ("True", True),
    ("None", None),
    ("1.5", 1.5),
    ("10 ** 30", 10**30),
    ("float('nan')", None),
    ("[float('inf'), -float('inf')]", [None, None]),
    ("(1, (2, 3))", [1, [2, 3]]),
    ("{1: 'a', 1.5: 'b', None: 'c'}", {"1": "a", "1.5": "b", "null": "c"}),
    ("{'__proto__': 1, '': 2}", {"__proto__": 1, "": 2}),
    ("'é😀\\0'", "é😀\0"),
    ("shared = {'a': 1}\n[shared, shared]", [{"a": 1}, {"a": 1}]),
)
FORMLESS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "javascript": (
        ("10n", "value"),
        ("({ list: [0, { big: 2n }] })", "value.list[1].big"),
        ("const o = { a: [] }; o.a.push(o); o", "value.a[0]"),
        ("({ a: { toJSON() { throw new Error('mine') } } })", "value.a"),
        ("[{ get x() { throw new Error('mine') } }]", "value[0].x"),
    ),
    "python": (
        ("{1, 2}", "value"),
        ("b'x'", "value"),
        ("{'a': [1, {2}]}", "value['a'][1]"),
        ("a = [0]\na.append({'x': a})\na", "value[1]['x']"),
        ("lambda: 1", "value"),
    ),
}
NESTED: Final = {
    "javascript": "let v = 1; for (let i = 0; i < {}; i++) v = [v]; v",
    "typescript": "let v: any = 1; for (let i = 0; i < {}; i++) v = [v]; v",
    "python": "v = 1\nfor _ in range({}):\n    v = [v]\nv",
}


@promise(401)
async def a_value_is_what_json_makes_of_it(subject: Subject) -> None:
    """JavaScript's values are those of `JSON.stringify`, Python's those that `json` takes.

    "`JSON.parse(JSON.stringify(v))`: undefined and functions → None, NaN and Infinity → None,
    Date → ISO text, Map and Set → {}. … Python: what `json` takes (tuples → lists, NaN → None)."
    """
    for language in subject.languages:
        for code, value in PYTHON if language == "python" else SCRIPTS:
            result = await subject.run(code, language=language)
            try:
                has_value(result, value)
            except AssertionError as error:
                raise AssertionError(f"{language} {code!r}: {error}") from error
            if isinstance(value, dict):
                holds(list(result.value) == list(value), f"another order: {describe(result)}")


@promise(402)
async def a_value_without_json_form_names_its_path(subject: Subject) -> None:
    """What JSON cannot hold is an execution error that says where it is.

    "BigInt, cycles, a throwing `toJSON` → execution error naming the path. Python: … else the same
    error."
    """
    for language in subject.languages:
        for code, path in FORMLESS["python" if language == "python" else "javascript"]:
            result = await subject.run(code, language=language)
            try:
                has_code(result, SandboxErrorCode.EXECUTION_ERROR, path)
            except AssertionError as error:
                raise AssertionError(f"{language} {code!r}: {error}") from error


@promise(403)
async def a_value_may_be_256_levels_deep(subject: Subject) -> None:
    """256 levels are fine, 257 and 5,000 are too many, and told as such.

    "SANDBOX_VALUE_TOO_LARGE: value over its limit in bytes, depth (256) or digits (4,300)."
    """
    for language in subject.languages:
        result = await subject.run(NESTED[language].format(256), language=language)
        holds(result.ok, f"256 levels: {describe(result)}")
        for depth in (257, 5000):
            result = await subject.run(NESTED[language].format(depth), language=language)
            has_code(result, SandboxErrorCode.VALUE_TOO_LARGE, "256")


@promise(404)
async def a_value_has_a_limit_in_bytes(subject: Subject) -> None:
    """The limit is in bytes of the value's JSON, and exact.

    "`output_limit_bytes`, `value_limit_bytes`: 1 MiB each."
    """
    codes = {"javascript": "'é'.repeat({})", "python": "'é' * {}"}
    for language in subject.languages:
        code = codes["python" if language == "python" else "javascript"]
        fits = await subject.run(code.format(49), language=language, value_limit_bytes=100)
        has_value(fits, "é" * 49)  # with its quotes, 100 bytes
        over = await subject.run(code.format(50), language=language, value_limit_bytes=100)
        has_code(over, SandboxErrorCode.VALUE_TOO_LARGE, "100")
        over = await subject.run(code.format(1024 * 1024), language=language)
        has_code(over, SandboxErrorCode.VALUE_TOO_LARGE)


@promise(405, needs=("python",))
async def an_integer_may_have_4300_digits(subject: Subject) -> None:
    """4,300 digits come back exactly; one more is too many.

    "SANDBOX_VALUE_TOO_LARGE: value over its limit in bytes, depth (256) or digits (4,300)."
    """
    has_value(await subject.run("10 ** 4300 - 1", language="python"), 10**4300 - 1)
    for code in ("10 ** 4300", "{'a': [-(10 ** 5000)]}"):
        has_code(await subject.run(code, language="python"), SandboxErrorCode.VALUE_TOO_LARGE)


@promise(406)
async def a_large_value_comes_whole(subject: Subject) -> None:
    """With a limit that allows it, megabytes come back.

    "`output_limit_bytes`, `value_limit_bytes`: 1 MiB each."
    """
    codes = {"javascript": "'x'.repeat(4e6)", "python": "'x' * 4_000_000"}
    fields = {"value_limit_bytes": 5_000_000, "memory_limit_mb": 256, "timeout_ms": 20_000}
    async for result in subject.each(codes, **fields):
        holds(result.ok and len(result.value) == 4_000_000, describe(result)[:300])


@promise(407, needs=("javascript",))
async def code_that_breaks_its_globals_still_has_its_value(subject: Subject) -> None:
    """Replaced built-ins do not change what the value is.

    "Code that attacks its own interpreter can choose its own value and nothing else."
    """
    for breakage in (
        "JSON.stringify = () => 'forged'",
        "globalThis.JSON = null",
        "Array.prototype.push = Array.prototype.join = () => { throw 1 }",
        "Promise.prototype.then = Promise.resolve = null",
        "Object.defineProperty = Object.keys = null",
    ):
        result = await subject.run(f"{breakage};\n({{ a: [1, 'x'] }})", language="javascript")
        try:
            has_value(result, {"a": [1, "x"]})
        except AssertionError as error:
            raise AssertionError(f"{breakage}: {error}") from error
