"""What the steps of a job work with: Node, pnpm, npm, a shell and tools; never the bundle's.

Node comes from its wheel or the path, the shell and the tools from the host. pnpm and npm are
pinned here by version and integrity, and fetched once, through the host's own npm settings.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import shutil
import stat
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from cloche.egress.registry import PackageError, find_registry
from cloche.environments.python_tools import find_python_tools, python_probes
from cloche.environments.roots import library_entries, make_environment
from cloche.environments.runtimes import Runtime, find_npm, require_runtime
from cloche.environments.yarn_tools import YARN_PACKAGE, describe_yarn, yarn_entries, yarn_folder
from cloche.errors import UnavailableError
from cloche.linux.facts import Fact, Verdict
from cloche.linux.libraries import find_libraries_of
from cloche.linux.locks import hold_lock
from cloche.model.package import Package
from cloche.store.archive import read_archive

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from cloche.environments.python_tools import PythonTools
    from cloche.linux.facts import Probe
    from cloche.model.plan import Environment
    from cloche.model.wheel import Wheel
    from cloche.settings import Settings

PNPM_VERSION = "12.21.0"
# Source: the integrity of these packages as their registry states it, `npm view NAME@VERSION dist`.
_PNPM_PACKAGES = {
    "x86_64": (
        "@pnpm/exe.linux-x64",
        "sha512-8eufCjHXspKbNS/kh8q4Q0gqJoOuvC4Q5pgos6XS8By/nAMtP+jf8F1Cw9er840kfAX+PJ/ts+A9qnLE91rvXQ==",
    ),
    "aarch64": (
        "@pnpm/exe.linux-arm64",
        "sha512-4Oj/iF2TDCe2lcH0n4TupPR5sSdrNLclJB6xBElLMPCUOAvBhdf2rRlSaO5M4erJ6g4Fyy7YTXTpcmfFsKyxEA==",
    ),
}
_PNPM_IN_PACKAGE = "package/pnpm"
# Source: as above. It is JavaScript, and brings what it needs.
NPM_PACKAGE = Package(
    "npm",
    "11.21.2",
    "sha512-7HPApk+AflMUavSseL1Pm6CnYqMIHk53x+KmuhqmTDqPkjPMgxIpTPcTqsE91EKNw4gFBJV9fnXiSdGm1DXq9A==",
)
_PNPM_IN_BOX = "/usr/lib/pnpm/pnpm"
PNPM_STARTER = Path(__file__).parents[1] / "guest/pnpm.sh"
_NPM_IN_BOX = "/usr/lib/node_modules/npm"
_NPM_PROGRAMS = {"npm": "npm-cli.js", "npx": "npx-cli.js"}
_NEW = ".new-"
# Of a pinned package.
_ENTRIES_LIMIT_COUNT = 20_000
_CONTENT_LIMIT_BYTES = 256 * 1024 * 1024
# POSIX's utilities that scripts of projects use, with those of GNU that they take for granted.
_TOOLS = (
    "[ awk base64 basename bash cat chmod cmp comm cp cut date dd df diff dirname du echo egrep"
    " env expr false fgrep find fold grep gunzip gzip head hostname id install join kill ln ls"
    " md5sum mkdir mkfifo mktemp mv nice nl nohup nproc od paste printenv printf pwd readlink"
    " realpath rm rmdir sed seq setsid sh sha1sum sha256sum sha512sum shuf sleep sort split stat"
    " stty sum sync tac tail tar tee test timeout touch tr true truncate tty uname uniq unlink"
    " wc which whoami xargs xz yes"
).split()
_NEEDED_TOOLS = ("bash", "sh")
# What prebuilt native addons and wheels take for granted beside the C library.
# Source: PEP 599, the libraries that a manylinux2014 wheel may link, less those of X11 and GLib.
_COMMON_LIBRARIES = (
    "libdl.so.2 libgcc_s.so.1 libm.so.6 libnsl.so.1 libpthread.so.0 libresolv.so.2 librt.so.1"
    " libstdc++.so.6 libutil.so.1"
).split()
_TOOL_FOLDERS = "/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The programs that are Cloche's choice.

    Attributes:
        node: The runtime.
        pnpm_version, pnpm_integrity: Which package manager.
        pnpm_path: Its binary on the host.
        npm_folder: npm, as its package has it, on the host.
        python: What projects in Python need beside these; None for others.
        yarn_folder: Yarn, as its package has it, on the host; None where it is not needed.
    """

    node: Runtime
    pnpm_version: str
    pnpm_integrity: str
    pnpm_path: Path
    npm_folder: Path
    python: PythonTools | None = None
    yarn_folder: Path | None = None

    def describe(self) -> dict[str, str]:
        """For keys and records: names and versions, no path."""
        return {
            "node": self.node.version,
            "pnpm": self.pnpm_version,
            "pnpm_integrity": self.pnpm_integrity,
            "pnpm_starter_sha256": hashlib.sha256(PNPM_STARTER.read_bytes()).hexdigest(),
            "npm": NPM_PACKAGE.version,
            "npm_integrity": NPM_PACKAGE.integrity,
            "machine": platform.machine(),
            **({} if self.python is None else self.python.describe()),
            **({} if self.yarn_folder is None else describe_yarn()),
        }


async def find_toolchain(
    cache_folder: Path,
    fetch: Callable[[Package], Awaitable[Path]],
    fetch_wheel: Callable[[Wheel], Awaitable[Path]] | None = None,
    *,
    with_yarn: bool = False,
) -> Toolchain:
    """Finds the toolchain; fetches what is not there yet.

    Args:
        cache_folder: Cloche's own, where pnpm is kept.
        fetch: Gives a package's verified tarball.
        fetch_wheel: Gives a verified wheel; None where the project is none in Python.
        with_yarn: The project is one of Yarn's.

    Raises:
        UnavailableError: a part cannot be had here.
    """
    node = require_runtime("node")
    machine = platform.machine()
    if machine not in _PNPM_PACKAGES:
        raise UnavailableError(
            f"no pnpm is pinned for {machine}",
            fact="toolchain-pnpm",
            fix=f"run jobs on {' or '.join(_PNPM_PACKAGES)}",
        )
    name, integrity = _PNPM_PACKAGES[machine]
    pnpm = Package(name, PNPM_VERSION, integrity)
    path, folder = pnpm_path(cache_folder), npm_folder(cache_folder)
    await _provide(pnpm, path, fetch, _unpack)
    await _provide(NPM_PACKAGE, folder, fetch, _unpack_folder)
    python = None if fetch_wheel is None else await find_python_tools(cache_folder, fetch_wheel)
    yarn = yarn_folder(cache_folder) if with_yarn else None
    if yarn is not None:
        await _provide(YARN_PACKAGE, yarn, fetch, _unpack_folder)
    return Toolchain(node, PNPM_VERSION, integrity, path, folder, python, yarn)


async def _provide(
    package: Package,
    place: Path,
    fetch: Callable[[Package], Awaitable[Path]],
    unpack: Callable[[Path, Path], None],
) -> None:
    """Puts a pinned package in its place, where it is not there yet."""
    if place.exists():
        return
    try:
        tarball = await fetch(package)
    except PackageError as error:
        raise UnavailableError(
            f"{package} could not be fetched: {error}",
            fact="toolchain-pnpm",
            fix="check npm's settings (`npm config get registry`) and the network",
        ) from error
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with hold_lock(place.with_name(f"{place.name}.lock")):
        if not place.exists():
            await asyncio.to_thread(unpack, tarball, place)


def npm_folder(cache_folder: Path) -> Path:
    """Where the pinned npm is kept."""
    return cache_folder / "toolchains" / f"npm-{NPM_PACKAGE.version}"


def pnpm_path(cache_folder: Path) -> Path:
    """Where the pinned pnpm is kept."""
    return cache_folder / "toolchains" / f"pnpm-{PNPM_VERSION}-{platform.machine()}" / "pnpm"


def _unpack(tarball: Path, target: Path) -> None:
    """Takes the binary out of its verified tarball; whole or not at all. One at a time."""
    for left in target.parent.glob(f"{_NEW}*"):  # by one that was killed
        if left.is_file():
            left.unlink()
    with tarfile.open(tarball, "r:gz") as archive:
        member = archive.extractfile(_PNPM_IN_PACKAGE)
        assert member is not None, "a pinned package has changed"
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=_NEW, delete=False) as writer:
            try:
                shutil.copyfileobj(member, writer, 1 << 20)
                os.fchmod(writer.fileno(), 0o555)
                Path(writer.name).rename(target)
            except BaseException:
                Path(writer.name).unlink()
                raise


def _unpack_folder(tarball: Path, target: Path) -> None:
    """Takes all files out of a verified tarball; whole or not at all. One at a time."""
    for left in target.parent.glob(f"{_NEW}{target.name}-*"):  # by one that was killed
        shutil.rmtree(left)
    new = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{_NEW}{target.name}-"))
    try:
        new.chmod(0o755)
        for member in read_archive(
            tarball.read_bytes(),
            entries_count=_ENTRIES_LIMIT_COUNT,
            content_bytes=_CONTENT_LIMIT_BYTES,
        ):
            if stat.S_ISREG(member.mode):
                file = new / member.path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(member.content)
                file.chmod(0o755 if member.mode & 0o111 else 0o644)
        (new / "package").rename(target)
    finally:
        shutil.rmtree(new)


@cache
def job_environment(toolchain: Toolchain) -> Environment:
    """The root of a step's box.

    Raises:
        UnavailableError: the host has no shell, or a library is missing.
    """
    node, pnpm, python = toolchain.node.host_path, toolchain.pnpm_path, toolchain.python
    tools = {name: found for name in _TOOLS if (found := shutil.which(name, path=_TOOL_FOLDERS))}
    for name in _NEEDED_TOOLS:
        if name not in tools:
            raise UnavailableError(
                f"{name} is not in {_TOOL_FOLDERS}",
                fact=f"tool-{name}",
                fix=f"install {name} with the host's package manager",
            )
    paths = {name: Path(found).resolve() for name, found in tools.items()}
    try:
        programs = [path for path in paths.values() if not _is_script(path)]
        libraries = find_libraries_of([node, pnpm, *programs])
        libraries.paths.update(_find_common_libraries(libraries.paths))
        if python is not None:
            libraries.paths.update(python.find_libraries())
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"the libraries of the toolchain could not be found: {error}",
            fact="runtime-node",
            fix="reinstall Node; `cloche doctor` shows which one is used",
        ) from error
    return make_environment(
        "job",
        [
            *library_entries(libraries),
            ("bind", "/usr/bin/node", str(node)),
            ("directory", str(Path(_PNPM_IN_BOX).parent), ""),
            ("bind", _PNPM_IN_BOX, str(pnpm)),
            ("copy", "/usr/bin/pnpm", str(PNPM_STARTER)),
            ("bind", _NPM_IN_BOX, str(toolchain.npm_folder)),
            *[
                ("link", f"/usr/bin/{name}", f"{_NPM_IN_BOX}/bin/{program}")
                for name, program in _NPM_PROGRAMS.items()
            ],
            *[("copy", f"/usr/bin/{name}", str(path)) for name, path in paths.items()],
            *(() if python is None else python.entries()),
            *(() if toolchain.yarn_folder is None else yarn_entries(toolchain.yarn_folder)),
        ],
    )


def _find_common_libraries(paths: Mapping[str, str]) -> dict[str, str]:
    """Those of the common ones that are not among `paths`, from the folder of the C library."""
    libc = paths.get("libc.so.6")
    if libc is None:
        return {}
    places = {name: Path(libc).with_name(name) for name in _COMMON_LIBRARIES if name not in paths}
    return {name: str(place) for name, place in places.items() if place.is_file()}


def _is_script(path: Path) -> bool:
    with path.open("rb") as reader:
        return reader.read(2) == b"#!"


def toolchain_probes(settings: Settings) -> dict[str, Probe]:
    """Probes of what jobs need beside boxes and Node; no network is asked."""
    return {
        "npm-registry": partial(_probe_registry, settings),
        "toolchain-pnpm": partial(_probe_pnpm, settings.cache_folder),
        "job-tools": _probe_tools,
        **python_probes(settings),
    }


_NEEDED_BY = ("jobs",)


def _probe_registry(settings: Settings) -> Fact:
    try:
        origin = find_registry(settings.npm, npm_command=find_npm()).origin
    except UnavailableError as error:
        return Fact("npm-registry", Verdict.MISSING, error.message, error.fix, _NEEDED_BY)
    return Fact("npm-registry", Verdict.OK, f"npm's settings name {origin}", needed_by=_NEEDED_BY)


def _probe_pnpm(cache_folder: Path) -> Fact:
    machine = platform.machine()
    if machine not in _PNPM_PACKAGES:
        evidence, fix = f"no pnpm is pinned for {machine}", f"use {' or '.join(_PNPM_PACKAGES)}"
        return Fact("toolchain-pnpm", Verdict.MISSING, evidence, fix, _NEEDED_BY)
    there = pnpm_path(cache_folder).is_file()
    evidence = f"{PNPM_VERSION}, {'in the cache' if there else 'fetched by the first job'}"
    return Fact("toolchain-pnpm", Verdict.OK, evidence, needed_by=_NEEDED_BY)


def _probe_tools() -> Fact:
    missing = [name for name in _TOOLS if not shutil.which(name, path=_TOOL_FOLDERS)]
    if any(name in missing for name in _NEEDED_TOOLS):
        evidence = f"not in {_TOOL_FOLDERS}: {', '.join(missing)}"
        fix = "install bash and the coreutils with the host's package manager"
        return Fact("job-tools", Verdict.MISSING, evidence, fix, _NEEDED_BY)
    evidence = f"{len(_TOOLS) - len(missing)} tools of the host go into the boxes of jobs"
    if missing:
        evidence += f"; not here: {', '.join(missing)}"
    return Fact("job-tools", Verdict.OK, evidence, needed_by=_NEEDED_BY)
