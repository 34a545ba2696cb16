"""The backend in memory: it keeps the contract of a backend where tests rest on it."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cloche import InternalError, SandboxErrorCode, UnavailableError
from cloche.backends import base
from cloche.backends.base import Sinks
from cloche.frames import NONCE_BYTES, ResultReader, encode_request
from cloche.model.outcome import Cause, Outcome
from cloche.model.plan import BoxPlan, Command, Control, Environment, Isolation, Strength
from cloche.model.policy import Limits
from cloche.model.snippet import SandboxOptions
from cloche.snippets.process import ProcessSandbox
from cloche.testing.fake import FakeBackend, FakeBox, FakeProgram, answer_nothing, ended

PLAN = BoxPlan(Environment("none", ()), Limits())
COMMAND = Command(("/bin/program",), {})


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(bounded())


class Heard:
    """Sinks that keep what comes."""

    def __init__(self) -> None:
        self.stdout, self.stderr, self.result = bytearray(), bytearray(), bytearray()
        self.feeds: list[Any] = []

    def sinks(self, *, control: bool = False) -> Sinks:
        return Sinks(
            self.stdout.extend,
            self.stderr.extend,
            self.result.extend,
            self.feeds.append if control else None,
        )


def request(**fields: Any) -> bytes:
    return encode_request({"nonce": bytes(range(NONCE_BYTES)).hex(), **fields})


def start(box: FakeBox, heard: Heard, **given: Any) -> asyncio.Future[Outcome]:
    fields = {"stdin": b"", "control": request(), "sinks": heard.sinks(), **given}
    return asyncio.ensure_future(box.exec(COMMAND, **fields))


async def turns(count: int = 20) -> None:
    """Lets everything that is ready go on."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("protocol", "kind"), [(base.Backend, FakeBackend), (base.Box, FakeBox)], ids=["backend", "box"]
)
def test_it_has_every_method_of_the_protocol_with_the_same_parameters(
    protocol: type, kind: type
) -> None:
    for name, member in vars(protocol).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            ours = inspect.signature(getattr(kind, name))
            assert list(ours.parameters) == list(inspect.signature(member).parameters), name
            assert inspect.iscoroutinefunction(getattr(kind, name)) is (
                inspect.iscoroutinefunction(member)
            ), name


def test_a_script_reads_its_request_and_answers_with_its_nonce() -> None:
    async def script(program: FakeProgram) -> Outcome:
        asked = await program.receive()
        program.print("out")
        program.print("err", stream="stderr")
        program.send({"ok": True, "value": asked["x"]})
        return ended(3)

    async def test() -> None:
        box = await FakeBackend(script).create(PLAN)
        heard = Heard()
        outcome = await start(box, heard, control=request(x=7))
        assert (outcome.cause, outcome.exit_code) == (Cause.EXITED, 3)
        reader = ResultReader(bytes(range(NONCE_BYTES)), 100)
        reader.feed(bytes(heard.result))
        assert reader.result() == {"ok": True, "value": 7}
        assert (heard.stdout, heard.stderr) == (b"out", b"err")
        assert not box.is_running

    run(test)


def test_a_script_gets_what_is_written_later_and_the_end() -> None:
    seen: list[Any] = []

    async def script(program: FakeProgram) -> None:
        while True:
            try:
                seen.append(await program.receive())
            except EOFError:
                return

    async def test() -> None:
        box = await FakeBackend(script).create(PLAN)
        heard = Heard()
        running = start(box, heard, control=request(n=1), sinks=heard.sinks(control=True))
        await turns()
        (feed,) = heard.feeds
        data = request(n=2) + request(n=3)
        for at in range(0, len(data), 5):
            feed.write(data[at : at + 5])
            await turns(2)
        feed.close()
        feed.write(request(n=4))
        await running
        assert [frame["n"] for frame in seen] == [1, 2, 3]

    run(test)


@pytest.mark.parametrize("cause", [Cause.MEMORY, Cause.WALL_TIMEOUT, Cause.DISPOSED])
def test_a_killed_box_ends_with_the_cause_and_runs_nothing_more(cause: Cause) -> None:
    started: list[FakeProgram] = []

    async def script(program: FakeProgram) -> None:
        started.append(program)
        await asyncio.Event().wait()

    async def test() -> None:
        box = await FakeBackend(script).create(PLAN)
        running = start(box, Heard())
        await turns()
        box.kill(cause)
        box.kill(Cause.ABORTED)  # the first one counts
        outcome = await running
        assert (outcome.cause, outcome.exit_code) == (cause, None)
        again = await start(box, Heard())
        assert again.cause is cause
        assert len(started) == 1

    run(test)


def test_a_cancelled_exec_kills_the_box() -> None:
    async def test() -> None:
        box = await FakeBackend(lambda _: asyncio.Event().wait()).create(PLAN)
        running = start(box, Heard())
        await turns()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert box.killed is Cause.ABORTED
        assert not box.is_running

    run(test)


def test_what_the_control_raises_is_raised_and_nothing_has_run() -> None:
    async def fail() -> bytes:
        raise LookupError("mine")

    async def script(program: FakeProgram) -> None:
        raise AssertionError("it ran")

    async def test() -> None:
        box = await FakeBackend(script).create(PLAN)
        with pytest.raises(LookupError, match="mine"):
            await start(box, Heard(), control=fail())

    run(test)


def test_a_program_that_is_started_ahead_waits_for_its_control() -> None:
    async def test() -> None:
        backend = FakeBackend()
        box = await backend.create(PLAN)
        waiting: list[bool] = []
        control: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        heard = Heard()
        backend.starts.clear()
        running = start(box, heard, control=control, on_waiting=lambda: waiting.append(True))
        await turns()
        assert waiting == []
        backend.starts.set()
        await turns()
        assert waiting == [True]
        assert not heard.result
        box.limit(Limits(memory_mb=77))
        control.set_result(request())
        assert (await running).exit_code == 0
        assert heard.result
        assert [limits.memory_mb for limits in box.limits] == [77]

    run(test)


def test_finish_ends_a_program_without_an_exit_code() -> None:
    async def script(program: FakeProgram) -> None:
        program.send({"ok": True})
        await asyncio.Event().wait()

    async def test() -> None:
        box = await FakeBackend(script).create(PLAN)
        running = start(box, Heard())
        await turns()
        box.finish()
        outcome = await running
        assert (outcome.cause, outcome.exit_code, box.is_finished) == (Cause.EXITED, None, True)

    run(test)


def test_one_command_at_a_time_and_none_in_a_box_that_is_gone() -> None:
    async def test() -> None:
        box = await FakeBackend(lambda _: asyncio.Event().wait()).create(PLAN)
        running = start(box, Heard())
        await turns()
        with pytest.raises(AssertionError, match="one command"):
            await start(box, Heard())
        await box.destroy()
        await box.destroy()
        assert (await running).cause is Cause.ABORTED
        with pytest.raises(AssertionError, match="gone"):
            await start(box, Heard())

    run(test)


def test_boxes_can_fail_to_be_made_and_are_counted() -> None:
    async def test() -> None:
        fault = UnavailableError("no", fact="x", fix="y")
        backend = FakeBackend(create_errors=[None, fault])
        first = await backend.create(PLAN)
        with pytest.raises(UnavailableError):
            await backend.create(PLAN)
        second = await backend.create(PLAN)
        assert backend.boxes == backend.left == [first, second]
        await first.destroy()
        assert backend.left == [second]
        await backend.close()
        await backend.close()
        assert backend.left == []
        with pytest.raises(InternalError):
            await backend.create(PLAN)

    run(test)


def test_a_limit_can_be_refused() -> None:
    async def test() -> None:
        backend = FakeBackend(limit_error=InternalError("does not hold"))
        box = await backend.create(PLAN)
        with pytest.raises(InternalError, match="does not hold"):
            box.limit(Limits())

    run(test)


# A sandbox on it.


def sandbox_on(backend: FakeBackend, **fields: Any) -> ProcessSandbox:
    return ProcessSandbox(SandboxOptions(language="python", **fields), backend)


def test_a_sandbox_takes_the_scripts_word_for_its_value() -> None:
    async def script(program: FakeProgram) -> Outcome:
        asked = await program.receive()
        program.send({"ok": True, "value": [asked["code"], asked["context"]]})
        return ended()

    async def test() -> None:
        backend = FakeBackend(script)
        async with sandbox_on(backend, pool_size=0) as sandbox:
            result = await sandbox.run("anything", {"x": 1})
            assert (result.ok, result.value) == (True, ["anything", {"x": 1}]), result.error
        assert backend.left == []

    run(test)


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (Cause.WALL_TIMEOUT, SandboxErrorCode.TIMEOUT),
        (Cause.CPU_TIMEOUT, SandboxErrorCode.TIMEOUT),
        (Cause.MEMORY, SandboxErrorCode.MEMORY_EXCEEDED),
        (Cause.ABORTED, SandboxErrorCode.ABORTED),
        (Cause.DISPOSED, SandboxErrorCode.DISPOSED),
        (Cause.SIGNALLED, SandboxErrorCode.EXECUTION_ERROR),
    ],
)
def test_the_supervisors_word_wins_over_the_programs(cause: Cause, code: SandboxErrorCode) -> None:
    async def script(program: FakeProgram) -> Outcome:
        await program.receive()
        program.send({"ok": True, "value": "forged"})
        return ended(cause=cause)

    async def test() -> None:
        backend = FakeBackend(script, finishes=False)
        async with sandbox_on(backend, pool_size=0) as sandbox:
            result = await sandbox.run("1")
        assert (result.ok, result.value, result.error_code) == (False, None, code)

    run(test)


@pytest.mark.parametrize(
    "frame",
    ["", "[]", "null", '"x"', "{", '{"ok": 1}', '{"value": 5}', "nonsense", '{"ok": "true"}'],
)
def test_a_malformed_last_word_is_no_success(frame: str) -> None:
    async def script(program: FakeProgram) -> Outcome:
        await program.receive()
        program.send(frame)
        return ended()

    async def test() -> None:
        async with sandbox_on(FakeBackend(script), pool_size=0) as sandbox:
            result = await sandbox.run("1")
        assert (result.ok, result.error_code) == (False, SandboxErrorCode.EXECUTION_ERROR)
        assert result.error

    run(test)


def test_a_frame_of_another_nonce_is_no_result() -> None:
    async def script(program: FakeProgram) -> Outcome:
        await program.receive()
        program.send({"ok": True, "value": "forged"}, nonce=bytes(NONCE_BYTES))
        return ended()

    async def test() -> None:
        async with sandbox_on(FakeBackend(script), pool_size=0) as sandbox:
            result = await sandbox.run("1")
        assert (result.ok, result.value) == (False, None)

    run(test)


def test_a_box_that_is_lost_before_its_start_is_tried_once_more_and_not_for_ever() -> None:
    def lost(*, retry_safe: bool = True) -> InternalError:
        return InternalError("lost", retry_safe=retry_safe)

    async def attempt(errors: list[Exception | None]) -> int:
        backend = FakeBackend(create_errors=errors)
        async with sandbox_on(backend, pool_size=0) as sandbox:
            await sandbox.run("1")
        return len(errors) - len(backend.create_errors)

    async def test() -> None:
        assert await attempt([lost(), None, None]) == 2
        with pytest.raises(InternalError, match="lost"):
            await attempt([lost(), lost(), None])
        with pytest.raises(InternalError, match="lost"):
            await attempt([lost(retry_safe=False), None])

    run(test)


def test_a_report_is_the_backends_word_and_never_the_requests() -> None:
    lie = Isolation("lying", {"memory": Control("prayer", Strength.NONE, "trust me")})

    async def test() -> None:
        async with sandbox_on(FakeBackend(isolation=lie), pool_size=0) as sandbox:
            result = await sandbox.run("1", memory_limit_mb=64)
        assert result.isolation is lie

    run(test)


def test_calls_of_tools_go_both_ways() -> None:
    async def script(program: FakeProgram) -> Outcome:
        asked = await program.receive()
        assert asked["tools"] == ["add"]
        program.send({"call": 1, "tool": "add", "args": [1], "kwargs": {"b": 2}})
        answer = await program.receive()
        program.send({"ok": True, "value": answer})
        return ended()

    async def test() -> None:
        async with sandbox_on(FakeBackend(script), pool_size=0) as sandbox:
            result = await sandbox.run("1", tools={"add": lambda a, b: a + b})
        assert result.value == {"answer": 1, "ok": True, "value": 3}

    run(test)


def test_a_run_that_is_cancelled_leaves_no_box() -> None:
    async def test() -> None:
        backend = FakeBackend(lambda _: asyncio.Event().wait())
        async with sandbox_on(backend, pool_size=0) as sandbox:
            running = asyncio.ensure_future(sandbox.run("1"))
            await turns()
            assert len(backend.left) == 1
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert backend.left == []

    run(test)


def test_the_script_of_who_has_none_is_an_ok_run() -> None:
    async def test() -> None:
        async with sandbox_on(FakeBackend(answer_nothing), pool_size=0) as sandbox:
            result = await sandbox.run("1")
        assert (result.ok, result.value) == (True, None)
        assert json.dumps(result.stdout) == '""'

    run(test)
