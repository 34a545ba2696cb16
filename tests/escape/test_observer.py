"""The outside observer and `needs` themselves: they must see what they are there to see."""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

import cloche
import cloche.sync
from cloche.linux import cgroup
from cloche.linux.facts import Fact, Verdict
from needs import BOX, EXPECTED_OF_ROOT, needs, require_facts
from observer import Snapshot, cgroup_folders, leftovers, settled

ORPHAN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(30)
    os._exit(0)
os.wait()
"""


def test_nothing_done_leaves_nothing():
    assert leftovers(Snapshot.take(), allow_residents=True) == []


def test_a_double_forked_process_in_a_session_of_its_own_is_found():
    before = Snapshot.take()
    started = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    orphan = int(started.stdout.readline())
    started.stdout.close()
    started.wait()
    left = leftovers(before, allow_residents=True)
    os.kill(orphan, 9)
    os.waitpid(orphan, 0)
    assert [line.split(":")[0] for line in left] == [f"process {orphan}"]


@needs(*BOX, "runtime-python")
def test_a_process_of_a_run_is_found_at_once():
    code = "print('started', flush=True)\nimport time\ntime.sleep(30)"
    before, started, controller = settled(), Event(), cloche.AbortController()
    with ThreadPoolExecutor(1) as pool, cloche.sync.create_process_sandbox() as sandbox:
        run = pool.submit(
            sandbox.run,
            code,
            language="python",
            signal=controller.signal,
            on_output=lambda *_: started.set(),
        )
        assert started.wait(10)
        left = leftovers(before, allow_residents=True)
        controller.abort()
        assert run.result(10).error_code == "SANDBOX_ABORTED"
    assert len(left) == 1
    assert "of a run: /usr/bin/python3" in left[0]


def test_an_open_descriptor_is_found():
    before = Snapshot.take()
    with open("/dev/null"):
        left = leftovers(before, allow_residents=True)
    assert left == ["descriptor: 1 more of /dev/null"]


def test_a_temporary_file_is_found():
    before = Snapshot.take()
    path = Path(tempfile.mkdtemp())
    left = leftovers(before, allow_residents=True)
    path.rmdir()
    assert left == [f"temporary file: {path.name}"]


@needs("cgroup-memory")
def test_a_cgroup_is_found():
    before = Snapshot.take()
    parents = cgroup.find_parents(f"cloche-{os.getpid()}-observer")
    left = leftovers(before, allow_residents=True)
    cgroup.remove_parents(parents)
    assert left and all(line.startswith("cgroup: ") for line in left)
    assert not cgroup_folders()


@pytest.mark.parametrize("user_id", [0, 1000])
@pytest.mark.parametrize("name", ["cgroup-memory", "docker"])
def test_a_missing_fact_skips_and_where_it_is_expected_fails(monkeypatch, user_id, name):
    facts = {name: Fact(name, Verdict.MISSING, "looked and found nothing", "mend it")}
    monkeypatch.setattr("needs.host_facts", lambda: facts)
    monkeypatch.setattr("os.geteuid", lambda: user_id)
    expected = user_id == 0 and name in EXPECTED_OF_ROOT
    outcome = pytest.fail.Exception if expected else pytest.skip.Exception
    with pytest.raises(outcome, match=f"missing fact: {name} .looked and found nothing"):
        require_facts(name)
    facts[name] = Fact(name, Verdict.OK, "there")
    require_facts(name)
