"""Threat: a run finds what an earlier one left (threat model: one run from another)."""

from concurrent.futures import ThreadPoolExecutor

import pytest

# Plants in every place that could be shared, after having looked there.
PLANT = """
import builtins, os, signal
places = ["/tmp/left", "/dev/shm/left", "/workspace/left", os.path.expanduser("~/left"), "/left",
          "/var/tmp/left", "/proc/self/cwd/left", "/usr/lib/left"]
seen = [place for place in places if os.path.exists(place)]
seen += [name for name in ("left",) if name in globals() or hasattr(builtins, name)]
seen += [pid for pid in os.listdir("/proc") if pid.isdecimal() and int(pid) != os.getpid()]
left = builtins.left = 1
planted = []
for place in places:
    try:
        with open(place, "w") as file:
            file.write("left")
        planted.append(place)
    except OSError:
        pass
if os.fork() == 0:
    os.setsid()
    signal.pause()
[seen, planted]
"""
GLOBALS = """
const seen = [globalThis.left, Object.prototype.left, process.env.LEFT, Array.prototype.left];
for (const it of [globalThis, Object.prototype, Array.prototype]) {
  Object.defineProperty(it, "left", { value: "1", configurable: true, writable: true });
}
process.env.LEFT = "1";
return seen.filter(it => it !== undefined);
"""


@pytest.mark.case("file-04-cross-run-residue")
def test_a_second_run_sees_no_file_and_no_process_of_the_first(shared_sandbox):
    for _ in range(2):
        result = shared_sandbox.run(PLANT, language="python", allow_fs=True)
        assert result.ok, result.error
        seen, planted = result.value
        assert seen == []
        assert {"/tmp/left", "/dev/shm/left", "/workspace/left"} <= set(planted)


@pytest.mark.case("file-04-cross-run-residue")
def test_a_second_run_has_its_own_interpreter(shared_sandbox):
    for _ in range(2):
        assert shared_sandbox.run(GLOBALS).value == []


def test_two_runs_at_once_do_not_see_each_other(shared_sandbox):
    look = """
import os, socket, time
mine = socket.socket(socket.AF_UNIX); mine.bind("\\0same-name"); mine.listen()
port = socket.create_server(("127.0.0.1", 4321))
open("/tmp/same-name", "x").close()
time.sleep(0.2)
[pid for pid in os.listdir("/proc") if pid.isdecimal()] == [str(os.getpid())]
"""

    def run(_):
        return shared_sandbox.run(look, language="python", allow_fs=True)

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(run, range(3)))
    assert [(result.ok, result.value) for result in results] == [(True, True)] * 3
