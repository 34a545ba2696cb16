"""Threat: a service of a step, or what it writes as a report, tells of more than it is.

The line that starts services is a script of Cloche's own: nothing of a spec may become text of it.
"""

import json

import pytest

from cloche.model.job import ReasonCode, StepStatus, Verdict
from job_site import manifest, open_site
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

ODD = "a'b\"c$HOME`id`$(id)\n\\n;&|<>*?~!# é 😀 {} [] -- %s"
LISTEN = "node -e \"require('net').createServer((c) => c.end()).listen(9001)\""
REPORT = "<testsuite><testcase/></testsuite>"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


def serve(site, line, *services, files=None, **fields):
    given = [{"port": 9001, "name": "s", "ready_timeout_ms": 5_000, **each} for each in services]
    step = {"name": "attack", "services": given, **fields}
    step |= {"shell": line} if isinstance(line, str) else {"argv": line}
    return site.run({"package.json": manifest(), **(files or {})}, steps=[step])


def test_every_argument_and_variable_of_a_service_arrives_as_it_is(site):
    tell = "[process.argv.slice(1), process.env.ODD]"
    program = (
        f"require('fs').writeFileSync('/tmp/told', JSON.stringify({tell}));"
        "require('net').createServer((c) => c.end()).listen(9001)"
    )
    look = f"const told = require('fs').readFileSync('/tmp/told', 'utf8'); console.log(told); \
console.log(JSON.stringify({tell}))"
    ran = serve(
        site,
        ["node", "-e", look, ODD, ""],
        {"argv": ["node", "-e", program, ODD, "", "--"], "env": {"ODD": ODD}},
        env={"ODD": ODD[::-1]},
    )
    told = [json.loads(line) for line in ran.lines("attack")]
    assert told == [[[ODD, "", "--"], ODD], [[ODD, ""], ODD[::-1]]]


@pytest.mark.parametrize("character", ["'", '"', "é", "😀"])
def test_a_step_with_services_takes_as_long_arguments_as_one_without(site, character):
    """Quotes would make them several times as long, and what is not ASCII, too."""
    count = 90 * 1024 // len(character.encode())
    argv = ["node", "-e", "console.log([...process.argv[1]].length)", character * count]
    for services in ([], [{"shell": LISTEN}]):
        ran = serve(site, argv, *services)
        assert (ran.verdict, ran.lines("attack")) == (Verdict.PASSED, [str(count)]), ran.message


def test_all_that_services_are_given_has_one_limit_and_is_refused_by_name(site):
    services = [{"name": f"s{at}", "port": 9001 + at, "shell": "x" * 60_000} for at in range(2)]
    with pytest.raises(Exception, match=r"steps\[0\].services: has \d+ bytes, over 98304"):
        serve(site, "true", *services)


@pytest.mark.parametrize("name", ["a/b", "a&b", "a]b", "$(id)", "a b", "a\nb", "", "-n", "."])
def test_a_name_that_means_something_to_a_script_is_no_name(site, name):
    with pytest.raises(Exception, match="must be 1 to"):
        serve(site, "true", {"name": name, "shell": LISTEN})
    ran = serve(site, "echo ran", {"name": "s.d-_9", "shell": f"echo hello; {LISTEN}"})
    assert ran.lines("attack") == ["[s.d-_9] hello", "ran"]


@pytest.mark.parametrize("flood", ["yes flood", "tr '\\0' x < /dev/zero", "cat /dev/zero"])
def test_a_service_that_floods_its_output_ends_with_the_step(site, flood):
    ran = serve(site, "sleep 1; echo DONE", {"shell": f"{flood} & {LISTEN}"})
    assert ran.verdict is Verdict.PASSED, ran.message
    assert "DONE" in ran.lines("attack")
    assert ran.step("attack").duration_ms < 10_000


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("exit 1", "ended before it listened"),
        ("(sleep 1; true) > /dev/null 2>&1 & exit 0", "ended before it listened"),
        ("sleep 60 & exit 0", "did not listen on port 9001 in time"),
        ("node -e \"require('net').createServer().listen(9002)\"", "did not listen"),
        ("node -e \"require('dgram').createSocket('udp4').bind(9001)\"", "did not listen"),
    ],
    ids=["ends", "forks away", "leaves a child", "another port", "another protocol"],
)
def test_a_service_that_does_not_listen_starts_no_command(site, line, told):
    ran = serve(site, "echo STARTED", {"shell": line, "ready_timeout_ms": 1_000})
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.SERVICE_FAILED)
    assert told in ran.lines("attack")[-1]
    assert "STARTED" not in ran.lines("attack")


def test_a_service_that_left_its_session_is_gone_with_the_step(site):
    steps = [
        {
            "name": "one",
            "shell": "echo one",
            "services": [{"name": "s", "port": 9001, "shell": f"setsid {LISTEN} & exit 0"}],
        },
        {"name": "two", "shell": "(exec 9<>/dev/tcp/127.0.0.1/9001) && echo REACHED || echo none"},
    ]
    ran = site.run({"package.json": manifest()}, steps=steps)
    assert (ran.lines("one"), ran.verdict) == (["one"], Verdict.PASSED)
    assert ran.lines("two")[-1] == "none"


# What looks like a report


def report(site, line, files=None, reports=("r/**", "*.xml")):
    step = {"name": "test", "shell": line, "reports": list(reports)}
    return site.run({"package.json": manifest(), **(files or {})}, steps=[step])


@pytest.mark.case("ver-04-forged-report")
@pytest.mark.parametrize(
    "line",
    [
        "ln -s /workspace/hidden a.xml",
        "mkfifo a.xml",
        "mkdir hidden.d; cp hidden hidden.d/x; ln -s hidden.d r",
        "truncate -s 1G a.xml",
        'echo \'<?xml version="1.0" encoding="nope"?><testsuite><testcase/></testsuite>\' > a.xml',
        "echo '<!DOCTYPE x [<!ENTITY a \"b\">]><testsuite><testcase/></testsuite>' > a.xml",
        "node -e \"console.log('<testsuite>'.repeat(100000) + '<testcase/>')\" > a.xml",
        "touch stale.xml",
    ],
    ids=["link", "FIFO", "linked folder", "holes", "encoding", "entities", "deep", "stale"],
)
def test_what_is_no_report_of_this_step_is_no_test_that_ran(site, line):
    files = {"hidden": REPORT, "stale.xml": REPORT}
    ran = report(site, line, files)
    assert (ran.verdict, ran.why) == (Verdict.NO_TESTS, ReasonCode.NO_TESTS), ran.message
    # The control: beside a good one it changes nothing.
    ran = report(site, f"{line}; cp hidden good.xml; echo >> good.xml", files)
    assert ran.verdict is Verdict.PASSED
    assert ran.step("test").tests.passed == 1


@pytest.mark.case("ver-04-forged-report")
def test_a_good_report_lifts_no_exit_code_and_a_bad_one_lowers_it(site):
    ran = report(site, f"echo '{REPORT}' > a.xml; exit 1")
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.EXIT_CODE)
    ran = report(site, "echo '<testsuite><testcase><failure/></testcase></testsuite>' > a.xml")
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.TESTS_FAILED)


def test_very_many_reports_are_read_in_bounds_and_the_rest_is_told_in_a_line(site):
    make = f"mkdir r; for i in $(seq 3000); do echo '{REPORT}' > r/$i.xml; done"
    ran = report(site, make)
    assert ran.step("test").tests.passed == 1_000
    notes = [line for line in ran.lines("test") if "not read" in line]
    assert len(notes) == 21
    assert notes[-1] == "reports not read: 1980 more"


# Steps after a failure


@pytest.mark.case("ver-06-step-order")
@pytest.mark.parametrize(
    ("after", "limits"),
    [
        ({"shell": "exit 0"}, {}),
        ({"shell": "exit 4"}, {}),
        ({"shell": "exit 4", "allow_failure": True}, {}),
        ({"shell": "sleep 30", "timeout_ms": 500}, {}),
        ({"shell": "sleep 30"}, {"timeout_ms": 3_000}),
        ({"shell": "sleep 30", "allow_failure": True}, {"timeout_ms": 3_000}),
    ],
)
def test_nothing_that_always_runs_changes_what_came_before_it(site, after, limits):
    steps = [
        {"name": "first", "shell": "mkdir dist; echo x > dist/x; exit 3"},
        {"name": "skipped", "shell": "exit 0"},
        {"name": "after", "always": True, **after},
    ]
    files = {"package.json": manifest()}
    ran = site.run(files, steps=steps, limits=limits, artifacts=["dist/**"])
    assert (ran.verdict, ran.why, ran.paths) == (Verdict.FAILED, ReasonCode.EXIT_CODE, [])
    assert ran.result.failed_step == "first"
    assert ran.step("skipped").status is StepStatus.SKIPPED
    assert ran.step("after").status is not StepStatus.SKIPPED


def test_the_end_of_the_whole_job_is_no_failure_that_a_step_may_have(site):
    steps = [
        {"name": "slow", "shell": "sleep 30", "allow_failure": True},
        {"name": "good", "shell": "exit 0"},
    ]
    ran = site.run({"package.json": manifest()}, steps=steps, limits={"timeout_ms": 2_000})
    assert (ran.verdict, ran.why) == (Verdict.TIMED_OUT, ReasonCode.JOB_TIMEOUT)
    # The control: its own limit may.
    steps[0]["timeout_ms"] = 300
    ran = site.run({"package.json": manifest()}, steps=steps, limits={"timeout_ms": 60_000})
    assert (ran.verdict, ran.step("slow").allowed) == (Verdict.PASSED, True)
