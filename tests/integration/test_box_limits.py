"""Descriptors, watches, sparse and deep files: what no memory limit counts."""

from contextlib import ExitStack

import pytest

# https://github.com/google/gvisor/issues/6547
DESCRIPTORS = """
held = []
try:
    while len(held) < 200_000:
        held.append(open("/dev/null"))
    told = ["NO LIMIT", len(held)]
except OSError as error:
    told = [error.errno, len(held)]
del held
told
"""
WATCHES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
held = []
while len(held) < 4096:
    instance = libc.inotify_init1(0)
    if instance < 0:
        break
    held.append(instance)
[len(held), ctypes.get_errno()]
"""


@pytest.mark.case("res-14-fd-exhaustion")
def test_descriptors_stop_at_their_limit_and_the_host_has_its_own(shared_sandbox):
    opened = []

    def open_many(stream, text):
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(open("/dev/null"))
        opened.append(text)

    code = DESCRIPTORS.replace("del held", "print('full', flush=True)\ndel held")
    result = shared_sandbox.run(code, language="python", on_output=open_many)
    assert result.ok, result.error
    errno, count = result.value
    assert errno == 24
    assert 900 < count < 1024
    assert opened == ["full\n"]


def test_instances_of_inotify_are_the_boxs_own_and_few(shared_sandbox):
    for _ in range(3):
        result = shared_sandbox.run(WATCHES, language="python")
        count, errno = result.value
        assert errno == 24
        assert 1 <= count <= 16


def test_what_locks_memory_or_queues_signals_is_bounded(shared_sandbox):
    code = """
import resource
[resource.getrlimit(getattr(resource, name))[1] for name in
 ("RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_NPROC")]
"""
    memlock, queue, core, files, processes = shared_sandbox.run(code, language="python").value
    assert memlock <= 64 * 1024
    assert (queue, core, files) == (0, 0, 1024)
    assert 0 < processes <= 65


@pytest.mark.parametrize("name", ["RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_CORE", "RLIMIT_FSIZE"])
def test_a_guest_cannot_raise_its_limits(shared_sandbox, name):
    code = f"""
import resource
hard = resource.getrlimit(resource.{name})[1]
try:
    resource.setrlimit(resource.{name}, (hard + 1, hard + 1))
    told = "raised"
except (ValueError, OSError):
    told = "refused"
told
"""
    assert shared_sandbox.run(code, language="python").value == "refused"


def test_a_guest_cannot_raise_its_priority(shared_sandbox):
    code = """
import os
told = []
first = os.sched_param(1)
for act in (lambda: os.nice(-5), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, first)):
    try:
        act()
        told.append("done")
    except OSError:
        pass
told
"""
    assert shared_sandbox.run(code, language="python").value == []


def test_a_sparse_file_holds_no_more_than_its_limit(shared_sandbox):
    code = """
import os
told = []
with open("sparse", "wb") as file:
    for size in (16 << 20, 1 << 40):
        try:
            file.truncate(size)
            told.append("made")
        except OSError as error:
            told.append(error.errno)
    try:
        os.posix_fallocate(file.fileno(), 0, 1 << 30)
        told.append("allocated")
    except OSError as error:
        told.append(error.errno)
told
"""
    result = shared_sandbox.run(code, language="python", allow_fs=True, scratch_limit_mb=32)
    assert result.ok, (result.error, result.signal)
    made, giant, allocated = result.value
    assert made == "made"
    assert giant == 27  # EFBIG
    assert allocated in (27, 28)


@pytest.mark.case("link-03-cleanup-chown")
def test_a_tree_too_deep_to_walk_is_gone_with_its_box(shared_sandbox):
    code = """
import os
for place in ("/workspace", "/tmp"):
    os.chdir(place)
    for _ in range(4000):
        os.mkdir("d" * 20)
        os.chdir("d" * 20)
    os.chmod(".", 0)
"made"
"""
    result = shared_sandbox.run(code, language="python", allow_fs=True, timeout_ms=10_000)
    assert result.value == "made", result.error
    assert shared_sandbox.run("import os\nos.listdir('/tmp')", language="python").value == []


def test_a_full_scratch_does_not_take_the_result_away(shared_sandbox):
    code = """
try:
    with open("/workspace/full", "wb") as file:
        while True:
            file.write(bytes(1 << 16))
except OSError:
    print("full")
"still here"
"""
    result = shared_sandbox.run(code, language="python", allow_fs=True, scratch_limit_mb=4)
    assert (result.value, result.stdout) == ("still here", "full\n"), result.error
