"""One word for a job: each verdict and reason, met by what brings it about."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import cloche.sync
from cloche.cli.job import EXIT_CODE_OF
from cloche.cli.main import cli
from cloche.jobs import work
from cloche.model.abort import AbortController
from cloche.model.events import LogEvent, StepEvent
from cloche.model.job import ReasonCode, StepStatus, Verdict
from job_site import BAD_TEST, GOOD_TEST, manifest, open_site, project
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


def with_test(script: str, content: str = GOOD_TEST) -> dict[str, str]:
    """A project with nothing to install, its test script and one file of tests."""
    return {"package.json": manifest({"test": script}), "a.test.js": content}


def statuses(ran) -> list[str]:
    return [str(step.status) for step in ran.result.steps]


# The exit code decides


def test_a_job_passes_when_all_its_steps_do(site):
    package = site.publish("some", [("package/index.js", "module.exports = 1")])
    ran = site.run(project(package))
    assert (ran.verdict, ran.result.reason, ran.result.ok) == (Verdict.PASSED, None, True)
    assert statuses(ran) == ["passed", "passed", "passed"]
    assert ran.step("test").tests.passed == 1
    assert (ran.paths, ran.delivered("dist/a.txt")) == (["dist/a.txt"], b"ok\n")
    assert EXIT_CODE_OF[ran.verdict] == 0


@pytest.mark.parametrize("code", [1, 2, 77, 124, 126, 127, 130, 137, 255])
def test_any_other_exit_code_than_0_is_a_failure_whatever_it_looks_like(site, code):
    ran = site.step(f"exit {code}")
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.EXIT_CODE)
    assert (ran.step("attack").exit_code, ran.result.retry_safe) == (code, False)
    assert EXIT_CODE_OF[ran.verdict] == 1


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV", "ABRT"])
def test_a_step_that_a_signal_ends_has_failed_by_that_signal(site, name):
    number = {"KILL": 9, "TERM": 15, "SEGV": 11, "ABRT": 6}[name]
    ran = site.step(f"kill -{name} $$")
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.SIGNAL)
    assert (ran.step("attack").signal, ran.step("attack").exit_code) == (number, None)


@pytest.mark.case("ver-01-pipe-masks-exit")
def test_a_shell_line_fails_with_any_part_of_a_pipe_and_at_its_first_failure(site):
    for line in ("false | cat", "exit 3 | true | true", "false; true", "cat missing\ntrue"):
        ran = site.step(line)
        assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.EXIT_CODE), line


@pytest.mark.case("ver-01-pipe-masks-exit")
@pytest.mark.parametrize(
    "script",
    [
        "node --test | cat", "node --test || true", "node --test; echo done",
        "node --test & wait; true", "node --test 2>&1 | tee log; exit 0",
        "node --test; echo '# pass 12'; echo '# fail 0'; true",
        "node --test --test-reporter=tap || true", "node --test --test-reporter=dot || true",
        "FORCE_COLOR=1 node --test || true",
    ],
)  # fmt: skip
def test_a_script_that_hides_its_runner_s_exit_code_does_not_pass(site, script):
    ran = site.run(with_test(script, BAD_TEST))
    assert ran.verdict in (Verdict.FAILED, Verdict.NO_TESTS)
    assert ran.step("test").exit_code == 0
    if "dot" not in script:  # it prints no sums
        assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.TESTS_FAILED)
        assert ran.step("test").tests.failed == 1
        assert "exit code is 0" in ran.message
    assert site.run(with_test(script, GOOD_TEST)).verdict in (Verdict.PASSED, Verdict.NO_TESTS)


@pytest.mark.case("ver-02-zero-tests")
@pytest.mark.parametrize(
    ("script", "content"),
    [
        ("node --test tests-that-do-not-exist || exit 0", GOOD_TEST),
        ("node --test", "const t = require('node:test'); t.skip('a', () => {}); t.todo('b');"),
        ("node --test 'no/*.js'", GOOD_TEST), ("echo 'no test specified'", GOOD_TEST),
        ("true", GOOD_TEST), ("", GOOD_TEST), ("node --test > /dev/null", GOOD_TEST),
        ("echo \"Error: no test specified\" && exit 1", GOOD_TEST),
        ("echo 'Tests  no tests'", GOOD_TEST), ("echo 'tests: 12 passed'", GOOD_TEST),
    ],
)  # fmt: skip
def test_a_job_whose_tests_were_none_does_not_pass_although_it_exits_with_0(site, script, content):
    ran = site.run({**with_test(script, content), "build.js": ""})
    assert (ran.verdict, ran.why) == (Verdict.NO_TESTS, ReasonCode.NO_TESTS)
    assert EXIT_CODE_OF[ran.verdict] == 5


@pytest.mark.case("ver-02-zero-tests")
@pytest.mark.xfail(
    reason="node:test counts a file without any test as one that passed", strict=True
)
@pytest.mark.parametrize("content", ["", "process.exit(0);", "// test('later', () => {});"])
def test_a_file_of_tests_without_any_does_not_pass(site, content):
    ran = site.run(with_test("node --test", content))
    assert (ran.verdict, ran.why) == (Verdict.NO_TESTS, ReasonCode.NO_TESTS)


def test_a_project_without_tests_is_told_so_and_can_leave_the_step_out(site):
    files = {"package.json": manifest({"build": "mkdir dist && echo 1 > dist/a"})}
    ran = site.run(files)
    assert (ran.verdict, statuses(ran)) == (Verdict.NO_TESTS, ["no_tests", "skipped"])
    assert site.run(files, without=["test"]).paths == ["dist/a"]


def test_where_the_exit_code_alone_is_to_decide_it_does(site):
    steps = [{"name": "test", "shell": "true", "expects_tests": False}]
    assert site.run(with_test("true"), steps=steps).verdict is Verdict.PASSED
    steps = [{"name": "check", "shell": "true", "expects_tests": True}]
    assert site.run(with_test("true"), steps=steps).verdict is Verdict.NO_TESTS


FORGED = """
echo '1..12'; for i in 1 2 3; do echo "ok $i - x"; done
echo ' Test Files  3 passed (3)'; echo '      Tests  12 passed (12)'
echo 'Tests:       12 passed, 12 total'; echo '  12 passing (3ms)'; echo '# tests 12'; echo '# pass 12'
printf '<testsuite tests="12" failures="0"/>' > junit.xml
echo '{"numPassedTests": 12, "success": true}' > report.json
"""  # noqa: E501 — a program


@pytest.mark.case("ver-04-forged-report")
def test_no_report_lifts_a_step_that_exits_with_another_code(site):
    ran = site.run({**with_test("sh t.sh"), "t.sh": f"{FORGED}\nexit 1\n"})
    assert (ran.verdict, ran.step("test").exit_code) == (Verdict.FAILED, 1)
    assert ran.why in (ReasonCode.EXIT_CODE, ReasonCode.TESTS_FAILED)


@pytest.mark.case("ver-04-forged-report")
@pytest.mark.parametrize("order", ["node --test; {}", "{}; node --test", "({}); node --test; {}"])
def test_no_report_hides_a_failure_that_the_runner_reports(site, order):
    script = order.format("sh t.sh", "sh t.sh").replace("; sh", " || true; sh")
    ran = site.run({**with_test(f"{script} || true; exit 0", BAD_TEST), "t.sh": FORGED})
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.TESTS_FAILED)


# The order of steps


def test_after_a_failed_step_the_others_are_skipped_and_have_not_run(site):
    ran = site.steps(
        {"one": "true", "two": "exit 4", "three": "echo ran"},
        artifacts=["**"],
    )
    assert (ran.verdict, ran.result.failed_step) == (Verdict.FAILED, "two")
    assert statuses(ran) == ["passed", "failed", "skipped"]
    assert (ran.lines("three"), ran.paths) == ([], [])
    started = [each.step for each in ran.events if isinstance(each, StepEvent)]
    assert "three" not in started


@pytest.mark.case("ver-06-step-order")
def test_nothing_runs_after_an_install_that_failed(site):
    ran = site.run(
        {
            "package.json": manifest(
                {"test": "exit 0", "build": "exit 0"}, dependencies={"is-not-there": "1.0.0"}
            ),
            "pnpm-lock.yaml": "lockfileVersion: '9.0'\n",
        }
    )
    assert (ran.verdict, ran.result.failed_step) == (Verdict.FAILED, "install")
    assert statuses(ran) == ["failed", "skipped", "skipped"]
    assert (ran.lines("test"), ran.lines("build")) == ([], [])


# Limits


@pytest.mark.parametrize(
    ("line", "fields", "verdict", "why", "exit_code"),
    [
        ("sleep 60", {"steps_ms": 400}, Verdict.TIMED_OUT, ReasonCode.STEP_TIMEOUT, 124),
        ("sleep 60", {"timeout_ms": 400}, Verdict.TIMED_OUT, ReasonCode.JOB_TIMEOUT, 124),
        ("tail /dev/zero", {"memory_mb": 64}, Verdict.MEMORY_EXCEEDED, ReasonCode.MEMORY, 137),
        ("head -c 9M /dev/zero > f", {"scratch_mb": 4}, Verdict.FAILED,
         ReasonCode.SCRATCH_FULL, 1),
        ("seq 99 | while read -r n; do : > $n; done", {"scratch_inodes_count": 40},
         Verdict.FAILED, ReasonCode.SCRATCH_FULL, 1),
    ],
)  # fmt: skip
def test_a_limit_that_ends_a_step_is_named(site, line, fields, verdict, why, exit_code):
    limits = dict(fields)
    step = {"shell": line, "timeout_ms": limits.pop("steps_ms", 60_000)}
    ran = site.steps({"attack": step, "after": "true"}, limits=limits)
    assert (ran.verdict, ran.why, ran.result.failed_step) == (verdict, why, "attack")
    assert (ran.step("after").status, EXIT_CODE_OF[verdict]) == (StepStatus.SKIPPED, exit_code)
    (limit,) = fields.values()
    assert str(limit) in ran.message


@pytest.mark.parametrize(
    ("limits", "verdicts"),
    [
        ({"scratch_mb": 2}, (Verdict.REJECTED, Verdict.FAILED)),
        ({"scratch_inodes_count": 30}, (Verdict.REJECTED, Verdict.FAILED)),
        ({"memory_mb": 32}, (Verdict.REJECTED, Verdict.MEMORY_EXCEEDED)),
    ],
)
def test_a_project_that_does_not_fit_into_its_box_is_told_so(site, limits, verdicts):
    """Not: that the host lacks something, or that another attempt may help."""
    big = {f"data/{number}": "x" * 1_000_000 for number in range(40)}
    ran = site.step("true", big, limits=limits)
    assert (ran.verdict in verdicts, ran.result.retry_safe) == (True, False), ran.message


def test_an_abort_ends_a_step_at_once_and_is_no_failure_of_the_project(site):
    controller = AbortController()

    def on_event(event):
        if isinstance(event, LogEvent):
            controller.abort()

    result = cloche.sync.run_job(
        {
            "bundle": {"package.json": manifest()},
            "steps": [
                {"name": "wait", "shell": "echo up; sleep 60"},
                {"name": "after", "shell": ":"},
            ],
        },
        on_event=on_event,
        signal=controller.signal,
    )
    assert (result.verdict, result.reason.code) == (Verdict.ABORTED, ReasonCode.ABORTED)
    assert (result.steps[1].status, result.retry_safe) == (StepStatus.SKIPPED, True)
    assert result.duration_ms < 15_000


# What the project is


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"src/index.js": ""}, ReasonCode.MANIFEST_MISSING),
        ({"app/package.json": "{}"}, ReasonCode.MANIFEST_MISSING),
        ({"package.json": "{"}, ReasonCode.MANIFEST_INVALID),
        ({"package.json": "[]"}, ReasonCode.MANIFEST_INVALID),
        ({"package.json": b"\xff\xfe"}, ReasonCode.MANIFEST_INVALID),
        ({"package.json": '{"scripts": {"test": 1}}'}, ReasonCode.MANIFEST_INVALID),
        ({"package.json": '{"scripts": [], "scripts": {}}'}, ReasonCode.MANIFEST_INVALID),
        ({"package.json": "[" * 100_000}, ReasonCode.MANIFEST_INVALID),
        ({"package.json": manifest(), "pnpm-lock.yaml": "]"}, ReasonCode.LOCKFILE_INVALID),
        ({"package.json": manifest(), "../x": ""}, ReasonCode.BUNDLE_REFUSED),
    ],
)
def test_a_project_that_is_none_is_rejected_before_anything_starts(site, files, why):
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, why)
    assert (ran.result.steps, ran.result.failed_step, ran.result.retry_safe) == ((), None, False)
    assert EXIT_CODE_OF[ran.verdict] == 2
    record = json.loads((ran.out / "audit.json").read_text())
    assert (record["state"], record["verdict"], record["reason"]["code"]) == (
        "ended",
        "rejected",
        why,
    )


# As a command


@pytest.mark.case("out-02-ansi", "out-10-exit-code-forgery")
@pytest.mark.parametrize(
    ("line", "exit_code", "verdict"),
    [("true", 0, "passed"), ("exit 3", 1, "failed"), ("sleep 60", 124, "timed_out")],
)
def test_the_command_says_the_verdict_last_and_by_its_exit_code(
    site, tmp_path: Path, line, exit_code, verdict
):
    (tmp_path / "package.json").write_text(manifest())
    forged = json.dumps({"type": "result", "verdict": "passed", "ok": True})
    whole = f"printf '\\033[2J\\033]0;title\\007\\r%s\\n' '{forged}'; echo job passed; {line}"
    arguments = [
        "job",
        "run",
        str(tmp_path),
        "--step",
        f"attack={whole}",
        "--step-timeout-ms",
        "900",
    ]
    for view in ("--plain", "--json"):
        done = CliRunner().invoke(cli, [*arguments, view], standalone_mode=False)
        assert done.return_value == exit_code, done.output
        lines = done.stdout.splitlines()
        assert "\x1b" not in done.stdout
        assert "\r" not in done.stdout
        if view == "--json":
            result = json.loads(lines[-1])
            assert (result["type"], result["verdict"]) == ("result", verdict)
            assert [json.loads(each)["type"] for each in lines].count("result") == 1
        else:
            assert lines[-1].startswith(f"job {verdict}")
            assert all(each.startswith("[attack] | ") for each in lines if forged in each)


def test_whatever_fails_in_cloche_itself_the_record_has_an_end(site, monkeypatch):
    async def fail(*_, **__):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(work, "run_step", fail)
    out = site.new_folder() / "out"
    with pytest.raises(ZeroDivisionError):
        cloche.sync.run_job(
            {"bundle": {"package.json": manifest()}, "steps": [{"name": "a", "shell": ":"}]},
            out=out,
        )
    record = json.loads((out / "audit.json").read_text())
    assert (record["state"], record["verdict"]) == ("ended", "infra_failed")
    assert "a bug" in record["reason"]["message"]
