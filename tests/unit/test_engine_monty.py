"""What engines/monty.py promises to a worker host."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pydantic_monty", reason="the worker's Python engine is not installed")

from monty_corpus import request, run_monty

pytestmark = pytest.mark.live

SMALL_BYTES = 16 << 20


def run(code: str, answers: list[list[Any]] | None = None, **fields: Any) -> dict[str, Any]:
    return run_monty([{"request": request(code, **fields), "answers": answers or []}])[0]


def run_each(*codes: str, **fields: Any) -> list[dict[str, Any]]:
    return run_monty([{"request": request(code, **fields)} for code in codes])


def test_a_run_sees_nothing_of_an_earlier_one() -> None:
    results = run_each(
        "import random\nrandom.seed(1)\nx = 5\nprint = None\nlen = lambda v: 99\nx",
        "x",
        "len([1])",
        "import random\nrandom.random()",
        "import random\nrandom.random()",
        "print('there')",
    )
    assert results[0]["body"] == {"ok": True, "value": 5}
    assert results[1]["body"]["error"]["name"] == "NameError"
    assert results[2]["body"] == {"ok": True, "value": 1}
    assert results[3]["body"] != results[4]["body"]
    assert results[5]["stdout"] == "there\n"


def test_the_context_is_there_under_its_names_and_may_be_shadowed() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    context = {"price": 80, "len": "shadows", "none": None, "text": "\ud800é", "deep": deep}
    code = "price = price + 1\nwas = len\nlen = 5\n[price, was, len, none, text, deep == deep]"
    result = run(code, context=context)
    assert result["body"]["value"] == [81, "shadows", 5, None, "\ufffdé", True]


def test_values_beyond_the_limits_are_told_as_such() -> None:
    size, depth, digits, deeper = run_each(
        "'x' * 2000",
        "a = 1\nfor _ in range(257): a = [a]\na",
        "[10 ** 5000]",
        "a = 1\nfor _ in range(3000): a = [a]\na",
        value_limit_bytes=1000,
    )
    for result, words in (
        (size, "larger than 1000 bytes"),
        (depth, "nested deeper than 256 levels"),
        (digits, "value[0]: the number has more than 4300 digits"),
        (deeper, "nested deeper than 256 levels"),
    ):
        assert result["body"]["error"]["code"] == "SANDBOX_VALUE_TOO_LARGE"
        assert words in result["body"]["error"]["message"]
    whole, bytes_ = run_each(
        "a = 1\nfor _ in range(256): a = [a]\na", "'é' * 500", value_limit_bytes=1002
    )
    assert whole["body"]["ok"]
    assert bytes_["body"]["ok"]
    assert not run("'é' * 500", value_limit_bytes=1001)["body"]["ok"]


def test_a_value_whose_parts_are_shared_without_bound_does_not_hold_the_host() -> None:
    result = run("a = []\nfor _ in range(40): a = [a, a]\na", memory_limit_bytes=SMALL_BYTES)
    assert result["body"]["error"]["code"] == "SANDBOX_MEMORY_EXCEEDED"


def test_what_passes_for_a_text_outside_is_not_taken_for_one() -> None:
    # Monty hands out a function as "<function 'f' at 0x…>" and a cycle as "[...]".
    function, cycle, text = run_each("def f(): pass\nf", "a = [1]\na.append(a)\na", "'<function'")
    assert function["body"]["error"]["message"] == "value: function has no JSON form"
    assert cycle["body"]["error"]["message"] == "value[1]: the value holds itself"
    assert text["body"]["value"] == "<function"


def test_memory_over_the_limit_is_told_and_the_next_run_is_served() -> None:
    results = run_each(
        "x = 'a' * 10 ** 9",
        "x = []\nwhile True: x.append('a' * 1000)",
        "1 + 1",
        "x = []\ntry:\n    while True: x.append('a' * 1000)\nexcept MemoryError:\n    pass\n5",
        "raise MemoryError('mine')",
        memory_limit_bytes=SMALL_BYTES,
    )
    codes = [one["body"].get("error", {}).get("code") for one in results]
    exceeded = "SANDBOX_MEMORY_EXCEEDED"
    assert codes == [exceeded, exceeded, None, exceeded, "SANDBOX_EXECUTION_ERROR"]


def test_the_limit_is_each_run_s_own() -> None:
    runs = [
        {"request": request("len('a' * (40 << 20))", memory_limit_bytes=limit)}
        for limit in (64 << 20, SMALL_BYTES, 64 << 20)
    ]
    assert [one["body"]["ok"] for one in run_monty(runs)] == [True, False, True]


def test_an_interpreter_that_died_breaks_the_engine_and_says_so() -> None:
    killed, after = run_monty(
        [{"request": request("1"), "kill_interpreter": True}, {"request": request("2")}]
    )
    assert killed["broken"]
    assert killed["body"]["error"]["code"] == "SANDBOX_INTERNAL_ERROR"
    assert after["body"] == {"ok": True, "value": 2}


def test_output_comes_in_order_and_line_by_line() -> None:
    code = "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c', end='')\n1 / 0"
    result = run(code)
    assert result["pieces"] == [["stdout", "a\n"], ["stderr", "b\n"], ["stdout", "c"]]
    assert result["body"]["error"]["line"] == 5


TOOLS = ["fetch", "add"]


def answer(identifier: int, value: Any) -> dict[str, Any]:
    return {"answer": identifier, "ok": True, "value": value}


def failed(identifier: int, message: str) -> dict[str, Any]:
    error = {"name": "ToolError", "message": message}
    return {"answer": identifier, "ok": False, "error": error}


def test_tools_take_positional_and_keyword_arguments_and_give_values() -> None:
    result = run(
        "await tools.fetch('x', (1, 2), deep={'a': [None, 1.5]}) + 1", [[answer(1, 4)]], tools=TOOLS
    )
    assert result["calls"] == [[1, "fetch", ["x", [1, 2]], {"deep": {"a": [None, 1.5]}}]]
    assert result["body"] == {"ok": True, "value": 5}


def test_gathered_tools_are_called_before_any_is_answered() -> None:
    code = """
import asyncio
call = tools.fetch
async def twice(n):
    return [await call(n), await tools.add(n)]
await asyncio.gather(tools.fetch(0), *[twice(n) for n in range(1, 3)])
"""
    answers = [[answer(2, "b"), answer(3, "c")], [answer(4, "d")], [answer(5, "e"), answer(1, "a")]]
    result = run(code, answers, tools=TOOLS)
    assert [call[0] for call in result["calls"]] == [1, 2, 3, 4, 5]
    assert result["body"]["value"] == ["a", ["b", "d"], ["c", "e"]]


def test_nothing_is_called_before_the_await() -> None:
    result = run("x = tools.fetch(1)\nprint('made')\n5", tools=TOOLS)
    assert (result["calls"], result["body"]["value"]) == ([], 5)
    result = run("tools.fetch(1)", tools=TOOLS)
    assert result["body"]["error"]["message"] == "value: coroutine has no JSON form: await it"


def test_a_failing_tool_raises_what_can_be_caught_and_is_a_tool_error_if_it_is_not() -> None:
    caught = "try:\n    await tools.fetch(1)\nexcept Exception as e:\n    text = str(e)\nf'{text}!'"
    result = run(caught, [[failed(1, "no \ud800 such")]], tools=TOOLS)
    assert result["body"]["value"] == "no ? such!"
    result = run("x = 1\nawait tools.fetch(1)", [[failed(1, "boom")]], tools=TOOLS)
    error = result["body"]["error"]
    assert (error["name"], error["message"], error["line"]) == ("ToolError", "boom", 2)
    assert error["code"] == "SANDBOX_EXECUTION_ERROR"
    plain = run("raise Exception('boom')", tools=TOOLS)
    assert plain["body"]["error"]["name"] == "Exception"


def test_the_type_of_a_tool_s_error_is_not_told_wrongly_but_refused() -> None:
    start = "try:\n    await tools.fetch(1)\nexcept Exception as e:\n    "
    for code in ("print(type(e).__name__)", "print(repr(e))", "print(f'{e!r}')"):
        result = run(start + code, tools=TOOLS)
        assert result["body"]["error"]["code"] == "SANDBOX_INVALID_CODE"
        assert not result["calls"]


def test_arguments_without_json_form_raise_before_anything_is_sent() -> None:
    for arguments, words in (
        ("{1}", "args[0]: set has no JSON form"),
        ("1, key=[lambda: 1]", "kwargs['key'][0]: function has no JSON form"),
    ):
        result = run(f"await tools.fetch({arguments})", tools=TOOLS)
        assert result["body"]["error"]["name"] == "TypeError"
        assert result["body"]["error"]["message"] == words
        assert result["body"]["error"]["line"] == 1
        assert result["calls"] == []
    result = run("await tools.fetch(float('nan'))", [[answer(1, None)]], tools=TOOLS)
    assert result["calls"] == [[1, "fetch", [None], {}]]


def test_a_tool_that_is_not_there_is_an_attribute_error_and_none_are_there_unasked() -> None:
    result = run("await tools.nothing(1)", tools=TOOLS)
    assert result["body"]["error"]["name"] == "AttributeError"
    assert run("tools")["body"]["error"]["name"] == "NameError"
    assert run("__cloche_call('fetch', '[]', '{}')")["body"]["error"]["code"] == (
        "SANDBOX_INVALID_CODE"
    )


def test_sleeps_overlap_and_wait_beside_tools() -> None:
    code = """
import asyncio, time
t = time.monotonic()
await asyncio.gather(asyncio.sleep(0.05), asyncio.sleep(0.05), tools.fetch(1))
time.monotonic() - t
"""
    result = run(code, [[answer(1, 1)]], tools=TOOLS)
    assert 0.04 < result["body"]["value"] < 0.095
    assert run("import time\ntime.sleep(0.02)\n1")["run_ms"] >= 20


@pytest.mark.parametrize(
    "code",
    [
        "(" * 5000,
        "[" * 150 + "]" * 150,
        "-" * 20_000 + "1",
        "+".join(["1"] * 20_000),
        "x" + ".a" * 20_000,
        "f(" * 3000 + ")" * 3000,
        "not " * 10_000 + "1",
        "if 1:\n" + "".join(" " * n + "if 1:\n" for n in range(1, 150)) + " " * 150 + "1",
        "lambda: " * 2000 + "1",
        "\0",
        "'\ud800'",
        "x = '" + "a" * 3_000_000 + "'",
        "[" + "1," * 100_000 + "]",
    ],
    ids=range(13),
)
def test_hostile_text_ends_as_a_body_and_the_engine_goes_on(code: str) -> None:
    results = run_each(code, "1 + 1")
    error = results[0]["body"].get("error")
    assert error is None or error["code"] in ("SANDBOX_INVALID_CODE", "SANDBOX_VALUE_TOO_LARGE")
    assert results[1]["body"] == {"ok": True, "value": 2}


def test_errors_are_told_with_name_message_and_the_caller_s_frames() -> None:
    code = "def inner(v):\n    return v['é'][5]\ndef outer():\n    return inner({'é': []})\nouter()"
    error = run(code)["body"]["error"]
    assert (error["name"], error["message"]) == ("IndexError", "list index out of range")
    assert (error["line"], error["column"]) == (2, 12)
    assert error["stack"] == (
        "Traceback (most recent call last):\n"
        '  File "snippet.py", line 5, in <module>\n'
        '  File "snippet.py", line 4, in outer\n'
        '  File "snippet.py", line 2, in inner\n'
        "IndexError: list index out of range\n"
    )
    deep = run("def f(n):\n    return f(n + 1)\nf(0)")["body"]["error"]
    assert deep["name"] == "RecursionError"
    assert "[Previous line repeated" in deep["stack"]


def test_places_are_the_caller_s_where_the_text_was_marked() -> None:
    for code, column in (
        ("any(x > 1 for x in [0, 'é'])", None),
        ("print('日本'); xs = []; xs[3]", 23),
        ("if True: return [1][9]", 17),
        ("return  (1 + [1][9])", 14),
        ("d = {}; del d['k']", 13),
        ("sum(map(int, ['x']))", 5),
    ):
        error = run(code)["body"]["error"]
        assert (error["line"], error["column"]) == (1, column), code


def test_a_place_that_is_not_known_is_told_as_none() -> None:
    start = "def f():\n    try:\n        x = {}['a']\n"
    for end in ("    except ValueError:\n        y = 1\n", "    finally:\n        y = 1\n"):
        error = run(f"{start}{end}    z = 2\nf()")["body"]["error"]
        assert (error["name"], error["line"], error["column"]) == ("KeyError", None, None)
        assert 'line 7, in <module>\n  File "snippet.py", line ?, in f\n' in error["stack"]
    raised = run("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('x')")
    assert raised["body"]["error"]["line"] == 4


def test_no_file_no_variable_and_no_clock_trick_is_reachable() -> None:
    for code in ("open('/etc/passwd')", "import os", "import pathlib", "__import__('os')"):
        assert run(code)["body"]["error"]["code"] == "SANDBOX_INVALID_CODE"


def test_the_frames_start_as_the_wire_says() -> None:
    good, none, bad = run_each("{'a': 1}", "None", "1 / 0")
    assert good["text"] == '{"ok":true,"value":{"a":1}}'
    assert none["text"] == '{"ok":true}'
    assert bad["text"].startswith('{"ok":false,')
    assert json.loads(bad["text"])["error"]["code"] == "SANDBOX_EXECUTION_ERROR"
