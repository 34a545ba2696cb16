"""A site for tests of jobs: a registry on loopback, a cache of its own, projects, attacks.

Everything is real: boxes, pnpm and the registry, from which the packages of a test come.
"""

import asyncio
import gzip
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import cloche.sync
from cloche.egress.registry import Registry
from cloche.environments.runtimes import require_runtime
from cloche.environments.toolchain import find_toolchain, pnpm_path
from cloche.errors import UnavailableError
from cloche.model.events import Event, StateEvent
from cloche.model.job import JobResult, ReasonCode, StepResult, Verdict
from cloche.model.package import Package
from cloche.settings import read_settings
from cloche.store.packages import PackageStore
from needs import BOX, JOB, require_facts
from registry_server import RegistryServer

GOOD_TEST = "require('node:test')('holds', () => {});\n"
BAD_TEST = "require('node:test')('fails', () => { throw new Error('no'); });\n"
SCRIPTS = {"test": "node --test", "build": "mkdir -p dist && echo ok > dist/a.txt"}

Files = Mapping[str, str | bytes]
Entry = tuple[str, str | bytes] | tarfile.TarInfo


def manifest(scripts: Mapping[str, str] | None = None, **fields: Any) -> str:
    """A package.json."""
    whole = {"name": "made", "private": True, "version": "1.0.0", "scripts": scripts or {}}
    return json.dumps({**whole, **fields})


def lockfile(packages: Iterable[Package], /, **fields: Any) -> str:
    """The lockfile of a project that depends on these, each under its name."""
    packages = list(packages)
    wanted = {each.name: {"specifier": each.version, "version": each.version} for each in packages}
    whole = {
        "lockfileVersion": "9.0",
        "settings": {"autoInstallPeers": True, "excludeLinksFromLockfile": False},
        "importers": {".": {"dependencies": wanted}},
        "packages": {
            str(each): {"resolution": {"integrity": each.integrity}, "hasBin": True}
            for each in packages
        },
        "snapshots": {str(each): {} for each in packages},
    }
    return json.dumps({**whole, **fields})


def project(
    *packages: Package, scripts: Mapping[str, str] | None = None, **fields: Any
) -> dict[str, str]:
    """A project that depends on these; its test passes and its build makes dist/a.txt."""
    wanted = {each.name: each.version for each in packages}
    return {
        "package.json": manifest({**SCRIPTS, **(scripts or {})}, dependencies=wanted, **fields),
        "pnpm-lock.yaml": lockfile(packages),
        "a.test.js": GOOD_TEST,
    }


def special(path: str, kind: bytes, target: str = "", device: tuple[int, int] = (0, 0)) -> Entry:
    """A link, FIFO or device for a tarball; with every permission there is."""
    entry = tarfile.TarInfo(path)
    entry.type, entry.linkname, entry.mode = kind, target, 0o7777
    entry.devmajor, entry.devminor = device
    return entry


def pack(name: str, version: str, entries: Iterable[Entry], **fields: Any) -> bytes:
    """A package's tarball, its entries under their names as they stand."""
    head = json.dumps({"name": name, "version": version, "main": "index.js", **fields})
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as writer:
        for entry in [("package/package.json", head), *entries]:
            if isinstance(entry, tarfile.TarInfo):
                writer.addfile(entry)
                continue
            content = entry[1].encode() if isinstance(entry[1], str) else entry[1]
            member = tarfile.TarInfo(entry[0])
            member.size, member.mode = len(content), 0o755
            writer.addfile(member, io.BytesIO(content))
    return gzip.compress(tar.getvalue(), compresslevel=1, mtime=0)


@dataclass(frozen=True)
class Ran:
    """A job that has ended, and all that it gave."""

    result: JobResult
    out: Path
    events: Sequence[Event]

    @property
    def verdict(self) -> Verdict:
        return self.result.verdict

    @property
    def why(self) -> ReasonCode | None:
        return self.result.reason.code if self.result.reason is not None else None

    @property
    def message(self) -> str:
        return self.result.reason.message if self.result.reason is not None else ""

    @property
    def paths(self) -> list[str]:
        """Of its artifacts."""
        return [each.path for each in self.result.artifacts]

    @property
    def skipped(self) -> dict[str, str]:
        """What was asked for as an artifact and left, and why."""
        return dict(self.result.manifest["skipped"])

    @property
    def notes(self) -> list[str]:
        """What Cloche left out or overrode."""
        states = [each for each in self.events if isinstance(each, StateEvent)]
        return [each.message for each in states if each.state == "note"]

    def delivered(self, path: str) -> bytes:
        """An artifact's content."""
        return (self.out / "artifacts" / path).read_bytes()

    def step(self, name: str) -> StepResult:
        (found,) = [each for each in self.result.steps if each.name == name]
        return found

    def lines(self, step: str) -> list[str]:
        """What a step has written, from its log."""
        kept = [json.loads(line) for line in (self.out / "log.ndjson").read_bytes().splitlines()]
        return [line["text"] for line in kept if line["step"] == step]

    def printed(self, step: str) -> Any:
        """The JSON that a step has written as its last line."""
        return json.loads(self.lines(step)[-1])

    def everything(self) -> bytes:
        """All that the job gave anyone, as one text."""
        files = [path.read_bytes() for path in self.out.rglob("*") if path.is_file()]
        return b"\n".join([repr(self.result).encode(), repr(self.events).encode(), *files])


@dataclass
class JobSite:
    """A registry and a cache, and jobs that work with these two."""

    registry: RegistryServer
    cache_folder: Path
    folder: Path

    def run(self, files: Files | Path, **fields: Any) -> Ran:
        """Runs the job of a project: a mapping, or its folder."""
        events: list[Event] = []
        out = self.new_folder() / "out"
        bundle = str(files) if isinstance(files, Path) else dict(files)
        result = cloche.sync.run_job({"bundle": bundle, **fields}, out=out, on_event=events.append)
        return Ran(result, out, events)

    def step(self, line: str, files: Files | None = None, **fields: Any) -> Ran:
        """Runs one step, `attack`, a line for bash."""
        return self.steps({"attack": line}, files, **fields)

    def steps(
        self,
        lines: Mapping[str, str | Mapping[str, Any]],
        files: Files | None = None,
        **fields: Any,
    ) -> Ran:
        """Runs steps by their lines, or by their other fields with `shell` among them."""
        steps = [
            {"name": name, **({"shell": line} if isinstance(line, str) else line)}
            for name, line in lines.items()
        ]
        return self.run({"package.json": manifest(), **(files or {})}, steps=steps, **fields)

    def new_folder(self) -> Path:
        """An empty one."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def publish(
        self, name: str, entries: Iterable[Entry] = (), version: str = "1.0.0", **fields: Any
    ) -> Package:
        """Makes a package known to the registry; `fields` are of its package.json."""
        return self.registry.add(name, version, pack(name, version, entries, **fields))

    def trees(self) -> list[Path]:
        """The layers of the cache."""
        return sorted(self.cache_folder.glob("layers/*/tree"))


@contextmanager
def open_site(folder: Path) -> Iterator[JobSite]:
    """Makes a site below an empty folder; skips where this host cannot run jobs."""
    require_facts(*BOX, *JOB)
    cache_folder, work_folder = folder / "cache", folder / "work"
    cache_folder.mkdir(mode=0o700)
    work_folder.mkdir()
    (cache_folder / "toolchains").symlink_to(_toolchains())
    with RegistryServer() as registry, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOCHE_CACHE_DIR", str(cache_folder))
        patch.setenv("npm_config_registry", registry.url)
        patch.setenv("npm_config_userconfig", os.devnull)
        patch.setenv("npm_config_globalconfig", os.devnull)
        patch.setenv("no_proxy", "127.0.0.1")
        yield JobSite(registry, cache_folder, work_folder)


@cache
def _toolchains() -> Path:
    """Where this user's own cache keeps the pinned pnpm; fetched into it where it is missing."""

    async def fetch() -> None:
        store = PackageStore(settings.cache_folder / "packages")
        async with Registry(settings.npm, store) as registry:
            await find_toolchain(settings.cache_folder, registry.fetch, with_yarn=True)

    settings = read_settings()
    try:
        asyncio.run(fetch())
    except UnavailableError as error:
        pytest.skip(f"missing fact: toolchain-pnpm ({error})")
    return pnpm_path(settings.cache_folder).parent.parent


def outside(
    line: str, folder: Path, files: Files | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The control: the same line by the same shell and Node, as a plain process in a folder."""
    for path, content in (files or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
    node = require_runtime("node").host_path.parent
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", line],
        cwd=folder,
        env={**os.environ, "PATH": f"{node}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        timeout=30,
    )


def said(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON that a control has written as its last line."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def state_of(folder: Path) -> dict[str, tuple[int, int, int, bytes | str | None]]:
    """Every path below with its mode, owner, time of change and content."""
    found: dict[str, tuple[int, int, int, bytes | str | None]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        content: bytes | str | None = None
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        place = str(path.relative_to(folder))
        found[place] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found
