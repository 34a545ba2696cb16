"""A registry that fails in the middle of an install; a disk that is full in the middle of a job."""

import asyncio
import ctypes
import functools
import json
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import cloche
from cloche.egress import connections, registry
from cloche.environments.toolchain import PNPM_VERSION
from cloche.errors import UnavailableError
from cloche.model.events import Event
from cloche.model.job import JobResult, ReasonCode, Verdict
from needs import BOX, JOB, needs
from programs import killed_job
from programs.killed_job import (
    PARTS_COUNT,
    half_made,
    host_variables,
    make_cache,
    moment_of,
    project_files,
)
from registry_server import (
    Answer,
    Handler,
    RegistryServer,
    hang_up,
    make_tarball,
    status,
    truncated,
)

pytestmark = needs(*BOX, *JOB)
LIMIT_MS = 800
# What follows the limit: a grace of one second, and the end of what runs.
LATE_MS = 4_000
BAD_PATH = "/part-2/-/part-2-1.0.0.tgz"
MIB = 1024 * 1024


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
def cache(
    toolchains: Path, server: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The cache of the jobs of this process."""
    cache = make_cache(tmp_path / "cache", toolchains)
    for name, value in host_variables(cache, server.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(registry, "RETRY_DELAYS_S", (0.001, 0.002))
    return cache


def run(files: Mapping[str, str], out: Path | None = None, **fields: Any) -> JobResult:
    return asyncio.run(cloche.run_job({"bundle": files, **fields}, out=out))


def layers(cache: Path) -> list[str]:
    """The layers that are there, whole or not."""
    found = cache.glob("layers/*")
    return sorted(path.name for path in found if not path.name.endswith(".lock"))


def assert_ended(result: JobResult, verdict: Verdict, code: ReasonCode, *, step: str | None) -> str:
    """Returns the message of the reason."""
    assert result.reason is not None
    assert (result.verdict, result.reason.code, result.failed_step) == (verdict, code, step)
    assert result.retry_safe == (verdict is Verdict.INFRA_FAILED)
    assert result.artifacts == ()
    return result.reason.message


# The registry


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(status(500), id="500"),
        pytest.param(status(503), id="503"),
        pytest.param(status(429), id="429"),
        pytest.param(hang_up, id="hangs-up"),
        pytest.param(truncated(b"some", 1000), id="breaks-off"),
    ],
)
def test_a_registry_that_fails_in_the_middle_is_asked_again_and_then_named(
    cache: Path, server: RegistryServer, files: Mapping[str, str], answer: Answer
) -> None:
    attempts_count = 1 + len(registry.RETRY_DELAYS_S)
    server.script(BAD_PATH, *[answer] * 10)
    result = run(files)
    message = assert_ended(result, Verdict.INFRA_FAILED, ReasonCode.REGISTRY_FAILED, step="install")
    assert "part-2@1.0.0" in message
    assert server.origin in message
    # A kept connection may be closed at any time: that is no attempt.
    assert attempts_count <= server.paths().count(BAD_PATH) <= 2 * attempts_count
    assert layers(cache) == half_made(cache) == []
    # It is back: only what is missing is fetched.
    server.script(BAD_PATH)
    before_count = len(server.paths())
    assert run(files).ok
    assert server.paths()[before_count:] == [BAD_PATH]


@pytest.mark.parametrize("failures_count", [1, 2])
def test_a_registry_that_fails_for_a_moment_fails_no_job(
    cache: Path, server: RegistryServer, files: Mapping[str, str], failures_count: int
) -> None:
    server.script(BAD_PATH, *[status(500)] * failures_count)
    assert run(files).ok
    assert server.paths().count(BAD_PATH) == 1 + failures_count


def test_a_registry_that_dies_in_the_middle_fails_the_job_as_infrastructure(
    cache: Path, server: RegistryServer, files: Mapping[str, str]
) -> None:
    def die(handler: Handler) -> None:
        handler.server.shutdown()
        handler.server.socket.close()
        server.drop_connections()

    server.script(BAD_PATH, die)
    message = assert_ended(
        run(files), Verdict.INFRA_FAILED, ReasonCode.REGISTRY_FAILED, step="install"
    )
    assert f"{server.origin}: Connection refused" in message
    assert layers(cache) == half_made(cache) == []


def test_a_registry_that_stalls_in_the_middle_is_given_up(
    cache: Path,
    server: RegistryServer,
    files: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "IDLE_TIMEOUT_S", 0.2)
    go_on = threading.Event()

    def stall(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"some")
        go_on.wait(20)
        handler.close_connection = True

    server.script(BAD_PATH, stall, stall, stall)
    result = run(files)
    go_on.set()
    message = assert_ended(result, Verdict.INFRA_FAILED, ReasonCode.REGISTRY_FAILED, step="install")
    assert "does not answer" in message
    assert server.paths().count(BAD_PATH) == 3
    assert layers(cache) == half_made(cache) == []


def drip(head: bytes, gone: threading.Event) -> Answer:
    """A head, or a part of one, and then a byte now and then."""

    def answer(handler: Handler) -> None:
        handler.wfile.write(head)
        while not gone.wait(0.02):
            handler.wfile.write(b"x")

    return answer


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"", id="nothing-but-bytes"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Long: ", id="in-the-head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n", id="in-the-body"),
    ],
)
def test_a_registry_that_gives_a_byte_now_and_then_is_bounded_by_the_jobs_limit(
    cache: Path, server: RegistryServer, files: Mapping[str, str], head: bytes
) -> None:
    gone = threading.Event()
    server.script(BAD_PATH, *[drip(head, gone)] * 3)
    started_at = time.monotonic()
    result = run(files, limits={"timeout_ms": LIMIT_MS})
    took_ms = (time.monotonic() - started_at) * 1000
    gone.set()
    assert_ended(result, Verdict.TIMED_OUT, ReasonCode.JOB_TIMEOUT, step="install")
    assert LIMIT_MS <= took_ms < LIMIT_MS + LATE_MS
    assert layers(cache) == half_made(cache) == []


def test_wrong_bytes_fail_the_job_and_are_kept_nowhere(
    cache: Path, server: RegistryServer, files: Mapping[str, str]
) -> None:
    wrong = make_tarball("part-2", "1.0.0", {"index.js": "evil()"})
    server.script(BAD_PATH, status(200, wrong), status(200, wrong))
    message = assert_ended(
        run(files), Verdict.FAILED, ReasonCode.INTEGRITY_MISMATCH, step="install"
    )
    assert "part-2@1.0.0" in message
    # Once more is asked for: a proxy may have been at fault.
    assert server.paths().count(BAD_PATH) == 2
    assert layers(cache) == half_made(cache) == []
    kept = [path for path in cache.glob("packages/*.tgz")]
    assert len(kept) == PARTS_COUNT - 1
    assert wrong not in [path.read_bytes() for path in kept]
    assert run(files).ok


@pytest.mark.parametrize("code", [404, 401, 403, 410])
def test_a_package_that_is_not_given_fails_the_job_by_its_name(
    cache: Path, server: RegistryServer, files: Mapping[str, str], code: int
) -> None:
    server.script(BAD_PATH, status(code))
    message = assert_ended(
        run(files), Verdict.FAILED, ReasonCode.PACKAGE_UNAVAILABLE, step="install"
    )
    assert "part-2@1.0.0" in message
    assert str(code) in message
    assert ("npm login" in message) == (code in (401, 403))
    assert server.paths().count(BAD_PATH) == 1
    assert layers(cache) == half_made(cache) == []
    assert run(files).ok


@pytest.mark.parametrize("code", [500, 404])
def test_a_registry_without_the_toolchain_is_told_as_what_this_host_lacks(
    cache: Path, server: RegistryServer, files: Mapping[str, str], tmp_path: Path, code: int
) -> None:
    (cache / "toolchains").unlink()
    if code == 500:
        for package in ("exe.linux-x64", "exe.linux-arm64"):
            name = f"{package}-{PNPM_VERSION}.tgz"
            server.script(f"/@pnpm/{package}/-/{name}", *[status(500)] * 3)
    with pytest.raises(UnavailableError) as caught:
        run(files, tmp_path / "out")
    assert caught.value.fact == "toolchain-pnpm"
    assert str(code) in caught.value.message
    document = json.loads((tmp_path / "out/audit.json").read_text())
    assert (document["state"], document["verdict"]) == ("ended", "infra_failed")
    assert not list(cache.glob("toolchains/**/*.new-*"))
    assert half_made(cache) == []


# The disk


_CLONE_NEWNS = 0x20000


def _unshare_mounts() -> None:
    """Gives this thread, and whatever it starts, a mount namespace. Source: man 2 unshare."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def with_disks_of_its_own(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test where what it mounts is seen by nobody else, and goes when the test ends."""

    @functools.wraps(test)
    def run_aside(**fixtures: Any) -> None:
        with ThreadPoolExecutor(1, initializer=_unshare_mounts) as pool:
            pool.submit(test, **fixtures).result()

    return pytest.mark.needs("root")(run_aside)


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[[int], Path]:
    """Makes the test's disk of so many MiB; called once more, it is of another size."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def make(size_mb: int) -> Path:
        how = "remount," if folder.is_mount() else ""
        size = f"{how}size={size_mb}m,mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True)
        return folder

    return make


def fill_up(folder: Path) -> None:
    """Takes all that is left of a disk."""
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as writer:
        while True:
            writer.write(bytes(4096))


def fill_at(moment: str, folder: Path) -> Callable[[Event], None]:
    """A listener that fills a disk at a moment."""

    def on_event(event: Event) -> None:
        if moment_of(event) == moment:
            fill_up(folder)

    return on_event


def large_project(server: RegistryServer) -> dict[str, str]:
    """Its one package takes 2 MiB as a tarball and some 4 MiB when it is installed."""
    data = {"data.txt": random.Random(1).randbytes(2 * MIB).hex()}
    return project_files([server.add("part-0", "1.0.0", make_tarball("part-0", "1.0.0", data))])


@pytest.mark.parametrize(("size_mb", "what"), [(1, "part-0@1.0.0"), (4, "No space left")])
@with_disks_of_its_own
def test_a_disk_too_small_for_packages_or_layers_fails_the_job_and_keeps_no_half(
    cache: Path,
    toolchains: Path,
    server: RegistryServer,
    small_disk: Callable[[int], Path],
    monkeypatch: pytest.MonkeyPatch,
    size_mb: int,
    what: str,
) -> None:
    files = large_project(server)
    small_cache = make_cache(small_disk(size_mb) / "cache", toolchains)
    monkeypatch.setenv("CLOCHE_CACHE_DIR", str(small_cache))
    message = assert_ended(run(files), Verdict.INFRA_FAILED, ReasonCode.HOST_FAILED, step="install")
    assert what in message
    assert "No space left" in message
    assert layers(small_cache) == half_made(small_cache) == []
    small_disk(16)
    assert run(files).ok


BIG_LOG = [{"name": "only", "shell": "seq 40000"}]
BIG_BUILD = [{"name": "only", "shell": "mkdir dist; head -c 4000000 /dev/urandom > dist/big"}]


@pytest.mark.parametrize(
    ("steps", "artifacts"), [(BIG_LOG, ["dist/**"]), (BIG_BUILD, ["dist/**"])], ids=["log", "files"]
)
@with_disks_of_its_own
def test_a_disk_too_small_for_what_a_job_gives_fails_it_and_delivers_nothing(
    cache: Path,
    files: Mapping[str, str],
    small_disk: Callable[[int], Path],
    steps: list[dict[str, str]],
    artifacts: list[str],
) -> None:
    out = small_disk(1) / "out"
    result = run(files, out, steps=steps, artifacts=artifacts)
    message = assert_ended(result, Verdict.INFRA_FAILED, ReasonCode.HOST_FAILED, step="only")
    assert "No space left" in message
    assert {path.name for path in out.iterdir()} <= {"audit.json", "log.ndjson", "manifest.json"}
    shutil.rmtree(out)
    small_disk(16)
    assert run(files, out, steps=steps, artifacts=artifacts).ok


@pytest.mark.parametrize("moment", ["test $ node --test", "build built", "build ended"])
@with_disks_of_its_own
def test_a_disk_that_becomes_full_fails_the_job_and_delivers_nothing(
    cache: Path, files: Mapping[str, str], small_disk: Callable[[int], Path], moment: str
) -> None:
    disk = small_disk(4)
    out = disk / "out"
    result = asyncio.run(cloche.run_job({"bundle": files}, out=out, on_event=fill_at(moment, disk)))
    assert result.verdict is Verdict.INFRA_FAILED
    assert result.reason is not None
    assert result.reason.code is ReasonCode.HOST_FAILED
    assert "No space left" in result.reason.message
    assert result.artifacts == ()
    assert result.retry_safe
    assert not (out / "artifacts").exists()
    assert not (out / ".artifacts").exists()
    # What the record says is whole, and no pass.
    document = json.loads((out / "audit.json").read_text())
    assert document["state"] == "intended" or document["verdict"] == "infra_failed"


@with_disks_of_its_own
def test_without_room_for_its_record_a_job_is_not_started(
    cache: Path,
    server: RegistryServer,
    files: Mapping[str, str],
    small_disk: Callable[[int], Path],
) -> None:
    disk = small_disk(1)
    fill_up(disk)
    with pytest.raises(UnavailableError, match="No space left") as caught:
        run(files, disk / "out")
    assert caught.value.fact == "output"
    assert server.seen == []
    assert layers(cache) == []
    # The control: it is the room.
    (disk / "filler").unlink()
    shutil.rmtree(disk / "out", ignore_errors=True)
    assert run(files, disk / "out").ok


@with_disks_of_its_own
def test_a_folder_that_may_not_be_written_is_told_before_a_job_is_started(
    cache: Path,
    server: RegistryServer,
    files: Mapping[str, str],
    small_disk: Callable[[int], Path],
) -> None:
    disk = small_disk(1)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(UnavailableError, match="Read-only file system") as caught:
        run(files, disk / "out")
    assert caught.value.fact == "output"
    assert server.seen == []


def test_a_layer_whose_description_was_lost_with_the_power_is_made_anew(
    cache: Path, files: Mapping[str, str]
) -> None:
    assert run(files).ok
    (described,) = cache.glob("layers/*/layer.json")
    described.write_text("")
    result = run(files)
    assert result.ok
    assert not result.steps[0].cached
    assert run(files).steps[0].cached
