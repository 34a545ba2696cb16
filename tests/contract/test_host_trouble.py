"""Trouble of Cloche's own or of its host is an internal error, and no run is left behind."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloche
from cloche import InternalError


def children_of(pid: int) -> set[int]:
    """The live direct children of a process."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.add(int(entry.name))
    return found


def test_a_launcher_that_is_killed_is_an_internal_error_and_the_next_run_works(
    create: Callable[..., Any],
) -> None:
    async def test() -> None:
        before = children_of(os.getpid())
        async with create(language="python", timeout_ms=20_000) as sandbox:
            assert (await sandbox.run("1")).ok
            running = asyncio.create_task(sandbox.run("while True: pass"))
            await asyncio.sleep(0.3)
            for launcher in children_of(os.getpid()) - before:
                os.kill(launcher, signal.SIGKILL)
            try:
                result = await running
            except InternalError as error:
                assert error.code is cloche.SandboxErrorCode.INTERNAL_ERROR
                assert not error.retry_safe  # guest code had started
            else:
                raise AssertionError(f"no internal error, but {result.error_code}")
            again = await sandbox.run("1 + 1")
            assert again.value == 2

    asyncio.run(test())


OUT_OF_DESCRIPTORS = """
    import os, resource, sys
    import cloche

    sandbox = cloche.sync.create_process_sandbox(timeout_ms=2000)
    with sandbox:
        assert sandbox.run("1 + 1").value == 2
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = len(os.listdir("/proc/self/fd"))
        codes = set()
        for room in range(2, 40, 3):
            resource.setrlimit(resource.RLIMIT_NOFILE, (held + room, hard))
            for language in ("javascript", "python"):
                try:
                    codes.add(sandbox.run("1 + 1", language=language).error_code)
                except cloche.ClocheError as error:
                    codes.add(error.code)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert codes - {None}, "there was room all the time"
        assert sandbox.run("1 + 1").value == 2
        assert sandbox.run("1 + 1", language="python").value == 2
    print("fine", len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.kinds("process")
def test_a_host_without_free_descriptors_is_told_as_such_and_recovers(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OUT_OF_DESCRIPTORS)],
        capture_output=True,
        text=True,
        timeout=50,
        start_new_session=True,
    )
    assert done.stdout.startswith("fine"), done.stderr[-3000:]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100  # this process is another
