"""The system calls that a box's programs may make, as data: one rule and one reason a line.

What no rule names is answered with ENOSYS, as on a kernel without it: runtimes probe for newer
calls and fall back. So absent on purpose, among others: ``clone3`` (its flags lie in memory, where
a filter cannot look), ``unshare``, ``setns``, the mount calls, ``chroot``, ``ptrace``,
``process_vm_*``, ``bpf``, ``perf_event_open``, ``io_uring_*``, ``io_setup`` (asynchronous I/O),
``userfaultfd``, the key ring, ``memfd_create`` and SysV shared memory (memory outside a process's
own size), every message queue, file handles, ``sync`` (it flushes the host's disks), ``splice``
and ``vmsplice``, ``mincore`` (tells what the host has cached), ``seccomp``, and whatever loads
modules, sets clocks or restarts the machine.

Source: syscalls(2) and the manual page of each call.
"""

import errno
from dataclasses import dataclass
from typing import Final

LOW_WORD: Final = 0xFFFF_FFFF
"""The kernel reads an ``int`` argument from the low half of its register and ignores the rest, so a
test of such an argument must do the same: an equality over 64 bits is passed by setting a high bit.
Source: CVE-2019-10063."""


@dataclass(frozen=True, slots=True)
class Match:
    """One test of one argument: ``argument[index] & mask == value``.

    Raises:
        ValueError: there is no such argument, or no value could match.
    """

    index: int
    value: int
    mask: int = LOW_WORD

    def __post_init__(self) -> None:
        if not 0 <= self.index <= 5:
            raise ValueError(f"a system call has no argument {self.index}")
        if self.value & ~self.mask:
            raise ValueError(f"value {self.value:#x} has bits outside mask {self.mask:#x}")


Alternatives = tuple[tuple[Match, ...], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """What is allowed of some system calls, and why.

    Attributes:
        names: the calls, separated by blanks.
        reason: what needs them, or what the condition keeps out.
        when: None allows always; else the call is allowed when every match of one of the
            alternatives holds, and never when there are none.
        otherwise: the errno of a call that is not allowed.
    """

    names: str
    reason: str
    when: Alternatives | None = None
    otherwise: int = errno.ENOSYS


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules, each system call in at most one of them, and the errno of all other calls."""

    rules: tuple[Rule, ...]
    default: int = errno.ENOSYS


def one_of(index: int, *values: int) -> Alternatives:
    """The argument is one of the values."""
    return tuple((Match(index, value),) for value in values)


def either_pair(*pairs: tuple[int, tuple[int, ...]], index: int = 1) -> Alternatives:
    """The argument is the first of a pair and the next argument one of those of its second."""
    return tuple(
        (Match(index, first), Match(index + 1, second))
        for first, seconds in pairs
        for second in seconds
    )


NEVER: Final[Alternatives] = ()

# clone(2). CLONE_NEWTIME has no bit here: clone reads its place as part of the exit signal.
_CLONE_NEW_ANY = (
    0x0002_0000  # CLONE_NEWNS
    | 0x0200_0000  # CLONE_NEWCGROUP
    | 0x0400_0000  # CLONE_NEWUTS
    | 0x0800_0000  # CLONE_NEWIPC
    | 0x1000_0000  # CLONE_NEWUSER
    | 0x2000_0000  # CLONE_NEWPID
    | 0x4000_0000  # CLONE_NEWNET
)

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW, _SOCK_SEQPACKET = 1, 2, 3, 5
_SOCK_TYPE_MASK = 0xF  # above it: SOCK_CLOEXEC and SOCK_NONBLOCK
_IPPROTO_DEFAULT, _IPPROTO_TCP, _IPPROTO_UDP, _NETLINK_ROUTE = 0, 6, 17, 0
_SOL_IP, _SOL_SOCKET, _SOL_TCP, _SOL_UDP, _SOL_IPV6 = 0, 1, 6, 17, 41


def _socket(family: int, kind: int, *protocols: int) -> Alternatives:
    """A socket of this family and type, of one of the protocols, or of any when none is named."""
    start = (Match(0, family), Match(1, kind, _SOCK_TYPE_MASK))
    return tuple((*start, Match(2, protocol)) for protocol in protocols) or (start,)


_SOCKETS: Final[Alternatives] = (
    *_socket(_AF_UNIX, _SOCK_STREAM),  # private: the box has no host folder with a socket in it
    *_socket(_AF_UNIX, _SOCK_DGRAM),
    *_socket(_AF_UNIX, _SOCK_SEQPACKET),
    # Protocols by name, since asking for another loads its kernel module (SCTP, DCCP, MPTCP).
    *_socket(_AF_INET, _SOCK_STREAM, _IPPROTO_DEFAULT, _IPPROTO_TCP),
    *_socket(_AF_INET, _SOCK_DGRAM, _IPPROTO_DEFAULT, _IPPROTO_UDP),
    *_socket(_AF_INET6, _SOCK_STREAM, _IPPROTO_DEFAULT, _IPPROTO_TCP),
    *_socket(_AF_INET6, _SOCK_DGRAM, _IPPROTO_DEFAULT, _IPPROTO_UDP),
    # getifaddrs(3), so os.networkInterfaces() in Node, Bun and Deno, has no other way to list the
    # box's own loopback. To change anything takes CAP_NET_ADMIN, which no guest has.
    *_socket(_AF_NETLINK, _SOCK_RAW, _NETLINK_ROUTE),
)

_SOCKET_OPTIONS: Final[Alternatives] = (
    *one_of(1, _SOL_IP, _SOL_IPV6),  # multicast, TTL, V6ONLY; packet filters need CAP_NET_ADMIN
    *either_pair(
        # Left out of SOL_SOCKET: everything that attaches a BPF program.
        # REUSEADDR BROADCAST SNDBUF RCVBUF KEEPALIVE OOBINLINE PRIORITY LINGER REUSEPORT PASSCRED
        # RCVLOWAT RCVTIMEO SNDTIMEO TIMESTAMP
        (_SOL_SOCKET, (2, 6, 7, 8, 9, 10, 12, 13, 15, 16, 18, 20, 21, 29)),
        # Left out of TCP: ULP (loads kernel TLS), REPAIR, MD5SIG, CONGESTION (loads modules).
        # NODELAY MAXSEG CORK KEEPIDLE KEEPINTVL KEEPCNT SYNCNT LINGER2 DEFER_ACCEPT WINDOW_CLAMP
        # QUICKACK USER_TIMEOUT FASTOPEN NOTSENT_LOWAT FASTOPEN_CONNECT
        (_SOL_TCP, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 18, 23, 25, 30)),
        (_SOL_UDP, (1, 103, 104)),  # CORK SEGMENT GRO, as QUIC stacks use; not ENCAP (IPsec)
    ),
)

_FCNTL_COMMANDS: Final[Alternatives] = one_of(
    1,
    *(0, 1030),  # F_DUPFD F_DUPFD_CLOEXEC
    *(1, 2, 3, 4),  # F_GETFD F_SETFD F_GETFL F_SETFL
    *(5, 6, 7),  # F_GETLK F_SETLK F_SETLKW: SQLite
    *(36, 37, 38),  # F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW
    *(9, 1025),  # F_GETOWN F_GETLEASE
    *(1031, 1032),  # F_SETPIPE_SZ F_GETPIPE_SZ
)

_IOCTL_REQUESTS: Final[Alternatives] = one_of(
    1,
    0x5401,  # TCGETS: isatty(3)
    0x5413,  # TIOCGWINSZ: the width of a terminal
    0x541B,  # FIONREAD
    0x5421,  # FIONBIO: libuv and CPython set non-blocking mode this way
    0x5450,  # FIONCLEX
    0x5451,  # FIOCLEX: CPython's open
    0x8910,  # SIOCGIFNAME: if_indextoname(3)
    0x8933,  # SIOCGIFINDEX: if_nametoindex(3), IPv6 scopes
)

_PRCTL_OPTIONS: Final[Alternatives] = one_of(
    0,
    *(1, 2),  # PR_SET_PDEATHSIG PR_GET_PDEATHSIG
    *(3, 4),  # PR_GET_DUMPABLE PR_SET_DUMPABLE
    *(15, 16),  # PR_SET_NAME PR_GET_NAME: thread names
    *(21, 23),  # PR_GET_SECCOMP PR_CAPBSET_READ
    *(29, 30),  # PR_SET_TIMERSLACK PR_GET_TIMERSLACK
    *(36, 37),  # PR_SET_CHILD_SUBREAPER PR_GET_CHILD_SUBREAPER
    *(38, 39),  # PR_SET_NO_NEW_PRIVS PR_GET_NO_NEW_PRIVS
    *(40, 41, 42),  # PR_GET_TID_ADDRESS PR_SET_THP_DISABLE PR_GET_THP_DISABLE
    0x53564D41,  # PR_SET_VMA: allocators name their mappings
)

_S_IFMT, _S_IFREG, _S_IFIFO, _S_IFSOCK = 0o170000, 0o100000, 0o010000, 0o140000


def _plain_nodes(mode_index: int) -> Alternatives:
    """Nodes that are no device; a mode without a type means a regular file."""
    return tuple((Match(mode_index, kind, _S_IFMT),) for kind in (0, _S_IFREG, _S_IFIFO, _S_IFSOCK))


DEFAULT_POLICY: Final = Policy(
    (
        # Reading and writing what is open.
        Rule("read readv pread64 preadv preadv2", "reads from any descriptor"),
        Rule("write writev pwrite64 pwritev pwritev2", "writes to any descriptor"),
        Rule("lseek ftruncate truncate fallocate", "positions and sizes of files"),
        Rule("fsync fdatasync sync_file_range", "databases; touches only the file named"),
        Rule("fadvise64 readahead", "hints of copying tools"),
        Rule("sendfile copy_file_range", "file copies in Node, Bun, shutil and coreutils"),
        Rule("close close_range dup dup2 dup3", "descriptors of the process itself"),
        Rule("pipe pipe2", "pipes to children"),
        Rule("flock", "lock files of package managers"),
        Rule(
            "fcntl",
            "not leases, which stall a host's writers, nor directory and signal notification",
            _FCNTL_COMMANDS,
            errno.EINVAL,
        ),
        Rule(
            "ioctl",
            "not TIOCSTI and TIOCLINUX, which type into a terminal, nor any device's own requests",
            _IOCTL_REQUESTS,
            errno.ENOTTY,
        ),
        # Names of files.
        Rule("open openat openat2 creat", "opens files; what there is to open, the mounts decide"),
        Rule("stat fstat lstat newfstatat statx access faccessat faccessat2", "asks about files"),
        Rule("statfs fstatfs", "free space, as build tools print it"),
        Rule("getdents getdents64 readlink readlinkat getcwd chdir fchdir", "walks folders"),
        Rule("mkdir mkdirat rmdir unlink unlinkat", "makes and removes names"),
        Rule("rename renameat renameat2 link linkat symlink symlinkat", "moves and links names"),
        Rule("chmod fchmod fchmodat fchmodat2 umask", "modes; set-uid bits do nothing in a box"),
        Rule("chown fchown lchown fchownat", "copying tools; only to the box's one identity"),
        Rule("utime utimes futimesat utimensat", "times of files: tar, make, package managers"),
        Rule("mknod", "FIFOs, not devices", _plain_nodes(1), errno.EPERM),
        Rule("mknodat", "FIFOs, not devices", _plain_nodes(2), errno.EPERM),
        Rule("getxattr lgetxattr fgetxattr", "shutil.copystat and cp read attributes"),
        Rule("listxattr llistxattr flistxattr", "shutil.copystat and cp list attributes"),
        Rule(
            "setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr",
            "attributes are kernel memory that no limit on scratch counts",
            NEVER,
            errno.EOPNOTSUPP,
        ),
        Rule("inotify_init inotify_init1 inotify_add_watch inotify_rm_watch", "fs.watch"),
        # Memory.
        Rule("brk mmap munmap mremap mprotect madvise msync", "allocators and JIT compilers"),
        Rule("mlock mlock2 munlock mlockall munlockall", "key stores; RLIMIT_MEMLOCK bounds it"),
        Rule("pkey_alloc pkey_free pkey_mprotect", "V8 guards its code with protection keys"),
        Rule("membarrier rseq", "garbage collectors, glibc's per-CPU data"),
        # Processes and threads.
        Rule("fork vfork execve exit exit_group", "starts and ends programs"),
        Rule(
            "clone",
            "threads and processes, not namespaces, which bring back every capability inside them",
            ((Match(0, 0, _CLONE_NEW_ANY),),),
            errno.EPERM,
        ),
        Rule("wait4 waitid", "waits for children"),
        Rule("kill tkill tgkill pidfd_open pidfd_send_signal", "signals inside the PID namespace"),
        Rule("rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack", "signal handlers"),
        Rule("rt_sigpending rt_sigsuspend rt_sigtimedwait pause", "waits for signals"),
        Rule(
            "rt_sigqueueinfo rt_tgsigqueueinfo signalfd signalfd4", "signals with a value, as files"
        ),
        Rule("futex set_robust_list get_robust_list", "locks between threads"),
        Rule("set_tid_address restart_syscall", "start of a thread, end of a stopped sleep"),
        Rule(
            "arch_prctl",
            "thread-local storage (ARCH_SET_FS, ARCH_GET_FS), not shadow stacks or other features",
            one_of(0, 0x1002, 0x1003),
            errno.EINVAL,
        ),
        Rule(
            "prctl",
            "names, death signals and queries, not PR_SET_MM, PR_SET_PTRACER, PR_SET_SECCOMP",
            _PRCTL_OPTIONS,
            errno.EINVAL,
        ),
        Rule(
            "personality",
            "the query only: other personalities weaken address randomisation",
            one_of(0, LOW_WORD),
            errno.EPERM,
        ),
        Rule("getpid getppid gettid getpgid getpgrp getsid", "asks who it is"),
        Rule("setpgid setsid", "process groups of shells and task runners"),
        Rule("getuid geteuid getgid getegid getresuid getresgid getgroups", "asks who it is"),
        Rule("capget", "asks what it may do; libuv does, for io_uring"),
        Rule(
            "getrlimit setrlimit prlimit64 getrusage times", "limits, which only go down, and usage"
        ),
        Rule("sched_yield sched_getaffinity sched_setaffinity getcpu", "how many CPUs there are"),
        Rule("sched_getparam sched_getscheduler sched_setscheduler", "thread priorities in libuv"),
        Rule("sched_get_priority_min sched_get_priority_max", "thread priorities in glibc"),
        Rule("getpriority setpriority", "os.setPriority, nice; upwards takes CAP_SYS_NICE"),
        Rule("uname sysinfo", "os.release, os.totalmem"),
        Rule("getrandom", "random numbers"),
        # Time.
        Rule("clock_gettime clock_getres gettimeofday time", "reads clocks where the vDSO cannot"),
        Rule("nanosleep clock_nanosleep", "sleeps"),
        Rule("alarm getitimer setitimer", "signal.alarm, profilers"),
        Rule("timer_create timer_settime timer_gettime", "POSIX timers: the Go runtime"),
        Rule("timer_getoverrun timer_delete", "POSIX timers: the Go runtime"),
        Rule("timerfd_create timerfd_settime timerfd_gettime", "timers of event loops"),
        # Waiting.
        Rule("poll ppoll select pselect6", "waits for descriptors"),
        Rule("epoll_create epoll_create1 epoll_ctl", "event loops"),
        Rule("epoll_wait epoll_pwait epoll_pwait2", "event loops"),
        Rule("eventfd eventfd2", "wake-ups of event loops"),
        # Sockets. What they can reach, the network namespace decides.
        Rule(
            "socket",
            "local and Internet sockets; not VSOCK, which leaves a namespace, nor rarely used code",
            _SOCKETS,
            errno.EAFNOSUPPORT,
        ),
        Rule("socketpair", "pipes to children in libuv", one_of(0, _AF_UNIX), errno.EAFNOSUPPORT),
        Rule("bind listen accept accept4 connect shutdown", "servers and clients"),
        Rule("getsockname getpeername getsockopt", "asks about a socket"),
        Rule(
            "setsockopt",
            "options that servers and clients set, not those that load modules or run BPF",
            _SOCKET_OPTIONS,
            errno.ENOPROTOOPT,
        ),
        Rule("sendto sendmsg sendmmsg", "sends"),
        Rule("recvfrom recvmsg recvmmsg", "receives"),
    )
)
"""For every box: no call in it is needed only by a guest with more rights than another."""
