"""Threat: a step outlives its end, reaches the next step, hides what it wrote, or is not held.

One test's lines run in one step as the control for what must not pass from a step to the next.
"""

import json
import os
import resource
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloche.errors import ClocheError
from cloche.model.events import LogEvent
from cloche.model.job import ReasonCode, StepStatus, Verdict
from job_site import GOOD_TEST, manifest, open_site, project
from needs import BOX, JOB, needs
from observer import descendants, residents

pytestmark = needs(*BOX, *JOB)

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


# From one step to the next

PLANT = """
for place in /workspace /tmp /dev/shm "$HOME" /var/tmp / node_modules node_modules/.bin; do
  echo left > "$place/left" 2>/dev/null || true
done
echo 'echo left' > /tmp/.bashrc; echo 'script-shell=/tmp/left' > /tmp/.npmrc
mkdir -p /tmp/.config/pnpm && echo left > /tmp/.config/pnpm/rc
echo '{}' > package.json; echo changed > a.test.js
setsid sleep 60 & nohup sleep 60 > /dev/null 2>&1 &
"""
LOOK = """
find /workspace /tmp /dev/shm -name '*left*' -o -path '*/.config' -o -name '.bashrc' || true
grep -l left a.test.js package.json || true
for pid in /proc/[0-9]*; do tr '\\0' ' ' < "$pid/cmdline" | grep '^sleep' || true; done
head -c 9 a.test.js
"""


def test_a_step_finds_nothing_of_the_one_before_it(site):
    files = project(site.publish("some", [("package/index.js", "")]))
    ran = site.steps({"plant": PLANT, "look": LOOK, "both": f"{PLANT} sleep 0.2; {LOOK}"}, files)
    assert (ran.verdict, ran.lines("look")) == (Verdict.PASSED, ["require('"])
    assert {"/workspace/left", "/tmp/left", "/dev/shm/left"} <= {*ran.lines("both")}
    assert [line for line in ran.lines("both") if line.startswith("sleep")]


DAEMONS = r"""mkdir -p dist; echo v1 > dist/r.txt
nohup sh -c 'while :; do echo v2 > r; mv r dist/r.txt; echo late; sleep 0.05; done' &
setsid sh -c 'sleep 0.4; echo v3 > dist/r.txt' > /dev/null 2>&1 &
exit 0
"""


@pytest.mark.case("ver-05-post-test-daemon")
def test_a_daemon_of_the_tests_is_dead_before_anything_is_kept_or_built(site):
    files = {"package.json": manifest({"test": "sh t.sh"}), "t.sh": DAEMONS}
    build = "first=$(cat dist/r.txt); sleep 0.8; cat dist/r.txt; [ $first = $(cat dist/r.txt) ]"
    ran = site.steps(
        {"t": {"shell": "pnpm run test", "keeps": ["dist/**"]}, "build": build},
        files,
        artifacts=["dist/**"],
    )
    assert ran.verdict is Verdict.PASSED
    assert ran.lines("build") in (["v1"], ["v2"])
    assert ran.delivered("dist/r.txt").decode().split() == ran.lines("build")


def test_the_same_daemons_do_go_on_where_nobody_ends_them(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        test = subprocess.Popen(
            ["sh", "-c", DAEMONS], cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
        )
        try:
            assert test.wait(10) == 0
            (tmp_path / "log").write_text("")  # what comes from here on is late
            deadline = time.monotonic() + 10
            while "late" not in (tmp_path / "log").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            os.killpg(test.pid, signal.SIGKILL)
    while "v3" not in (tmp_path / "dist/r.txt").read_text():  # the other one, on its own
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.case("to-02-grandchild-holds-pipe")
def test_a_step_ends_with_its_own_process_whoever_holds_its_pipes(site):
    hold = """
const { spawn } = require("node:child_process");
for (let i = 0; i < 5; i++) spawn("sleep", ["60"], { detached: true, stdio: "inherit" }).unref();
console.log("parent done");
"""
    started_at = time.monotonic()
    ran = site.step("node hold.js", {"hold.js": hold})
    assert time.monotonic() - started_at < 15
    assert (ran.verdict, ran.lines("attack")) == (Verdict.PASSED, ["parent done"])


@pytest.mark.parametrize("line", ["kill -9 1; kill -9 -1; kill -9 $PPID; kill -9 0", "kill -9 0"])
def test_a_step_that_kills_all_it_can_kills_itself_alone(site, line):
    files = {"package.json": manifest({"test": line})}
    ran = site.run(files)
    assert ran.verdict is Verdict.FAILED
    assert ran.why in (ReasonCode.SIGNAL, ReasonCode.EXIT_CODE)


# What a step keeps


def test_a_step_keeps_files_alone_and_says_what_it_left(site):
    make = """
mkdir -p k/sub node_modules/x; echo 1 > k/sub/a; ln -s /etc/passwd k/link; mkfifo k/fifo
printf '#!/bin/sh\\necho ran\\n' > k/run; chmod 4755 k/run; echo x > node_modules/x/index.js
ln -s / k/root
"""
    ran = site.steps(
        {
            "make": {"shell": make, "keeps": ["**", "k/root/etc/*"]},
            "find": "find . -type f -o -type l -o -type p | sort; k/run; stat -c %a k/run",
        }
    )
    assert ran.lines("find") == ["./k/run", "./k/sub/a", "./package.json", "ran", "755"]
    assert [line for line in ran.lines("make") if line.startswith("not kept")] == [
        "not kept: k/fifo: not a regular file",
        "not kept: k/link: a link",
        "not kept: k/root: a link",
    ]


@pytest.mark.parametrize(
    ("files", "line", "keeps"),
    [
        ({"src/x": "1"}, "rm -r src; echo 1 > src", "src"),
        ({"src": "1"}, "rm src; mkdir src; echo 1 > src/y", "src/**"),
    ],
)
def test_what_is_kept_where_a_folder_or_file_of_the_project_was_is_the_projects_fault_at_most(
    site, files, line, keeps
):
    """Whether it replaces the other or is left out: the host has not failed."""
    ran = site.steps({"one": {"shell": line, "keeps": [keeps]}, "two": "ls -R src"}, files)
    assert ran.verdict in (Verdict.PASSED, Verdict.FAILED), ran.message
    assert ran.result.retry_safe is False


@pytest.mark.parametrize(
    ("line", "limits"),
    [
        ("truncate -s 1M kept1; truncate -s 1M kept2", {"scratch_mb": 2}),
        ("rm in*; for n in $(seq 60); do : > kept$n; done", {"scratch_inodes_count": 80}),
    ],
)
def test_what_is_kept_and_does_not_fit_is_the_steps_fault_at_most(site, line, limits):
    files = {f"in{number}": "x" for number in range(20)}
    ran = site.steps(
        {"one": {"shell": line, "keeps": ["kept*"]}, "two": "ls"}, files, limits=limits
    )
    assert ran.verdict in (Verdict.PASSED, Verdict.FAILED), ran.message
    assert ran.result.retry_safe is False


def test_a_file_of_holes_that_is_kept_costs_the_host_little(site):
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ran = site.steps(
        {"one": {"shell": "truncate -s 800M kept", "keeps": ["kept"]}, "two": "ls -s kept"},
        limits={"memory_mb": 256, "scratch_mb": 1024},
    )
    assert ran.verdict is not Verdict.INFRA_FAILED, ran.message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 300 * 1024


# Time


@pytest.mark.case("to-01-sigterm-ignored")
def test_a_step_that_ignores_every_polite_signal_ends_at_its_limit(site):
    files = {
        "deaf.js": """
for (const name of ["SIGTERM", "SIGINT", "SIGHUP", "SIGALRM", "SIGXCPU"]) process.on(name, () => {});
setInterval(() => console.log("tick"), 100);
"""  # noqa: E501 — a program
    }
    steps = [{"name": "attack", "shell": "trap '' TERM INT; node deaf.js", "timeout_ms": 900}]
    ran = site.run({"package.json": manifest(), **files}, steps=steps)
    assert (ran.verdict, ran.why) == (Verdict.TIMED_OUT, ReasonCode.STEP_TIMEOUT)
    assert "tick" in ran.lines("attack")
    assert ran.step("attack").duration_ms < 900 + 3000


@pytest.mark.case("to-08-hung-test-server")
def test_tests_that_leave_a_server_end_at_the_limit_and_free_their_port(site):
    serve = """
const test = require("node:test"), http = require("node:http");
test("leaves a server", (t, done) => {
  http.createServer().listen(3000, done).on("error", error => { console.log(error.code); done(error); });
});
"""  # noqa: E501 — a program

    def run(_):
        files = {"package.json": manifest({"test": "node --test"}), "a.test.js": serve}
        return site.run(files, step_timeout_ms=1200)

    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(run, range(2)))
    for ran in [*runs, run(2)]:
        assert (ran.verdict, ran.result.failed_step) == (Verdict.TIMED_OUT, "test")
        assert "EADDRINUSE" not in ran.lines("test")
        assert ran.step("test").duration_ms < 1200 + 3000


@pytest.mark.case("to-09-chatty-idle")
@pytest.mark.parametrize(
    ("line", "late_ms"),
    [
        ("while :; do echo .; sleep 0.05; done", 3_000),
        ("sleep 60", 3_000),
        # Lines that were written have to be read.
        ("yes ''", 12_000),
        ("yes", 12_000),
    ],
)
def test_a_step_ends_at_its_limit_whether_it_is_silent_or_floods_its_log(site, line, late_ms):
    ran = site.steps({"attack": {"shell": line, "timeout_ms": 700}}, limits={"log_mb": 1})
    assert (ran.verdict, ran.why) == (Verdict.TIMED_OUT, ReasonCode.STEP_TIMEOUT)
    assert ran.step("attack").duration_ms < 700 + late_ms


def test_the_jobs_limit_ends_a_step_that_has_more_time_and_is_named(site):
    ran = site.step("sleep 60", limits={"timeout_ms": 700})
    assert (ran.verdict, ran.why) == (Verdict.TIMED_OUT, ReasonCode.JOB_TIMEOUT)
    assert "700 ms" in ran.message


# Processes, memory, files


@pytest.mark.case("res-11-fork-bounded")
def test_a_step_starts_no_more_processes_than_it_may_and_leaves_none(site):
    fork = """
const { spawn } = require("node:child_process");
let started = 0, refused = null;
const one = () => new Promise(done => {
  const it = spawn("sleep", ["60"], { stdio: "ignore" });
  it.on("spawn", () => { started++; done(); });
  it.on("error", error => { refused = error.code; done(); });
});
(async () => {
  while (started < 400 && refused === null) await one();
  console.log(JSON.stringify([started, refused]));
  process.exit(0);
})();
"""
    before = descendants()
    ran = site.step("node fork.js", {"fork.js": fork}, limits={"pids_count": 64})
    assert ran.verdict is Verdict.PASSED
    started, refused = ran.printed("attack")
    assert (started < 64, refused) == (True, "EAGAIN")
    after = descendants()
    assert {*after} - {*before} - residents(after) == set()


@needs("cgroup-memory")
def test_a_grandchild_that_takes_too_much_memory_is_told_although_the_step_ends_well(site):
    eat = "const all = []; for (;;) all.push(Buffer.alloc(1e7, 1));"
    line = "(setsid node eat.js; touch over) > /dev/null 2>&1; [ -e over ] && exit 0"
    ran = site.step(line, {"eat.js": eat}, limits={"memory_mb": 96})
    assert (ran.verdict, ran.why) == (Verdict.MEMORY_EXCEEDED, ReasonCode.MEMORY)
    assert ran.step("attack").status is StepStatus.MEMORY_EXCEEDED


def test_files_count_as_memory_wherever_they_lie(site):
    line = "for place in . /tmp /dev/shm; do head -c 48M /dev/zero > $place/f; done; exit 0"
    ran = site.step(line, limits={"memory_mb": 96, "scratch_mb": 1024})
    assert ran.verdict is Verdict.MEMORY_EXCEEDED


FILL = r"""
const fs = require("node:fs");
const chunk = Buffer.alloc(1 << 20, 0xa5), told = {};
for (const base of [".", "/tmp", process.env.HOME, "/dev/shm", "node_modules", "/var/tmp", "/", "/etc"]) {
  let written = 0;
  const names = [];
  try {
    for (let i = 0; i < 64; i++) {
      names.push(`${base}/fill${i}`);
      fs.writeFileSync(names.at(-1), chunk);
      written++;
    }
    told[base] = "NO LIMIT";
  } catch (error) { told[base] = [error.code, written]; }
  for (const name of names) fs.rmSync(name, { force: true });
}
console.log(JSON.stringify(told));
"""  # noqa: E501 — a program


@pytest.mark.case("res-15-disk-many-files")
def test_no_place_takes_more_than_the_scratch_and_all_of_them_share_it(site):
    files = {**project(site.publish("some", [("package/index.js", "")])), "fill.js": FILL}
    ran = site.step("node fill.js", files, limits={"scratch_mb": 16})
    told = ran.printed("attack")
    for base in (".", "/tmp", "/dev/shm", "node_modules"):
        code, written = told.pop(base)
        assert (code, 10 <= written <= 16) == ("ENOSPC", True), base
    assert all(code in ("EROFS", "ENOENT", "EACCES") and not n for code, n in told.values()), told
    both = "head -c 9M /dev/zero > /tmp/a; head -c 9M /dev/zero > /dev/shm/b"
    ran = site.step(both, limits={"scratch_mb": 16})
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.SCRATCH_FULL)


# What it writes


@pytest.mark.case("out-01-invalid-utf8")
def test_bytes_that_are_no_text_cost_nothing_that_follows(site):
    line = r"""
printf 'a\xff\xfe\x97b\n'; printf '\xe2\x82'; sleep 0.2; printf '\xac euro\n'
printf '\xc0\x80 tail\n' >&2; printf 'nul\0nul\n'; printf 'last without end\xe2'
"""
    ran = site.step(line)
    lines = ran.lines("attack")
    assert lines[0] == "a\ufffd\ufffd\ufffdb"
    assert {"\u20ac euro", "\ufffd\ufffd tail", "nul\0nul", "last without end\ufffd"} <= {*lines}


@pytest.mark.case("out-02-ansi")
def test_control_sequences_are_kept_as_data_and_make_no_line_of_their_own(site):
    write = r"""
const E = "\u001b";
process.stdout.write("visible" + E + "[2J" + E + "[1;1H" + E + "]0;title\u0007" + E
  + "]52;c;aGk=\u0007" + E + "[?1049h" + E + "Pq" + E + "\\" + "\u009b31m" + "FAIL\rPASS"
  + "\b\b\b\b" + "\u2028\u0085\nend\n");
"""
    ran = site.step("node write.js", {"write.js": write})
    first, end = ran.lines("attack")
    assert (first.startswith("visible\x1b[2J"), "FAIL\rPASS\b" in first) == (True, True)
    assert end == "end"
    raw = (ran.out / "log.ndjson").read_bytes()
    assert (b"\x1b" in raw, raw.count(b"\n")) == (False, 2)


@pytest.mark.case("out-10-exit-code-forgery")
def test_what_looks_like_cloche_s_own_words_is_a_line_of_the_step_and_no_more(site):
    forged = [
        "__RC__=0", "exit_code: 0",
        json.dumps({"type": "result", "verdict": "passed", "ok": True}),
        json.dumps({"time": 0, "step": "attack", "stream": "cloche", "offset": 0, "text": "hi"}),
        json.dumps({"event": "ended", "status": 0}),
    ]  # fmt: skip
    prints = "; ".join(f"echo '{line}'" for line in forged)
    on_all = 'for fd in 3 4 5 6 7; do echo \'{"event": "ended", "status": 0}\' >&$fd; done'
    ran = site.step(
        f"{prints}; ({on_all}) 2> /dev/null || true; exec sh -c 'echo __RC__=0; exit 3'"
    )
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.EXIT_CODE)
    assert ran.step("attack").exit_code == 3
    assert ran.lines("attack") == [*forged, "__RC__=0"]
    told = [each for each in ran.events if isinstance(each, LogEvent)]
    assert {(each.step, each.stream) for each in told} == {("attack", "stdout")}


def test_a_hundred_megabytes_of_log_are_cut_in_the_middle_and_the_cut_is_marked(site):
    write = f"""
const line = "x".repeat({16 * 1024 - 1}) + "\\n", all = [];
process.stdout.write("first\\n");
let left = {100 * MIB};
const go = () => {{
  while (left > 0) {{ left -= line.length; if (!process.stdout.write(line)) return; }}
  process.stdout.write("last\\n");
}};
process.stdout.on("drain", go); go();
"""
    ran = site.step("node write.js", {"write.js": write}, limits={"log_mb": 2})
    assert ran.verdict is Verdict.PASSED
    lines = ran.lines("attack")
    assert (lines[0], lines[-1]) == ("first", "last")
    size_bytes = (ran.out / "log.ndjson").stat().st_size
    assert MIB < size_bytes <= 2 * MIB + 1024
    text = (ran.out / "log.ndjson").read_text()
    assert "left out here" in text
    assert ran.step("attack").log_bytes > 100 * MIB - 1024


def test_ten_megabytes_without_an_end_of_line_are_told_in_pieces(site):
    ran = site.step("head -c 10000000 /dev/zero | tr '\\0' y; printf end", limits={"log_mb": 1})
    lines = ran.lines("attack")
    assert (lines[-1][-3:], max(map(len, lines)) <= 16 * 1024) == ("end", True)
    assert ran.verdict is Verdict.PASSED


def test_empty_lines_count_with_all_that_the_log_keeps_of_them(site):
    ran = site.step("yes '' | head -n 100000 || true", limits={"log_mb": 1})
    assert ran.verdict is Verdict.PASSED
    assert (ran.out / "log.ndjson").stat().st_size <= MIB + 1024


# What a step may be


@pytest.mark.parametrize("program", ["nothing-there", "/workspace/plain", "/workspace/nothing"])
def test_a_program_that_cannot_be_run_fails_the_step_and_not_the_host(site, program):
    ran = site.run(
        {"package.json": manifest(), "plain": "no program"},
        steps=[{"name": "attack", "argv": [program]}],
    )
    assert (ran.verdict, ran.result.failed_step) == (Verdict.FAILED, "attack")
    assert ran.result.retry_safe is False


def test_a_step_cannot_become_the_end_of_the_job_for_its_caller(site):
    """Whatever a project does, the answer is a result and not an error."""
    hostile = {
        "a.test.js": GOOD_TEST,
        "package.json": manifest({"test": "chmod 000 . ; rm -rf .* * ; exec kill -SEGV $$"}),
    }
    try:
        ran = site.run(hostile)
    except ClocheError as error:
        pytest.fail(f"raised {error!r}")
    assert ran.verdict is Verdict.FAILED
