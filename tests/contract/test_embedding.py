"""Cloche inside of other programs: notebooks, threads, forks, sudden ends."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloche
from observer import descendants


def in_process_of_its_own(text: str, kind: str = "process") -> str:
    """Runs a host program; its standard output. Nothing of it outlives a program that hangs.

    Where `kind` is given, it has that sandbox instead of the process sandbox.
    """
    text = text.replace("create_process_sandbox", f"create_{kind}_sandbox")
    host = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, complaints = host.communicate(timeout=12)
    except subprocess.TimeoutExpired:
        os.killpg(host.pid, signal.SIGKILL)
        host.communicate()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-host.pid, 0):
                continue
        raise
    assert host.returncode == 0, complaints[-3000:]
    return told


def test_the_facade_works_in_a_thread_whose_loop_is_running(
    create_sync: Callable[..., Any],
) -> None:
    async def notebook_cell() -> Any:
        with create_sync() as sandbox:
            return sandbox.run("1 + 1").value, cloche.sync.run("1 + 2").value

    assert asyncio.run(notebook_cell()) == (2, 3)


def test_the_facade_and_a_loop_of_ones_own_work_side_by_side(
    create: Callable[..., Any], sandbox: Any
) -> None:
    async def both() -> tuple[Any, Any]:
        async with create() as other:
            mine, theirs = await asyncio.gather(other.run("1"), asyncio.to_thread(sandbox.run, "2"))
            return mine.value, theirs.value

    assert asyncio.run(both()) == (1, 2)


def test_a_sandbox_outlives_the_thread_that_made_it(create_sync: Callable[..., Any]) -> None:
    made: list[Any] = []

    def make() -> None:
        made.append(create_sync())
        made[0].run("1")

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    time.sleep(0.05)
    with made[0] as sandbox:
        assert sandbox.run("1 + 1").value == 2


def test_an_abandoned_sandbox_does_not_hold_the_program_and_leaves_no_box(kind: str) -> None:
    started = time.monotonic()
    told = in_process_of_its_own(
        """
        import threading, time, cloche
        sandbox = cloche.sync.create_process_sandbox(timeout_ms=60_000)
        sandbox.run("1")
        spin = lambda: sandbox.run("while (true);")
        threading.Thread(target=spin, daemon=True).start()
        time.sleep(0.5)
        import os
        print(os.getpid(), flush=True)
    """,
        kind,
    )
    assert time.monotonic() - started < 15
    assert_nothing_of(int(told))


def assert_gone(before: set[int]) -> None:
    """What was started since `before` ends within moments, once nobody holds it."""
    deadline = time.monotonic() + 5
    while left := set(descendants()) - before:
        assert time.monotonic() < deadline, left
        gc.collect()
        time.sleep(0.02)


def test_a_forgotten_sandbox_is_closed_and_python_is_warned(create: Callable[..., Any]) -> None:
    async def test() -> None:
        before = set(descendants())
        sandbox = create()
        assert (await sandbox.run("1 + 1")).value == 2
        assert set(descendants()) - before  # the control
        with pytest.warns(ResourceWarning, match="not disposed of"):
            del sandbox
            await asyncio.to_thread(assert_gone, before)

    asyncio.run(test())


def test_a_forgotten_sandbox_without_await_is_closed_too(create_sync: Callable[..., Any]) -> None:
    before = set(descendants())
    sandbox = create_sync()
    assert sandbox.run("1 + 1").value == 2
    with pytest.warns(ResourceWarning, match="not disposed of"):
        del sandbox
        assert_gone(before)


def test_sandboxes_that_are_forgotten_with_their_loops_do_not_add_up(kind: str) -> None:
    told = in_process_of_its_own(
        """
        import asyncio, gc, os, warnings, cloche
        warnings.simplefilter("always", ResourceWarning)
        told = []
        warnings.showwarning = lambda message, *_: told.append(str(message))

        async def main():
            sandbox = cloche.create_process_sandbox()
            assert (await sandbox.run("1")).ok

        for _ in range(4):
            asyncio.run(main())
            gc.collect()
            print(len(os.listdir("/proc/self/fd")))
        print(sum("a sandbox was not disposed of" in each for each in told))
    """,
        kind,
    )
    *counts, warnings_count = map(int, told.split())
    assert warnings_count == 4
    assert counts[-1] <= counts[0] + 2  # a warm box more or less


def assert_nothing_of(pid: int) -> None:
    """No launcher or box of a host process that is gone; they end within moments of it."""
    deadline = time.monotonic() + 2
    while left := launchers_of(pid) or dying():
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def dying() -> list[int]:
    """What has let go of its memory, and so of its command line, and has not ended yet."""
    return [pid for pid, process in descendants().items() if not process.command]


def launchers_of(pid: int) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if any(part.endswith("cloche/launcher") for part in command) and str(pid) in command:
                found.append(" ".join(command))
    return found


@pytest.mark.parametrize(
    "ending", ["os._exit(0)", "sys.exit(0)", "os.execv('/bin/true', ['true'])"]
)
def test_a_fork_of_the_host_that_ends_does_not_break_the_parents_sandbox(
    kind: str, ending: str
) -> None:
    told = in_process_of_its_own(
        f"""
        import os, sys, threading, cloche
        with cloche.sync.create_process_sandbox(timeout_ms=5000) as sandbox:
            assert sandbox.run("1").ok
            values = []
            code = "await new Promise(r => setTimeout(r, 400, 'kept'))"
            def work():
                values.append(sandbox.run(code).value)
            thread = threading.Thread(target=work)
            thread.start()
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    {ending}
                assert os.waitpid(child, 0)[1] == 0
                assert sandbox.run("1 + 1", language="python").value == 2
            thread.join()
            print(values[0], sandbox.run("1 + 1").value)
    """,
        kind,
    )
    assert told == "kept 2\n"


def test_a_fork_of_the_host_may_use_cloche_itself(kind: str) -> None:
    """As the workers of a pre-forking server do."""
    told = in_process_of_its_own(
        """
        import os, signal, cloche
        with cloche.sync.create_process_sandbox(timeout_ms=5000) as sandbox:
            assert sandbox.run("1").ok
            child = os.fork()
            if child == 0:
                signal.alarm(8)  # it must not hang for ever
                value = cloche.sync.run("1 + 1", language="python").value
                os._exit(0 if value == 2 else 1)
            status = os.waitpid(child, 0)[1]
            print(status, sandbox.run("1 + 1").value)
    """,
        kind,
    )
    assert told == "0 2\n"


def test_a_fork_that_outlives_the_host_does_not_keep_its_boxes_alive(kind: str) -> None:
    told = in_process_of_its_own(
        """
        import os, signal, threading, time, cloche
        sandbox = cloche.sync.create_process_sandbox(timeout_ms=60_000, language="python")
        threading.Thread(target=lambda: sandbox.run("while True: pass"), daemon=True).start()
        time.sleep(0.8)
        child = os.fork()
        if child == 0:
            os.close(1), os.close(2)
            time.sleep(6)
            os._exit(0)
        print(os.getpid(), child, flush=True)
        os._exit(0)
    """,
        kind,
    )
    host, child = map(int, told.split())
    try:
        assert_nothing_of(host)
    finally:
        os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # an orphan, which is ours by now
            os.waitpid(child, 0)


def test_the_facade_in_a_callback_of_its_own_is_refused_and_does_not_hang(kind: str) -> None:
    """`on_output` runs on the background loop, which must not wait for itself."""
    told = in_process_of_its_own(
        """
        import signal, cloche
        signal.alarm(8)
        with cloche.sync.create_process_sandbox(timeout_ms=3000) as sandbox:
            def again(stream, text):
                sandbox.run("2")
            try:
                sandbox.run("console.log(1)", on_output=again)
            except Exception as error:
                print(type(error).__name__)
            print(sandbox.run("1 + 1").value)
        """,
        kind,
    )
    assert told.endswith("\n2\n")


def test_importing_cloche_starts_nothing_and_loads_no_heavy_module() -> None:
    told = in_process_of_its_own("""
        import sys, threading
        import cloche
        heavy = {"asyncio", "pydantic", "rich", "click", "tree_sitter", "subprocess"}
        print(sorted(heavy & set(sys.modules)), threading.active_count())
    """)
    assert told == "[] 1\n"
