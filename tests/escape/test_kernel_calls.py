"""Threat: a guest reaches the kernel round the filter, or the terminal that Cloche stands in.

`test_seccomp.py` tries each call under the filter alone; here the guest of a whole box tries.
"""

import json
import os
import platform
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from attack import inside, outside

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the calls are numbered as on x86_64"
)

# https://github.com/containerd/containerd/issues/9048
CALLS = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(4096)
zero = ctypes.c_long(0)
calls = {"io_uring_setup": (425, 4, room), "io_setup": (206, 1, room),
         "memfd_create": (319, b"x", 0),
         "shmget": (29, 0, 4096, 0o1600), "msgget": (68, 0, 0o1600), "semget": (64, 0, 1, 0o1600),
         "mq_open": (240, b"cloche", 0o102, 0o600, 0), "add_key": (248, b"user", b"k", b"v", 1, -4),
         "userfaultfd": (323, 1), "unshare": (272, 0x10000000), "landlock": (444, 0, 0, 1),
         "clone3": (435, room, 8), "inotify_init1": (294, 0), "ptrace": (101, 0, 0, 0, 0)}
got = []
for name, (number, *arguments) in calls.items():
    if os.fork() == 0:
        words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
        result = libc.syscall(ctypes.c_long(number), *words, zero, zero)
        os._exit(1 if result < 0 and ctypes.get_errno() in (1, 13, 38) else 0)
    if os.waitstatus_to_exitcode(os.wait()[1]) == 0:
        got.append(name)
print(json.dumps(got))
"""
# https://github.com/containers/bubblewrap/issues/142
INJECT = """
import ctypes, fcntl, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
ends = [0, 1, 2]
try:
    ends.append(os.open("/dev/tty", os.O_RDWR))
except OSError:
    pass
got = []
for end in ends:
    # TIOCSTI, the same with a bit above the 32 that the kernel reads, TIOCLINUX.
    for request in (0x5412, 0x5412 + (1 << 32), 0x541C):
        letter = ctypes.c_char(b"#")
        if libc.syscall(16, end, ctypes.c_ulong(request), ctypes.byref(letter)) == 0:
            got.append([end, request])
print(json.dumps([got, [end for end in ends if os.isatty(end)]]))
"""
HOST = """
import json, sys
import cloche.sync
with cloche.sync.create_process_sandbox(language="python") as sandbox:
    result = sandbox.run(sys.argv[1], mode="program")
    print(json.dumps([result.ok, result.stdout]), file=sys.stderr)
"""


@pytest.mark.case("esc-12-io-uring")
def test_no_way_round_the_filter_is_open(shared_sandbox):
    control = set(outside(CALLS))
    assert {"memfd_create", "shmget", "inotify_init1", "landlock"} <= control
    if os.geteuid() == 0:
        assert {"io_uring_setup", "io_setup", "unshare", "userfaultfd"} <= control
    assert inside(shared_sandbox, CALLS) == ["inotify_init1"]


def _may_inject():
    """Since Linux 6.2 an administrator may keep it from all but root."""
    setting = Path("/proc/sys/dev/tty/legacy_tiocsti")
    return os.geteuid() == 0 or not setting.exists() or setting.read_text() == "1\n"


@pytest.mark.case("esc-14-tiocsti")
def test_nothing_is_typed_into_the_terminal_that_cloche_stands_in():
    def in_terminal(command):
        """Runs a command whose descriptors 0, 1 and controlling terminal are a new terminal."""
        leader, follower = pty.openpty()
        attributes = termios.tcgetattr(follower)
        attributes[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(follower, termios.TCSANOW, attributes)
        process = subprocess.Popen(
            [sys.executable, "-c", "import os, fcntl, sys; os.setsid();"
             " fcntl.ioctl(0, 0x540E, 0); os.execv(sys.argv[1], sys.argv[1:])", *command],
            stdin=follower, stdout=follower, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        told = process.communicate(timeout=30)[1]
        os.set_blocking(follower, False)
        try:
            typed = os.read(follower, 99)
        except BlockingIOError:
            typed = b""
        os.close(leader)
        os.close(follower)
        return told, typed

    plain = INJECT.replace("print(", "print(file=sys.stderr, *(").replace("]]))", "]]),))")
    told, typed = in_terminal([sys.executable, "-c", plain])
    assert json.loads(told)[1] == [0, 1, 3]  # there is a terminal to inject into
    assert (b"#" in typed) == _may_inject()
    told, typed = in_terminal([sys.executable, "-c", HOST, INJECT])
    ok, printed = json.loads(told.splitlines()[-1])
    assert ok and json.loads(printed) == [[], []]
    assert typed == b""
