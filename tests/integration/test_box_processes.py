"""Processes of a run: how many there may be, and that none is left when `run` returns.

"Left" is what the outside observer sees at the moment of the return: live processes below this
test's own, which adopts every orphan.
"""

import subprocess
import sys
import time

import pytest

import cloche
from needs import needs
from observer import descendants, residents

# https://github.com/datarobot/datarobot-user-models/pull/2214
FORK = """
import os, time
count = 0
try:
    while count < 400:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        count += 1
    told = ["NO LIMIT", count]
except OSError as error:
    told = [error.errno, count]
told
"""
# https://github.com/python-discord/snekbox/pull/113
THREADS = """
import threading, time
count = 0
try:
    while count < 1500:
        threading.Thread(target=time.sleep, args=(10,), daemon=True).start()
        count += 1
    told = ["NO LIMIT", count]
except RuntimeError:
    told = ["stopped", count]
told
"""
# Everything that has ever been said to survive: other session, other group, no parent, signals
# ignored, pipes held, stopped.
SURVIVORS = """
import os, signal, sys, time
def survive(kind):
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
    if kind == 0:
        os.close(1)
    if kind == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        time.sleep(5)
for kind in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if kind == 2:
                os.setpgid(0, 0)
            survive(kind)
        os._exit(0)
    os.wait()
print("started", flush=True)
"""
HOLD = """
import mmap, os, time
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
room = mmap.mmap(-1, 2000 << 20, flags=flags)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            room[0] = 1
            time.sleep(5)
    os._exit(0)
os.wait()
print("held", flush=True)
"""


@pytest.fixture
def own(shared_sandbox):
    """What belongs to the sandbox itself: its launcher and the transformer's box."""
    shared_sandbox.run("1")
    return set(descendants())


def left_over(own):
    now = descendants()
    return {pid: each.command for pid, each in now.items() if pid not in own | residents(now)}


@pytest.mark.case("res-11-fork-bounded")
def test_a_fork_bomb_stops_at_the_pids_limit(shared_sandbox, own):
    result = shared_sandbox.run(FORK, language="python", pids_limit=32)
    assert left_over(own) == {}
    assert result.ok, result.error
    errno, count = result.value
    assert errno == 11
    assert 20 <= count <= 31
    # The control: outside of a box nothing stops at that number.
    control = FORK.replace("count < 400", "count < 64").replace("sleep(20)", "sleep(1)")
    done = subprocess.run(
        [sys.executable, "-c", control.rstrip().removesuffix("told") + "print(told)"],
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    assert done.stdout == "['NO LIMIT', 64]\n"


@pytest.mark.case("res-12-threads-bounded")
def test_threads_count_as_processes(shared_sandbox, own):
    result = shared_sandbox.run(THREADS, language="python", pids_limit=48)
    assert left_over(own) == {}
    assert result.ok, result.error
    told, count = result.value
    assert told == "stopped"
    assert 30 <= count <= 47


@pytest.mark.case("res-12-threads-bounded")
def test_the_default_limit_leaves_room_for_the_threads_of_a_runtime(shared_sandbox):
    code = """
const { Worker } = require("node:worker_threads");
const text = "require('node:worker_threads').parentPort.postMessage(6 * 7)";
const worker = new Worker(text, { eval: true });
return await new Promise((done, failed) => {
  worker.on("message", done);
  worker.on("error", failed);
});
"""
    result = shared_sandbox.run(code, memory_limit_mb=256)
    assert (result.ok, result.value) == (True, 42), result.error


def test_a_fork_bomb_of_javascript_children_stops_too(shared_sandbox, own):
    code = """
const { spawn } = require("node:child_process");
let started = 0, refused = 0;
for (let i = 0; i < 60; i++) {
  try {
    const idle = ["-e", "setInterval(() => {}, 1000)"];
    const child = spawn("/usr/bin/bun", idle, { detached: true, stdio: "ignore" });
    child.on("error", () => refused++);
    if (child.pid) { started++; child.unref(); } else refused++;
  } catch { refused++; }
}
await new Promise(done => setTimeout(done, 50));
return [started, refused];
"""
    result = shared_sandbox.run(code, pids_limit=40, memory_limit_mb=1024, timeout_ms=10_000)
    assert left_over(own) == {}
    if result.ok:
        started, refused = result.value
        assert refused > 0 and started < 40
    else:
        assert result.error_code is cloche.SandboxErrorCode.EXECUTION_ERROR


@pytest.mark.case("to-01-sigterm-ignored")
def test_what_ignores_every_polite_signal_is_dead_at_the_deadline(shared_sandbox, own):
    code = """
import signal, time
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_IGN)
while True:
    print("tick", flush=True)
    time.sleep(0.05)
"""
    started = time.monotonic()
    result = shared_sandbox.run(code, language="python", timeout_ms=400)
    took = time.monotonic() - started
    assert left_over(own) == {}
    assert result.error_code is cloche.SandboxErrorCode.TIMEOUT
    assert took < 1.4
    assert result.stdout.startswith("tick\ntick\n")


@pytest.mark.case("to-02-grandchild-holds-pipe")
@pytest.mark.parametrize("language", ["javascript", "python"])
def test_a_grandchild_that_holds_the_pipes_does_not_hold_up_the_result(
    shared_sandbox, own, language
):
    code = {
        "javascript": """
const { spawn } = require("node:child_process");
const idle = ["-e", "console.log('late'); setInterval(() => {}, 1000)"];
spawn("/usr/bin/bun", idle, { detached: true, stdio: "inherit" }).unref();
console.log("parent done");
""",
        "python": """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], start_new_session=True,
                 pass_fds=range(5) if os.path.exists("/proc/self/fd/3") else (0, 1, 2, 4))
print("parent done")
""",
    }[language]
    started = time.monotonic()
    result = shared_sandbox.run(code, language=language, mode="program", memory_limit_mb=256)
    took = time.monotonic() - started
    assert left_over(own) == {}
    assert result.ok, (result.error, result.stderr)
    assert "parent done\n" in result.stdout
    assert took < 2


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "os.kill(os.getpid(), 9)", "1/0",
                                 "os.abort()", "time.sleep(30)"])  # fmt: skip
def test_no_process_survives_however_the_run_ends(shared_sandbox, own, end):
    result = shared_sandbox.run(SURVIVORS + end, language="python", timeout_ms=700)
    assert left_over(own) == {}
    assert result.stdout == "started\n"
    assert result.ok == (end == "")


@needs("cgroup-memory")
@pytest.mark.parametrize("fate", ["ends", "is aborted"])
def test_a_guest_of_2_gb_is_gone_when_run_returns(shared_sandbox, own, fate):
    controller = cloche.AbortController()

    def abort(stream, text):
        if fate == "is aborted":
            controller.abort()

    code = HOLD + ("" if fate == "ends" else "while True: time.sleep(5)")
    result = shared_sandbox.run(
        code,
        language="python",
        memory_limit_mb=3000,
        timeout_ms=20_000,
        signal=controller.signal,
        on_output=abort,
    )
    left = left_over(own)
    assert left == {}
    assert result.stdout == "held\n", (result.error, result.stderr)
    assert result.usage.peak_memory_bytes > 2000 << 20
    aborted = cloche.SandboxErrorCode.ABORTED if fate == "is aborted" else None
    assert result.error_code is aborted


def test_the_next_run_starts_with_every_process_to_spare(shared_sandbox):
    for _ in range(3):
        errno, count = shared_sandbox.run(FORK, language="python", pids_limit=16).value
        assert errno == 11 and count >= 12
