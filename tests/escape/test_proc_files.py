"""Threat: a guest learns or changes things of the host through /proc, /sys and /dev."""

import os

import pytest

import cloche.sync
from attack import inside, outside

# https://github.com/opencontainers/runc/security/advisories/GHSA-9493-h29p-rfm2
KNOBS = """
import json, os, sys
got = []
knobs = ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/panic_on_oom", "/dev/vda",
         "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/sys/user/max_user_namespaces",
         "/sys/kernel/uevent_helper", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/tasks",
         "/dev/kmsg", "/dev/mem", "/proc/kcore", "/proc/1/mem", "/proc/1/oom_score_adj",
         "/proc/self/uid_map", "/proc/self/setgroups", "/proc/self/attr/current"]
for path in knobs:
    try:
        os.close(os.open(path, os.O_WRONLY))
        got.append("write " + path)
    except OSError:
        pass
for path in ("/proc/kcore", "/proc/kallsyms", "/proc/keys", "/proc/cmdline", "/proc/modules",
             "/dev/mem", "/dev/kmsg", "/proc/kmsg", "/sys/kernel/notes", "/proc/1/environ",
             "/proc/1/maps", "/proc/1/cmdline"):
    try:
        with open(path, "rb") as file:
            if file.read(64).strip(b"0 \\n"):
                got.append("read " + path)
    except OSError:
        pass
print(json.dumps(got))
"""
SECRETS = """
import json, os, sys
got = []
token = sys.argv[1][::-1].encode()
for pid in [name for name in os.listdir("/proc") if name.isdecimal()] + ["1", "2", "3", "self"]:
    for name in ("environ", "cmdline", "maps", "task/" + pid + "/environ", "root/etc/shadow"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                if token in file.read():
                    got.append([pid, name])
        except OSError:
            pass
print(json.dumps(bool(got)))
"""
FIRST = """
import json, os, signal, ctypes
got = [pid for pid in os.listdir("/proc") if pid.isdecimal() and int(pid) != os.getpid()]
def attempt(name, act):
    try:
        act()
        got.append(name)
    except OSError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
for path in ("root/etc", "cwd/", "ns/mnt", "fd", "exe", "mem", "status"):
    attempt(path, lambda: os.stat("/proc/1/" + path))
    attempt("read " + path, lambda: os.listdir("/proc/1/" + path))
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
    try:
        os.kill(1, number)
    except OSError:
        pass
if libc.ptrace(16, 1, 0, 0) == 0:
    got.append("ptrace")
print(json.dumps(got))
"""


@pytest.mark.case("link-09-sensitive-proc-sys")
def test_nothing_of_the_kernel_can_be_read_or_set(shared_sandbox):
    control = outside(KNOBS)
    assert "read /proc/cmdline" in control
    if os.geteuid() == 0:
        assert "write /proc/sys/kernel/core_pattern" in control
    # A process may open its own uid_map; writing is what the kernel refuses, as outside.
    harmless = {"write /proc/self/uid_map", "write /proc/self/setgroups"}
    assert set(inside(shared_sandbox, KNOBS)) - harmless <= {"write /proc/self/attr/current"}


@pytest.mark.case("link-08-pid1-environ")
def test_no_secret_of_the_host_stands_in_a_process_of_the_box(monkeypatch):
    token = "token-08-4df2"
    monkeypatch.setenv("HOST_SECRET", token)
    assert outside(SECRETS, token[::-1]) is True
    # A sandbox of its own: its launcher starts with the secret in Cloche's environment.
    with cloche.sync.create_process_sandbox(language="python") as sandbox:
        assert inside(sandbox, SECRETS, token[::-1]) is False


def test_a_guest_neither_sees_nor_harms_the_first_process_of_its_box(shared_sandbox):
    control = outside(
        FIRST.replace("os.kill(1, number)", "pass").replace("/proc/1/", "/proc/self/")
    )
    assert {"root/etc", "read fd", "status"} <= set(control)
    assert inside(shared_sandbox, FIRST) == []


def test_the_ids_of_a_box_do_not_lead_out(shared_sandbox):
    code = """
import os
tried = []
for act in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]),
            lambda: os.seteuid(0), lambda: os.setresuid(0, 0, 0)):
    try:
        act(); tried.append("done")
    except OSError as error:
        pass
[tried, os.getresuid(), os.getgroups()]
"""
    tried, ids, groups = shared_sandbox.run(code, language="python").value
    assert tried == []
    assert ids == [1000, 1000, 1000]
    assert set(groups) <= {1000, 65534}  # a plain user cannot drop groups: they map to nobody
