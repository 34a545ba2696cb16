"""What a context is to the code: plain globals, deep copies, data and never text that runs."""

import json
from typing import Any

import pytest
from dialects import assert_unknown_to_the_engine

from cloche import InvalidRequestError

LANGUAGES = ("javascript", "typescript", "python")
DATA: dict[str, Any] = {
    "text": "é😀\0\u2028'\"\\`${1}</script>",
    "number": -1.5e-7,
    "big": 2**53,
    "nothing": None,
    "yes": True,
    "nested": {"": [[], {}], "__proto__": {"polluted": 1}, "a b": [None]},
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_context_arrives_as_it_is(sandbox: Any, language: str) -> None:
    for name, value in DATA.items():
        result = sandbox.run(name, {name: value}, language=language)
        assert (result.ok, result.value) == (True, value), (name, result.error)


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "const x = 1; let y = 2; x + y"),
        ("javascript", "x = 1; y = 2; x + y"),
        ("javascript", "function x() { return 1 } class y { static v = 2 } x() + y.v"),
        ("javascript", "import { sep as x } from 'path'; const y = 2; x.length + y"),
        ("typescript", "enum x { A = 1 } namespace y { export const v = 2 } x.A + y.v"),
        ("python", "x = 1\ny = 2\nx + y"),
        ("python", "def x(): return 1\nclass y: v = 2\nx() + y.v"),
        ("python", "del x\nx = 1\nfor y in [2]: pass\nx + y"),
    ],
)
def test_code_may_shadow_a_name_of_the_context(
    sandbox: Any, kind: str, language: str, code: str
) -> None:
    result = sandbox.run(code, {"x": "old", "y": "old"}, language=language)
    if kind == "worker" and code.startswith(("import", "del")):
        assert_unknown_to_the_engine(result)
        return
    assert (result.ok, result.value) == (True, 3), result.error


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "x.a.push(3); delete x.b; globalThis.x.c = 1; x"),
        ("python", "def f():\n    x['c'] = 1\nx['a'].append(3)\ndel x['b']\nf()\nx"),
    ],
)
def test_code_changes_its_own_copy_alone(sandbox: Any, language: str, code: str) -> None:
    given = {"x": {"a": [1], "b": 2}}
    for _ in range(2):
        result = sandbox.run(code, given, language=language)
        assert result.value == {"a": [1, 3], "c": 1}
    assert given == {"x": {"a": [1], "b": 2}}


def test_functions_see_the_context_as_globals(sandbox: Any) -> None:
    code = "def f():\n    return x + 1\nf()"
    assert sandbox.run(code, {"x": 1}, language="python").value == 2
    code = "function f() { return x + globalThis.x + new Function('return x')() } f()"
    assert sandbox.run(code, {"x": 1}).value == 3


@pytest.mark.case("api-05-context-keys")
@pytest.mark.parametrize("language", ("javascript", "typescript"))
@pytest.mark.parametrize(
    "name",
    ["constructor", "toString", "hasOwnProperty", "valueOf", "then", "name", "event", "fetch",
     "setTimeout", "setImmediate", "queueMicrotask", "TextEncoder", "crypto", "URL", "location",
     "navigator", "module", "exports", "self", "performance", "Loader", "alert", "structuredClone",
     "async", "of", "get", "$", "_", "ünï", "toJSON", "code", "context",
     "request", "nonce", "finish", "value"],
)  # fmt: skip
def test_a_name_that_means_something_to_the_runtime_is_plain_data_or_refused(
    sandbox: Any, language: str, name: str
) -> None:
    code = f"[globalThis[{json.dumps(name)}], ({{}}).polluted, typeof JSON.stringify, 1 + 1]"
    try:
        result = sandbox.run(code, {name: 7}, language=language)
    except InvalidRequestError as error:
        assert name in error.message
    else:
        assert (result.ok, result.value) == (True, [7, None, "function", 2]), result.error


@pytest.mark.parametrize("name", ["print", "len", "type", "json", "sys", "self", "exit", "match"])
def test_a_python_built_in_may_be_shadowed_by_the_context(sandbox: Any, name: str) -> None:
    assert sandbox.run(f"{name} + 1", {name: 7}, language="python").value == 8


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_of_the_harness_is_among_the_globals(
    sandbox: Any, kind: str, language: str
) -> None:
    if language == "python":
        if kind == "worker":
            result = sandbox.run("globals()", language=language)
            assert_unknown_to_the_engine(result)
            return
        result = sandbox.run("sorted(globals())", {"x": 1}, language=language)
        assert set(result.value) <= {"__annotations__", "__builtins__", "__doc__", "__loader__",
            "__name__", "__package__", "__spec__", "x"}  # fmt: skip
        return
    code = (
        "Object.getOwnPropertyNames(globalThis)"
        ".filter(name => /nonce|harness|cloche|frame/i.test(name))"
    )
    result = sandbox.run(code, {"x": 1}, language=language)
    assert result.value == []


def test_a_large_context_arrives_whole(sandbox: Any) -> None:
    data = {"x": ["é" * 1000] * 3000}
    for language, code in (("javascript", "x.join('').length"), ("python", "len(''.join(x))")):
        result = sandbox.run(code, data, language=language, memory_limit_mb=256)
        assert result.value == 3_000_000, result.error


@pytest.mark.case("api-04-bad-context")
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_bad_context_is_refused_before_anything_runs_and_harms_nothing(
    sandbox: Any, language: str
) -> None:
    heard: list[str] = []
    for bad in ({"x": print}, {"x": {1}}, {"a-b": 1}, {"__proto__": 1}, {1: 2}, [1], {"x": b""}):
        with pytest.raises(InvalidRequestError, match=r"^context: ") as caught:
            sandbox.run("1", bad, language=language, on_output=lambda _, text: heard.append(text))
        assert caught.value.retry_safe
    assert heard == []
    assert sandbox.run("1 + 1", {"x": 1}, language=language).value == 2


@pytest.mark.kinds("process")
def test_a_program_has_no_context(sandbox: Any) -> None:
    with pytest.raises(InvalidRequestError, match="context"):
        sandbox.run("print(1)", {"x": 1}, language="python", mode="program")
    assert sandbox.run("print(1)", {}, language="python", mode="program").ok
