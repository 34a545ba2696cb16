"""Tools: host functions that a snippet may call."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from cloche.errors import SandboxErrorCode, ToolError
from cloche.testing.claims import describe, has_code, has_value, holds, refused, same
from cloche.testing.promises.limits import SPIN
from cloche.testing.subject import Subject, promise

_quiet = logging.Logger("tools that fail on purpose")
_quiet.addHandler(logging.NullHandler())
CALL = {"javascript": "await tools.ask(7)", "python": "await tools.ask(7)"}


@promise(1101)
async def a_tool_is_called_and_answers(subject: Subject) -> None:
    """`await tools.name(…)` calls the caller's function with JSON and has its JSON answer.

    "`tools`: name → async callable, visible as `await tools.name(args)`; JSON in and out."
    """
    heard: list[Any] = []

    async def echo(*args: Any) -> Any:
        heard.append(args)
        await asyncio.sleep(0)
        return {"got": list(args)}

    given = [1, 2.5, "é😀\u2028", None, True, [[], {}], {"a": {"": 1}}]
    codes = {
        "javascript": "await tools.echo(...given)",
        "python": "await tools.echo(*given)",
    }
    async for result in subject.each(codes, context={"given": given}, tools={"echo": echo}):
        has_value(result, {"got": given})
        same(list(heard.pop()), given, "arguments")


@promise(1102)
async def a_tool_may_be_plain(subject: Subject) -> None:
    """A callable that returns its answer at once serves too.

    "`tools`: name → async callable; JSON in and out."
    """
    tools = {"ask": lambda number: number + 1}
    async for result in subject.each(CALL, tools=tools):
        has_value(result, 8)


@promise(1103)
async def calls_may_overlap(subject: Subject) -> None:
    """Several calls are answered in any order, each to its own caller.

    "`tools`: name → async callable, visible as `await tools.name(args)`."
    """
    order: list[int] = []

    async def ask(number: int) -> int:
        await asyncio.sleep(0.15 - number * 0.05)
        order.append(number)
        return number * 10

    codes = {
        "javascript": "await Promise.all([0, 1, 2].map(n => tools.ask(n)))",
        "python": "import asyncio\nawait asyncio.gather(*[tools.ask(n) for n in range(3)])",
    }
    async for result in subject.each(codes, tools={"ask": ask}):
        has_value(result, [0, 10, 20])
        same(sorted(order), [0, 1, 2], "calls")
        holds(order == [2, 1, 0], f"they did not overlap: {order}")
        order.clear()


@promise(1104)
async def what_a_tool_raises_stays_hidden(subject: Subject) -> None:
    """The code is told that the tool failed, and nothing of why.

    "all else that a tool raises stays hidden" (`cloche.ToolError`).
    """
    secret = "/srv/secret.py KEY-51"

    def ask(_: int) -> None:
        raise ValueError(secret)

    codes = {
        "javascript": "let s = ''; try { await tools.ask(7) }"
        " catch (e) { s = e.name + '|' + e.message + '|' + e.stack } s",
        "python": "s = ''\ntry:\n    await tools.ask(7)\nexcept Exception as e:\n    s = str(e)\ns",
    }
    async for result in subject.each(codes, tools={"ask": ask}, logger=_quiet):
        told = f"{result.value}{result.error}{result.stderr}{result.error_stack}"
        holds(result.ok and "ask" in str(result.value), describe(result))
        for word in ("secret", "KEY-51", "ValueError", "Traceback"):
            holds(word not in told, f"{word} in {told!r}")
    async for result in subject.each(CALL, tools={"ask": ask}, logger=_quiet):
        has_code(result, SandboxErrorCode.EXECUTION_ERROR, "ToolError")
        holds("KEY-51" not in f"{result.error}{result.error_stack}", describe(result))


@promise(1105)
async def a_tool_error_is_told_in_its_words(subject: Subject) -> None:
    """`cloche.ToolError` reaches the code with its text, and can be caught.

    "ToolError: raised by the caller's own tools: its text is for the code that called the tool."
    """

    async def ask(_: int) -> None:
        raise ToolError("no such customer")

    codes = {
        "javascript": "let s; try { await tools.ask(7) }"
        " catch (e) { s = e.name + ': ' + e.message } s",
        "python": "s = ''\ntry:\n    await tools.ask(7)\nexcept Exception as e:\n"
        "    s = 'ToolError: ' + str(e)\ns",
    }
    async for result in subject.each(codes, tools={"ask": ask}):
        has_value(result, "ToolError: no such customer")


@promise(1106)
async def answers_without_json_form_are_failures(subject: Subject) -> None:
    """A tool that answers what is not JSON has failed, and the run goes on.

    "JSON in and out, bounded in count, size and time."
    """
    for answer in (object(), {1, 2}, b"x", float("nan"), 10**5000, "fine"):
        codes = {
            "javascript": "let s = 'none'; try { s = await tools.ask(7) }"
            " catch (e) { s = 'failed' } s",
            "python": "s = 'none'\ntry:\n    s = await tools.ask(7)\nexcept Exception:\n"
            "    s = 'failed'\ns",
        }
        tools = {"ask": lambda _, a=answer: a}
        async for result in subject.each(codes, tools=tools, logger=_quiet):
            has_value(result, "fine" if answer == "fine" else "failed")


@promise(1107)
async def arguments_without_json_form_reach_nobody(subject: Subject) -> None:
    """An argument that is not JSON is an error of the code's, before anything is called.

    "JSON in and out, bounded in count, size and time."
    """
    heard: list[Any] = []
    codes = {
        "javascript": "let s = 'none'; try { await tools.ask(10n) } catch (e) { s = 'refused' }"
        " await tools.ask(7); s",
        "python": "s = 'none'\ntry:\n    await tools.ask({1, 2})\nexcept Exception:\n"
        "    s = 'refused'\nawait tools.ask(7)\ns",
    }
    async for result in subject.each(codes, tools={"ask": heard.append}):
        has_value(result, "refused")
        same(heard, [7], "what the tool was called with")
        heard.clear()


@promise(1108)
async def answers_are_copies(subject: Subject) -> None:
    """The code changes its own copy of an answer alone.

    "JSON in and out."
    """
    answer = {"list": [1]}
    codes = {
        "javascript": "const a = await tools.ask(7); a.list.push(2);"
        " (await tools.ask(7)).list.length",
        "python": "a = await tools.ask(7)\na['list'].append(2)\nlen((await tools.ask(7))['list'])",
    }
    async for result in subject.each(codes, tools={"ask": lambda _: answer}):
        has_value(result, 1)
    same(answer, {"list": [1]}, "the tool's own")


@promise(1109)
async def a_call_ends_with_its_run(subject: Subject) -> None:
    """A tool that does not answer is cancelled when the run's time is over.

    "JSON in and out, bounded in count, size and time."
    """
    cancelled: list[bool] = []

    async def ask(_: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async for result in subject.each(CALL, tools={"ask": ask}, timeout_ms=500):
        has_code(result, SandboxErrorCode.TIMEOUT)
        same(cancelled, [True], "cancelled")
        cancelled.clear()


@promise(1110)
async def the_number_of_calls_is_bounded(subject: Subject) -> None:
    """Calls without end are refused after some, and the host serves no more of them.

    "JSON in and out, bounded in count, size and time."
    """
    count = 0

    def ask(_: int) -> None:
        nonlocal count
        count += 1

    codes = {
        "javascript": "let s = 0; for (let i = 0; i < 1500; i++)"
        " try { await tools.ask(i) } catch { s++ } s",
        "python": "s = 0\nfor i in range(1500):\n    try:\n        await tools.ask(i)\n"
        "    except Exception:\n        s += 1\ns",
    }
    async for result in subject.each(codes, tools={"ask": ask}, timeout_ms=30_000):
        holds(0 < count < 1500, f"{count} calls reached the tool")
        has_value(result, 1500 - count)
        count = 0


@promise(1111)
async def a_large_answer_is_refused(subject: Subject) -> None:
    """An answer over `value_limit_bytes` is a failure of the tool.

    "JSON in and out, bounded in count, size and time."
    """
    codes = {
        "javascript": "let s = 'none'; try { s = await tools.ask(7) } catch { s = 'failed' } s",
        "python": "s = 'none'\ntry:\n    s = await tools.ask(7)\nexcept Exception:\n"
        "    s = 'failed'\ns",
    }
    for size in (5000, 100):
        tools = {"ask": lambda _, size=size: "x" * size}
        async for result in subject.each(codes, tools=tools, value_limit_bytes=1000):
            has_value(result, "failed" if size == 5000 else "x" * 100)


@promise(1112)
async def only_the_named_tools_are_there(subject: Subject) -> None:
    """Other names have nothing behind them, whoever asks, and a run without tools has none.

    "`tools`: name → async callable, visible as `await tools.name(args)`."
    """
    for name in ("other", "constructor", "ask"):
        codes = {kind: f"await tools.{name}(1)" for kind in CALL}
        async for result in subject.each(codes, tools={"ask": lambda _: 1}):
            if name == "ask":
                has_value(result, 1)
            else:
                has_code(result, SandboxErrorCode.EXECUTION_ERROR)
    async for result in subject.each(CALL):
        has_code(result, SandboxErrorCode.EXECUTION_ERROR)


@promise(1113)
async def a_busy_tool_does_not_hold_other_runs(subject: Subject) -> None:
    """While one run waits for its tool, others run.

    "`tools`: name → async callable."
    """
    asked, go = asyncio.Event(), asyncio.Event()

    async def ask(_: int) -> int:
        asked.set()
        await go.wait()
        return 1

    code = CALL["python" if subject.language == "python" else "javascript"]
    waiting = asyncio.ensure_future(subject.run(code, tools={"ask": ask}, timeout_ms=20_000))
    called = asyncio.ensure_future(asked.wait())
    await asyncio.wait([waiting, called], return_when=asyncio.FIRST_COMPLETED)
    called.cancel()
    if waiting.done():
        raise AssertionError(f"the tool was not called: {describe(waiting.result())}")
    has_value(await subject.run("1 + 1"), 2)
    go.set()
    has_value(await waiting, 1)


@promise(1114)
async def a_tool_is_no_way_to_outlive_a_timeout(subject: Subject) -> None:
    """Code that has called a tool is stopped like any other.

    "`timeout_ms`: wall clock from the start of the code to the converted result."
    """
    codes = {
        "javascript": f"await tools.ask(7); {SPIN['javascript']}",
        "python": f"await tools.ask(7)\n{SPIN['python']}",
    }
    async for result in subject.each(codes, tools={"ask": lambda _: 1}, timeout_ms=400):
        has_code(result, SandboxErrorCode.TIMEOUT)
    with refused("tools"):
        await subject.run("1", {"tools": 1}, tools={"ask": lambda _: 1})
