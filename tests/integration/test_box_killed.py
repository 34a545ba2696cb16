"""Cloche, its launcher or a box's init is killed at any time: nothing lives on, nothing is left."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import cloche
import cloche.sync
from needs import BOX, needs
from observer import cgroup_folders, descendants, residents

pytestmark = needs(*BOX, "runtime-bun", "runtime-python")
HOST = Path(__file__).parents[1] / "programs" / "killed_host.py"
INSTANTS = 25  # in each of 8 chunks, which two workers can share
CHUNKS = [*(("warm", number) for number in range(6)), ("cold", 0), ("cold", 1)]
PATIENCE_S = 2.0
SPIN = """
import os, time
if os.fork():
    print("started", flush=True)
while True:
    time.sleep(5)
"""


@pytest.fixture
def host():
    process = subprocess.Popen(
        [sys.executable, str(HOST)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait(10)


def wait_for(condition, seconds=PATIENCE_S):
    """Waits until a condition holds; returns how long it took, None if it never did."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        if condition():
            return time.monotonic() - start
        time.sleep(0.002)
    return None


def instants(moment, chunk):
    """(language, milliseconds from the moment), the same at every run of the tests."""
    chance = random.Random(f"{moment} {chunk}")
    for number in range(INSTANTS):
        language = "javascript" if number % 4 == 0 else "python"
        if moment == "cold":
            yield language, chance.uniform(0, 400)
        else:
            yield language, chance.uniform(0, 5 if number % 2 else 60)


def kill_host(host, language, moment, wait, before):
    """Has a host started, kills it after `wait(new)` and returns what was left of it.

    `new` gives the processes that are there since then.
    """
    host.stdin.write(f"{language} {moment}\n")
    host.stdin.flush()
    pid = int(host.stdout.readline())

    def new():
        return {each: found for each, found in descendants().items() if each not in before}

    wait(new)
    # Before there is a launcher, nobody is left who could clear the groups away at once: the
    # next start does (`cgroup.sweep`).
    has_launcher = any(found.parent == pid and found.launches for found in new().values())
    os.kill(pid, signal.SIGKILL)
    assert host.stdout.readline() == "ended\n"
    left = []
    if wait_for(lambda: not new()) is None:
        left += [found.command for found in new().values()]
    if has_launcher and wait_for(lambda: not cgroup_folders(pid)) is None:
        left += sorted(map(str, cgroup_folders(pid)))
    remove_groups(pid)
    return left


@pytest.mark.parametrize(("moment", "chunk"), CHUNKS)
def test_nothing_outlives_a_host_that_is_killed_at_any_instant(host, moment, chunk):
    """Warm: a run is in flight, or being started. Cold: the launcher is being started, too."""
    before = set(descendants())
    for language, after_ms in instants(moment, chunk):
        left = kill_host(host, language, moment, lambda _, s=after_ms / 1000: time.sleep(s), before)
        assert left == [], f"{language}, killed after {after_ms:.3f} ms"

    # The control: host, launcher, init and guest can be there to be killed.
    def wait_for_all(new):
        assert wait_for(lambda: len(new()) >= 4, 10) is not None

    assert kill_host(host, "python", moment, wait_for_all, before) == []


def remove_groups(owner):
    """Clears away what is left, so that one failure is not followed by others."""
    for folder in sorted(cgroup_folders(owner), reverse=True):
        with suppress(OSError):  # its launcher has only just begun
            folder.rmdir()


def find_launcher():
    (launcher,) = (pid for pid, each in descendants().items() if each.is_launcher)
    return launcher


def run_until_killed(sandbox, runs_count, kill):
    """Starts runs that never end, kills something when all have started; returns what came."""
    started = []

    def note(stream, text):
        started.append(text)

    def run(_):
        try:
            return sandbox.run(SPIN, language="python", on_output=note, timeout_ms=20_000)
        except cloche.ClocheError as error:
            return error

    with ThreadPoolExecutor(runs_count) as pool:
        futures = [pool.submit(run, number) for number in range(runs_count)]
        assert wait_for(lambda: "".join(started).count("started") >= runs_count, 10) is not None
        kill()
        return [future.result(10) for future in futures]


def test_a_killed_launcher_fails_the_runs_in_flight_and_the_next_run_works():
    with cloche.sync.create_process_sandbox(pool_size=0) as sandbox:
        assert sandbox.run("1 + 1").value == 2
        first = find_launcher()
        before = set(descendants()) - residents(descendants())
        errors = run_until_killed(sandbox, 3, lambda: os.kill(first, signal.SIGKILL))
        assert {type(error) for error in errors} == {cloche.InternalError}
        assert not any(error.retry_safe for error in errors)  # guest code had started
        # The runs' boxes are gone by now; those that were kept ahead die of the same death.
        assert wait_for(lambda: not set(descendants()) - residents(descendants()) - before)
        assert sandbox.run("2 + 2", language="python").value == 4
        assert sandbox.run("3 + 3").value == 6
        assert find_launcher() != first


def test_a_launcher_killed_between_runs_is_not_noticed_by_the_next_one():
    with cloche.sync.create_process_sandbox(pool_size=0) as sandbox:
        for language in ("javascript", "python", "typescript"):
            assert sandbox.run("1 + 1", language=language).value == 2
            os.kill(find_launcher(), signal.SIGKILL)
            assert wait_for(lambda: not set(descendants()) & residents(descendants())) is not None
        assert sandbox.run("1 + 1").value == 2


def test_a_killed_init_fails_its_own_run_alone():
    with cloche.sync.create_process_sandbox(language="python", pool_size=0) as sandbox:
        sandbox.run("1")
        launcher = find_launcher()

        def kill_one():
            now = descendants().values()
            inits = {each.pid for each in now if each.parent == launcher}
            (busy,) = {each.parent for each in now if each.parent in inits and not each.launches}
            os.kill(busy, signal.SIGKILL)

        errors = run_until_killed(sandbox, 1, kill_one)
        assert isinstance(errors[0], cloche.InternalError)
        assert sandbox.run("2 + 2").value == 4
        assert find_launcher() == launcher


def test_a_guest_killed_from_outside_is_a_result_not_an_error():
    with cloche.sync.create_process_sandbox(language="python", pool_size=0) as sandbox:
        sandbox.run("1")
        launcher = find_launcher()

        def kill_guest():
            now = descendants()
            inits = {pid for pid, each in now.items() if each.parent == launcher}
            for pid, each in now.items():
                if each.parent in inits:
                    os.kill(pid, signal.SIGKILL)

        (result,) = run_until_killed(sandbox, 1, kill_guest)
        assert result.error_code is cloche.SandboxErrorCode.EXECUTION_ERROR
        assert (result.signal, result.stdout) == (9, "started\n")


def test_a_launcher_killed_as_a_run_begins_costs_the_run_nothing_but_time():
    with cloche.sync.create_process_sandbox(language="python", pool_size=0) as sandbox:
        for delay_ms in (0, 1, 2, 3, 4):
            sandbox.run("1")
            launcher = find_launcher()
            killer = threading.Timer(delay_ms / 1000, os.kill, (launcher, signal.SIGKILL))
            killer.start()
            try:
                assert sandbox.run("2 + 2").value == 4
            except cloche.InternalError as error:
                assert not error.retry_safe  # the code had started already
            killer.join()
            assert wait_for(lambda dead=launcher: dead not in descendants()) is not None
