"""Jobs that are ended from outside: killed at any instant, interrupted, aborted, cancelled."""

import asyncio
import fcntl
import gc
import json
import os
import pty
import random
import socket
import subprocess
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, raise_signal, signal
from typing import Any

import pytest

import cloche
from cloche.backends.namespaces import NamespacesBackend
from cloche.egress.registry import Registry
from cloche.errors import UnavailableError
from cloche.linux.launching import Launcher
from cloche.model.abort import AbortController
from cloche.model.events import Event
from cloche.model.job import JobResult, ReasonCode, StepStatus, Verdict
from needs import BOX, JOB, needs
from observer import cgroup_folders, descendants, open_descriptors
from programs import killed_job
from programs.killed_job import (
    FILES_COUNT,
    PARTS_COUNT,
    Ending,
    Host,
    half_made,
    host_variables,
    make_cache,
    moment_of,
    project_files,
)
from registry_server import RegistryServer, held, status

pytestmark = needs(*BOX, *JOB)
CLOCHE = str(Path(sys.executable).with_name("cloche"))
PATIENCE_S = 2.0
KILLS_COUNT = 25  # in each of the 8 chunks, which several workers can share
SIDE_BY_SIDE_COUNT = 5
# Where it begins, and within how many milliseconds of that it is killed.
INSTANTS = [
    ("", 50),
    ("", 600),
    ("install started", 200),
    ("install started", 400),
    ("test started", 400),
    ("build started", 100),
    ("build built", 40),
    ("build ended", 10),
]
ENDLESS = "test=echo going; sleep 60"


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
def project(files: Mapping[str, str], tmp_path: Path) -> Path:
    """The files as a folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    for path, content in files.items():
        (folder / path).write_text(content)
    return folder


def wait_until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def read_record(out: Path) -> dict[str, Any] | None:
    record = out / "audit.json"
    return json.loads(record.read_text()) if record.exists() else None


# Killed


@pytest.fixture
def host(toolchains: Path, server: RegistryServer, project: Path, tmp_path: Path) -> Iterator[Host]:
    with Host(project, toolchains, server.url) as host:
        yield host


def fault_of(out: Path, ending: Ending) -> str | None:
    """What is wrong with what a killed job has left for those who wait for its result."""
    document = read_record(out)
    has_artifacts = (out / "artifacts").exists()
    if document is None:
        return "something had started, without a record" if ending.moments else None
    if document["state"] == "intended":
        return "artifacts of a job that has not ended" if has_artifacts else None
    if (document["state"], document["verdict"]) != ("ended", "passed"):
        return f"it is said to be {document['state']}, {document['verdict']}"
    count = len(list((out / "artifacts").glob("dist/*"))) if has_artifacts else 0
    return None if count in (0, FILES_COUNT) else f"{count} artifacts of {FILES_COUNT}"


def groups_left_by(ending: Ending) -> list[Path]:
    """The cgroups of a killed job that should not be there any more; clears all of them away."""
    wait_until(lambda: not cgroup_folders(ending.pid), PATIENCE_S if ending.has_launcher else 0)
    left = sorted(cgroup_folders(ending.pid), reverse=True)
    for folder in left:
        folder.rmdir()
    # Before there is a launcher, nobody is left who could clear the groups away at once: a later
    # start does (`cgroup.sweep`).
    return left if ending.has_launcher else []


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("moment", "within_ms"), INSTANTS)
def test_nothing_is_left_of_a_job_that_is_killed_at_any_instant(
    host: Host, moment: str, within_ms: float
) -> None:
    chance = random.Random(f"{moment} {within_ms}")
    before = set(descendants())
    is_cold = moment == "install started"
    cache = host.make_cache()
    assert host.passes(cache)
    left, killed_count, launchers_count = [], 0, 0
    for _ in range(KILLS_COUNT // SIDE_BY_SIDE_COUNT):
        if is_cold:
            cache = host.make_cache()
        jobs = [
            host.prepare(
                cache,
                # Two of the five want one layer.
                *(("--trust-domain", f"domain-{number % 4}") if is_cold else ()),
                moment=moment,
                after_ms=chance.uniform(0, within_ms),
            )
            for number in range(SIDE_BY_SIDE_COUNT)
        ]
        endings = host.run(*jobs)
        if not wait_until(lambda: not set(descendants()) - before):
            left.append(f"processes: {[each.command for each in descendants().values()]}")
        for job, ending in zip(jobs, endings, strict=True):
            where = f"{moment or 'start'} + {job['after_ms']:.3f} ms"
            assert ending.exit_code in (0, -SIGKILL), (where, ending)
            killed_count += ending.exit_code == -SIGKILL
            launchers_count += ending.has_launcher
            left += [f"{where}: {folder}" for folder in groups_left_by(ending)]
            if fault := fault_of(Path(job["out"]), ending):
                left.append(f"{where}: {fault}")
        left += [f"temporary file: {path}" for path in host.temporary_folder.iterdir()]
        if is_cold:
            assert host.passes(cache)
            left += half_made(cache)
    assert host.passes(cache)
    assert half_made(cache) == []
    assert left == []
    # The control: there was something to be killed.
    assert killed_count >= KILLS_COUNT // 2
    assert launchers_count >= KILLS_COUNT // 4 or within_ms == 50


@pytest.mark.parametrize(
    ("moment", "what"), [("package", "packages/incoming/"), ("layer", "layers/.partial-")]
)
def test_what_a_killed_job_had_begun_is_removed_by_the_next_one(
    host: Host, moment: str, what: str
) -> None:
    cache = host.make_cache()
    (ending,) = host.run(host.prepare(cache, moment=moment))
    assert ending.exit_code == -SIGKILL
    assert groups_left_by(ending) == []
    begun = half_made(cache)
    assert begun
    assert all(path.startswith(what) for path in begun)
    assert host.passes(cache)
    assert half_made(cache) == []


def test_artifacts_are_there_only_beside_the_record_of_a_pass(host: Host) -> None:
    cache = host.make_cache()
    job = host.prepare(cache, moment="record")
    (ending,) = host.run(job)
    assert ending.exit_code == -SIGKILL
    assert "build ended" in ending.moments
    assert fault_of(Path(job["out"]), ending) is None
    # The control: let alone, the same job delivers.
    job = host.prepare(cache)
    (ending,) = host.run(job)
    assert (Path(job["out"]) / "artifacts").is_dir()


# Interrupted


def start(
    cache: Path, server: RegistryServer, *arguments: str, **fields: Any
) -> subprocess.Popen[str]:
    variables = {**os.environ, **host_variables(cache, server.url), "TERM": "xterm"}
    fields = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE} | fields
    command = [CLOCHE, "job", "run", *arguments]
    return subprocess.Popen(command, env=variables, text=True, **fields)


@pytest.fixture
def cache(toolchains: Path, tmp_path: Path) -> Path:
    return make_cache(tmp_path / "cache", toolchains)


def wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    while (found := process.stdout.readline()) != f"{line}\n":
        assert found, f"it ended before it said {line!r}"


@pytest.mark.parametrize("moment", ["started", "install started", "test started", "build started"])
def test_the_first_interrupt_ends_the_job_and_the_record_says_so(host: Host, moment: str) -> None:
    chance = random.Random(moment)
    cache = host.make_cache()
    jobs = [
        host.prepare(cache, moment=moment, after_ms=after_ms, signal=number)
        for number, after_ms in (
            (SIGINT, 0),
            (SIGTERM, chance.uniform(0, 20)),
            (SIGHUP, chance.uniform(0, 100)),
        )
    ]
    for job, ending in zip(jobs, host.run(*jobs), strict=True):
        document = read_record(Path(job["out"]))
        assert document is not None
        assert document["state"] == "ended"
        assert (ending.exit_code, document["verdict"]) in ((130, "aborted"), (0, "passed"))
        assert (Path(job["out"]) / "artifacts").exists() == (ending.exit_code == 0)
        if job["after_ms"] == 0:
            assert ending.exit_code == 130
    assert host.passes(cache)


def test_an_interrupt_before_the_job_has_started_leaves_nothing(
    cache: Path, server: RegistryServer, project: Path, tmp_path: Path
) -> None:
    for number, delay_s in enumerate((0.0, 0.1, 0.2, 0.3, 0.4)):
        out = tmp_path / f"out-{number}"
        process = start(cache, server, str(project), "--out", str(out), "--step", ENDLESS)
        time.sleep(delay_s)
        process.send_signal(SIGINT)
        process.communicate(timeout=20)
        # By the signal itself where Python had not come so far as to take it.
        assert process.returncode in (1, 130, -SIGINT)
        assert wait_until(lambda: not descendants()), descendants()
        document = read_record(out)
        assert document is None or (document["state"], document["verdict"]) == ("ended", "aborted")


def is_stuck(pipe: Any) -> bool:
    """Whether much waits in a pipe, and no more comes."""

    def waiting_bytes() -> int:
        count = bytearray(4)
        fcntl.ioctl(pipe, termios.FIONREAD, count)
        return int.from_bytes(count, sys.byteorder)

    before = waiting_bytes()
    time.sleep(0.3)
    return before > 30_000 and waiting_bytes() == before


def test_the_second_interrupt_ends_cloche_at_once_and_nothing_is_left(
    cache: Path, server: RegistryServer, project: Path, tmp_path: Path
) -> None:
    flood = "test=echo going; yes"
    process = start(cache, server, str(project), "--out", str(tmp_path / "out"), "--step", flood)
    assert process.stdout is not None
    with process.stdout:
        wait_for_line(process, "[test] | going")
        assert wait_until(lambda: is_stuck(process.stdout))
        process.send_signal(SIGINT)
        # The first one has to wait for a reader who takes what was printed: nobody does.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(SIGINT)
        assert process.wait(1) == 130
        assert wait_until(lambda: not descendants()), descendants()
    document = read_record(tmp_path / "out")
    assert document is not None
    assert document["state"] in ("intended", "ended")


def test_an_interrupt_while_a_job_takes_note_of_its_signal_is_not_lost() -> None:
    """The handler runs in the very thread that it interrupts, between any two of its steps."""
    controller, told = AbortController(), []

    class Interrupted(list[Callable[[], None]]):
        def append(self, callback: Callable[[], None]) -> None:
            super().append(callback)
            raise_signal(SIGINT)

    pid = os.fork()
    if pid == 0:
        signal(SIGINT, lambda *_: controller.abort())
        controller.signal._callbacks = Interrupted()
        controller.signal.subscribe(lambda: told.append("aborted"))
        os._exit(len(told))
    ended = wait_until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    os.kill(pid, SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended, "it waits for itself"
    assert code == 1


def take_terminal() -> None:
    """In the child: its standard input becomes what Ctrl-C is typed at."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("times", [1, 2])
def test_a_terminal_is_as_it_was_after_ctrl_c(
    cache: Path, server: RegistryServer, project: Path, times: int
) -> None:
    leader, follower = pty.openpty()
    before = termios.tcgetattr(follower)
    process = start(
        cache, server, str(project), "--step", ENDLESS,
        stdin=follower, stdout=follower, stderr=follower,
        start_new_session=True, preexec_fn=take_terminal,
    )  # fmt: skip
    shown = b""
    while b"going" not in shown:
        shown += os.read(leader, 4096)
    assert len(descendants()) > 2  # the control: there are boxes to die
    os.write(leader, b"\x03" * times)
    reader = threading.Thread(target=process.wait)
    reader.start()
    os.set_blocking(leader, False)
    while reader.is_alive():
        try:
            shown += os.read(leader, 4096)
        except BlockingIOError:
            time.sleep(0.005)
    assert process.returncode == 130
    assert wait_until(lambda: not descendants()), descendants()
    assert termios.tcgetattr(follower) == before
    os.close(follower)
    os.close(leader)
    assert shown.rfind(b"\x1b[?7h") > shown.rfind(b"\x1b[?7l")
    assert shown.rfind(b"\x1b[?2026l") > shown.rfind(b"\x1b[?2026h")
    for private in (b"\x1b[?25l", b"\x1b[?1049h"):
        assert private not in shown  # nothing to be put back
    assert times == 2 or b"aborted" in shown


# Aborted


@pytest.fixture
def here(cache: Path, server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the jobs of this process."""
    for name, value in host_variables(cache, server.url).items():
        monkeypatch.setenv(name, value)
    return cache


def at(moment: str, act: Callable[[], None]) -> Callable[[Event], None]:
    """A listener that acts at a moment."""

    def on_event(event: Event) -> None:
        if moment_of(event) == moment:
            act()

    return on_event


def assert_aborted(result: JobResult, out: Path, cache: Path) -> None:
    assert result.verdict is Verdict.ABORTED
    assert result.reason is not None
    assert result.reason.code is ReasonCode.ABORTED
    assert result.retry_safe
    assert result.artifacts == ()
    assert sorted(path.name for path in out.iterdir()) == [
        "audit.json", "log.ndjson", "manifest.json"
    ]  # fmt: skip
    document = read_record(out)
    assert document is not None
    assert (document["state"], document["verdict"]) == ("ended", "aborted")
    assert half_made(cache) == []


@pytest.mark.case("api-08-abort-mid-run")
@pytest.mark.parametrize(
    "moment",
    [
        "started",
        "install started",
        "install progress",
        "test started",
        "test $ node --test",
        "build started",
        "build built",
    ],
)
def test_an_abort_ends_the_job_where_it_is(
    here: Path, files: Mapping[str, str], tmp_path: Path, moment: str
) -> None:
    controller = AbortController()
    job = cloche.run_job(
        {"bundle": files},
        out=tmp_path / "out",
        on_event=at(moment, controller.abort),
        signal=controller.signal,
    )
    result = asyncio.run(job)
    assert_aborted(result, tmp_path / "out", here)
    assert result.failed_step == (None if moment == "started" else moment.split()[0])
    ran = [step for step in result.steps if step.status is not StepStatus.PASSED]
    assert [step.status for step in ran[1:]] == [StepStatus.SKIPPED] * len(ran[1:])


def test_a_job_that_was_aborted_beforehand_starts_nothing(
    here: Path, server: RegistryServer, files: Mapping[str, str], tmp_path: Path
) -> None:
    controller = AbortController()
    controller.abort()
    out = tmp_path / "out"
    result = asyncio.run(cloche.run_job({"bundle": files}, out=out, signal=controller.signal))
    assert_aborted(result, out, here)
    assert {step.status for step in result.steps} <= {StepStatus.SKIPPED}
    assert server.seen == []


def test_an_abort_from_another_thread_ends_a_download_that_stands_still(
    here: Path, server: RegistryServer, files: Mapping[str, str], tmp_path: Path
) -> None:
    controller, go_on = AbortController(), threading.Event()
    server.script("/part-2/-/part-2-1.0.0.tgz", held(go_on, status(500)))
    aborted_at = 0.0

    def abort() -> None:
        nonlocal aborted_at
        assert wait_until(lambda: len(server.seen) == PARTS_COUNT)
        aborted_at = time.monotonic()
        controller.abort()

    thread = threading.Thread(target=abort)
    thread.start()
    job = cloche.run_job({"bundle": files}, out=tmp_path / "out", signal=controller.signal)
    result = asyncio.run(job)
    assert time.monotonic() - aborted_at < 2
    go_on.set()
    thread.join()
    assert_aborted(result, tmp_path / "out", here)
    assert result.failed_step == "install"
    # The control: the job lacked nothing else.
    assert asyncio.run(cloche.run_job({"bundle": files})).ok


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_an_abort_while_a_layer_is_put_in_its_place_leaves_a_whole_one_or_none(
    here: Path,
    files: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_late: bool,
) -> None:
    controller, rename = AbortController(), Path.rename

    def rename_slowly(self: Path, target: Path) -> Path:
        is_layer = self.name.startswith(".partial-")
        if is_layer and not is_late:
            controller.abort()
            time.sleep(0.1)
        renamed = rename(self, target)
        if is_layer and is_late:
            controller.abort()
            time.sleep(0.1)
        return renamed

    monkeypatch.setattr(Path, "rename", rename_slowly)
    out = tmp_path / "out"
    job = cloche.run_job({"bundle": files}, out=out, signal=controller.signal)
    assert_aborted(asyncio.run(job), out, here)
    monkeypatch.setattr(Path, "rename", rename)
    assert asyncio.run(cloche.run_job({"bundle": files})).ok


# Cancelled


async def cancel(job: Coroutine[Any, Any, JobResult], *after_s: float) -> JobResult | None:
    """Cancels a job after so many seconds, once more after so many more; None: it took it."""
    task = asyncio.ensure_future(job)
    for seconds in after_s:
        await asyncio.sleep(seconds)
        task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


def contents(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


async def faults_of_a_cancelled(out: Path, before: Counter[str]) -> list[str]:
    """What is wrong right after a job in this loop was cancelled."""
    faults = []
    first = contents(out)
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        faults.append(f"tasks: {tasks}")
    if processes := descendants():
        faults.append(f"processes: {[each.command for each in processes.values()]}")
    names = [each.name for each in threading.enumerate()]
    if threads := [name for name in names if name.startswith("cloche-registry")]:
        faults.append(f"threads: {threads}")
    await asyncio.sleep(0.05)
    if contents(out) != first:
        faults.append("it went on writing")
    gc.collect()
    if more := open_descriptors() - before:
        faults.append(f"descriptors: {dict(more)}")
    if document := read_record(out):
        if document["state"] != "ended":
            faults.append("its record has no end")
        if (out / "artifacts").exists() != (document.get("verdict") == "passed"):
            faults.append(f"artifacts, or none, of {document.get('verdict')}")
    elif first:
        faults.append(f"without a record: {[*first]}")
    return faults


@pytest.mark.case("api-08-abort-mid-run")
@pytest.mark.parametrize(
    ("within_s", "is_cold"), [(0.02, False), (0.15, False), (0.5, False), (0.4, True)]
)
def test_nothing_is_left_of_a_job_that_is_cancelled_at_any_instant(
    here: Path, files: Mapping[str, str], tmp_path: Path, within_s: float, is_cold: bool
) -> None:
    chance = random.Random(f"{within_s} {is_cold}")
    faults, cancelled_count = [], 0

    async def work() -> None:
        nonlocal cancelled_count
        assert (await cloche.run_job({"bundle": files}, out=tmp_path / "first")).ok
        before = open_descriptors()
        for number in range(15):
            after_s = chance.uniform(0, within_s)
            spec = {"bundle": files, "trust_domain": f"domain-{number}" if is_cold else "local"}
            out = tmp_path / f"out-{number}"
            result = await cancel(cloche.run_job(spec, out=out), after_s)
            cancelled_count += result is None
            for fault in await faults_of_a_cancelled(out, before):
                faults.append(f"{after_s * 1000:.3f} ms: {fault}")

    asyncio.run(work())
    assert faults == []
    assert cancelled_count >= 5  # the control
    assert half_made(here) == []


@pytest.mark.parametrize("moment", ["install started", "install progress", "test $ node --test"])
def test_nothing_is_left_of_a_job_that_is_cancelled_twice(
    here: Path, files: Mapping[str, str], tmp_path: Path, moment: str
) -> None:
    out = tmp_path / "out"

    async def work() -> list[str]:
        assert (await cloche.run_job({"bundle": files}, out=tmp_path / "first")).ok
        before = open_descriptors()
        spec = {"bundle": files, "trust_domain": "another"}

        def cancel_twice() -> None:
            loop = asyncio.get_running_loop()
            loop.call_soon(task.cancel)
            loop.call_later(0.001, task.cancel)

        task = asyncio.ensure_future(
            cloche.run_job(spec, out=out, on_event=at(moment, cancel_twice))
        )
        with pytest.raises(asyncio.CancelledError):
            await task
        return await faults_of_a_cancelled(out, before)

    assert asyncio.run(work()) == []


@pytest.mark.parametrize("owner", [Registry, NamespacesBackend])
def test_a_job_that_is_cancelled_while_it_clears_away_clears_all_away(
    here: Path,
    files: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type[Registry | NamespacesBackend],
) -> None:
    tasks: list[asyncio.Task[JobResult]] = []
    close = owner.close

    async def close_and_cancel(self: Any) -> None:
        asyncio.get_running_loop().call_soon(tasks[0].cancel)
        await close(self)

    monkeypatch.setattr(owner, "close", close_and_cancel)

    async def work() -> list[str]:
        before = open_descriptors()
        job = cloche.run_job({"bundle": files}, out=tmp_path / "out")
        tasks.append(asyncio.create_task(job))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        return await faults_of_a_cancelled(tmp_path / "out", before)

    assert asyncio.run(work()) == []


@pytest.mark.parametrize("number", [1, 2, 3, 4], ids=["intent", "last-word", "manifest", "record"])
def test_a_job_that_is_cancelled_while_it_writes_has_written_all_when_it_returns(
    here: Path,
    files: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    out = tmp_path / "out"
    dump, dumps_count, is_writing = json.dump, 0, threading.Event()

    def dump_slowly(*arguments: Any, **fields: Any) -> None:
        """A disk that takes its time for one of the four documents that a job writes."""
        nonlocal dumps_count
        dumps_count += 1
        is_slow = dumps_count == number
        dump(*arguments, **fields)
        if is_slow:
            is_writing.set()
            time.sleep(0.3)

    monkeypatch.setattr(json, "dump", dump_slowly)

    async def work() -> list[str]:
        before = open_descriptors()
        task = asyncio.ensure_future(cloche.run_job({"bundle": files}, out=out))
        while not is_writing.is_set():
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        first = contents(out)
        await asyncio.sleep(0.5)
        late = ["it went on writing"] if contents(out) != first else []
        return late + await faults_of_a_cancelled(out, before)

    assert asyncio.run(work()) == []


def test_a_job_that_is_cancelled_while_its_layer_is_cloned_keeps_no_descriptor(
    here: Path, files: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, has_cloned = Launcher.clone_folders, threading.Event()

    def clone_and_wait(*arguments: Any) -> list[int]:
        clones = clone(*arguments)
        has_cloned.set()
        time.sleep(0.1)
        return clones

    async def work() -> list[str]:
        assert (await cloche.run_job({"bundle": files}, out=tmp_path / "first")).ok
        monkeypatch.setattr(Launcher, "clone_folders", clone_and_wait)
        before = open_descriptors()
        task = asyncio.ensure_future(cloche.run_job({"bundle": files}, out=tmp_path / "out"))
        while not has_cloned.is_set():
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.2)
        return await faults_of_a_cancelled(tmp_path / "out", before)

    assert asyncio.run(work()) == []


# Late

LIMIT_MS = 800
# What follows the limit: a grace of one second, and the end of what runs.
LATE_MS = 2_000


def assert_out_of_time(result: JobResult, step: str | None) -> None:
    assert result.verdict is Verdict.TIMED_OUT
    assert result.reason is not None
    assert result.reason.code is ReasonCode.JOB_TIMEOUT
    assert str(LIMIT_MS) in result.reason.message
    assert result.failed_step == step
    assert LIMIT_MS <= result.duration_ms < LIMIT_MS + LATE_MS


def limited(files: Mapping[str, str], **fields: Any) -> dict[str, Any]:
    return {"bundle": files, "limits": {"timeout_ms": LIMIT_MS}, **fields}


def test_the_jobs_limit_ends_a_step(here: Path, files: Mapping[str, str]) -> None:
    steps = [{"name": "test", "shell": "sleep 60"}, {"name": "build", "shell": "true"}]
    result = asyncio.run(cloche.run_job(limited(files, steps=steps)))
    assert_out_of_time(result, "test")
    assert [step.status for step in result.steps] == ["passed", "timed_out", "skipped"]


def test_the_jobs_limit_ends_a_download_that_stands_still(
    here: Path, server: RegistryServer, files: Mapping[str, str]
) -> None:
    go_on = threading.Event()
    server.script("/part-2/-/part-2-1.0.0.tgz", held(go_on, status(500)))
    result = asyncio.run(cloche.run_job(limited(files)))
    go_on.set()
    assert_out_of_time(result, "install")
    assert half_made(here) == []


def test_the_jobs_limit_ends_the_download_of_the_toolchain(
    here: Path, files: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "toolchains").unlink()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        monkeypatch.setenv("npm_config_registry", url)
        result = asyncio.run(cloche.run_job(limited(files)))
    assert_out_of_time(result, None)


def test_the_jobs_limit_ends_the_wait_for_a_layer_that_another_makes(
    here: Path, server: RegistryServer, files: Mapping[str, str]
) -> None:
    go_on = threading.Event()
    server.script("/part-2/-/part-2-1.0.0.tgz", held(go_on, status(500)))

    async def work() -> tuple[JobResult, JobResult]:
        maker = asyncio.ensure_future(cloche.run_job({"bundle": files}))
        while not server.seen:
            await asyncio.sleep(0.002)
        waiting = await cloche.run_job(limited(files))
        go_on.set()
        return waiting, await maker

    waiting, made = asyncio.run(work())
    assert_out_of_time(waiting, "install")
    assert made.ok
