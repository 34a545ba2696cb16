"""The system calls that the standard library lacks, one thin function each.

Every function raises `OSError` with the call's name when the kernel refuses.
Numbers are those of the unified table (Linux 5.1 and later use one number on
every architecture); `clone` and `pivot_root` are older and differ.

Source: man 2 of each call; include/uapi/linux/{mount,sched,prctl,seccomp}.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# PyDLL keeps the interpreter lock across the call: a child of `clone` starts
# with the lock held by the only thread there is.
_libc = ctypes.PyDLL(None, use_errno=True)

_CLONE, _PIVOT_ROOT, _CAPSET = {
    "x86_64": (56, 155, 126),
    "aarch64": (220, 41, 91),
}[platform.machine()]
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLOSE_RANGE, _OPENAT2 = 436, 437

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
_CLONE_PIDFD = 0x00001000
_SIGCHLD = 17

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

_OPEN_TREE_CLONE = 1
_AT_RECURSIVE = 0x8000
_AT_EMPTY_PATH = 0x1000
_AT_FDCWD = -100
_EMPTY = b""
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOVE_MOUNT_T_EMPTY_PATH = 0x40
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV, _MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
_MOUNT_ATTR_IDMAP = 0x00100000

RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS = 0x02, 0x04
RESOLVE_BENEATH, RESOLVE_IN_ROOT = 0x08, 0x10

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_LINUX_CAPABILITY_VERSION_3 = 0x20080522


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


class _OpenHow(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def _check(result: int, call: str, path: str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}", path)
    return result


# Declared once: a conversion per call costs more than most of the calls.
_syscall6 = _libc.syscall
_syscall6.argtypes = [ctypes.c_long] * 7
_syscall6.restype = ctypes.c_long
_mount = _libc.mount
_mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
_umount2 = _libc.umount2
_umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc_prctl = _libc.prctl
_libc_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def _address(value: ctypes.Structure | ctypes.Array[Any] | ctypes.c_int | bytes) -> int:
    """Where a structure, an array or a byte string (kept by the caller) lies in memory."""
    if isinstance(value, bytes):
        return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value or 0
    return ctypes.addressof(value)


def _syscall(number: int, *arguments: int) -> int:
    return int(_syscall6(number, *arguments, *(0,) * (6 - len(arguments))))


def clone(flags: int) -> tuple[int, int]:
    """Forks into new namespaces. Returns (pid, pidfd) in the parent, (0, -1) in the child.

    Requires: a single-threaded caller.
    """
    pidfd = ctypes.c_int(-1)
    pid = _syscall(_CLONE, flags | _CLONE_PIDFD | _SIGCHLD, 0, _address(pidfd))
    if pid == 0:
        return 0, -1
    return _check(pid, "clone"), pidfd.value


def unshare(flags: int) -> None:
    """Moves this process into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2)."""
    result = _mount(source.encode(), target.encode(), kind.encode(), flags, options.encode())
    _check(result, "mount", target)


def unmount(target: str) -> None:
    """Detaches the mount at `target` with all below it."""
    _check(_umount2(target.encode(), MNT_DETACH), "umount2", target)


def open_tree(path: str, *, at: int = _AT_FDCWD, recursive: bool = False) -> int:
    """Clones the mount at `path` (or at the descriptor `at` when `path` is empty), detached."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    flags |= 0 if path else _AT_EMPTY_PATH
    name = path.encode()
    return _check(_syscall(_OPEN_TREE, at, _address(name), flags), "open_tree", path)


def move_mount(tree: int, target: str | int) -> None:
    """Attaches a detached mount at a path or on a descriptor."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH
    at, path = _AT_FDCWD, b""
    if isinstance(target, int):
        flags |= _MOVE_MOUNT_T_EMPTY_PATH
        at = target
    else:
        path = target.encode()
    result = _syscall(_MOVE_MOUNT, tree, _address(_EMPTY), at, _address(path), flags)
    _check(result, "move_mount", str(target))


def set_mount_attributes(
    tree: int,
    *,
    read_only: bool,
    executable: bool = True,
    devices: bool = False,
    owners: int | None = None,
) -> None:
    """Makes a detached tree nosuid (and as asked) at every level of it.

    Args:
        tree: The detached tree.
        read_only, executable, devices: What it allows.
        owners: A user namespace whose id map says whose files (inside) are whose (outside).
    """
    attributes = _MountAttr(set=_MOUNT_ATTR_NOSUID)
    if owners is not None:
        attributes.set |= _MOUNT_ATTR_IDMAP
        attributes.userns_fd = owners
    attributes.set |= 0 if devices else _MOUNT_ATTR_NODEV
    attributes.set |= _MOUNT_ATTR_RDONLY if read_only else 0
    attributes.set |= 0 if executable else _MOUNT_ATTR_NOEXEC
    flags, size = _AT_EMPTY_PATH | _AT_RECURSIVE, ctypes.sizeof(attributes)
    where = (_address(_EMPTY), flags, _address(attributes), size)
    _check(_syscall(_MOUNT_SETATTR, tree, *where), "mount_setattr")


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2)."""
    new, old = new_root.encode(), put_old.encode()
    _check(_syscall(_PIVOT_ROOT, _address(new), _address(old)), "pivot_root", new_root)


def open_beneath(at: int, path: str, flags: int, mode: int = 0, *, resolve: int) -> int:
    """openat2(2) with the given RESOLVE_ flags."""
    how = _OpenHow(flags=flags | os.O_CLOEXEC, mode=mode, resolve=resolve)
    name = os.fsencode(path)
    result = _syscall(_OPENAT2, at, _address(name), _address(how), ctypes.sizeof(how))
    return _check(result, "openat2", path)


def close_all_but(keep: list[int]) -> None:
    """Closes every descriptor except those in `keep`."""
    low = 0
    for descriptor in [*sorted(keep), 0x7FFFFFFF]:
        if low < descriptor:
            _syscall(_CLOSE_RANGE, low, descriptor - 1)
        low = descriptor + 1


def _prctl(option: int, first: int, second: int = 0, *, call: str) -> None:
    _check(_libc_prctl(option, first, second, 0, 0), call)


def die_with_parent() -> None:
    """Asks for SIGKILL when the parent (a single-threaded one) ends."""
    _prctl(_PR_SET_PDEATHSIG, 9, call="prctl(PR_SET_PDEATHSIG)")


def forbid_inspection() -> None:
    """Makes this process undumpable: its /proc files and memory are closed to its own uid."""
    _prctl(_PR_SET_DUMPABLE, 0, call="prctl(PR_SET_DUMPABLE)")


def allow_inspection() -> None:
    """Undoes `forbid_inspection`, for a process that is about to exec."""
    _prctl(_PR_SET_DUMPABLE, 1, call="prctl(PR_SET_DUMPABLE)")


def forbid_new_privileges() -> None:
    """Sets no_new_privs, for good."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, call="prctl(PR_SET_NO_NEW_PRIVS)")


def empty_bounding_set() -> None:
    """Drops every capability from the bounding set: no exec can bring one back."""
    for capability in range(64):
        if _libc_prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            if capability and ctypes.get_errno() == errno.EINVAL:
                return  # past the last one this kernel knows
            _check(-1, "prctl(PR_CAPBSET_DROP)")


def drop_capabilities() -> None:
    """Empties the ambient, effective, permitted and inheritable sets."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, call="prctl(PR_CAP_AMBIENT)")
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    empty = (ctypes.c_uint32 * 6)()
    _check(_syscall(_CAPSET, _address(header), _address(empty)), "capset")


def install_filter(program: bytes) -> None:
    """Installs a seccomp filter, an array of struct sock_filter (8 bytes each)."""
    structure = _FilterProgram(len(program) // 8, program)
    result = _libc_prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _address(structure), 0, 0)
    _check(result, "prctl(PR_SET_SECCOMP)")
