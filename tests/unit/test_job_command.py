"""`cloche job run`: from options to a spec, from a verdict to an exit code. The job is played."""

import asyncio
import io
import json
import os
import signal as signals
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cloche.jobs
from cloche.cli.job import EXIT_CODE_OF
from cloche.cli.main import cli
from cloche.errors import InvalidRequestError, UnavailableError
from cloche.model.events import Event, LogEvent, StateEvent, StepEvent
from cloche.model.job import JobResult, JobSpec, Reason, ReasonCode, Step, Verdict
from cloche.model.policy import JobLimits

PLAY_LIMIT_S = 20


class Play:
    """Stands in for the jobs: notes what it was asked for and ends as it was told."""

    def __init__(self) -> None:
        self.verdict = Verdict.PASSED
        self.spec: JobSpec | None = None
        self.out: Path | None = None
        self.act: Callable[[Callable[[Event], None]], None] = lambda tell: None
        self.waits_for_abort = False

    async def run_job(self, spec: JobSpec, *, out: Any, on_event: Any, signal: Any) -> JobResult:
        self.spec, self.out = spec, out
        loop, aborted = asyncio.get_running_loop(), asyncio.Event()
        signal.subscribe(lambda: loop.call_soon_threadsafe(aborted.set))
        on_event(StateEvent(0, "started", ("test",)))
        on_event(StepEvent(0, "test", "started"))
        self.act(on_event)
        if self.waits_for_abort:
            async with asyncio.timeout(PLAY_LIMIT_S):
                await aborted.wait()
            self.verdict = Verdict.ABORTED
        reason = (
            None if self.verdict is Verdict.PASSED else Reason(ReasonCode.EXIT_CODE, "so it is")
        )
        return JobResult(
            "r", self.verdict, None, reason, False, (), (), {"skipped": {}}, {}, (), None, 1.0
        )  # fmt: skip


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    played = Play()
    module = ModuleType("cloche.jobs.entry")
    module.run_job = played.run_job  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cloche.jobs.entry", module)
    monkeypatch.setattr(cloche.jobs, "entry", module, raising=False)
    yield played


def job(*args: str) -> Result:
    return CliRunner().invoke(cli, ["job", "run", *args], standalone_mode=False)


def spec_of(play: Play, *args: str) -> JobSpec:
    result = job(*args)
    assert result.return_value == 0, result.exception
    assert play.spec is not None
    return play.spec


def refused(*args: str) -> str:
    error = job(*args).exception
    assert isinstance(error, InvalidRequestError), error
    return error.message


def test_every_verdict_has_an_exit_code_of_its_own(play: Play) -> None:
    assert set(EXIT_CODE_OF) == set(Verdict)
    assert len(set(EXIT_CODE_OF.values())) == len(Verdict)
    shown = job("--help").output.split("Exit codes:")[1]
    for verdict, code in EXIT_CODE_OF.items():
        play.verdict = verdict
        result = job()
        assert result.return_value == code
        assert f"job {verdict} in 1 ms" in result.output
        assert str(code) in shown.split()


def test_the_document_gives_these_exit_codes() -> None:
    document = (Path(__file__).parents[2] / "docs/jobs.md").read_text()
    for verdict, code in EXIT_CODE_OF.items():
        assert f"| `{verdict}` | {code} |" in document


def test_the_current_folder_is_the_project_where_none_is_named(play: Play) -> None:
    assert spec_of(play) == JobSpec(".")
    assert spec_of(play, "some/where") == JobSpec("some/where")
    assert play.out is None
    assert job("--out", "o").return_value == 0
    assert play.out == Path("o")


def test_options_become_the_fields_of_the_spec(play: Play) -> None:
    options = "--without test --artifact dist/** --artifact *.txt --timeout-ms 1 --pids-limit 2"
    more = "--memory-limit-mb 16 --scratch-limit-mb 3 --trust-domain ours"
    assert spec_of(play, "d", *options.split(), *more.split()) == JobSpec(
        "d",
        without=("test",),
        artifacts=("dist/**", "*.txt"),
        limits=JobLimits(timeout_ms=1, pids_count=2, memory_mb=16, scratch_mb=3),
        trust_domain="ours",
    )
    assert spec_of(play, "--step-timeout-ms", "7").step_timeout_ms == 7
    steps = ("--step", "lint=a=b | c", "--step", "test=d", "--step-timeout-ms", "7")
    assert spec_of(play, *steps).steps == (
        Step("lint", shell="a=b | c", timeout_ms=7),
        Step("test", shell="d", timeout_ms=7),
    )


def test_a_wrong_option_is_refused_by_name_before_anything_starts(play: Play) -> None:
    for args, why in (
        (("--step", "x"), "--step: 'x' is not of the form NAME=LINE"),
        (("--step", "=x"), "--step: '=x'"),
        (("--step", "a b=x"), "steps[0].name"),
        (("--step", "install=x"), "is Cloche's own step"),
        (("--memory-limit-mb", "0"), "limits.memory_mb"),
        (("--artifact", "../x"), "artifacts[0]"),
        (("--step-timeout-ms", "0"), "step_timeout_ms: must be from 1"),
        (("-f", "no/such.yaml"), "no/such.yaml: No such file or directory"),
        (("-f", "."), ".: Is a directory"),
    ):
        assert why in refused(*args)
    assert play.spec is None


def test_a_specs_bundle_is_relative_to_it_and_a_named_folder_wins(
    play: Play, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("limits: {memory_mb: 512, pids_count: 9}\nsteps: [{name: a, shell: b}]")
    assert spec_of(play, "-f", str(file)).bundle == str(tmp_path)
    file.write_text("bundle: app\nlimits: {memory_mb: 512, pids_count: 9}")
    assert spec_of(play, "-f", str(file)).bundle == str(tmp_path / "app")
    assert spec_of(play, "elsewhere", "-f", str(file)).bundle == "elsewhere"
    merged = spec_of(play, "-f", str(file), "--pids-limit", "5")
    assert merged.limits == JobLimits(memory_mb=512, pids_count=5)
    file.write_text("bundle: {a: b}")
    assert spec_of(play, "-f", str(file)).bundle == {"a": "b"}
    file.write_text("bundle: 5")
    assert refused("-f", str(file)).startswith("bundle: ")
    file.write_text("bundle: .\nlimits: 5")
    assert refused("-f", str(file), "--pids-limit", "5").startswith("limits: ")


def test_a_spec_without_its_option_is_told_the_option(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("bundle: .\nsteps: [{name: a, shell: b}]")
    runner = CliRunner()
    error = runner.invoke(cli, ["job", "validate", str(file)], standalone_mode=False).exception
    assert isinstance(error, InvalidRequestError) and "give it with -f" in error.message
    control = runner.invoke(cli, ["job", "validate", "-f", str(file)], standalone_mode=False)
    assert control.return_value == 0, control.exception


def test_a_spec_inside_the_project_has_no_say_and_that_is_told(play: Play, tmp_path: Path) -> None:
    file = tmp_path / "cloche.yaml"
    file.write_text("limits: {memory_mb: 999999}")
    note = "note: the project's cloche.yaml has no say; give it with -f where you trust it"
    result = job(str(tmp_path))
    assert note in result.output
    assert play.spec is not None and play.spec.limits == JobLimits()
    result = job(str(tmp_path), "-f", str(file))  # the control
    assert note not in result.output
    assert play.spec.limits.memory_mb == 999999


def test_json_is_events_and_then_the_result_and_nothing_else(play: Play) -> None:
    play.act = lambda tell: tell(LogEvent(0, "test", "stdout", "é\x1b[2J"))
    lines = [json.loads(line) for line in job("--json").output.splitlines()]
    assert [line["type"] for line in lines] == ["state", "step", "log", "result"]
    assert lines[2]["text"] == "é\x1b[2J"


def test_what_cloche_raises_reaches_the_caller_of_the_command(play: Play) -> None:
    def fail(_: Any) -> None:
        raise UnavailableError("no box", fact="seccomp", fix="mend it")

    play.act = fail
    result = job()
    assert isinstance(result.exception, UnavailableError)
    assert result.output.splitlines() == ["job started: test", "[test] started"]


def test_the_first_interrupt_aborts_the_job_and_says_so(play: Play) -> None:
    before = signals.getsignal(signals.SIGINT)
    for number in (signals.SIGINT, signals.SIGTERM, signals.SIGHUP):
        play.act = lambda _, number=number: signals.raise_signal(number)  # type: ignore[misc]
        play.waits_for_abort = True
        result = job()
        assert result.return_value == 130
        assert "aborting: once more ends Cloche at once" in result.output
    assert signals.getsignal(signals.SIGINT) is before


def test_the_second_interrupt_ends_cloche_at_once(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    def interrupt_twice(_: Any) -> None:
        signals.raise_signal(signals.SIGINT)
        signals.raise_signal(signals.SIGINT)

    monkeypatch.setattr(os, "_exit", end)
    play.act = interrupt_twice
    with pytest.raises(Ended, match="130"):
        job()


class Broken(io.TextIOWrapper):
    """An output that takes nothing."""

    def __init__(self, error: OSError) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self.error = error

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("mode", ["--plain", "--json"])
def test_a_reader_that_goes_aborts_the_job(
    play: Play, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.waits_for_abort = True
    monkeypatch.setattr(sys, "stdout", Broken(BrokenPipeError()))
    assert cli.main(["job", "run", mode], standalone_mode=False) == 141
    assert play.verdict is Verdict.ABORTED


def test_a_full_disk_aborts_the_job_and_is_told(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.waits_for_abort = True
    monkeypatch.setattr(sys, "stdout", Broken(OSError(28, "No space left on device")))
    with pytest.raises(UnavailableError, match="No space left on device"):
        cli.main(["job", "run"], standalone_mode=False)
    assert play.verdict is Verdict.ABORTED
