"""Jobs beside each other, in one process and in several; and callers that get in their way."""

import asyncio
import fcntl
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cloche
import cloche.sync
from cloche.environments.layers import LayerStore
from cloche.errors import InvalidRequestError, UnavailableError
from cloche.linux.gathering import TreeCopy
from cloche.model.abort import AbortController
from cloche.model.events import Event, StateEvent, StepEvent
from cloche.model.job import JobResult, Verdict
from cloche.store.packages import PackageStore
from needs import BOX, JOB, needs
from observer import descendants
from programs import killed_job
from programs.killed_job import (
    PARTS_COUNT,
    Host,
    half_made,
    host_variables,
    make_cache,
    moment_of,
    project_files,
)
from registry_server import RegistryServer, held, status

pytestmark = needs(*BOX, *JOB)
PATIENCE_S = 20.0
SLOW_PATH = "/part-2/-/part-2-1.0.0.tgz"


@pytest.fixture(scope="module")
def toolchains() -> Path:
    try:
        return killed_job.fill_toolchains()
    except UnavailableError as error:
        pytest.skip(f"missing fact: toolchain-pnpm ({error})")


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer() as server:
        yield server


@pytest.fixture
def files(server: RegistryServer) -> dict[str, str]:
    return project_files(server.add(f"part-{each}", "1.0.0") for each in range(PARTS_COUNT))


@pytest.fixture
def here(
    toolchains: Path, server: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The cache of the jobs of this process."""
    cache = make_cache(tmp_path / "cache", toolchains)
    for name, value in host_variables(cache, server.url).items():
        monkeypatch.setenv(name, value)
    return cache


@pytest.fixture
def host(
    toolchains: Path, server: RegistryServer, files: Mapping[str, str], tmp_path: Path
) -> Iterator[Host]:
    project = tmp_path / "project"
    project.mkdir()
    for path, content in files.items():
        (project / path).write_text(content)
    with Host(project, toolchains, server.url) as host:
        yield host


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


def stands_still(cache: Path) -> bool:
    """Whether all packages but the slow one have come."""
    return len(list(cache.glob("packages/*.tgz"))) == PARTS_COUNT - 1


def requests_of(server: RegistryServer) -> list[int]:
    """How often each package was asked for, the least first."""
    return sorted(Counter(server.paths()).values())


# One layer, wanted by several


def test_four_jobs_in_one_process_make_their_layer_once(
    here: Path, server: RegistryServer, files: Mapping[str, str]
) -> None:
    async def work() -> list[JobResult]:
        return await asyncio.gather(*(cloche.run_job({"bundle": files}) for _ in range(4)))

    results = asyncio.run(work())
    assert [result.reason for result in results] == [None] * 4
    assert sorted(result.steps[0].cached for result in results) == [False, True, True, True]
    assert requests_of(server) == [1] * PARTS_COUNT
    assert half_made(here) == []


def test_three_processes_make_their_layer_once(host: Host, server: RegistryServer) -> None:
    cache = host.make_cache()
    endings = host.run(*(host.prepare(cache) for _ in range(3)))
    assert [ending.exit_code for ending in endings] == [0, 0, 0]
    assert requests_of(server) == [1] * PARTS_COUNT
    assert half_made(cache) == []


def holder_of(lock: Path) -> int:
    """The process that holds a lock. Source: man 5 proc, /proc/locks."""
    inode = str(lock.stat().st_ino)
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
            return int(fields[4])
    raise AssertionError(f"nobody holds {lock.name}")


def test_when_the_maker_of_a_layer_is_killed_another_takes_over(
    host: Host, server: RegistryServer
) -> None:
    cache, go_on = host.make_cache(), threading.Event()
    server.script(SLOW_PATH, held(go_on, status(500)))
    jobs = [host.prepare(cache) for _ in range(3)]
    pids = host.start(*jobs)
    wait_until(lambda: SLOW_PATH in server.paths() and stands_still(cache))
    (lock,) = (path for path in cache.glob("layers/*.lock") if not path.name.startswith("."))
    maker = holder_of(lock)
    os.kill(maker, signal.SIGKILL)
    go_on.set()
    codes = {ending.pid: ending.exit_code for ending in host.wait()}
    assert codes == {pid: -signal.SIGKILL if pid == maker else 0 for pid in pids}
    # What the one that was killed had fetched is not fetched again.
    assert requests_of(server) == [*[1] * (PARTS_COUNT - 1), 2]
    wait_until(lambda: maker not in descendants())
    assert host.passes(cache)
    assert half_made(cache) == []


def test_when_the_maker_of_a_layer_is_cancelled_another_takes_over(
    here: Path, server: RegistryServer, files: Mapping[str, str]
) -> None:
    go_on = threading.Event()
    server.script(SLOW_PATH, held(go_on, status(500)))

    async def work() -> list[JobResult]:
        maker = asyncio.ensure_future(cloche.run_job({"bundle": files}))
        await until(lambda: SLOW_PATH in server.paths() and stands_still(here))
        others = [asyncio.ensure_future(cloche.run_job({"bundle": files})) for _ in range(2)]
        await asyncio.sleep(0.1)
        maker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await maker
        go_on.set()
        return await asyncio.gather(*others)

    results = asyncio.run(work())
    assert [result.reason for result in results] == [None, None]
    assert requests_of(server) == [*[1] * (PARTS_COUNT - 1), 2]
    assert half_made(here) == []


def test_a_layer_that_is_just_begun_survives_another_process_that_removes_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one comes between the making of a lock's file and the taking of the lock."""
    store, lock = LayerStore(tmp_path), fcntl.flock
    theirs = -1

    def take() -> None:
        nonlocal theirs
        (path,) = tmp_path.glob("layers/*.lock")
        theirs = os.open(path, os.O_RDWR)
        lock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove() -> None:
        (path,) = tmp_path.glob("layers/*.lock")
        path.unlink()
        os.close(theirs)

    # As far as it comes before each of our attempts.
    acts = iter([take, remove, lambda: LayerStore(tmp_path)])

    def lock_late(descriptor: int, operation: int) -> None:
        next(acts, lambda: None)()
        lock(descriptor, operation)

    async def fill(tree: int) -> TreeCopy:
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=tree))
        return TreeCopy(1, 1)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    layer = asyncio.run(store.add("layer", fill))
    layer.close()
    assert [path.name for path in layer.tree.iterdir()] == ["file"]
    assert half_made(tmp_path) == []


def test_what_a_killed_fork_was_receiving_is_removed_by_its_parent(
    server: RegistryServer, tmp_path: Path
) -> None:
    package = server.add("part-0", "1.0.0")
    pid = os.fork()
    if pid == 0:
        with PackageStore(tmp_path / "packages").receive(server.url, package):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(half_made(tmp_path)) == 1
    PackageStore(tmp_path / "packages")
    assert half_made(tmp_path) == []


def test_jobs_beside_each_other_have_nothing_in_common(
    here: Path, files: Mapping[str, str], tmp_path: Path
) -> None:
    controller = AbortController()
    shells = {
        "passes": "echo passes > made.txt; echo passes",
        "fails": "echo fails; exit 3",
        "hangs": "echo hangs; sleep 60",
        "late": "echo late; sleep 60",
    }

    def abort_when_it_hangs(event: Event) -> None:
        if moment_of(event) == "only hangs":
            controller.abort()

    async def run(name: str, shell: str) -> JobResult:
        spec: dict[str, Any] = {
            "bundle": files,
            "steps": [{"name": "only", "shell": shell}],
            "artifacts": ["made.txt"],
        }
        if name == "late":
            spec["limits"] = {"timeout_ms": 3_000}
        options: dict[str, Any] = {}
        if name == "hangs":
            options = {"signal": controller.signal, "on_event": abort_when_it_hangs}
        return await cloche.run_job(spec, out=tmp_path / name, **options)

    async def work() -> list[JobResult]:
        return await asyncio.gather(*(run(*each) for each in shells.items()))

    results = dict(zip(shells, asyncio.run(work()), strict=True))
    assert {name: str(result.verdict) for name, result in results.items()} == {
        "passes": "passed", "fails": "failed", "hangs": "aborted", "late": "timed_out"
    }  # fmt: skip
    for name in shells:
        lines = (tmp_path / name / "log.ndjson").read_text().splitlines()
        log = [json.loads(line) for line in lines]
        assert [each["text"] for each in log if each["step"] == "only"] == [name]
        assert (tmp_path / name / "artifacts").exists() == (name == "passes")


# Loops, threads, forks


def test_two_loops_in_two_threads_run_jobs_side_by_side(
    here: Path, server: RegistryServer, files: Mapping[str, str]
) -> None:
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(lambda: asyncio.run(cloche.run_job({"bundle": files}))) for _ in range(2)
        ]
        results = [job.result() for job in jobs]
    assert [result.reason for result in results] == [None, None]
    assert requests_of(server) == [1] * PARTS_COUNT


def test_the_facade_runs_a_job_inside_a_running_loop(
    here: Path, files: Mapping[str, str], tmp_path: Path
) -> None:
    async def cell() -> JobResult:
        return cloche.sync.run_job({"bundle": files}, out=tmp_path / "out")

    assert asyncio.run(cell()).ok
    assert (tmp_path / "out/artifacts/dist/1.txt").read_text() == "1\n"


def test_the_facade_refuses_a_job_that_is_started_by_a_jobs_listener(
    here: Path, files: Mapping[str, str]
) -> None:
    def listen(_: Event) -> None:
        cloche.sync.run_job({"bundle": files})

    with pytest.raises(InvalidRequestError, match="from within a run"):
        cloche.sync.run_job({"bundle": files}, on_event=listen)


def in_a_fork(work: Callable[[], bool]) -> bool:
    """Whether it came true in a child of this process."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_fork_of_a_process_that_runs_jobs_can_run_jobs_too(
    here: Path, files: Mapping[str, str]
) -> None:
    assert cloche.sync.run_job({"bundle": files}).ok
    assert in_a_fork(lambda: cloche.sync.run_job({"bundle": files}).ok)
    assert in_a_fork(lambda: asyncio.run(cloche.run_job({"bundle": files})).ok)
    assert cloche.sync.run_job({"bundle": files}).ok


def test_ctrl_c_in_the_facade_ends_the_job_first(
    here: Path, files: Mapping[str, str], tmp_path: Path
) -> None:
    steps = [{"name": "only", "shell": "echo going; sleep 60"}]

    def interrupt(event: Event) -> None:
        if moment_of(event) == "only going":
            os.kill(os.getpid(), signal.SIGINT)

    def work() -> bool:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        spec = {"bundle": files, "steps": steps}
        try:
            cloche.sync.run_job(spec, out=tmp_path / "out", on_event=interrupt)
        except KeyboardInterrupt:
            return not descendants()
        return False

    assert in_a_fork(work)
    document = json.loads((tmp_path / "out/audit.json").read_text())
    assert (document["state"], document["verdict"]) == ("ended", "aborted")


# Listeners


class ListenerError(Exception):
    """What a listener raises."""


@pytest.mark.parametrize(
    ("moment", "verdict"),
    [
        ("started", "aborted"),
        ("install progress", "aborted"),
        ("test started", "aborted"),
        ("test $ node --test", "aborted"),
        ("build ended", "aborted"),  # nothing is delivered yet
        ("ended", "passed"),
    ],
)
def test_what_a_listener_raises_ends_the_job_and_is_raised(
    here: Path, files: Mapping[str, str], tmp_path: Path, moment: str, verdict: str
) -> None:
    told: list[str] = []

    def listen(event: Event) -> None:
        told.append(moment_of(event))
        if told[-1] == moment:
            raise ListenerError

    job = cloche.run_job({"bundle": files}, out=tmp_path / "out", on_event=listen)
    with pytest.raises(ListenerError):
        asyncio.run(job)
    assert told[-1] == moment  # it is not called again
    document = json.loads((tmp_path / "out/audit.json").read_text())
    assert (document["state"], document["verdict"]) == ("ended", verdict)
    assert (tmp_path / "out/artifacts").exists() == (verdict == "passed")
    assert half_made(here) == []


def test_a_slow_listener_slows_the_job_and_loses_nothing(
    here: Path, files: Mapping[str, str]
) -> None:
    events: list[Event] = []

    def listen(event: Event) -> None:
        time.sleep(0.2)
        events.append(event)

    steps = [{"name": "only", "shell": "echo one; echo two; echo three"}]
    result = asyncio.run(cloche.run_job({"bundle": files, "steps": steps}, on_event=listen))
    assert result.ok
    assert [moment_of(each) for each in events if getattr(each, "step", "") == "only"] == [
        "only started", "only one", "only two", "only three", "only ended"
    ]  # fmt: skip
    progress = [each for each in events if isinstance(each, StepEvent) and each.total_count]
    assert progress[-1].done_count == PARTS_COUNT
    assert isinstance(events[-1], StateEvent)
    assert events[-1].verdict is Verdict.PASSED


# The folder for what comes out


def test_a_folder_with_something_in_it_is_refused_and_left_alone(
    here: Path, server: RegistryServer, files: Mapping[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    with pytest.raises(InvalidRequestError, match="is not empty"):
        asyncio.run(cloche.run_job({"bundle": files}, out=out))
    assert [path.name for path in out.iterdir()] == ["mine"]
    assert server.seen == []
    # The control: it is what is in it.
    (out / "mine").unlink()
    assert asyncio.run(cloche.run_job({"bundle": files}, out=out)).ok


@pytest.mark.parametrize("place", ["file", "file/out"])
def test_a_place_that_can_be_no_folder_is_the_callers_fault(
    here: Path, server: RegistryServer, files: Mapping[str, str], tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidRequestError, match="out: "):
        asyncio.run(cloche.run_job({"bundle": files}, out=tmp_path / place))
    assert (tmp_path / "file").read_text() == "mine"
    assert server.seen == []


def test_two_jobs_cannot_have_one_folder(
    here: Path, files: Mapping[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"

    async def work() -> list[JobResult | BaseException]:
        jobs = [cloche.run_job({"bundle": files}, out=out) for _ in range(2)]
        return await asyncio.gather(*jobs, return_exceptions=True)

    results = asyncio.run(work())
    passed = [each for each in results if isinstance(each, JobResult)]
    refused = [each for each in results if isinstance(each, cloche.ClocheError)]
    assert len(passed) == len(refused) == 1
    document = json.loads((out / "audit.json").read_text())
    assert (document["run_id"], document["verdict"]) == (passed[0].run_id, "passed")
