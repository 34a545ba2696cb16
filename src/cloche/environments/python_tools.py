"""What the boxes of jobs in Python have beside Node: CPython, and a pinned uv that installs."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cloche.egress.pypi import find_index
from cloche.egress.registry import PackageError
from cloche.environments.roots import python_modules, standard_library_entries
from cloche.environments.runtimes import Runtime, require_runtime
from cloche.errors import UnavailableError
from cloche.linux.facts import Fact, Verdict
from cloche.linux.libraries import find_libraries
from cloche.linux.locks import hold_lock
from cloche.model.wheel import Wheel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cloche.linux.facts import Probe
    from cloche.settings import Settings

UV_VERSION: Final = "0.13.9"
# Source: the sha256 of its manylinux wheels, as the index's page of it states them.
_UV_HASHES: Final = {
    "x86_64": "d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19",
    "aarch64": "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
}
_UV_IN_WHEEL: Final = f"uv-{UV_VERSION}.data/scripts/uv"
_NEW: Final = ".new-"


@dataclass(frozen=True, slots=True)
class PythonTools:
    """CPython and uv.

    Attributes:
        runtime: CPython.
        uv_path: uv's binary on the host.
        uv_sha256: Of its wheel.
    """

    runtime: Runtime
    uv_path: Path
    uv_sha256: str

    def describe(self) -> dict[str, str]:
        """For keys and records: names and versions, no path."""
        return {"python": self.runtime.version, "uv": UV_VERSION, "uv_sha256": self.uv_sha256}

    def find_libraries(self) -> dict[str, str]:
        """Host path by name, of what both need.

        Raises:
            OSError: one is missing.
        """
        found = find_libraries(self.runtime.host_path, python_modules())
        return {**found.paths, **find_libraries(self.uv_path).paths}

    def entries(self) -> list[tuple[str, str, str]]:
        """What they add to a box's root: no `python`, which is the project's own, in .venv."""
        return [
            *standard_library_entries(self.runtime),
            ("bind", "/usr/bin/uv", str(self.uv_path)),
        ]


async def find_python_tools(
    cache_folder: Path, fetch: Callable[[Wheel], Awaitable[Path]]
) -> PythonTools:
    """Finds both; fetches uv where it is not there yet.

    Args:
        cache_folder: Cloche's own, where uv is kept.
        fetch: Gives a verified wheel.

    Raises:
        UnavailableError: uv cannot be had here.
    """
    machine = platform.machine()
    if machine not in _UV_HASHES:
        raise UnavailableError(
            f"no uv is pinned for {machine}",
            fact="toolchain-uv",
            fix=f"run jobs in Python on {' or '.join(_UV_HASHES)}",
        )
    wheel, path = Wheel("uv", _UV_HASHES[machine]), uv_path(cache_folder)
    if not path.exists():
        try:
            file = await fetch(wheel)
        except PackageError as error:
            raise UnavailableError(
                f"uv {UV_VERSION} could not be fetched: {error}",
                fact="toolchain-uv",
                fix="check pip's settings (`pip config list`) and the network",
            ) from error
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with hold_lock(path.with_name(f"{path.name}.lock")):
            if not path.exists():
                await asyncio.to_thread(_unpack, file, path)
    return PythonTools(require_runtime("python"), path, wheel.sha256)


def uv_path(cache_folder: Path) -> Path:
    """Where the pinned uv is kept."""
    return cache_folder / "toolchains" / f"uv-{UV_VERSION}-{platform.machine()}" / "uv"


def _unpack(file: Path, target: Path) -> None:
    """Takes the binary out of its verified wheel; whole or not at all. One at a time."""
    for left in target.parent.glob(f"{_NEW}*"):  # by one that was killed
        left.unlink()
    with (
        zipfile.ZipFile(file) as archive,
        archive.open(_UV_IN_WHEEL) as member,
        tempfile.NamedTemporaryFile(dir=target.parent, prefix=_NEW, delete=False) as writer,
    ):
        try:
            shutil.copyfileobj(member, writer, 1 << 20)
            os.fchmod(writer.fileno(), 0o555)
            Path(writer.name).rename(target)
        except BaseException:
            Path(writer.name).unlink()
            raise


_NEEDED_BY: Final = ("jobs in Python",)


def python_probes(settings: Settings) -> dict[str, Probe]:
    """Probes of what jobs in Python need beside those of others; no network is asked."""
    return {
        "pip-index": partial(_probe_index, settings),
        "toolchain-uv": partial(_probe_uv, settings.cache_folder),
    }


def _probe_index(settings: Settings) -> Fact:
    try:
        origin = find_index(settings.pip).origin
    except UnavailableError as error:
        return Fact("pip-index", Verdict.MISSING, error.message, error.fix, _NEEDED_BY)
    return Fact("pip-index", Verdict.OK, f"pip's settings name {origin}", needed_by=_NEEDED_BY)


def _probe_uv(cache_folder: Path) -> Fact:
    machine = platform.machine()
    if machine not in _UV_HASHES:
        evidence, fix = f"no uv is pinned for {machine}", f"use {' or '.join(_UV_HASHES)}"
        return Fact("toolchain-uv", Verdict.MISSING, evidence, fix, _NEEDED_BY)
    there = uv_path(cache_folder).is_file()
    evidence = f"{UV_VERSION}, {'in the cache' if there else 'fetched by the first job in Python'}"
    return Fact("toolchain-uv", Verdict.OK, evidence, needed_by=_NEEDED_BY)
