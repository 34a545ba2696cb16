"""A transformer's box that lies: it can make its own answer wrong and nothing else."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloche.backends.base import CollectedFiles, ControlFeed, Sinks
from cloche.errors import ClocheError, InternalError, UnavailableError
from cloche.model.outcome import Cause, Outcome, Usage
from cloche.model.plan import BoxPlan, Command, Isolation
from cloche.snippets import transformer
from cloche.snippets.transformer import Module, Refusal, Transformer

Liar = Callable[[dict[str, Any]], "bytes | None"]
GOOD = {
    "ok": True, "code": "export {}", "map": {"line_offset": 0, "edits": []}, "imports": [],
    "check": None, "suspect": None, "unclear": False,
}  # fmt: skip


def frame(answer: Any) -> bytes:
    body = json.dumps(answer).encode()
    return len(body).to_bytes(4, "big") + body


class LyingBox:
    """Serves requests with what `lie` makes of them; None ends the box."""

    def __init__(self, lie: Liar, failure: Exception | None = None) -> None:
        self._lie = lie
        self._failure = failure
        self._ended = asyncio.Event()
        self._cause = Cause.EXITED
        self._sinks: Sinks | None = None
        self._pending = b""

    async def exec(self, command: Command, *, sinks: Sinks, **_: Any) -> Outcome:
        self._sinks = sinks
        assert sinks.control is not None
        if self._failure is not None:
            raise self._failure
        sinks.control(self)
        await self._ended.wait()
        return Outcome(self._cause, 1, None, 1.0, Usage(0.0, 0))

    def write(self, data: bytes) -> None:
        self._pending += data
        while len(self._pending) >= 4:
            end = 4 + int.from_bytes(self._pending[:4], "big")
            if len(self._pending) < end:
                return
            request = json.loads(self._pending[4:end])
            self._pending = self._pending[end:]
            told = self._lie(request)
            if told is None:
                self._ended.set()
            else:
                assert self._sinks is not None
                asyncio.get_running_loop().call_soon(self._sinks.result, told)

    def close(self) -> None:
        """The feed's."""

    @property
    def isolation(self) -> Isolation:
        return Isolation("fake", MappingProxyType({}))

    def kill(self, cause: Cause) -> None:
        self._cause = cause
        self._ended.set()

    async def collect(self, globs: Sequence[str], **_: Any) -> CollectedFiles:
        raise NotImplementedError

    async def destroy(self) -> None:
        self._ended.set()


class LyingBackend:
    """Makes boxes that lie, as many as are asked for."""

    name = "fake"

    def __init__(self, *lies: Liar, failure: Exception | None = None) -> None:
        self._lies = list(lies)
        self._failure = failure
        self.made_count = 0

    async def prepare(self, environment: Any) -> None:
        """Nothing to prepare."""

    async def create(self, plan: BoxPlan) -> Any:
        self.made_count += 1
        lie = self._lies.pop(0) if len(self._lies) > 1 else self._lies[0]
        return LyingBox(lie, self._failure)

    async def close(self) -> None:
        """Nothing is left."""


def honest(request: dict[str, Any]) -> bytes:
    return frame({"id": request["id"], **GOOD})


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(5):
            await test()

    asyncio.run(bounded())


def asked(*lies: Liar, failure: Exception | None = None) -> Module | Refusal | ClocheError:
    answers: list[Module | Refusal | ClocheError] = []

    async def test() -> None:
        client = Transformer(LyingBackend(*lies, failure=failure))
        try:
            answers.append(await client.transform("1", "javascript"))
        except ClocheError as error:
            answers.append(error)
        finally:
            await client.close()

    run(test)
    return answers[0]


def test_an_honest_box_is_believed() -> None:
    assert asked(honest) == Module(
        "export {}", {"line_offset": 0, "edits": []}, [], None, None, False
    )
    refused = {"ok": False, "message": "no", "line": 3, "column": 4}
    assert asked(lambda request: frame({"id": request["id"], **refused})) == Refusal("no", 3, 4)


LIES: dict[str, Liar] = {
    "another id": lambda request: frame({"id": request["id"] + 1, **GOOD}),
    "no id": lambda request: frame(GOOD),
    "an id of another kind": lambda request: frame({"id": [request["id"]], **GOOD}),
    "no object": lambda request: frame([1]),
    "no JSON": lambda request: b"\0\0\0\3abc",
    "nothing in a frame": lambda request: bytes(4),
    "deep JSON": lambda request: frame_of_bytes(b"[" * 5000 + b"]" * 5000),
    "NaN": lambda request: frame_of_bytes(b'{"id":NaN}'),
    "a huge length": lambda request: b"\xff\xff\xff\xff",
    "a huge length and more": lambda request: b"\xff\xff\xff\xff" + bytes(1 << 20),
    "an answer too many": lambda request: honest(request) * 2,
    "the end": lambda request: None,
}


def frame_of_bytes(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("lie", [name for name in LIES if name != "an answer too many"])
def test_a_box_that_lies_is_ended_and_asked_again_once(lie: str) -> None:
    told = asked(LIES[lie])
    assert isinstance(told, InternalError) and told.retry_safe
    assert isinstance(asked(LIES[lie], honest), Module)


@pytest.mark.parametrize("lie", LIES)
def test_after_a_box_that_lied_the_next_text_gets_a_new_one(lie: str) -> None:
    async def test() -> None:
        backend = LyingBackend(LIES[lie], LIES[lie], honest)
        client = Transformer(backend)
        for _ in range(2):
            try:
                await client.transform("1", "javascript")
            except InternalError:
                continue
        assert isinstance(await client.transform("1", "javascript"), Module)
        await client.close()

    run(test)


@pytest.mark.parametrize("failure_type", [InternalError, UnavailableError, OSError])
def test_a_box_that_never_starts_is_an_error_and_nobody_waits_for_it(
    failure_type: type[Exception],
) -> None:
    failure: Exception
    if failure_type is UnavailableError:
        failure = UnavailableError("no", fact="f", fix="x")
    else:
        failure = failure_type("no")
    told = asked(honest, failure=failure)
    assert isinstance(told, UnavailableError if failure_type is UnavailableError else InternalError)
    assert "no" in str(told)


def test_answers_find_their_questions_however_they_are_cut() -> None:
    async def test() -> None:
        held: list[bytes] = []

        def late(request: dict[str, Any]) -> bytes:
            held.append(frame({"id": request["id"], **GOOD, "code": request["code"]}))
            if len(held) < 5:
                return b""
            return b"".join(reversed(held))

        client = Transformer(LyingBackend(late))
        results = await asyncio.gather(
            *(client.transform(f"{number}", "javascript") for number in range(5))
        )
        assert [one.code for one in results if isinstance(one, Module)] == list("01234")
        await client.close()

    run(test)


def test_a_question_that_was_cancelled_is_cancelled_though_the_answer_is_there() -> None:
    async def test() -> None:
        client = Transformer(LyingBackend(honest))
        await client.start()
        question = asyncio.create_task(client.transform("1", "javascript"))
        while not client._pending:
            await asyncio.sleep(0)
        (future,) = client._pending.values()
        while not future.done():
            await asyncio.sleep(0)
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        assert isinstance(await client.transform("1", "javascript"), Module)
        await client.close()

    run(test)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from([*GOOD, "message", "line", "column"]), anything | st.just(True))
)
def test_any_answer_is_a_module_a_refusal_or_an_internal_error(answer: dict[str, Any]) -> None:
    told = asked(lambda request: frame({**answer, "id": request["id"]}))
    if isinstance(told, Module):
        assert answer["ok"] is True
        assert isinstance(told.code, str) and isinstance(told.map, dict)
        json.dumps(told.map), json.dumps(told.imports)
    elif isinstance(told, Refusal):
        assert len(told.message) <= 8192
        for place in (told.line, told.column):
            assert place is None or (type(place) is int and place > 0)
    else:
        assert isinstance(told, InternalError)


@settings(max_examples=40)
@given(st.binary(max_size=60) | st.binary(max_size=20).map(frame_of_bytes))
def test_any_bytes_of_the_box_are_survived(data: bytes) -> None:
    with patch.object(transformer, "_ANSWER_TIMEOUT_S", 0.02):
        assert isinstance(asked(lambda request: data, honest), Module)
        told = asked(lambda request: data)
    assert isinstance(told, InternalError) and told.retry_safe


def feed_protocol(box: LyingBox) -> ControlFeed:
    """The fake is what the contract asks for, as far as the checker can see."""
    return box
