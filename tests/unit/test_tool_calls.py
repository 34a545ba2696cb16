"""The answers to a snippet's calls of tools: bounded, without a trace of the host."""

import asyncio
import json
import logging
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cloche import ToolError
from cloche.snippets import tools as module
from cloche.snippets.tools import (
    ANSWERS_LIMIT_BYTES,
    AT_ONCE_LIMIT_COUNT,
    CALLS_LIMIT_COUNT,
    ToolCalls,
)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(15):
            await test()

    asyncio.run(bounded())


async def turns(count: int = 10) -> None:
    """Lets everything that is ready go on."""
    for _ in range(count):
        await asyncio.sleep(0)


class Answers:
    """Takes the frames of answers apart."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []

    def __call__(self, data: bytes) -> None:
        (length,) = struct.unpack_from(">I", data)
        assert len(data) == 4 + length, "one whole frame at a time"
        self.frames.append(json.loads(data[4:]))

    def values(self) -> dict[int, Any]:
        return {frame["answer"]: frame.get("value", frame.get("error")) for frame in self.frames}


def calls_of(
    answers: Answers,
    *,
    limit: int = 1000,
    logger: logging.Logger | None = None,
    **tools: Callable[..., Any],
) -> ToolCalls:
    return ToolCalls(tools, answers, value_limit_bytes=limit, logger=logger)


def call(number: Any, tool: Any = "t", *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"call": number, "tool": tool, "args": list(args), "kwargs": kwargs}


@pytest.fixture
def logger(caplog: pytest.LogCaptureFixture) -> logging.Logger:
    """Where what tools raise is told, and not printed by the tests."""
    caplog.set_level(logging.WARNING)
    return logging.getLogger("cloche.tools")


@pytest.mark.parametrize("value", [None, 1, 2.5, "é\u2028\0", True, [], {"a": [{}]}, (1, 2)])
def test_an_answer_is_the_value_as_json_under_the_calls_number(value: Any) -> None:
    async def slow() -> Any:
        await asyncio.sleep(0)
        return value

    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, plain=lambda: value, slow=slow)
        calls.take(call(7, "plain"))
        calls.take(call(8, "slow"))
        await turns()
        expected = json.loads(json.dumps(value))
        assert sorted(answers.frames, key=lambda frame: frame["answer"]) == [
            {"answer": number, "ok": True, "value": expected} for number in (7, 8)
        ]
        await calls.close()

    run(test)


def test_arguments_arrive_by_place_and_by_name() -> None:
    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=lambda *args, **kwargs: [args, kwargs])
        calls.take(call(1, "t", 1, [2], {"x": None}, named="é"))
        calls.take({"call": 2, "tool": "t", "args": []})
        calls.take({"call": 3, "tool": "t", "args": [], "kwargs": None})
        await turns()
        assert answers.values() == {
            1: [[1, [2], {"x": None}], {"named": "é"}],
            2: [[], {}],
            3: [[], {}],
        }
        await calls.close()

    run(test)


def test_answers_come_in_the_order_of_the_tools_ends() -> None:
    async def test() -> None:
        gates = [asyncio.Event() for _ in range(3)]

        async def tool(number: int) -> int:
            await gates[number].wait()
            return number

        answers = Answers()
        calls = calls_of(answers, t=tool)
        for number in range(3):
            calls.take(call(number + 1, "t", number))
        for number in (2, 0, 1):
            gates[number].set()
            await turns()
        assert [frame["value"] for frame in answers.frames] == [2, 0, 1]
        await calls.close()

    run(test)


@pytest.mark.case("esc-06-host-error-text")
@pytest.mark.parametrize(
    "error",
    [
        ValueError("/srv/app/secret.py KEY"),
        KeyError("KEY"),
        OSError(2, "No such file", "/srv/KEY"),
        type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})(),
        TimeoutError("KEY"),
        StopIteration("KEY"),
        AssertionError("KEY"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_tool_raises_is_told_to_the_logger_alone(
    error: Exception, logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    def tool() -> None:
        raise error

    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=tool)
        calls.take(call(1))
        await turns()
        told = {"name": "ToolError", "message": "tool t failed"}
        assert answers.frames == [{"answer": 1, "ok": False, "error": told}]
        await calls.close()

    run(test)
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[1] is error


def test_a_logger_of_the_callers_own_is_told_instead(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        calls = calls_of(Answers(), logger=logging.getLogger("mine"), t=lambda: 1 / 0)
        calls.take(call(1))
        await turns()
        await calls.close()

    with caplog.at_level(logging.WARNING):
        run(test)
    assert [record.name for record in caplog.records] == ["mine"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no such customer", "no such customer"),
        ("", "tool t failed"),
        ("x" * 5000, "x" * 1000),
        ("é\u2028\0", "é\u2028\0"),
    ],
)
def test_the_words_of_a_tool_error_are_for_the_code(text: str, told: str) -> None:
    async def tool() -> None:
        raise ToolError(text) from ValueError("KEY")

    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=tool)
        calls.take(call(1))
        await turns()
        assert answers.values() == {1: {"name": "ToolError", "message": told}}
        await calls.close()

    run(test)


def test_a_tool_error_with_half_a_character_is_still_an_answer() -> None:
    def tool() -> None:
        raise ToolError("half \ud800")

    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=tool)
        calls.take(call(1))
        await turns()
        (frame,) = answers.frames
        assert frame["ok"] is False and "half" in frame["error"]["message"]
        await calls.close()

    run(test)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, b"x", float("nan"), float("inf"), {(1,): 2}, CYCLE, deep(300),
     deep(100_000), 10**5000, [lambda: 1], Exception("KEY")],
    ids=["object", "set", "bytes", "nan", "inf", "key", "cycle", "deep", "very deep", "digits",
         "function", "exception"],
)  # fmt: skip
def test_an_answer_without_json_form_is_a_failure(value: Any, logger: logging.Logger) -> None:
    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, limit=10**6, t=lambda: value)
        calls.take(call(1))
        await turns()
        (frame,) = answers.frames
        assert frame["ok"] is False
        assert "JSON" in frame["error"]["message"] and "KEY" not in frame["error"]["message"]
        await calls.close()

    run(test)


@pytest.mark.parametrize("value", ["half \ud800", {"\udfff": 1}])
def test_half_characters_in_an_answer_are_replaced(value: Any) -> None:
    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=lambda: value)
        calls.take(call(1))
        await turns()
        assert "\ufffd" in json.dumps(answers.values(), ensure_ascii=False)
        await calls.close()

    run(test)


def test_an_answer_has_a_limit_in_bytes() -> None:
    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, limit=100, t=lambda count: "x" * count)
        calls.take(call(1, "t", 98))
        calls.take(call(2, "t", 99))
        await turns()
        values = answers.values()
        assert values[1] == "x" * 98
        assert "100 bytes" in values[2]["message"]
        await calls.close()

    run(test)


def test_the_answers_of_a_run_have_a_limit_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWERS_LIMIT_BYTES", 250)
    assert ANSWERS_LIMIT_BYTES == 64 * 1024 * 1024

    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=lambda: "x" * 98)
        for number in range(1, 5):
            calls.take(call(number))
            await turns()
        assert [frame["ok"] for frame in answers.frames] == [True, True, False, False]
        assert "250 bytes" in answers.values()[3]["message"]
        await calls.close()

    run(test)


def test_the_number_of_calls_of_a_run_is_bounded() -> None:
    served: list[int] = []

    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=served.append)
        for number in range(1, CALLS_LIMIT_COUNT + 51):
            calls.take(call(number, "t", number))
            await asyncio.sleep(0)
        await turns()
        assert len(answers.frames) == CALLS_LIMIT_COUNT + 50
        assert [frame["answer"] for frame in answers.frames if not frame["ok"]] == list(
            range(CALLS_LIMIT_COUNT + 1, CALLS_LIMIT_COUNT + 51)
        )
        await calls.close()

    run(test)
    assert served == list(range(1, CALLS_LIMIT_COUNT + 1))


def test_refused_calls_count_too() -> None:
    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=lambda: 1)
        for number in range(1, CALLS_LIMIT_COUNT + 1):
            calls.take(call(number, "other"))
        calls.take(call(5000))
        await turns()
        assert str(CALLS_LIMIT_COUNT) in answers.values()[5000]["message"]
        await calls.close()

    run(test)


def test_the_number_of_tools_at_a_time_is_bounded() -> None:
    async def test() -> None:
        gate = asyncio.Event()
        running = most = 0

        async def tool() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await gate.wait()
            running -= 1

        answers = Answers()
        calls = calls_of(answers, t=tool)
        for number in range(1, AT_ONCE_LIMIT_COUNT + 11):
            calls.take(call(number))
        await turns()
        assert most == AT_ONCE_LIMIT_COUNT
        assert len(answers.frames) == 10
        assert all(str(AT_ONCE_LIMIT_COUNT) in f["error"]["message"] for f in answers.frames)
        gate.set()
        await turns()
        calls.take(call(500))  # there is room again
        await turns()
        assert answers.values()[500] is None
        await calls.close()

    run(test)


@pytest.mark.parametrize(
    "name", ["other", "T", "", "__class__", None, 5, [], {}, "t\0", "x" * 10**6]
)
def test_an_unknown_tool_is_refused_without_its_name(name: Any) -> None:
    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=lambda: 1)
        calls.take(call(1, name))
        await turns()
        told = {"name": "ToolError", "message": "no tool has this name"}
        assert answers.frames == [{"answer": 1, "ok": False, "error": told}]
        await calls.close()

    run(test)


@pytest.mark.parametrize(
    "frame",
    [
        {"call": None, "tool": "t", "args": []},
        {"call": True, "tool": "t", "args": []},
        {"call": "1", "tool": "t", "args": []},
        {"call": 1.0, "tool": "t", "args": []},
        {"call": 0, "tool": "t", "args": []},
        {"call": -1, "tool": "t", "args": []},
        {"call": 2**53, "tool": "t", "args": []},
        {"tool": "t", "args": []},
    ],
)
def test_a_call_that_has_no_number_has_no_answer_and_calls_nothing(frame: dict[str, Any]) -> None:
    served: list[int] = []

    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=lambda: served.append(1))
        calls.take(frame)
        await turns()
        assert answers.frames == [] and served == []
        calls.take(call(1))  # control
        await turns()
        assert served == [1]
        await calls.close()

    run(test)


@pytest.mark.parametrize(
    "fields",
    [{"args": None}, {"args": {}}, {"args": "ab"}, {"args": 5}, {"args": [], "kwargs": [1]},
     {"args": [], "kwargs": "x"}, {"args": [], "kwargs": 5}, {}],
)  # fmt: skip
def test_malformed_arguments_are_refused_and_call_nothing(fields: dict[str, Any]) -> None:
    served: list[int] = []

    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=lambda *_, **__: served.append(1))
        calls.take({"call": 1, "tool": "t", **fields})
        await turns()
        assert "malformed" in answers.values()[1]["message"] and served == []
        await calls.close()

    run(test)


def test_arguments_that_do_not_fit_the_tool_are_a_failure_of_it(logger: logging.Logger) -> None:
    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=lambda a: a)
        calls.take(call(1))
        calls.take(call(2, "t", 1, 2))
        calls.take(call(3, "t", 1, nope=2))
        calls.take(call(4, "t", 1, **{"not an identifier": 2}))
        await turns()
        assert {value["message"] for value in answers.values().values()} == {"tool t failed"}
        await calls.close()

    run(test)


def test_close_cancels_what_still_runs_and_answers_nothing_more() -> None:
    async def test() -> None:
        cancelled: list[int] = []

        async def tool(number: int) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(number)
                raise

        answers = Answers()
        calls = calls_of(answers, t=tool)
        for number in (1, 2, 3):
            calls.take(call(number, "t", number))
        await turns()
        await calls.close()
        await calls.close()
        assert sorted(cancelled) == [1, 2, 3]
        calls.take(call(4, "t", 4))
        await turns()
        assert answers.frames == []

    run(test)


def test_a_tool_that_swallows_its_cancellation_holds_nobody_for_ever(
    monkeypatch: pytest.MonkeyPatch, logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 0.01)

    async def test() -> None:
        gate = asyncio.Event()

        async def stubborn() -> str:
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    continue
            return "late"

        answers = Answers()
        calls = calls_of(answers, t=stubborn)
        calls.take(call(1))
        await turns()
        await calls.close()
        assert answers.frames == []
        gate.set()
        await turns()
        assert answers.frames == [], "it was answered after the end"

    run(test)
    assert any("goes on after its run" in record.getMessage() for record in caplog.records)


def test_a_tool_that_ends_by_a_cancellation_of_its_own_is_a_failure() -> None:
    """The code waits for an answer: it must not wait for ever."""

    async def tool() -> None:
        raise asyncio.CancelledError

    async def test() -> None:
        answers = Answers()
        calls = calls_of(answers, t=tool)
        calls.take(call(1))
        await turns()
        assert [frame["ok"] for frame in answers.frames] == [False]
        await calls.close()

    run(test)


def test_a_value_is_copied_before_the_tool_can_change_it_again() -> None:
    async def test() -> None:
        kept: list[Any] = [1]
        answers = Answers()
        calls = calls_of(answers, t=lambda: kept)
        calls.take(call(1))
        await turns()
        kept.append(2)
        assert answers.values() == {1: [1]}
        await calls.close()

    run(test)
