"""The conformance suite on every sandbox of this host."""

import contextlib
from collections.abc import Iterator

import pytest

import cloche.sync
from cloche.testing import PROMISES, Promise, Subject
from cloche.testing.subjects import SUBJECTS
from needs import BOX, require_facts

# Beside the default, a runtime is looked at for what depends on it.
LANGUAGE_TOPICS = {"Code", "Context", "Value", "Errors", "Tools"}


def applies(name: str, promise: Promise) -> bool:
    is_other = name in ("process-node", "process-deno")
    return promise.why_not(SUBJECTS[name]()) is None and (
        not is_other or promise.topic in LANGUAGE_TOPICS
    )


CASES = [(name, promise) for name in SUBJECTS for promise in PROMISES if applies(name, promise)]


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """A subject that keeps its sandbox, on a loop that goes on between tests."""
    made = SUBJECTS[request.param]()
    is_process = made.kind == "process"
    require_facts(*BOX, *(f"runtime-{name}" for name in made.runtimes if is_process))
    stack = contextlib.AsyncExitStack()
    cloche.sync._wait(stack.enter_async_context(made))
    yield made
    cloche.sync._wait(stack.aclose())


@pytest.mark.parametrize(
    ("subject", "promise"),
    CASES,
    indirect=["subject"],
    ids=[f"{name}-{promise.number}" for name, promise in CASES],
)
def test_it_keeps(subject: Subject, promise: Promise) -> None:
    cloche.sync._wait(promise.check(subject))


def test_what_is_not_looked_at_is_what_the_contract_leaves_out() -> None:
    """A promise that fits no sandbox here would be kept by nobody's looking."""
    looked_at = {promise.number for _, promise in CASES}
    assert looked_at == {promise.number for promise in PROMISES}
    for name in SUBJECTS:
        left_out = [p for p in PROMISES if p.why_not(SUBJECTS[name]()) is not None]
        assert len(left_out) < len(PROMISES) / 2, name
