"""From how a run ended and what its frame says to the caller's verdict."""

import json
from typing import Any

import pytest

from cloche.errors import SandboxErrorCode
from cloche.frames import NONCE_BYTES, ResultReader
from cloche.model.outcome import Cause, Outcome, Usage
from cloche.model.snippet import SandboxOptions
from cloche.snippets.verdict import Verdict, judge

NONCE = bytes(NONCE_BYTES)
CODE = SandboxErrorCode
OK = {"ok": True, "value": 7}
FAILED = {
    "ok": False,
    "error": {
        "code": "SANDBOX_INVALID_CODE",
        "name": "SyntaxError",
        "message": "bad",
        "stack": "at 1:2",
        "line": 1,
        "column": 2,
    },
}
JUNK = b"\0" * 40
FRAMES: list[Any] = [None, OK, FAILED, JUNK]
FRAME_NAMES = ["silent", "ok", "failed", "junk"]


def judged(
    cause: Cause,
    frame: Any = None,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    mode: str = "snippet",
    value_limit_bytes: int = 1000,
) -> Verdict:
    reader = ResultReader(NONCE, value_limit_bytes)
    if isinstance(frame, bytes):
        reader.feed(frame)
    elif frame is not None:
        body = json.dumps(frame).encode()
        reader.feed(NONCE + len(body).to_bytes(4, "big") + body)
    outcome = Outcome(cause, exit_code, signal, 1.0, Usage(1.0, 1))
    options = SandboxOptions(mode=mode, value_limit_bytes=value_limit_bytes, cpu_time_ms=77)  # type: ignore[arg-type]
    return judge(outcome, reader, options)


@pytest.mark.parametrize("mode", ["snippet", "program"])
@pytest.mark.parametrize("frame", FRAMES, ids=FRAME_NAMES)
@pytest.mark.parametrize(
    ("cause", "code", "told"),
    [
        (Cause.WALL_TIMEOUT, CODE.TIMEOUT, "timeout_ms=5000"),
        (Cause.CPU_TIMEOUT, CODE.TIMEOUT, "cpu_time_ms=77"),
        (Cause.MEMORY, CODE.MEMORY_EXCEEDED, "memory_limit_mb=128"),
        (Cause.ABORTED, CODE.ABORTED, "aborted"),
        (Cause.DISPOSED, CODE.DISPOSED, "disposed"),
    ],
)
def test_a_run_that_was_stopped_is_told_as_such_whatever_it_wrote(
    mode: str, frame: Any, cause: Cause, code: CODE, told: str
) -> None:
    for exit_code, signal in ((None, 9), (0, None), (1, None)):
        verdict = judged(cause, frame, exit_code=exit_code, signal=signal, mode=mode)
        assert verdict.code is code
        assert told in (verdict.error or "")
        assert verdict.value is None


@pytest.mark.parametrize("mode", ["snippet", "program"])
@pytest.mark.parametrize("frame", [None, OK], ids=["silent", "ok"])
def test_a_bad_end_is_an_execution_error_whatever_the_frame_says(mode: str, frame: Any) -> None:
    exited = judged(Cause.EXITED, frame, exit_code=3, mode=mode)
    assert (exited.code, exited.value) == (CODE.EXECUTION_ERROR, None)
    assert "exit code 3" in (exited.error or "")
    killed = judged(Cause.SIGNALLED, frame, signal=11, mode=mode)
    assert (killed.code, killed.value) == (CODE.EXECUTION_ERROR, None)
    assert "signal 11" in (killed.error or "")


def test_a_snippets_value_is_the_frames_and_none_without_one() -> None:
    assert judged(Cause.EXITED, OK, exit_code=0) == Verdict(value=7)
    assert judged(Cause.EXITED, {"ok": True}, exit_code=0) == Verdict()
    assert judged(Cause.EXITED, None, exit_code=0) == Verdict()


@pytest.mark.parametrize(
    "frame", [None, OK, FAILED, {"ok": 5}], ids=["silent", "ok", "failed", "odd"]
)
def test_a_program_that_exits_with_zero_is_ok_and_has_no_value(frame: Any) -> None:
    assert judged(Cause.EXITED, frame, exit_code=0, mode="program") == Verdict()


def test_a_failure_is_explained_in_the_guests_words() -> None:
    for mode in ("snippet", "program"):
        assert judged(Cause.EXITED, FAILED, exit_code=1, mode=mode) == Verdict(
            CODE.INVALID_CODE, "SyntaxError: bad", None, 1, 2, "at 1:2"
        )


def test_a_snippet_that_reports_a_failure_has_failed_though_it_exits_with_zero() -> None:
    assert judged(Cause.EXITED, FAILED, exit_code=0).code is CODE.INVALID_CODE


def test_junk_on_the_result_channel_is_an_execution_error() -> None:
    verdict = judged(Cause.EXITED, JUNK, exit_code=0)
    assert (verdict.code, verdict.value) == (CODE.EXECUTION_ERROR, None)
    assert "result channel" in (verdict.error or "")


@pytest.mark.parametrize(
    "code",
    ["SANDBOX_TIMEOUT", "SANDBOX_MEMORY_EXCEEDED", "SANDBOX_ABORTED", "SANDBOX_DISPOSED",
     "SANDBOX_INTERNAL_ERROR", "SANDBOX_UNAVAILABLE", "SANDBOX_OVERLOADED", "", "x", None, 5,
     [], {}, ["SANDBOX_INVALID_CODE"], True],
)  # fmt: skip
def test_a_guest_cannot_choose_a_fate_that_is_the_supervisors_to_tell(code: Any) -> None:
    frame = {"ok": False, "error": {"code": code, "message": "m"}}
    verdict = judged(Cause.EXITED, frame, exit_code=1)
    assert (verdict.code, verdict.error) == (CODE.EXECUTION_ERROR, "m")


@pytest.mark.parametrize("error", [None, 1, "x", [], {}, {"message": 5, "name": [], "stack": {}}])
def test_an_explanation_of_the_wrong_kind_is_left_out(error: Any) -> None:
    verdict = judged(Cause.EXITED, {"ok": False, "error": error}, exit_code=1)
    assert verdict.code is CODE.EXECUTION_ERROR
    assert verdict.error
    assert (verdict.line, verdict.column, verdict.stack) == (None, None, None)


@pytest.mark.parametrize("place", [0, -1, 1.5, True, "1", [], None, 2**31, 10**30])
def test_a_position_that_is_none_is_left_out(place: Any) -> None:
    frame = {"ok": False, "error": {"message": "m", "line": place, "column": place}}
    verdict = judged(Cause.EXITED, frame, exit_code=1)
    assert (verdict.line, verdict.column) == (None, None)


@pytest.mark.parametrize("ok", [1, "true", None, [True], {}])
def test_only_true_is_success(ok: Any) -> None:
    verdict = judged(Cause.EXITED, {"ok": ok, "value": 1}, exit_code=0)
    assert (verdict.code, verdict.value) == (CODE.EXECUTION_ERROR, None)


def test_the_guests_words_are_bounded() -> None:
    error = {"name": "n" * 10**5, "message": "m" * 10**5, "stack": "s" * 10**5}
    verdict = judged(Cause.EXITED, {"ok": False, "error": error}, exit_code=1)
    assert len(verdict.error or "") < 10_000
    assert len(verdict.stack or "") <= 16 * 1024


def test_the_host_holds_the_limit_of_a_value_itself() -> None:
    frame = {"ok": True, "value": "x" * 2000}
    verdict = judged(Cause.EXITED, frame, exit_code=0, value_limit_bytes=1000)
    assert (verdict.code, verdict.value) == (CODE.VALUE_TOO_LARGE, None)
    assert "1000" in (verdict.error or "")
