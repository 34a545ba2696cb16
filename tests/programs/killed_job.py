"""A small project for tests of interrupted jobs, and a program that runs jobs to be killed.

As a program it reads jobs, some per line as JSON, forks a child for each that is `cloche job run`
from there on, and answers with two lines: their pids, and how each of them ended. Forked from a
process that has imported everything, a job is under way within milliseconds. A child kills itself
by a signal some milliseconds after the moment that its line names.
"""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

from cloche.cli import job_view, main
from cloche.egress.registry import Registry
from cloche.environments import layers
from cloche.environments.toolchain import find_toolchain, pnpm_path
from cloche.jobs import audit, entry
from cloche.model.events import Event, LogEvent
from cloche.model.package import Package
from cloche.settings import read_settings
from cloche.store import packages
from cloche.store.packages import PackageStore

PARTS_COUNT = 4
FILES_COUNT = 100
# Ends with a word that tells when the build's own work is over.
BUILD = f"mkdir dist && for i in $(seq {FILES_COUNT}); do echo $i > dist/$i.txt; done; echo built"
TEST = """import test from 'node:test';
import part from 'part-0/package.json' with { type: 'json' };
test('holds', () => part.name.length);
"""


def project_files(packages: Iterable[Package], **fields: Any) -> dict[str, str]:
    """A project with one test, a build of FILES_COUNT files, and these dependencies.

    Args:
        packages: The dependencies; `part-0` is one that the test loads.
        fields: Of package.json, in place of the usual ones.
    """
    lock = ["lockfileVersion: '9.0'", "importers:", "  .:", "    dependencies:"]
    packages = list(packages)
    for each in packages:
        version = f"        specifier: {each.version}\n        version: {each.version}"
        lock.append(f"      {each.name}:\n{version}")
    lock.append("packages:")
    for each in packages:
        name = f"{each.name}@{each.version}"
        lock.append(f"  {name}:\n    resolution: {{integrity: {each.integrity}}}")
    lock.append("snapshots:")
    lock += [f"  {each.name}@{each.version}: {{}}" for each in packages]
    manifest = {
        "name": "small",
        "version": "1.0.0",
        "scripts": {"test": "node --test", "build": BUILD},
        "dependencies": {each.name: each.version for each in packages},
    } | fields
    return {
        "package.json": json.dumps(manifest),
        "pnpm-lock.yaml": "\n".join(lock) + "\n",
        "small.test.mjs": TEST,
    }


def fill_toolchains() -> Path:
    """The folder of this host's cache that holds the pinned pnpm, fetched where it is missing.

    Raises:
        UnavailableError: it cannot be had.
    """
    settings = read_settings()
    found = pnpm_path(settings.cache_folder)

    async def fetch() -> None:
        store = PackageStore(settings.cache_folder / "packages")
        async with Registry(settings.npm, store) as registry:
            await find_toolchain(settings.cache_folder, registry.fetch)

    if not found.is_file():
        asyncio.run(fetch())
    return found.parent.parent


def make_cache(folder: Path, toolchains: Path) -> Path:
    """A new cache with nothing in it but the pinned pnpm."""
    folder.mkdir(mode=0o700)
    (folder / "toolchains").symlink_to(toolchains)
    return folder


def half_made(cache: Path) -> list[str]:
    """What was begun in a cache and not finished."""
    found = [*cache.glob("layers/.*"), *cache.glob("packages/incoming/*")]
    return sorted(str(path.relative_to(cache)) for path in found)


def host_variables(cache_folder: Path, registry_url: str) -> dict[str, str]:
    """What makes a job use this cache and this registry, whatever else npm is set to here."""
    return {
        "CLOCHE_CACHE_DIR": str(cache_folder),
        "npm_config_registry": registry_url,
        "npm_config_userconfig": os.devnull,
        "npm_config_globalconfig": os.devnull,
        "no_proxy": "127.0.0.1",
    }


@dataclass(frozen=True)
class Ending:
    """How a job's process ended.

    Attributes:
        pid: Which it was.
        exit_code: Negative: minus the signal that killed it.
        moments: What it had come to, in order: see `moment_of`.
        has_launcher: There was one at the moment of the kill.
    """

    pid: int
    exit_code: int
    moments: tuple[str, ...]
    has_launcher: bool


class Host:
    """Runs jobs in processes of their own, side by side; the tests' end of the program below.

    Attributes:
        temporary_folder: Where they may keep temporary files.
    """

    def __init__(self, project: Path, toolchains: Path, registry_url: str) -> None:
        """Keeps what it makes beside the project's folder."""
        self._project = project
        self._toolchains = toolchains
        self._registry_url = registry_url
        self._made_count = 0
        self.temporary_folder = self._new("temporary")
        self.temporary_folder.mkdir()

    def __enter__(self) -> "Host":
        variables = {**os.environ, "TMPDIR": str(self.temporary_folder)}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its pipes and waits
            pass

    def _new(self, name: str) -> Path:
        self._made_count += 1
        return self._project.with_name(f"{name}-{self._made_count}")

    def make_cache(self) -> Path:
        """See `make_cache`."""
        return make_cache(self._new("cache"), self._toolchains)

    def prepare(
        self,
        cache: Path,
        *arguments: str,
        moment: str = "never",
        after_ms: float = 0,
        signal: int = SIGKILL,
    ) -> dict[str, Any]:
        """A job that is yet to be run: see `_run`; `out` is its folder."""
        out = str(self._new("out"))
        return {
            "arguments": [str(self._project), "--out", out, *arguments],
            "variables": host_variables(cache, self._registry_url),
            "moment": moment,
            "after_ms": after_ms,
            "signal": signal,
            "out": out,
        }

    def start(self, *jobs: Mapping[str, Any]) -> list[int]:
        """Starts jobs side by side; their pids."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(jobs)}\n")
        self._process.stdin.flush()
        pids: list[int] = json.loads(self._process.stdout.readline())
        return pids

    def wait(self) -> list[Ending]:
        """How each of those that were started has ended."""
        assert self._process.stdout is not None
        return [Ending(**fields) for fields in json.loads(self._process.stdout.readline())]

    def run(self, *jobs: Mapping[str, Any]) -> list[Ending]:
        """Runs jobs side by side."""
        self.start(*jobs)
        return self.wait()

    def passes(self, cache: Path) -> bool:
        """Whether a job passes now."""
        (ending,) = self.run(self.prepare(cache))
        return ending.exit_code == 0


def moment_of(event: Event) -> str:
    """An event in words: `started`, `install started`, `test ended`, `build built`, …"""
    if isinstance(event, LogEvent):
        return f"{event.step} {event.text}"
    return f"{getattr(event, 'step', '')} {event.state}".strip()


def _kill_itself(number: int, after_s: float, notes: int) -> None:
    time.sleep(after_s)
    own = os.getpid()
    launches = False
    for task in Path(f"/proc/{own}/task").iterdir():
        for pid in (task / "children").read_text().split():
            launches |= b"/cloche/launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()
    if launches:
        os.write(notes, b"has launcher\n")
    os.kill(own, number)


def _run(job: Mapping[str, Any], notes: int) -> None:
    """Is `cloche job run ARGUMENTS`; kills itself some time after the moment that is named.

    Moments are "" (the start), "package" (one has come, and is not in its place yet), "layer" (one
    has been begun), "record" (the last one is about to be written) and those of `moment_of`.
    After 0 ms is at once: nothing more is done.
    """
    kill = (job["signal"], job["after_ms"] / 1000, notes)
    killer = threading.Thread(target=_kill_itself, args=kill, daemon=True)

    def note(moment: str) -> None:
        if moment.endswith((" started", " ended")):
            os.write(notes, f"moment {moment}\n".encode())
        if moment == job["moment"] and not killer.is_alive():
            killer.start() if job["after_ms"] else _kill_itself(*kill)

    def note_before(owner: type, name: str, describe: Callable[..., str]) -> None:
        function = getattr(owner, name)

        def note_and_call(*arguments: Any, **fields: Any) -> Any:
            note(describe(*arguments, **fields))
            return function(*arguments, **fields)

        setattr(owner, name, note_and_call)

    note_before(job_view.Printer, "tell", lambda _, event: moment_of(event))
    note_before(packages.Incoming, "keep", lambda _: "package")
    note_before(layers.LayerStore, "_fill", lambda *_: "layer")
    note_before(audit.AuditRecord, "end", lambda _, **__: "record")
    # As in a process that was not forked.
    packages._PROCESS = secrets.token_hex(8)  # type: ignore[misc]
    note("")
    sys.argv = ["cloche", "job", "run", *job["arguments"]]
    main.main()


def _fork(job: Mapping[str, Any]) -> tuple[int, int]:
    """Starts a job; returns its pid, and what it notes down of itself."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    status = 1
    try:
        os.close(reader)
        os.environ.update(job["variables"])
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(nowhere, descriptor)
        _run(job, writer)
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _describe_end(pid: int, notes: int) -> dict[str, Any]:
    _, status = os.waitpid(pid, 0)
    with open(notes) as reader:
        lines = reader.read().splitlines()
    return {
        "pid": pid,
        "exit_code": os.waitstatus_to_exitcode(status),
        "moments": [line.removeprefix("moment ") for line in lines if line.startswith("moment ")],
        "has_launcher": "has launcher" in lines,
    }


def serve() -> None:
    """Runs the jobs of one line after those of another; those of one line side by side."""
    assert entry  # imported beforehand, for speed
    for line in sys.stdin:
        jobs = [_fork(job) for job in json.loads(line)]
        print(json.dumps([pid for pid, _ in jobs]), flush=True)
        print(json.dumps([_describe_end(*job) for job in jobs]), flush=True)


if __name__ == "__main__":
    serve()
