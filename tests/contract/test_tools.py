"""Tools: host functions that a snippet calls, on every sandbox."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from dialects import assert_unknown_to_the_engine

import cloche
from cloche import InvalidRequestError, SandboxErrorCode, ToolError

LANGUAGES = ("javascript", "typescript", "python")


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    """What tools raise goes to the log of the test."""
    caplog.set_level(logging.WARNING)


@pytest.mark.every_runtime
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_tool_answers_with_json(sandbox: Any, language: str) -> None:
    given: dict[str, Any] = {"x": [1, 2.5, "é😀\u2028\0", None, True, {"": [[]]}]}
    result = sandbox.run(
        "await tools.echo(given)", {"given": given}, language=language, tools={"echo": lambda x: x}
    )
    assert (result.ok, result.value) == (True, given), result.error


@pytest.mark.parametrize("language", LANGUAGES)
def test_tools_are_data_and_cannot_be_replaced(sandbox: Any, kind: str, language: str) -> None:
    codes = {
        "javascript": "try { tools.ask = () => 'forged' } catch {}\n"
        "try { globalThis.tools.more = 1 } catch {}\n"
        "[await tools.ask(), Object.keys(tools), Object.getPrototypeOf(tools)]",
        "python": "try:\n    tools.ask = lambda: 'forged'\nexcept Exception:\n    pass\n"
        "[await tools.ask(), ['ask'], None]",
    }
    code = codes["python" if language == "python" else "javascript"]
    result = sandbox.run(code, language=language, tools={"ask": lambda: "real"})
    if kind == "worker" and language == "python":
        assert_unknown_to_the_engine(result)
        return
    assert (result.ok, result.value) == (True, ["real", ["ask"], None]), result.error


def test_python_has_keyword_arguments(sandbox: Any) -> None:
    tools = {"ask": lambda *args, **kwargs: [list(args), kwargs]}
    code = "await tools.ask(1, named='é', other=[2])"
    result = sandbox.run(code, language="python", tools=tools)
    assert result.value == [[1], {"named": "é", "other": [2]}], result.error


@pytest.mark.every_runtime
@pytest.mark.case("esc-06-host-error-text")
def test_nothing_of_the_hosts_error_reaches_the_code(sandbox: Any) -> None:
    def fail(_: str) -> None:
        raise ValueError("/srv/app/secret.py HOST-TOKEN")

    code = (
        "let s = ''; try { await tools.fail('x') } catch (e) {"
        " s = String(e.message) + e.stack + JSON.stringify(e, Object.getOwnPropertyNames(e)) } s"
    )
    result = sandbox.run(code, language="javascript", tools={"fail": fail})
    assert result.ok and "fail" in result.value, result.error
    for word in ("HOST-TOKEN", "/srv/", "Traceback", ".py"):
        assert word not in result.value


@pytest.mark.case("esc-03-injected-object")
def test_no_object_of_the_hosts_leads_out(sandbox: Any) -> None:
    code = (
        "const got = await tools.give();"
        "[cfg, cfg.list, got, tools.give].map(o => { try {"
        " return o.constructor.constructor('return typeof process')() } catch { return 'none' } })"
    )
    result = sandbox.run(code, {"cfg": {"list": [1]}}, tools={"give": lambda: {"a": 1}})
    runtime = sandbox.run("typeof process").value  # its own, where there is one
    assert set(result.value) <= {"none", "undefined", runtime}, result.error


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_tool_error_that_nobody_catches_is_the_runs_error(sandbox: Any, language: str) -> None:
    def refuse() -> None:
        raise ToolError("no such customer")

    code = "1\nawait tools.refuse()"
    result = sandbox.run(code, language=language, tools={"refuse": refuse})
    assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
    assert result.error == "ToolError: no such customer"
    assert result.error_line == 2


def test_tools_belong_to_their_run(sandbox: Any) -> None:
    result = sandbox.run("await tools.ask()", tools={"ask": lambda: 1})
    assert result.value == 1, result.error
    assert sandbox.run("typeof tools").value == "undefined"
    other = sandbox.run("[await tools.other(), typeof tools.ask]", tools={"other": lambda: 2})
    assert other.value == [2, "undefined"], other.error


def test_a_sandbox_may_have_tools_for_all_its_runs(create_sync: Callable[..., Any]) -> None:
    with create_sync(tools={"ask": lambda: 1}) as sandbox:
        assert sandbox.run("await tools.ask()").value == 1
        assert sandbox.run("typeof tools", tools={}).value == "undefined"


@pytest.mark.parametrize(
    "tools",
    [{"a-b": print}, {"": print}, {"then": print}, {"__x": print}, {"class": print}, {"a": 1},
     {1: print}, [print], {f"t{n}": print for n in range(65)}],
)  # fmt: skip
def test_a_wrong_tool_is_refused(sandbox: Any, tools: Any) -> None:
    with pytest.raises(InvalidRequestError, match="tools"):
        sandbox.run("1", tools=tools)


def test_tools_and_a_context_of_that_name_are_refused(sandbox: Any) -> None:
    with pytest.raises(InvalidRequestError, match="tools"):
        sandbox.run("1", {"tools": 1}, tools={"ask": lambda: 1})
    assert sandbox.run("tools", {"tools": 1}).value == 1


def test_runs_with_tools_do_not_hear_each_other(create: Callable[..., Any]) -> None:
    async def test() -> None:
        async def me(number: int, given: int) -> list[int]:
            await asyncio.sleep(0.01)
            return [number, given]

        async with create(timeout_ms=20_000) as sandbox:
            runs = (
                sandbox.run(
                    "[await tools.me(1), await tools.me(2)]",
                    tools={"me": lambda given, number=number: me(number, given)},
                )
                for number in range(12)
            )
            results = await asyncio.gather(*runs)
        for number, result in enumerate(results):
            assert result.value == [[number, 1], [number, 2]], result.error

    run(test)


def test_a_tool_that_never_answers_ends_with_the_run(create: Callable[..., Any]) -> None:
    async def test() -> None:
        ended: list[str] = []

        async def wait(how: str) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(how)
                raise

        async with create(timeout_ms=20_000) as sandbox:
            code = "await tools.wait(how)"
            tools = {"wait": wait}
            await sandbox.run("1")  # what it needs is there
            result = await sandbox.run(code, {"how": "timeout"}, tools=tools, timeout_ms=300)
            assert result.error_code is SandboxErrorCode.TIMEOUT
            controller = cloche.AbortController()
            asyncio.get_running_loop().call_later(0.3, controller.abort)
            result = await sandbox.run(
                code, {"how": "abort"}, tools=tools, signal=controller.signal
            )
            assert result.error_code is SandboxErrorCode.ABORTED
            running = asyncio.ensure_future(sandbox.run(code, {"how": "cancel"}, tools=tools))
            await asyncio.sleep(0.4)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert ended == ["timeout", "abort", "cancel"]
            running = asyncio.ensure_future(sandbox.run(code, {"how": "dispose"}, tools=tools))
            await asyncio.sleep(0.4)
        assert (await running).error_code is SandboxErrorCode.DISPOSED
        assert ended[3:] == ["dispose"]

    run(test)


def test_a_stubborn_tool_holds_its_run_for_a_second_at_most(create: Callable[..., Any]) -> None:
    async def test() -> None:
        released = asyncio.Event()

        async def stubborn() -> None:
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue

        async with create(timeout_ms=300) as sandbox:
            started = time.monotonic()
            result = await sandbox.run("await tools.stubborn()", tools={"stubborn": stubborn})
            assert result.error_code is SandboxErrorCode.TIMEOUT
            assert time.monotonic() - started < 0.3 + 1 + 1
            assert (await sandbox.run("1 + 1")).value == 2
        released.set()
        await asyncio.sleep(0)

    run(test)


@pytest.mark.kinds("process")
def test_code_cannot_forge_an_answer_or_a_call_of_another_tool(sandbox: Any) -> None:
    heard: list[Any] = []
    code = (
        "import json, os, struct\n"
        "for frame in ({'call': 1, 'tool': 'ask', 'args': ['forged']},\n"
        "              {'call': 2, 'tool': '__class__', 'args': []}):\n"
        "    body = json.dumps(frame).encode()\n"
        "    os.write(4, bytes(16) + struct.pack('>I', len(body)) + body)\n"
        "'done'"
    )
    result = sandbox.run(code, language="python", tools={"ask": heard.append})
    assert heard == []
    assert result.value is None and result.error_code is SandboxErrorCode.EXECUTION_ERROR


@pytest.mark.parametrize("language", ["javascript", "python"])
def test_a_flood_of_calls_is_refused_and_the_host_lives(sandbox: Any, language: str) -> None:
    served: list[int] = []
    code = {
        "javascript": "const all = []; for (let i = 0; i < 5000; i++)"
        " all.push(tools.ask(i).then(() => 1, () => 0));"
        " (await Promise.all(all)).reduce((a, b) => a + b)",
        "python": "n = 0\nfor i in range(1500):\n    try:\n        await tools.ask(i)\n"
        "        n += 1\n    except Exception:\n        pass\nn",
    }[language]
    result = sandbox.run(code, language=language, tools={"ask": served.append}, timeout_ms=20_000)
    assert result.ok, result.error
    assert 0 < result.value == len(served) <= 1000
