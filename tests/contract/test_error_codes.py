"""Every code of the table comes up, as a result or raised, and only these."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import cloche
from cloche import AbortController, SandboxErrorCode

Produce = Callable[[Callable[..., Any]], SandboxErrorCode | None]


def of_run(code: str, **fields: Any) -> Produce:
    """The code that a run ends with, told or raised."""

    def produce(create_sync: Callable[..., Any]) -> SandboxErrorCode | None:
        with create_sync() as sandbox:
            try:
                result = sandbox.run(code, **fields)
            except cloche.ClocheError as error:
                assert not isinstance(error, cloche.RunError)
                assert error.code in RAISED
                return error.code
        assert result.error_code not in RAISED - TOLD
        assert result.error
        with pytest.raises(cloche.RunError) as caught:
            result.raise_for_error()
        assert caught.value.code is result.error_code
        return SandboxErrorCode(result.error_code)

    return produce


def aborted(create_sync: Callable[..., Any]) -> SandboxErrorCode | None:
    controller = AbortController()
    controller.abort()
    return of_run("1", signal=controller.signal)(create_sync)


def disposed(create_sync: Callable[..., Any]) -> SandboxErrorCode | None:
    sandbox = create_sync()
    sandbox.dispose()
    with pytest.raises(cloche.DisposedError) as caught:
        sandbox.run("1")
    return caught.value.code


def overloaded(create_sync: Callable[..., Any]) -> SandboxErrorCode | None:
    async def crowd() -> SandboxErrorCode:
        create = getattr(cloche, create_sync.__name__)
        async with create(max_pending=0, language="python", timeout_ms=300) as sandbox:
            runs = [sandbox.run("while True: pass") for _ in range(200)]
            ended = await asyncio.gather(*runs, return_exceptions=True)
        return next(one.code for one in ended if isinstance(one, cloche.OverloadedError))

    return asyncio.run(crowd())


GROW = "x = []\nwhile True: x.append('x' * 1_000_000 + str(len(x)))"
PRODUCERS: dict[SandboxErrorCode, list[Produce]] = {
    SandboxErrorCode.TIMEOUT: [
        of_run("while (true);", timeout_ms=300),
        of_run("while True: pass", language="python", cpu_time_ms=200, timeout_ms=10_000),
        of_run("await new Promise(() => setInterval(() => {}, 1000))", timeout_ms=300),
    ],
    SandboxErrorCode.MEMORY_EXCEEDED: [
        of_run(GROW, language="python", memory_limit_mb=64, timeout_ms=20_000),
        of_run("const x = []; for (;;) x.push(new Uint8Array(1 << 20).fill(1))",
               timeout_ms=20_000),
    ],
    SandboxErrorCode.EXECUTION_ERROR: [
        of_run("throw 1"),
        of_run("raise ValueError", language="python"),
        of_run("10n"),
    ],
    SandboxErrorCode.INVALID_CODE: [of_run("= ="), of_run("= =", language="python")],
    SandboxErrorCode.VALUE_TOO_LARGE: [of_run("'x'.repeat(100)", value_limit_bytes=10)],
    SandboxErrorCode.ABORTED: [aborted],
    SandboxErrorCode.DISPOSED: [disposed],
    SandboxErrorCode.INVALID_REQUEST: [
        of_run("1", timeout_ms=0),
        of_run("1", language="ruby"),
        of_run("1", runtime="bun", language="python"),
        of_run("1", context={"a-b": 1}),
        of_run("1", require={"memory": "prayer"}),
        of_run("1", require={"gravity": "cgroup"}),
        of_run("1", tools={"a-b": print}),
    ],
    SandboxErrorCode.UNAVAILABLE: [
        of_run("1", require={"scratch": "sized-tmpfs"}),
    ],
    SandboxErrorCode.OVERLOADED: [overloaded],
}  # fmt: skip
RAISED = {
    SandboxErrorCode.DISPOSED,
    SandboxErrorCode.INVALID_REQUEST,
    SandboxErrorCode.UNAVAILABLE,
    SandboxErrorCode.OVERLOADED,
    SandboxErrorCode.INTERNAL_ERROR,
}
TOLD = {SandboxErrorCode.DISPOSED}


@pytest.mark.parametrize(
    ("code", "produce"),
    [
        pytest.param(code, produce, id=f"{code}-{index}")
        for code, producers in PRODUCERS.items()
        for index, produce in enumerate(producers)
    ],
)
def test_each_code_comes_up(
    create_sync: Callable[..., Any], code: SandboxErrorCode, produce: Produce
) -> None:
    assert produce(create_sync) is code


def test_no_code_is_forgotten() -> None:
    # SANDBOX_INTERNAL_ERROR: see test_host_trouble.py.
    assert set(PRODUCERS) | {SandboxErrorCode.INTERNAL_ERROR} == set(SandboxErrorCode)


def test_what_is_unavailable_names_the_fact_and_its_fix(sandbox: Any) -> None:
    with pytest.raises(cloche.UnavailableError) as caught:
        sandbox.run("1", require={"scratch": "sized-tmpfs"})
    assert caught.value.fact and caught.value.fix
    assert caught.value.fact in caught.value.message and caught.value.fix in caught.value.message
    assert caught.value.retry_safe


@pytest.mark.kinds("process")
@pytest.mark.parametrize("code", ["exit(3)", "import os\nos.abort()"])
def test_leaving_in_another_way_than_by_the_end_is_an_execution_error(
    create_sync: Callable[..., Any], code: str
) -> None:
    assert of_run(code, language="python")(create_sync) is SandboxErrorCode.EXECUTION_ERROR


@pytest.mark.kinds("worker")
@pytest.mark.parametrize(
    "fields",
    [
        {"runtime": "bun"},
        {"files": {"a": "b"}},
        {"mode": "program"},
        {"allow_network": True, "language": "python"},
        {"allow_hosts": ["example.test"], "language": "python"},
    ],
)
def test_what_a_worker_cannot_give_is_refused_by_name(sandbox: Any, fields: dict[str, Any]) -> None:
    with pytest.raises((cloche.UnavailableError, cloche.InvalidRequestError)) as caught:
        sandbox.run("1", **fields)
    assert next(iter(fields)) in caught.value.message


def test_a_timeout_says_which_deadline_it_was(sandbox: Any) -> None:
    wall = sandbox.run("while True: pass", language="python", timeout_ms=200)
    assert "timeout_ms=200" in wall.error
    cpu = sandbox.run("while True: pass", language="python", cpu_time_ms=150)
    assert "cpu_time_ms=150" in cpu.error
    assert cpu.usage.cpu_ms >= 150


def test_the_codes_are_published_on_request() -> None:
    from cloche.errors import ERROR_CODES

    cloche.register_sandbox_error_codes()
    once = dict(ERROR_CODES)
    cloche.register_sandbox_error_codes()
    assert once == ERROR_CODES
    assert {str(code) for code in SandboxErrorCode} <= set(once)
    assert all(once.values())
