"""How steps follow each other: what may fail, what always runs, what runs beside a step."""

import time

import pytest

import cloche.sync
from cloche.errors import UnavailableError
from cloche.jobs.audit import AuditRecord
from cloche.jobs.running import is_running
from cloche.model.job import ReasonCode, StepStatus, Verdict
from job_site import GOOD_TEST, manifest, open_site
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

# A server that takes its time to listen; `node server.js PORT MS`.
SERVER = """
const [port, ms] = process.argv.slice(2).map(Number);
console.log("starting", process.env.GREETING ?? "");
setTimeout(() => require("http").createServer((_, answer) => answer.end("hello from " + port))
  .listen(port, process.env.ADDRESS ?? "127.0.0.1"), ms);
"""
ASK = "require('http').get('http://localhost:'+process.argv[1],a=>a.on('data',d=>console.log(String(d))))"
FILES = {"server.js": SERVER}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


def statuses(ran):
    return {step.name: (step.status.value, step.allowed) for step in ran.result.steps}


def test_a_step_that_may_fail_does_not_fail_the_job(site):
    ran = site.steps(
        {"lint": {"shell": "echo no; exit 3", "allow_failure": True}, "build": "echo built"}
    )
    assert (ran.verdict, ran.result.failed_step, ran.result.reason) == (Verdict.PASSED, None, None)
    assert statuses(ran) == {"lint": ("failed", True), "build": ("passed", False)}
    assert ran.step("lint").exit_code == 3
    assert ran.result.audit["steps"][0]["allow_failure"]


@pytest.mark.parametrize(
    ("line", "status"),
    [("sleep 60", "timed_out"), ("head -c 90M /dev/zero | tail", "memory_exceeded")],
)
def test_whatever_ends_a_step_that_may_fail_is_its_own_affair(site, line, status):
    fields = {"shell": line, "allow_failure": True, "timeout_ms": 1500}
    ran = site.steps({"a": fields, "b": "true"}, limits={"memory_mb": 60})
    assert ran.verdict is Verdict.PASSED
    assert statuses(ran)["a"] == (status, True)


def test_the_end_of_the_jobs_time_is_not_forgiven(site):
    ran = site.steps(
        {"a": {"shell": "sleep 60", "allow_failure": True}, "b": "true"},
        limits={"timeout_ms": 2000},
    )
    assert (ran.verdict, ran.why) == (Verdict.TIMED_OUT, ReasonCode.JOB_TIMEOUT)
    assert statuses(ran)["b"] == ("skipped", False)


@pytest.mark.case("ver-06-step-order")
def test_a_step_that_always_runs_does_so_after_a_failure_and_changes_no_verdict(site):
    for last in ("true", "exit 9"):
        ran = site.steps(
            {
                "test": {"shell": "exit 2", "expects_tests": False},
                "build": "true",
                "report": {"shell": f"echo reported; {last}", "always": True},
            }
        )
        assert (ran.verdict, ran.result.failed_step) == (Verdict.FAILED, "test")
        assert "exit code 2" in ran.message
        assert statuses(ran)["build"] == ("skipped", False)
        assert ran.lines("report") == ["reported"]


def test_a_step_that_always_runs_is_a_step_like_any_other_where_none_failed(site):
    ran = site.steps({"a": "true", "b": {"shell": "exit 9", "always": True}})
    assert (ran.verdict, ran.result.failed_step) == (Verdict.FAILED, "b")


def test_a_failure_brings_no_artifacts_whatever_ran_after_it(site):
    ran = site.steps(
        {
            "a": "mkdir dist; echo 1 > dist/a",
            "b": "exit 1",
            "c": {"shell": "mkdir dist; echo 2 > dist/c", "always": True},
        },
        artifacts=["dist/**"],
    )
    assert (ran.verdict, ran.paths) == (Verdict.FAILED, [])


def test_a_step_that_writes_nothing_for_too_long_is_ended(site):
    started = time.monotonic()
    ran = site.steps({"a": {"shell": "echo once; sleep 60", "idle_timeout_ms": 700}})
    assert (ran.verdict, ran.why) == (Verdict.TIMED_OUT, ReasonCode.STEP_IDLE)
    assert "wrote nothing for 700 ms" in ran.message
    assert ran.lines("a") == ["once"]
    assert time.monotonic() - started < 20


def test_a_step_that_writes_now_and_then_has_all_its_time(site):
    line = "for i in 1 2 3 4 5 6; do printf .; sleep 0.3; done; sleep 0.3; echo >&2"
    ran = site.steps({"a": {"shell": line, "idle_timeout_ms": 1200}})
    assert ran.verdict is Verdict.PASSED
    assert ran.step("a").duration_ms > 1800


def test_a_service_is_there_when_the_step_starts_and_gone_with_it(site):
    service = {"name": "web", "argv": ["node", "server.js", "8080", "600"], "port": 8080}
    ran = site.steps(
        {
            "ask": {
                "shell": f'node -e "{ASK}" 8080',
                "services": [{**service, "env": {"GREETING": "you"}}],
            },
            "after": f'node -e "{ASK}" 8080 2>/dev/null && exit 1 || echo gone',
        },
        FILES,
    )
    assert ran.verdict is Verdict.PASSED, ran.message
    assert sorted(ran.lines("ask")) == ["[web] starting you", "hello from 8080"]
    assert ran.lines("after") == ["gone"]


def test_several_services_are_waited_for_also_on_the_other_loopback(site):
    services = [
        {"name": "one", "shell": "exec node server.js 8081 1", "port": 8081},
        {
            "name": "two",
            "shell": "node server.js 8082 1 | cat",
            "port": 8082,
            "env": {"ADDRESS": "::1"},
        },
    ]
    line = f'node -e "{ASK}" 8081; node -e "{ASK}" 8082'
    ran = site.steps({"ask": {"shell": line, "services": services}}, FILES)
    assert ran.verdict is Verdict.PASSED, ran.message
    assert {"hello from 8081", "hello from 8082"} < set(ran.lines("ask"))


@pytest.mark.parametrize(
    ("service", "told"),
    [
        ({"shell": "echo cannot; exit 3", "port": 1}, "the service bad ended before it listened"),
        ({"argv": ["no-such-program"], "port": 1}, "the service bad ended before it listened"),
        (
            {"shell": "sleep 60", "port": 1, "ready_timeout_ms": 400},
            "the service bad did not listen on port 1 in time",
        ),
    ],
)
def test_a_service_that_does_not_come_up_fails_its_step_and_is_named(site, service, told):
    ran = site.steps({"a": {"shell": "echo ran", "services": [{"name": "bad", **service}]}})
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.SERVICE_FAILED)
    assert "step a (bad) did not come up" in ran.message
    assert told in "\n".join(ran.lines("a"))
    assert "ran" not in ran.lines("a")


def test_a_service_beside_a_test_step_takes_nothing_from_its_verdict(site):
    files = {**FILES, "package.json": manifest({"test": "node --test"}), "a.test.js": GOOD_TEST}
    service = {"name": "web", "argv": ["node", "server.js", "8080", "1"], "port": 8080}
    step = {"name": "test", "argv": ["pnpm", "run", "test"], "services": [service]}
    ran = site.run(files, steps=[step])
    assert (ran.verdict, ran.step("test").tests.passed) == (Verdict.PASSED, 1)
    bad = {**files, "a.test.js": "process.exit(125)"}
    assert site.run(bad, steps=[step]).verdict is Verdict.FAILED
    assert ran.step("test").status is StepStatus.PASSED


WRITES = """
cat > junit.xml <<'X'
<testsuite><testcase name="a"/><testcase name="b">BODY</testcase></testsuite>
X
exit CODE
"""


@pytest.mark.parametrize(
    ("body", "code", "verdict"),
    [
        ("", 0, Verdict.PASSED),
        ("<failure/>", 0, Verdict.FAILED),
        ("", 1, Verdict.FAILED),
        ("<skipped/>", 0, Verdict.PASSED),
    ],
)
def test_a_report_in_a_file_shows_that_tests_ran_and_lifts_no_exit_code(site, body, code, verdict):
    line = WRITES.replace("BODY", body).replace("CODE", str(code))
    ran = site.steps({"test": {"shell": line, "reports": ["*.xml"]}})
    assert ran.verdict is verdict
    assert ran.step("test").tests.runner == "junit"


@pytest.mark.case("ver-04-forged-report")
def test_a_report_that_was_there_before_the_step_is_none(site):
    old = {"junit.xml": "<testsuite><testcase/></testsuite>"}
    ran = site.steps({"test": {"shell": "true", "reports": ["junit.xml"]}}, old)
    assert (ran.verdict, ran.step("test").tests) == (Verdict.NO_TESTS, None)


def test_a_job_that_could_not_be_recorded_does_not_seem_to_run(site, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AuditRecord, "write", refuse)
    out = site.new_folder() / "out"
    with pytest.raises(UnavailableError, match="could not be written"):
        cloche.sync.run_job({"bundle": {"package.json": manifest()}}, out=out)
    assert not is_running(out)
