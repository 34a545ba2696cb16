"""Tries for real what boxes need of the kernel, each thing in a short-lived child of its own.

A program, not a module: run by path as ``python -I -S trials.py`` with the standard library only,
so that a caller with threads never forks. It prints one JSON object: trial → [errno, detail], where
errno 0 means that it worked and the detail names the step that failed or what was found. Nothing
outside the children changes: mounts are made in mount namespaces of their own.
"""

import ctypes
import json
import os
import signal
import struct
import sys
from collections.abc import Callable

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
AT_FDCWD = -100
TRIAL_SECONDS = 3

# System calls without a C library wrapper everywhere. These numbers are the same on x86_64 and
# aarch64; getppid, which the filter of a trial refuses, is not.
OPEN_TREE, MOVE_MOUNT, FSOPEN, FSCONFIG, FSMOUNT, MOUNT_SETATTR = 428, 429, 430, 431, 432, 442
PIDFD_SEND_SIGNAL, PIDFD_OPEN, LANDLOCK_CREATE_RULESET = 424, 434, 444
GETPPID = {"x86_64": 110, "aarch64": 173}

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class _TrialError(Exception):
    def __init__(self, step: str, errno: int) -> None:
        super().__init__(step)
        self.step, self.errno = step, errno


def _check(step: str, result: int) -> int:
    if result < 0:
        raise _TrialError(step, ctypes.get_errno())
    return result


def _syscall(step: str, number: int, *args: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in args]
    return _check(step, libc.syscall(ctypes.c_long(number), *values))


def _mount(source: bytes, target: bytes, kind: bytes, flags: int, data: bytes = b"") -> None:
    _check(
        f"mount {kind.decode() or 'private'}",
        libc.mount(source, target, kind, ctypes.c_ulong(flags), data),
    )


def _write(path: str, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY)
        os.write(descriptor, text.encode())
        os.close(descriptor)
    except OSError as error:
        raise _TrialError(f"write {path}", error.errno or 0) from error


def _enter_namespaces(more: int = 0) -> None:
    """Becomes root of a new user namespace with a private mount namespace."""
    uid, gid = os.getuid(), os.getgid()
    _check("unshare user namespace", libc.unshare(CLONE_NEWUSER))
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")
    # AppArmor's restriction lets the user namespace be made and takes its capabilities away.
    _check("unshare mount and other namespaces", libc.unshare(CLONE_NEWNS | more))
    _mount(b"", b"/", b"", MS_REC | MS_PRIVATE)


def user_namespaces() -> str:
    """Makes a user namespace and uses its capabilities."""
    _enter_namespaces(CLONE_NEWNET)
    return "unshare, id maps and a private mount namespace"


def proc_mount() -> str:
    """Mounts a new /proc in a new PID namespace."""
    _enter_namespaces(CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        status = 0
        try:
            _mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        except _TrialError as failed:
            status = failed.errno
        os._exit(status)
    errno = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if errno:
        raise _TrialError("mount proc in a new PID namespace", errno)
    return "proc mounted in a new PID namespace"


def mount_api() -> str:
    """Makes, changes and attaches mounts by descriptor."""
    _enter_namespaces()
    # OPEN_TREE_CLONE | AT_RECURSIVE; a subtree can only be cloned whole in a user namespace.
    tree = _syscall("open_tree", OPEN_TREE, AT_FDCWD, b"/", 0x1 | 0x8000)
    read_only = ctypes.create_string_buffer(struct.pack("=QQQQ", 0x1, 0, 0, 0), 32)
    _syscall("mount_setattr", MOUNT_SETATTR, tree, b"", 0x1000 | 0x8000, read_only, 32)
    context = _syscall("fsopen", FSOPEN, b"tmpfs", 0)
    _syscall("fsconfig", FSCONFIG, context, 6, 0, 0, 0)  # FSCONFIG_CMD_CREATE
    scratch = _syscall("fsmount", FSMOUNT, context, 0, 0)
    # MOVE_MOUNT_F_EMPTY_PATH. /proc is a folder that every host has.
    _syscall("move_mount", MOVE_MOUNT, scratch, b"", AT_FDCWD, b"/proc", 0x4)
    return "open_tree, mount_setattr, fsopen, fsmount and move_mount"


def overlay() -> str:
    """Mounts an overlay in a user namespace."""
    _enter_namespaces()
    _mount(b"tmpfs", b"/proc", b"tmpfs", 0)
    for name in ("lower", "upper", "work", "merged"):
        os.mkdir(f"/proc/{name}")  # noqa: PTH102 (pathlib costs a third of this program's start)
    options = b"lowerdir=/proc/lower,upperdir=/proc/upper,workdir=/proc/work,userxattr"
    _mount(b"overlay", b"/proc/merged", b"overlay", 0, options)
    return "overlay mounted on tmpfs in a user namespace"


def seccomp() -> str:
    """Installs a filter that refuses one call, and makes the call."""
    number = GETPPID.get(os.uname().machine)
    if number is None:
        raise _TrialError(f"no filter for architecture {os.uname().machine}", 0)
    instructions = [
        (0x20, 0, 0, 0),  # load the call's number
        (0x15, 0, 1, number),  # is it getppid?
        (0x06, 0, 0, 0x0005_0000 | 121),  # errno 121, which getppid never has
        (0x06, 0, 0, 0x7FFF_0000),  # allow
    ]
    program = b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)

    class SockFprog(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    fprog = SockFprog(len(instructions), program)
    zero = ctypes.c_ulong(0)
    # PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with SECCOMP_MODE_FILTER.
    _check("no_new_privs", libc.prctl(38, ctypes.c_ulong(1), zero, zero, zero))
    _check("filter", libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(fprog), zero, zero))
    if libc.syscall(ctypes.c_long(number)) != -1 or ctypes.get_errno() != 121:
        raise _TrialError("the filter was installed and did not refuse", 0)
    return "a filter refused getppid"


def landlock() -> str:
    """Asks for the version of the Landlock ABI."""
    # LANDLOCK_CREATE_RULESET_VERSION
    return f"ABI {_syscall('landlock_create_ruleset', LANDLOCK_CREATE_RULESET, 0, 0, 1)}"


def pidfd() -> str:
    """Opens a pidfd and signals through it."""
    descriptor = _syscall("pidfd_open", PIDFD_OPEN, os.getpid(), 0)
    _syscall("pidfd_send_signal", PIDFD_SEND_SIGNAL, descriptor, 0, 0, 0)
    return "pidfd_open and pidfd_send_signal"


TRIALS: dict[str, Callable[[], str]] = {
    "user-namespaces": user_namespaces,
    "proc-mount": proc_mount,
    "mount-api": mount_api,
    "overlay": overlay,
    "seccomp": seccomp,
    "landlock": landlock,
    "pidfd": pidfd,
}


def _attempt(trial: Callable[[], str]) -> tuple[int, str]:
    """Runs a trial in a child and returns its (errno, detail); errno -1 when the child died."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(TRIAL_SECONDS)
        try:
            answer = (0, trial())
        except _TrialError as failed:
            answer = (failed.errno or -1, failed.step)
        except OSError as error:
            answer = (error.errno or -1, str(error))
        os.write(write_end, json.dumps(answer).encode())
        os._exit(0)
    os.close(write_end)
    answer_bytes = os.read(read_end, 4096)
    os.close(read_end)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) or not answer_bytes:
        return -1, f"the trial was killed by signal {os.WTERMSIG(status)}"
    errno, detail = json.loads(answer_bytes)
    return errno, detail


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: _attempt(trial) for name, trial in TRIALS.items()}))
