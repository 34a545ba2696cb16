"""The list of promises: numbered, named, told in the documents, and able to fail."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cloche.testing
from cloche import InternalError, SandboxErrorCode
from cloche.model.outcome import Usage
from cloche.model.plan import Isolation
from cloche.model.snippet import RuntimeInfo, SandboxResult
from cloche.testing import PROMISES, Promise, Subject
from cloche.testing import __main__ as program
from cloche.testing.claims import has_code, has_value, refused
from cloche.testing.document import document
from cloche.testing.subject import promise

ROOT = Path(__file__).parents[2]
TOPICS = {promise.topic: promise.number // 100 for promise in PROMISES}


def test_numbers_are_sorted_and_names_are_unique() -> None:
    numbers = [each.number for each in PROMISES]
    assert numbers == sorted(set(numbers))
    names = [each.name for each in PROMISES]
    assert sorted(names) == sorted(set(names))
    assert len(names) > 100


def test_each_topic_has_a_hundred_of_its_own() -> None:
    for each in PROMISES:
        assert TOPICS[each.topic] == each.number // 100, each.name
    assert len(set(TOPICS.values())) == len(TOPICS)


@pytest.mark.parametrize("each", PROMISES, ids=lambda each: each.name)
def test_a_promise_says_what_it_is_and_quotes_the_contract(each: Promise) -> None:
    text = inspect.getdoc(each.act) or ""
    assert each.text.endswith("."), each.text
    assert each.topic and each.kinds
    assert '"' in text.partition("\n")[2], "no sentence of the contract is quoted"
    assert inspect.iscoroutinefunction(each.act)


def test_no_promise_is_left_out_of_the_list() -> None:
    for path in (ROOT / "src/cloche/testing/promises").glob("*.py"):
        count = path.read_text().count("\n@promise(")
        listed = [each for each in PROMISES if each.act.__module__.endswith(f".{path.stem}")]
        assert len(listed) == count, path.name


def test_the_document_is_up_to_date() -> None:
    assert (ROOT / "docs/conformance.md").read_text() == document(PROMISES), (
        "make it again: python -m cloche.testing --document > docs/conformance.md"
    )


def test_the_public_names_are_there_and_nobody_imports_them() -> None:
    for name in cloche.testing.__all__:
        assert getattr(cloche.testing, name).__doc__ or name == "PROMISES"
    for path in (ROOT / "src/cloche").rglob("*.py"):
        if "testing" not in path.parts:
            assert "import cloche.testing" not in path.read_text(), path
            assert "from cloche.testing" not in path.read_text(), path


# A sandbox that keeps no promise: each one notices.


class Broken:
    """Has one answer for everything."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        is_unavailable = isinstance(answer, cloche.UnavailableError)
        self.more = {"fact": "x", "fix": "y"} if is_unavailable else {}

    async def __aenter__(self) -> "Broken":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def run(self, *_: Any, **__: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(self.answer, cloche.ClocheError):
            raise type(self.answer)(self.answer.message, **self.more)
        return self.answer

    async def dispose(self) -> None:
        return None


def result(**fields: Any) -> SandboxResult:
    nothing: dict[str, Any] = {}
    given: dict[str, Any] = {
        "ok": True, "value": None, "stdout": "", "stderr": "", "output": (), "duration_ms": 0.0,
        "queue_ms": 0.0, "exit_code": 0, "signal": None, "error": None, "error_code": None,
        "error_line": None, "error_column": None, "error_stack": None, "stdout_bytes": 0,
        "stderr_bytes": 0, "stdout_truncated": False, "stderr_truncated": False, "files": nothing,
        "denied": (), "usage": Usage(0.0, 0), "runtime": RuntimeInfo("", ""),
        "isolation": Isolation("", nothing), "warm": False, "run_id": "",
    }  # fmt: skip
    return SandboxResult(**{**given, **fields})


ANSWERS = {
    "ok without a value": result(),
    "a value": result(value="FORGED"),
    "a failure": result(
        ok=False, error="no", error_code=SandboxErrorCode.EXECUTION_ERROR, exit_code=1
    ),
    "an error": InternalError("broken"),
}
# Kept by the library itself, or by a sandbox that does nothing at all; and those about a fork.
ALWAYS = {507, 902, 1201, 1703}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_sandbox_that_is_broken_keeps_no_promise(answer: str) -> None:
    """Each promise can fail: it looks at something that was done, and not at its absence alone."""
    broken = Broken(ANSWERS[answer])
    subjects = [
        Subject("broken", lambda *_, **__: broken),
        Subject("broken", lambda *_, **__: broken, kind="worker", has_files=False,
                has_programs=False, has_network=False),
    ]  # fmt: skip

    async def kept(each: Promise, subject: Subject) -> set[int]:
        if each.why_not(subject) is not None or each.number in ALWAYS:
            return set()
        try:
            await each.check(subject)
        except Exception:
            return set()
        return {each.number}

    async def look() -> set[int]:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # of runs left behind
        async with asyncio.timeout(20):
            looks = (kept(each, subject) for each in PROMISES for subject in subjects)
            return set().union(*await asyncio.gather(*looks))

    assert asyncio.run(look()) == set()


def test_a_promise_that_hangs_is_told_and_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche.testing.subject.DEADLINE_S", 0.01)

    @promise(1)
    async def it_hangs(subject: Subject) -> None:
        """Waits for ever."""
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="it hangs: no end"):
        asyncio.run(it_hangs.check(Subject("any", lambda **_: Broken(None))))


def test_claims_tell_what_was_seen() -> None:
    with pytest.raises(AssertionError, match="expected the value 1, but ok=True value=2"):
        has_value(result(value=2), 1)
    with pytest.raises(AssertionError, match="value True"):
        has_value(result(value=1), True)
    with pytest.raises(AssertionError, match="SANDBOX_TIMEOUT, but ok=True"):
        has_code(result(), SandboxErrorCode.TIMEOUT)
    with pytest.raises(AssertionError, match="but it was not"), refused("x"):
        pass
    with pytest.raises(AssertionError, match="SANDBOX_INTERNAL_ERROR"), refused():
        raise InternalError("x")


def test_conditions_say_why_a_promise_does_not_apply() -> None:
    @promise(1, needs=("files", "python"), kinds=("process",))
    async def it_needs(subject: Subject) -> None:
        """Is there."""

    @promise(2, without=("files",))
    async def it_is_refused(subject: Subject) -> None:
        """Is not."""

    def subject(**fields: Any) -> Subject:
        return Subject("any", lambda **_: Broken(None), **fields)

    assert it_needs.why_not(subject()) is None
    assert "no files" in (it_needs.why_not(subject(has_files=False)) or "")
    assert "python" in (it_needs.why_not(subject(languages=("javascript",))) or "")
    assert "process" in (it_needs.why_not(subject(kind="worker")) or "")
    assert it_is_refused.why_not(subject(has_files=False)) is None
    assert "has files" in (it_is_refused.why_not(subject()) or "")


# The command.


def test_the_command_tells_each_promise_and_exits_with_1_when_one_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @promise(1)
    async def kept(subject: Subject) -> None:
        """Is kept."""

    @promise(2)
    async def broken(subject: Subject) -> None:
        """Is not."""
        raise AssertionError("seen: nothing")

    @promise(3, needs=("files",))
    async def elsewhere(subject: Subject) -> None:
        """Does not apply."""

    def make() -> Subject:
        return Subject("mine", lambda **_: Broken(result()), has_files=False, runtimes=("bun",))

    monkeypatch.setattr(program, "SUBJECTS", {"mine": make})
    monkeypatch.setattr(program, "PROMISES", (kept, broken, elsewhere))
    done = CliRunner().invoke(program.main, [])
    assert done.exit_code == 1
    for told in ("mine", "1  passed", "2  FAILED", "seen: nothing", "3  does not apply",
                 "it has no files", "in all: 1 passed, 1 FAILED, 1 does not apply"):  # fmt: skip
        assert told in done.output, done.output
    done = CliRunner().invoke(program.main, ["--only", "kept"])
    assert (done.exit_code, "FAILED" in done.output) == (0, False)
    assert CliRunner().invoke(program.main, ["--only", "3"]).exit_code == 0
    assert CliRunner().invoke(program.main, ["--only", "nothing like it"]).exit_code == 2
    assert CliRunner().invoke(program.main, ["--sandbox", "worker"]).exit_code == 2
    assert CliRunner().invoke(program.main, ["--document"]).output == document(
        (kept, broken, elsewhere)
    )


def test_a_host_that_has_none_of_the_sandboxes_exits_with_69(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = cloche.UnavailableError("no", fact="x", fix="y")

    def make() -> Subject:
        return Subject("mine", lambda **_: Broken(missing), runtimes=("bun",))

    monkeypatch.setattr(program, "SUBJECTS", {"mine": make})
    done = CliRunner().invoke(program.main, [])
    assert (done.exit_code, "not here" in done.output) == (69, True)
