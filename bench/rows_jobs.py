"""Jobs beside the same commands, bare on the host: the whole of one, and its install alone."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import cloche
from bench import bare
from bench.pairs import Row, Scale, Target, interleave
from cloche.environments.runtimes import require_runtime

# Small ones that depend on nothing.
_MORE = ("is-number", "once", "inherits", "ms", "wrappy")
_PROJECT = Path(__file__).parent.parent / "examples" / "vite-react"


def _put_aside(places: Iterable[Path]) -> None:
    """Removes them as far as anyone can see: ext4 takes its time for the next thousands of files
    where as many have just gone.
    """
    for place in places:
        if place.exists():
            place.rename(Path(tempfile.mkdtemp(prefix="gone-", dir=place.parent)) / place.name)


class _Bare:
    """The project in a folder of its own, with pnpm's store and cache beside it."""

    def __init__(self, folder: Path, pnpm: Path) -> None:
        self.pnpm = pnpm
        self._project = folder / "project"
        self._store, self._cache = folder / "store", folder / "cache"
        tools = folder / "tools"
        tools.mkdir(parents=True)
        (tools / "pnpm").symlink_to(pnpm)
        (tools / "node").symlink_to(require_runtime("node").host_path)
        self._environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "CI": "true",
        }
        shutil.copytree(_PROJECT, self._project)

    async def install(self, *flags: str) -> None:
        await self._run(
            "install",
            "--frozen-lockfile",
            f"--store-dir={self._store}",
            f"--cache-dir={self._cache}",
            *flags,
        )

    async def install_calmly(self) -> None:
        """Many connections at once lose answers of some resolvers, and pnpm waits for them."""
        await self.install("--network-concurrency=8")

    async def whole(self) -> None:
        await self.install()
        await self._run("run", "test")
        await self._run("run", "build")

    def forget(self, *, store: bool) -> None:
        places = ("project/node_modules", "project/dist", *(("store", "cache") if store else ()))
        _put_aside(self._project.parent / place for place in places)

    async def _run(self, *arguments: str) -> None:
        process = await asyncio.create_subprocess_exec(
            "pnpm",
            *arguments,
            cwd=self._project,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        if await process.wait():
            raise RuntimeError(f"pnpm {arguments[0]} failed on the host")


class _Jobs:
    """The same project as a job; remembers how long its install step took."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._out = folder / "out"
        self.install_ms: list[float] = []

    async def whole(self) -> None:
        self.forget()
        result = await cloche.run_job({"bundle": str(_PROJECT)}, out=self._out)
        if not result.ok:
            raise RuntimeError(f"the job ended as {result.verdict}: {result.reason}")
        self.install_ms.append(result.steps[0].duration_ms)

    async def whole_in(self, name: str) -> None:
        out = self._folder / name
        shutil.rmtree(out, ignore_errors=True)
        result = await cloche.run_job({"bundle": str(_PROJECT)}, out=out)
        if not result.ok:
            raise RuntimeError(f"the job ended as {result.verdict}: {result.reason}")

    async def install_with(self, package: str) -> float:
        """The ms of an install of the project with a dependency more, which is resolved first."""
        manifest = json.loads((_PROJECT / "package.json").read_text())
        manifest["dependencies"][package] = "*"
        spec = {
            "template": str(_PROJECT),
            "bundle": {"package.json": json.dumps(manifest)},
            "lockfile": "resolve",
            "steps": [{"name": "nothing", "argv": ["true"]}],
        }
        result = await cloche.run_job(spec)
        install = result.steps[1]
        if not result.ok or install.cached:
            raise RuntimeError(f"the install ended as {result.verdict}: {result.reason}")
        return install.duration_ms

    async def by_command(self) -> None:
        self.forget()
        await bare.spawn(
            [
                str(Path(sys.executable).with_name("cloche")),
                "job",
                "run",
                str(_PROJECT),
                "--out",
                str(self._out),
            ]
        )

    async def install(self) -> None:
        steps = [{"name": "nothing", "argv": ["true"]}]
        result = await cloche.run_job({"bundle": str(_PROJECT), "steps": steps})
        if not result.ok or result.steps[0].cached:
            raise RuntimeError(f"the install ended as {result.verdict}: {result.reason}")
        self.install_ms.append(result.steps[0].duration_ms)

    def forget(self) -> None:
        shutil.rmtree(self._out, ignore_errors=True)


async def measure(scale: Scale) -> AsyncIterator[Row]:
    """The example project, with its dependencies at hand and without."""
    with tempfile.TemporaryDirectory(prefix="cloche-bench-") as name:
        folder = Path(name)
        before = os.environ.get("CLOCHE_CACHE_DIR")
        os.environ["CLOCHE_CACHE_DIR"] = str(folder / "cloche")
        try:
            async for row in _measure(scale, folder):
                yield row
        finally:
            if before is None:
                del os.environ["CLOCHE_CACHE_DIR"]
            else:
                os.environ["CLOCHE_CACHE_DIR"] = before


async def _measure(scale: Scale, folder: Path) -> AsyncIterator[Row]:
    jobs = _Jobs(folder)
    await jobs.install()  # fetches the toolchain, which is no part of any figure
    host = _Bare(folder, next((folder / "cloche" / "toolchains").glob("*/pnpm")))

    def forget_all() -> None:
        host.forget(store=True)
        jobs.forget()
        _put_aside(folder / "cloche" / name for name in ("packages", "layers"))

    jobs.install_ms.clear()
    samples = await interleave(
        {"cloche": jobs.install, "bare": host.install, "calm": host.install_calmly},
        scale.installs_count,
        0,
        forget_all,
    )
    for name, title in (("bare", "pnpm install"), ("calm", "the same, 8 connections")):
        yield Row(
            "job, cold install through the mirror (with start and end of the job)",
            samples["cloche"],
            beside=title,
            beside_samples=samples[name],
            target=Target("ratio", 1.1),
        )
    cold_ms = jobs.install_ms[:]
    forget_all()
    await jobs.install()
    yield Row(
        "job, install step with one package more, all others at hand",
        [await jobs.install_with(name) for name in _MORE[: scale.installs_count]],
        beside="that of a cold install",
        beside_samples=cold_ms,
        target=Target("ratio", 0.3),
    )

    def forget_tree() -> None:
        host.forget(store=False)
        jobs.forget()

    await jobs.whole()
    jobs.install_ms.clear()
    samples = await interleave(
        {"api": jobs.whole, "command": jobs.by_command, "bare": host.whole},
        scale.jobs_count,
        1,
        forget_tree,
    )
    for name, title in (("api", "run_job"), ("command", "cloche job run")):
        yield Row(
            f"job, layer present: {title}",
            samples[name],
            beside="install, test, build",
            beside_samples=samples["bare"],
            target=Target("ratio", 1.0),
        )
    yield Row(
        "job, install step with a layer hit",
        jobs.install_ms,
        target=Target("median", 60),
    )
    count = scale.jobs_at_once_count
    crowd = [_Bare(folder / f"bare-{number}", host.pnpm) for number in range(count)]
    samples = await interleave(
        {
            "jobs": lambda: asyncio.gather(*(jobs.whole_in(f"out-{n}") for n in range(count))),
            "bare": lambda: asyncio.gather(*(each.whole() for each in crowd)),
        },
        scale.crowds_count,
        1,
        lambda: [each.forget(store=False) for each in crowd],
    )
    yield Row(
        f"job, layer present: {count} at once",
        samples["jobs"],
        beside=f"{count} bare ones at once",
        beside_samples=samples["bare"],
        target=Target("ratio", 1.15),
    )
