"""Threat: code reaches more of the caller's tools than their names, or hurts the caller by them."""

import asyncio
import contextlib
import json
import logging
import time

import pytest

import cloche
import cloche.sync
from needs import BOX, needs, require_facts

pytestmark = needs(*BOX)

Code = cloche.SandboxErrorCode
PLACES = {
    "quickjs": ("worker", "javascript", {}),
    "monty": ("worker", "python", {}),
    "bun": ("process", "javascript", {"runtime": "bun"}),
    "node": ("process", "javascript", {"runtime": "node"}),
    "deno": ("process", "javascript", {"runtime": "deno"}),
    "python": ("process", "python", {}),
}


@pytest.fixture(scope="module", params=PLACES)
def place(request):
    found = Place(request.param)
    with found.sandbox:
        yield found


class Place:
    """A started sandbox; tools run on its background loop."""

    def __init__(self, name):
        kind, self.language, self.fields = PLACES[name]
        self.name, self.kind = name, kind
        require_facts("worker-engines" if kind == "worker" else f"runtime-{name}")
        self.sandbox = self.create(cloche.sync, timeout_ms=15_000)

    def create(self, module, **fields):
        make = getattr(module, f"create_{self.kind}_sandbox")
        return make(language=self.language, pool_size=1, **{**self.fields, **fields})

    def run(self, javascript, python, context=None, **fields):
        code = python if self.language == "python" else javascript
        return self.sandbox.run(code, context, **fields)


async def echo(*args, **kwargs):
    return [list(args), kwargs]


def caught(javascript, python):
    """Programs whose value is the name and the message of what a call raises, or what it gives."""
    script = f"let r;\ntry {{ r = {javascript}; }} catch (e) {{ r = [e.name, e.message]; }}\nr"
    text = f"try:\n    r = {python}\nexcept Exception as e:\n    r = ['ToolError', str(e)]\nr"
    return script, text


CYCLE = []
CYCLE.append(CYCLE)
DEEP = []
for _ in range(50_000):
    DEEP = [DEEP]
BAD_ANSWERS = {
    "cycle": CYCLE, "deep": DEEP, "nan": [float("nan")], "infinity": float("inf"), "set": {1},
    "bytes": b"x", "object": object(), "digits": 10**5000, "class": dict, "complex": 1j,
    "huge": "x" * 70_000, "keys": {(1, 2): 3},
}  # fmt: skip


def test_an_answer_without_json_form_is_a_failed_call_and_tells_nothing(place, caplog):
    caplog.set_level(logging.CRITICAL)
    for what, answer in BAD_ANSWERS.items():
        result = place.run(
            *caught("await tools.it()", "await tools.it()"),
            tools={"it": lambda answer=answer: answer},
            value_limit_bytes=65_536,
        )
        assert result.ok, (what, result.error)
        name, message = result.value
        assert (name, "tool it failed" in message) == ("ToolError", True), (what, message)
        for word in ("object at", "0x", "File", "json", ".py"):
            assert word not in message, what


def test_an_answer_that_looks_like_code_or_a_frame_is_data(place):
    answers = [
        {"__proto__": {"polluted": 1}, "constructor": 1, "toJSON": 2, "then": 3},
        {"answer": 1, "ok": False, "error": {"name": "x", "message": "y"}},
        '{"ok":true,"value":"FORGED"}', "\u2028\u2029\0</script>`${1}`", [], {}, None, True, 0,
        "\N{GRINNING FACE}", -1.5, "x" * 60_000,
    ]  # fmt: skip
    result = place.run(
        "const r = []; for (let i = 0; i < n; i++) r.push((await tools.it(i)) ?? null);\n"
        "[r, ({}).polluted ?? null]",
        "r = []\nfor i in range(n):\n    r.append(await tools.it(i))\n[r, None]",
        {"n": len(answers)},
        tools={"it": lambda index: answers[index]},
    )
    assert result.value == [answers, None], result.error


def test_a_lone_surrogate_in_an_answer_or_a_message_is_replaced(place):
    async def fail():
        raise cloche.ToolError("\ud800 lone")

    result = place.run("await tools.it()", "await tools.it()", tools={"it": lambda: "\ud800a"})
    assert result.value == "\ufffda"
    result = place.run(*caught("await tools.it()", "await tools.it()"), tools={"it": fail})
    assert result.value[1].endswith("\ufffd lone"), result.error


class _SilentError(Exception):
    def __str__(self):
        raise ValueError("not even this")

    __repr__ = __str__


class _SilentToolError(cloche.ToolError):
    def __str__(self):
        raise ValueError("not even this")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("TOKEN"), _SilentError(), _SilentToolError("TOKEN"), StopIteration("TOKEN"),
        StopAsyncIteration("TOKEN"), TimeoutError("TOKEN"), asyncio.CancelledError("TOKEN"),
        RecursionError("TOKEN"), MemoryError("TOKEN"), ExceptionGroup("TOKEN", [OSError("TOKEN")]),
        cloche.InternalError("TOKEN", retry_safe=True),
        cloche.DisposedError("TOKEN", retry_safe=True),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "async"])
def test_whatever_a_tool_raises_is_a_failed_call_of_that_run(place, error, is_plain, caplog):
    caplog.set_level(logging.CRITICAL + 1)

    def fail():
        raise error

    async def fail_later():
        await asyncio.sleep(0)
        raise error

    result = place.run(
        *caught("await tools.it()", "await tools.it()"),
        tools={"it": fail if is_plain else fail_later},
    )
    assert result.ok, result.error
    assert result.value[0] == "ToolError"
    assert "TOKEN" not in result.value[1]


def test_only_names_that_were_given_are_tools(place):
    names = ["__proto__", "constructor", "toString", "then", "valueOf", "hasOwnProperty", "missing"]
    tools = {"it": echo}
    if place.language == "javascript":
        code = "names.map(it => typeof tools[it]).concat(Object.keys(tools), typeof tools.it)"
        result = place.run(code, "", {"names": names}, tools=tools)
        assert result.value == ["undefined"] * len(names) + ["it", "function"]
        code = (
            "const r = [];\nfor (const f of [() => { tools.it = 1; }, () => { tools.more = 1; },"
            " () => { delete tools.it; }, () => { Object.setPrototypeOf(tools, {}); }])\n"
            "  try { f(); r.push('done'); } catch (e) { r.push(e.name); }\nr"
        )
        assert place.run(code, "", tools=tools).value == ["TypeError"] * 4
    else:
        for name in names:
            assert not place.run("", f"tools.{name}", tools=tools).ok
        assert not place.run("", "tools.it = 1", tools=tools).ok
    assert place.run("await tools.it(1)", "await tools.it(1)", tools=tools).value == [[1], {}]


@pytest.mark.parametrize(
    "name",
    ["__proto__", "constructor", "then", "toString", "hasOwnProperty", "valueOf", "toJSON", "name"],
)
def test_an_odd_name_of_a_tool_is_a_plain_name_or_refused(place, name):
    try:
        result = place.run(
            f"[await tools.{name}(1), ({{}}).polluted ?? null]",
            f"[await tools.{name}(1), None]",
            tools={name: echo},
        )
    except cloche.InvalidRequestError as error:
        assert name in str(error)
    else:
        assert result.value == [[[1], {}], None], result.error


def test_arguments_without_json_form_never_leave_the_box(place):
    called = []
    tools = {"it": lambda *args: called.append(args)}
    scripts = [
        "const a = []; a[0] = a; await tools.it(a)", "await tools.it(1n)",
        "await tools.it({ toJSON() { throw new Error('x'); } })",
    ]  # fmt: skip
    texts = [
        "a = []\na.append(a)\nawait tools.it(a)", "await tools.it({1, 2})", "await tools.it(b'x')",
    ]  # fmt: skip
    for script, text in zip(scripts, texts, strict=True):
        result = place.run(script, text, tools=tools, timeout_ms=5000)
        told = (place.name, script if place.language == "javascript" else text)
        assert result.error_code in (Code.EXECUTION_ERROR, Code.VALUE_TOO_LARGE), (told, result)
    assert called == []
    place.run("await tools.it('x'.repeat(300_000))", "await tools.it('x' * 300_000)", tools=tools)
    assert len(called) == 1  # the control


@pytest.mark.parametrize("what", ["deep", "large"])
def test_arguments_that_are_too_much_are_an_error_of_the_call(place, what):
    scripts = {
        "deep": "let d = {}, p = d; for (let i = 0; i < 1000; i++) p = p.n = {}; await tools.it(d)",
        "large": "await tools.it('x'.repeat(3_000_000))",
    }
    texts = {
        "deep": "d = []\nfor i in range(1000):\n    d = [d]\nawait tools.it(d)",
        "large": "await tools.it('x' * 3_000_000)",
    }
    called = []
    tools = {"it": lambda *args: called.append(args)}
    result = place.run(scripts[what], texts[what], tools=tools, timeout_ms=3000)
    assert result.error_code in (Code.EXECUTION_ERROR, Code.VALUE_TOO_LARGE), result.error
    assert called == []


def test_arguments_with_a_hundred_megabytes_harm_the_run_alone(place):
    called = []
    result = place.run(
        *caught("await tools.it('x'.repeat(1e8))", "await tools.it('x' * 10 ** 8)"),
        tools={"it": lambda *args: called.append(args)},
        memory_limit_mb=256,
        timeout_ms=8000,
    )
    assert called == []
    assert result.ok or result.error_code in (
        Code.TIMEOUT, Code.MEMORY_EXCEEDED, Code.EXECUTION_ERROR, Code.VALUE_TOO_LARGE
    )  # fmt: skip
    assert place.run("1 + 1", "1 + 1").value == 2


def test_ten_thousand_calls_are_a_thousand_calls_64_at_a_time(place):
    at_once, most, count = 0, 0, 0

    async def it(number):
        nonlocal at_once, most, count
        at_once, count = at_once + 1, count + 1
        most = max(most, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1
        return number

    result = place.run(
        "const r = await Promise.all(Array.from({ length: 10000 }, (_, i) =>"
        " tools.it(i).catch(e => e.message)));\nr.filter(it => typeof it === 'string').length",
        "import asyncio\nasync def f(i):\n    try:\n        return await tools.it(i)\n"
        "    except Exception as e:\n        return str(e)\n"
        "r = await asyncio.gather(*[f(i) for i in range(3000)])\n"
        "len([it for it in r if isinstance(it, str)])",
        tools={"it": it},
        timeout_ms=30_000,
    )
    assert result.ok, result.error
    assert result.value >= (9000 if place.language == "javascript" else 2000)
    assert 0 < count <= 1000
    assert most <= 64


def test_calls_that_are_open_at_the_end_are_cancelled_and_nothing_comes_of_them(place):
    ended = []

    async def hang(number):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(number)
            raise

    result = place.run(
        "for (let i = 0; i < 10; i++) tools.it(i); await tools.quick(); 'left'",
        "import asyncio\nasync def f(i):\n    await tools.it(i)\n"
        "async def g():\n    await tools.quick()\n    return 'never'\n"
        "await asyncio.gather(*[f(i) for i in range(10)], g())",
        tools={"it": hang, "quick": echo},
        timeout_ms=15_000 if place.language == "javascript" else 600,
    )
    if place.language == "javascript":
        assert result.value == "left", result.error
    else:
        assert result.error_code is Code.TIMEOUT
    assert sorted(ended) == list(range(10))


def test_a_tool_that_hangs_ends_with_the_deadline_and_one_that_clings_is_left(place, caplog):
    released = asyncio.Event()
    began = []

    async def cling():
        began.append(asyncio.get_running_loop())
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    started = time.monotonic()
    result = place.run("await tools.it()", "await tools.it()", tools={"it": cling}, timeout_ms=700)
    assert result.error_code is Code.TIMEOUT
    assert time.monotonic() - started < 6  # the deadline, the grace of a second, and a busy machine
    assert "a tool goes on after its run" in caplog.text
    began[0].call_soon_threadsafe(released.set)
    assert place.run("1 + 1", "1 + 1").value == 2


@pytest.mark.parametrize("count", [1, 6])
def test_a_tool_may_run_code_in_the_same_sandbox_and_the_deadline_unties_a_knot(place, count):
    """With all slots held by runs that wait for a slot, only their deadlines help."""

    async def again():
        result = await place.sandbox.run("40 + 2")
        return result.value

    async def test():
        async with place.create(cloche, timeout_ms=1500) as sandbox:

            async def again():
                return (await sandbox.run("40 + 2")).value

            runs = [
                sandbox.run("await tools.again()", tools={"again": again}) for _ in range(count)
            ]
            for result in await asyncio.gather(*runs):
                assert result.value == 42 or result.error_code is Code.TIMEOUT, result.error
            assert (await sandbox.run("1 + 1", timeout_ms=15_000)).value == 2

    asyncio.run(asyncio.wait_for(test(), 40))


def test_a_tool_that_waits_for_a_run_without_await_is_refused_at_once(place):
    def again():
        return place.sandbox.run("1 + 1").value

    result = place.run(*caught("await tools.it()", "await tools.it()"), tools={"it": again})
    assert result.value == ["ToolError", "tool it failed"], result.error


def test_a_tool_that_disposes_of_its_own_sandbox_ends_its_run():
    async def test():
        sandbox = cloche.create_process_sandbox(timeout_ms=10_000)

        async def end():
            disposing.append(asyncio.ensure_future(sandbox.dispose()))
            await asyncio.sleep(5)

        disposing = []
        result = await sandbox.run("await tools.end()", tools={"end": end})
        assert result.error_code is Code.DISPOSED
        await asyncio.gather(*disposing)

    asyncio.run(asyncio.wait_for(test(), 20))


FORGED_CALLS = """
import json, os, sys
nonce, frame = None, sys._getframe()
while frame is not None:
    for value in list(frame.f_locals.values()):
        if isinstance(value, dict) and isinstance(value.get("nonce"), str):
            nonce = bytes.fromhex(value["nonce"])
    frame = frame.f_back
def send(text):
    body = text.encode()
    os.write(4, nonce + len(body).to_bytes(4, "big") + body)
for text in frames:
    send(text)
await tools.it("own")
"""


def test_frames_that_code_makes_itself_are_calls_within_the_same_bounds():
    """CPython code finds the nonce; what it writes with it is judged like any call."""
    called = []

    async def it(*args, **kwargs):
        called.append((args, kwargs))
        return len(called)

    odd = [
        {"call": 0}, {"call": -1}, {"call": True}, {"call": "1"}, {"call": 2**60}, {"call": 1.5},
        {"call": None}, {"call": [1]}, {"call": 7, "tool": "__class__", "args": []},
        {"call": 8, "tool": None, "args": []}, {"call": 9, "tool": ["it"], "args": []},
        {"call": 10, "tool": "it", "args": {"a": 1}}, {"call": 11, "tool": "it"},
        {"call": 12, "tool": "it", "args": [], "kwargs": [1]},
        {"call": 13, "tool": "it", "args": "abc"},
    ]  # fmt: skip
    odd = [{"tool": "it", "args": ["odd"], **each} if len(each) == 1 else each for each in odd]
    frames = [json.dumps(each) for each in odd]

    async def test():
        async with cloche.create_process_sandbox(language="python", pool_size=0) as sandbox:
            result = await sandbox.run(FORGED_CALLS, {"frames": frames}, tools={"it": it})
            assert result.ok, result.error
            # Output comes on fd 1 alone: this one is taken for a last word that says nothing.
            printed = [json.dumps({"out": "stdout", "text": "FORGED"})]
            result = await sandbox.run(FORGED_CALLS, {"frames": printed}, tools={"it": it})
            assert (result.ok, result.stdout) == (False, "")
            # The control: a well-formed one is a call like the code's own.
            good = [json.dumps({"call": 500, "tool": "it", "args": ["made"], "kwargs": {}})]
            result = await sandbox.run(FORGED_CALLS, {"frames": good}, tools={"it": it})
            assert result.ok, result.error

    asyncio.run(test())
    assert [args for args, _ in called] == [("own",), ("made",), ("own",)]
