"""Threat: a guest reaches kernel code that no box needs (threat model: system calls).

Each attempt runs twice in the same way, under the default filter and without one. The control
without a filter has to reach the kernel: whatever it answers, it is not what the filter says.
"""

import errno
import json
import os
import platform
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloche.linux.seccomp import default_filter

PROGRAMS = Path(__file__).parent.parent / "programs"
pytestmark = [
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="the attempts are numbered as on x86_64"
    ),
    pytest.mark.xdist_group("seccomp-escape"),
]

EXPECTED = {
    "clone-new-user": errno.EPERM,
    "clone-new-user-high": errno.EPERM,
    "clone-new-user-net": errno.EPERM,
    "personality": errno.EPERM,
    "mknod-device": errno.EPERM,
    "prctl-seccomp": errno.EINVAL,
    "prctl-set-mm": errno.EINVAL,
    "fcntl-lease": errno.EINVAL,
    "fcntl-lease-high": errno.EINVAL,
    "fcntl-notify": errno.EINVAL,
    "tiocsti": errno.ENOTTY,
    "tiocsti-high": errno.ENOTTY,
    "tiocsctty": errno.ENOTTY,
    "socket-vsock": errno.EAFNOSUPPORT,
    "socket-vsock-high": errno.EAFNOSUPPORT,
    "socket-packet": errno.EAFNOSUPPORT,
    "socket-raw": errno.EAFNOSUPPORT,
    "socket-netlink-uevent": errno.EAFNOSUPPORT,
    "socket-netlink-audit": errno.EAFNOSUPPORT,
    "socket-mptcp": errno.EAFNOSUPPORT,
    "socketpair-inet": errno.EAFNOSUPPORT,
    "setsockopt-attach-bpf": errno.ENOPROTOOPT,
    "setsockopt-ulp": errno.ENOPROTOOPT,
    "setsockopt-congestion": errno.ENOPROTOOPT,
    "x32": -signal.SIGSYS,
    "ia32": -signal.SIGSYS,
}
WITHOUT_A_RULE = """
    clone3 unshare-user setns mount umount2 pivot_root chroot fsopen open_tree ptrace
    process_vm_readv pidfd_getfd bpf perf_event_open io_uring_setup io_uring_enter io_setup
    userfaultfd add_key keyctl memfd_create shmget semget msgget mq_open name_to_handle_at
    open_by_handle_at fanotify_init swapon quotactl syslog sync vmsplice splice mincore seccomp
""".split()
EXPECTED |= dict.fromkeys(WITHOUT_A_RULE, errno.ENOSYS)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Outcomes by attempt, without a filter and under it; standard input is a terminal."""
    folder = tmp_path_factory.mktemp("seccomp")
    (folder / "filter").write_bytes(default_filter())

    def attempt(filter_path: str) -> dict[str, int]:
        python = [sys.executable, "-I", "-S"]
        installer, attempts = PROGRAMS / "run_under_seccomp.py", PROGRAMS / "forbidden_calls.py"
        leader, follower = pty.openpty()
        done = subprocess.run(
            [*python, str(installer), filter_path, *python, str(attempts)],
            stdin=follower,
            stdout=subprocess.PIPE,
            cwd=folder,
            timeout=30,
            check=True,
        )
        os.close(leader)
        os.close(follower)
        (folder / "device").unlink(missing_ok=True)
        return json.loads(done.stdout)

    return attempt("none"), attempt(str(folder / "filter"))


def test_every_attempt_has_an_expected_answer(outcomes):
    without_filter, under_filter = outcomes
    assert set(without_filter) == set(under_filter) == set(EXPECTED)


@pytest.mark.parametrize("attempt", sorted(EXPECTED))
def test_the_filter_answers_where_else_the_kernel_would(outcomes, attempt):
    without_filter, under_filter = outcomes
    if attempt == "mknod-device" and os.geteuid() != 0:
        pytest.skip("missing fact: root (the kernel lets nobody else make a device)")
    if attempt == "x32":  # kernels without that ABI know no such number, so the control is ENOSYS
        assert without_filter[attempt] in (0, errno.ENOSYS)
    else:
        assert without_filter[attempt] != EXPECTED[attempt], "the control does not reach the kernel"
    assert under_filter[attempt] == EXPECTED[attempt]
