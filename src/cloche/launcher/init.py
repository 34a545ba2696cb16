"""PID 1 of a box: builds the box from inside, then runs one command after another in it.

It is a fork of the launcher, never runs guest text, and holds the only
capabilities of the box's user namespace. A guest cannot trace it (undumpable, other
credentials), cannot see it in /proc (hidepid) and cannot signal it (PID 1). When it
ends, the kernel kills all that is in its pid namespace.

Talks with Cloche over `channel`: `ready`, `failed`, `held` (sent by the guest's process
itself, so that the kernel vouches for its pid), `ended`; takes `exec` and `kill`.
"""

import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct

import environment
import syscalls
import wire

_GUEST_ID = 1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
# hidepid=ptraceable: a process sees only those it may trace, so never PID 1.
# Source: Documentation/filesystems/proc.rst, "Mount options".
_PROC_OPTIONS = "hidepid=4"
# World-readable files of /proc that tell about the host rather than the box.
_PROC_MASKED = ("cmdline", "kallsyms", "keys", "key-users", "modules")
_SCRATCH_PLACES = (("workspace", "/workspace"), ("tmp", "/tmp"), ("shm", "/dev/shm"))  # noqa: S108


def run(channel: socket.socket, lifeline: int, plan: dict, files: int | None) -> None:
    """Sets the box up and serves it until Cloche or the launcher goes. Never returns."""
    try:
        step = "credentials"
        try:
            _take_credentials(plan)
            step = "namespaces"
            syscalls.unshare(syscalls.CLONE_NEWCGROUP)
            socket.sethostname("cloche")
            _raise_loopback()
            step = "root"
            _enter_root(plan)
            step = "scratch"
            workspace = _mount_scratch(plan, files)
            step = "privileges"
            syscalls.empty_bounding_set()
            syscalls.forbid_new_privileges()
        except OSError as error:
            _send(
                channel,
                {
                    "event": "failed",
                    "step": step,
                    "errno": error.errno,
                    "message": f"{error.strerror} {error.filename or ''}".strip(),
                },
            )
            return
        _send(channel, {"event": "ready"}, [workspace])
        os.close(workspace)
        _Commands(channel, lifeline, plan).serve()
    finally:
        os._exit(0)


def _send(channel: socket.socket, event: dict, descriptors: list[int] | None = None) -> None:
    try:
        wire.send(channel, event, descriptors or [])
    except OSError:  # Cloche is gone: so is this box
        os._exit(0)


def _take_credentials(plan: dict) -> None:
    if plan["init_id"] is not None:
        os.setgroups([])
        os.setresgid(plan["init_id"], plan["init_id"], plan["init_id"])
        os.setresuid(plan["init_id"], plan["init_id"], plan["init_id"])
    syscalls.die_with_parent()  # after the change of uid, which clears it
    syscalls.forbid_inspection()


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as handle:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack_from("16sH", fcntl.ioctl(handle, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _enter_root(plan: dict) -> None:
    tree = syscalls.open_tree(f"{environment.ENVIRONMENTS}/{plan['environment']}", recursive=True)
    # The new root covers /host, so host folders are cloned while their paths still hold.
    mounts = []
    for host_path, box_path, read_only in plan["mounts"]:
        source = environment.open_host(host_path)
        clone = syscalls.open_tree("", at=source)
        syscalls.set_mount_attributes(clone, read_only=read_only, executable=True)
        os.close(source)
        mounts.append((clone, box_path))
    plan["mounts"] = mounts
    syscalls.move_mount(tree, environment.ENVIRONMENTS)
    os.close(tree)
    os.chdir(environment.ENVIRONMENTS)
    hidden = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", "proc", "proc", hidden, _PROC_OPTIONS)
    for name, value in plan["sysctls"].items():
        _write_sysctl(name, value)
    syscalls.pivot_root(".", ".")
    syscalls.unmount(".")
    os.chdir("/")
    syscalls.mount("/proc/sys", "/proc/sys", "", syscalls.MS_BIND)
    syscalls.mount(
        "none",
        "/proc/sys",
        "",
        syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | hidden,
    )
    for name in _PROC_MASKED:
        if os.path.exists(f"/proc/{name}"):
            syscalls.mount("/dev/null", f"/proc/{name}", "", syscalls.MS_BIND)


def _write_sysctl(name: str, value: int) -> None:
    try:
        descriptor = os.open(f"proc/sys/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # this kernel lacks the feature that it bounds
        return
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _mount_scratch(plan: dict, files: int | None) -> int:
    """Mounts what is writable, lays the files and the host folders in; returns /workspace."""
    scratch = plan["scratch"]
    if scratch is not None:
        owner = f"uid={_GUEST_ID},gid={_GUEST_ID}"
        options = f"size={scratch['bytes']},nr_inodes={scratch['inodes']},{owner}"
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        if scratch["sealed"]:
            syscalls.mount("scratch", "/workspace", "tmpfs", flags, f"{options},mode=0755")
        else:
            _mount_writable(f"{options},mode=0711", flags)
    workspace = os.open("/workspace", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if files is not None:
        _lay_files(workspace, files)
        os.close(files)
    for clone, box_path in plan["mounts"]:
        target = _make_folder(workspace, box_path)
        syscalls.move_mount(clone, target)
        os.close(target)
        os.close(clone)
    if scratch is not None and scratch["sealed"]:
        syscalls.mount(
            "none",
            "/workspace",
            "",
            syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | flags,
        )
    return workspace


def _mount_writable(options: str, flags: int) -> None:
    """One tmpfs, so one quota, seen at three places."""
    syscalls.mount("scratch", "/workspace", "tmpfs", flags, options)
    trees = []
    for name, place in _SCRATCH_PLACES:
        os.mkdir(f"/workspace/{name}", 0o755)
        os.chmod(f"/workspace/{name}", 0o755 if name == "workspace" else 0o1777)
        os.chown(f"/workspace/{name}", _GUEST_ID, _GUEST_ID)
        trees.append((syscalls.open_tree(f"/workspace/{name}"), place))
    syscalls.unmount("/workspace")
    for tree, place in trees:
        syscalls.move_mount(tree, place)
        os.close(tree)


def _make_folder(at: int, path: str) -> int:
    """Opens `path` below `at`, making what is missing; follows nothing."""
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
    current = os.dup(at)
    for part in path.split("/") if path else []:
        try:
            os.mkdir(part, 0o755, dir_fd=current)
            os.chown(part, _GUEST_ID, _GUEST_ID, dir_fd=current, follow_symlinks=False)
        except FileExistsError:
            pass
        following = syscalls.open_beneath(
            current, part, os.O_RDONLY | os.O_DIRECTORY, resolve=resolve
        )
        os.close(current)
        current = following
    return current


def _lay_files(workspace: int, files: int) -> None:
    """Writes the caller's files.

    `files` is a memory file: 4 bytes big-endian length, that much JSON (a list of
    [path, size in bytes], paths checked by Cloche), then the contents one after another.
    """
    with open(files, "rb", closefd=False) as reader:
        reader.seek(0)
        (length,) = struct.unpack(">I", reader.read(4))
        for path, size in json.loads(reader.read(length)):
            folder, _, name = path.rpartition("/")
            parent = _make_folder(workspace, folder)
            descriptor = os.open(
                name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o644, dir_fd=parent
            )
            with open(descriptor, "wb") as writer:
                writer.write(reader.read(size))
                os.fchown(descriptor, _GUEST_ID, _GUEST_ID)
            os.close(parent)


class _Commands:
    """Runs commands in the box, never two at once, and leaves nothing of one behind."""

    def __init__(self, channel: socket.socket, lifeline: int, plan: dict) -> None:
        self._channel = channel
        self._lifeline = lifeline
        self._filter = bytes.fromhex(plan["seccomp"])
        self._guest = 0
        self._wakeup, sender = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        poller = select.poll()
        for descriptor in (self._channel.fileno(), self._lifeline, self._wakeup):
            poller.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poller.poll()]
            if self._lifeline in ready:
                return
            if self._wakeup in ready:
                os.read(self._wakeup, 512)
                self._reap()
            if self._channel.fileno() in ready:
                message, descriptors = wire.receive(self._channel)
                if message is None:
                    return
                if message["op"] == "exec":
                    self._start(message, descriptors)
                elif message["op"] == "kill" and self._guest:
                    _kill_all()

    def _start(self, message: dict, descriptors: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            _become_guest(self._channel, message, descriptors, self._filter)
        self._guest = pid
        for descriptor in descriptors:
            os.close(descriptor)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._guest:
                self._end(status, usage)

    def _end(self, status: int, usage: resource.struct_rusage) -> None:
        """The command's own process is gone: so must be all it started, before it is told."""
        cpu = usage.ru_utime + usage.ru_stime
        peak = usage.ru_maxrss
        while True:
            _kill_all()
            try:
                _, _, usage = os.wait4(-1, 0)
            except ChildProcessError:
                break
            cpu += usage.ru_utime + usage.ru_stime
            peak = max(peak, usage.ru_maxrss)
        self._guest = 0
        _send(
            self._channel,
            {
                "event": "ended",
                "status": status,
                "cpu_ms": round(cpu * 1000, 3),
                "peak_memory_bytes": peak * 1024,
            },
        )


def _kill_all() -> None:
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _become_guest(
    channel: socket.socket, message: dict, descriptors: list[int], program: bytes
) -> None:
    """Gives up everything, waits to be let go, becomes the command. Never returns."""
    step = "descriptors"
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        go = descriptors[-1]
        # Move all out of the way first: a target may be another's source.
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 64) for each in descriptors[:-1]]
        talk = socket.socket(fileno=fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, 64))
        go = fcntl.fcntl(go, fcntl.F_DUPFD_CLOEXEC, 64)
        for target, descriptor in enumerate(moved):
            os.dup2(descriptor, target)
        kept = list(range(len(moved)))
        syscalls.close_all_but([*kept, talk.fileno(), go])
        step = "working directory"
        os.chdir(message["cwd"])
        os.umask(0o022)
        step = "limits"
        for kind, limit in message["rlimits"]:
            resource.setrlimit(kind, (limit, limit))
        if message["nice"]:
            os.setpriority(os.PRIO_PROCESS, 0, message["nice"])
        _prefer_for_oom()
        step = "credentials"
        if os.getuid() != _GUEST_ID:
            os.setresgid(_GUEST_ID, _GUEST_ID, _GUEST_ID)
            os.setresuid(_GUEST_ID, _GUEST_ID, _GUEST_ID)
        syscalls.drop_capabilities()
        step = "seccomp"
        syscalls.install_filter(program)
        step = "handshake"
        wire.send(talk, {"event": "held"}, [])
        if os.read(go, 1) != b"g":
            os._exit(127)
        step = "exec"
        os.execve(message["argv"][0], message["argv"], message["env"])
    except OSError as error:
        try:
            wire.send(
                talk,
                {
                    "event": "failed",
                    "step": step,
                    "errno": error.errno,
                    "message": f"{error.strerror} {error.filename or ''}".strip(),
                },
                [],
            )
        except OSError:
            pass
    finally:
        os._exit(127)


def _prefer_for_oom() -> None:
    """Out of memory, the kernel takes the guest before its init."""
    # An undumpable process may not write its own /proc files; exec makes it dumpable anyway.
    syscalls.allow_inspection()
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"1000")
    finally:
        os.close(descriptor)
