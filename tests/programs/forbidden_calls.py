"""Tries what a box must not do, each in a child of its own; prints one JSON object of outcomes.

They are asked so that nothing outside the child changes even where no filter stops them: of names
that do not exist, on descriptors that are not open, or in the child alone.

An outcome is an errno, 0 for success, or minus the signal that killed the child.
"""

import ctypes
import json
import mmap
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
buffer = ctypes.create_string_buffer(4096)
HIGH = 1 << 32
SIGCHLD = 17
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


def call(number, *args):
    converted = [
        a if isinstance(a, ctypes.Array | bytes) else ctypes.c_ulong(a % (1 << 64)) for a in args
    ]
    result = libc.syscall(ctypes.c_long(number), *converted)
    if result >= 0 and number == 56 and result == 0:
        os._exit(0)  # the child that clone(2) made
    return 0 if result >= 0 else ctypes.get_errno()


def terminal(request):
    """On standard input, which the test makes a terminal."""
    return call(16, 0, request, b"#")


def machine_code(code):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return 0 if ctypes.CFUNCTYPE(ctypes.c_long)(address)() > 0 else 1


def socket(family, kind, protocol=0):
    return call(41, family, kind, protocol)


def socket_option(level, option):
    """With no value, so what the kernel knows it answers with EINVAL or EFAULT."""
    return call(54, libc.syscall(41, 2, 1, 0), level, option, buffer, 0)


ATTEMPTS = {
    "clone3": lambda: call(435, 0, 0),
    "clone-new-user": lambda: call(56, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0),
    "clone-new-user-high": lambda: call(56, CLONE_NEWUSER | SIGCHLD | HIGH, 0, 0, 0, 0),
    "clone-new-user-net": lambda: call(56, CLONE_NEWUSER | CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0),
    "unshare-user": lambda: call(272, CLONE_NEWUSER),
    "setns": lambda: call(308, os.open("/proc/self/ns/mnt", os.O_RDONLY), 0),
    "mount": lambda: call(165, b"x\0", b"/nonexistent\0", b"tmpfs\0", 0, 0),
    "umount2": lambda: call(166, b"/nonexistent\0", 0),
    "pivot_root": lambda: call(155, b"/nonexistent\0", b"/nonexistent\0"),
    "chroot": lambda: call(161, b"/\0"),
    "fsopen": lambda: call(430, b"tmpfs\0", 0),
    "open_tree": lambda: call(428, -100, b"/\0", 1),
    "ptrace": lambda: call(101, 0, 0, 0, 0),
    "process_vm_readv": lambda: call(310, os.getpid(), 0, 0, 0, 0, 0),
    "pidfd_getfd": lambda: call(438, 99, 0, 0),
    "bpf": lambda: call(321, 99, 0, 0),
    "perf_event_open": lambda: call(298, buffer, 0, -1, -1, 0),
    "io_uring_setup": lambda: call(425, 4, ctypes.create_string_buffer(256)),
    "io_uring_enter": lambda: call(426, 99, 0, 0, 0, 0, 0),
    "io_setup": lambda: call(206, 1, ctypes.create_string_buffer(8)),
    "userfaultfd": lambda: call(323, 1),
    "add_key": lambda: call(248, b"user\0", b"n\0", b"v", 1, -3),
    "keyctl": lambda: call(250, 0, -3, 0, 0, 0),
    "memfd_create": lambda: call(319, b"m\0", 0),
    "shmget": lambda: call(29, 0x434C4F43, 4096, 0),
    "semget": lambda: call(64, 0x434C4F43, 1, 0),
    "msgget": lambda: call(68, 0x434C4F43, 0),
    "mq_open": lambda: call(240, b"cloche-test\0", 0, 0, 0),
    "name_to_handle_at": lambda: call(303, -100, b"/\0", buffer, buffer, 0),
    "open_by_handle_at": lambda: call(304, -100, buffer, 0),
    "fanotify_init": lambda: call(300, 0x200, 0),
    "swapon": lambda: call(167, b"/nonexistent\0", 0),
    "quotactl": lambda: call(179, -1, 0, 0, 0),
    "syslog": lambda: call(103, 10, 0, 0),
    "sync": lambda: call(306, 0),
    "vmsplice": lambda: call(278, 99, 0, 0, 0),
    "splice": lambda: call(275, 99, 0, 99, 0, 0, 0),
    "mincore": lambda: call(27, 0, 0, 0),
    "seccomp": lambda: call(317, 2, 0, 0),
    "personality": lambda: call(135, 0x40000),
    "prctl-seccomp": lambda: call(157, 22, 1, 0, 0, 0),
    "prctl-set-mm": lambda: call(157, 35, 0, 0, 0, 0),
    "mknod-device": lambda: call(133, b"device\0", 0o20666, 0x103),
    "fcntl-lease": lambda: call(72, os.open(sys.executable, os.O_RDONLY), 1024, 2),
    "fcntl-notify": lambda: call(72, os.open("/tmp", os.O_RDONLY), 1026, 2),
    "fcntl-lease-high": lambda: call(72, os.open(sys.executable, os.O_RDONLY), 1024 + HIGH, 2),
    "tiocsti": lambda: terminal(0x5412),
    "tiocsti-high": lambda: terminal(0x5412 + HIGH),
    "tiocsctty": lambda: terminal(0x540E),
    "socket-vsock": lambda: socket(40, 1),
    "socket-vsock-high": lambda: socket(40 + HIGH, 1),
    "socket-packet": lambda: socket(17, 3),
    "socket-raw": lambda: socket(2, 3, 1),
    "socket-netlink-uevent": lambda: socket(16, 3, 15),
    "socket-netlink-audit": lambda: socket(16, 3, 9),
    "socket-mptcp": lambda: socket(2, 1, 262),
    "socketpair-inet": lambda: call(53, 2, 1, 0, buffer),
    "setsockopt-attach-bpf": lambda: socket_option(1, 50),
    "setsockopt-ulp": lambda: socket_option(6, 31),
    "setsockopt-congestion": lambda: socket_option(6, 13),
    "x32": lambda: call(0x40000000 | 39),
    "ia32": lambda: machine_code(b"\xb8\x14\0\0\0\xcd\x80\xc3"),  # mov eax, 20; int 0x80; ret
}


def outcome(attempt):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = attempt()
        except OSError as error:
            answer = error.errno
        os.write(write_end, str(answer).encode())
        os._exit(0)
    os.close(write_end)
    _, status = os.waitpid(pid, 0)
    text = os.read(read_end, 16)
    os.close(read_end)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else int(text or b"0")


print(json.dumps({name: outcome(attempt) for name, attempt in ATTEMPTS.items()}))
