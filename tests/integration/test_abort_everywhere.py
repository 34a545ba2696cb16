"""Runs that are ended at any instant, by anyone, end alone: no other run notices."""

import asyncio
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import cloche
from needs import BOX, needs, require_facts
from observer import descendants

pytestmark = needs(*BOX, "worker-engines", "runtime-bun")

Code = cloche.SandboxErrorCode
MAKERS = {
    "quickjs": (cloche.create_worker_sandbox, "javascript"),
    "monty": (cloche.create_worker_sandbox, "python"),
    "bun": (cloche.create_process_sandbox, "javascript"),
    "python": (cloche.create_process_sandbox, "python"),
}
# Works for about this many milliseconds, then has a value.
BRIEF = {
    "javascript": "const end = Date.now() + ms; while (Date.now() < end); 'done'",
    "python": (
        "import time\nend = time.time() + ms / 1000\nwhile time.time() < end:\n    pass\n'done'"
    ),
}
SPIN = {"javascript": "for (;;);", "python": "while True:\n    pass"}


def create(name, **fields):
    maker, language = MAKERS[name]
    if name == "python":
        require_facts("runtime-python")
    return maker(language=language, **{"timeout_ms": 20_000, **fields})


def run(test, limit_s=50):
    async def bounded():
        async with asyncio.timeout(limit_s):
            await test()

    asyncio.run(bounded())


def runs_of(name, count):
    return count if MAKERS[name][0] is cloche.create_worker_sandbox else count // 4


async def assert_fresh(sandbox):
    """The next run, which nobody ends, is served as if nothing had been."""
    result = await sandbox.run("6 * 7")
    assert (result.value, result.error_code) == (42, None), result.error


@pytest.mark.parametrize("name", MAKERS)
def test_an_abort_at_any_instant_ends_that_run_and_no_other(name):
    dice = random.Random(f"abort {name}")
    seen = Counter()

    async def test():
        loop = asyncio.get_running_loop()
        async with create(name, pool_size=1) as sandbox:
            for _ in range(runs_of(name, 40)):
                controller = cloche.AbortController()
                code, context = BRIEF[MAKERS[name][1]], {"ms": dice.choice([0, 2])}
                timer = loop.call_later(dice.random() * 0.006, controller.abort)
                result = await sandbox.run(code, context, signal=controller.signal)
                timer.cancel()
                assert result.value == "done" or result.error_code is Code.ABORTED, result.error
                seen[result.error_code] += 1
                await assert_fresh(sandbox)

    run(test)
    assert seen[Code.ABORTED] > 0


@pytest.mark.parametrize("name", ["quickjs", "monty"])
def test_a_deadline_that_falls_together_with_the_end_ends_that_run_and_no_other(name):
    dice = random.Random(f"deadline {name}")
    seen = Counter()

    async def test():
        async with create(name, pool_size=1) as sandbox:
            for _ in range(25):
                code, context = BRIEF[MAKERS[name][1]], {"ms": 2}
                result = await sandbox.run(code, context, timeout_ms=dice.randint(1, 5))
                assert result.value == "done" or result.error_code is Code.TIMEOUT, result.error
                seen[result.error_code] += 1
                await assert_fresh(sandbox)

    run(test)
    assert seen[Code.TIMEOUT] > 0


@pytest.mark.parametrize("name", MAKERS)
def test_a_cancellation_at_any_instant_ends_that_run_and_no_other(name):
    dice = random.Random(f"cancel {name}")
    seen = Counter()

    async def test():
        async with create(name, pool_size=1) as sandbox:
            for _ in range(runs_of(name, 40)):
                code, context = BRIEF[MAKERS[name][1]], {"ms": dice.choice([0, 2])}
                task = asyncio.ensure_future(sandbox.run(code, context))
                await asyncio.sleep(dice.random() * 0.006)
                task.cancel()
                try:
                    seen[(await task).value] += 1
                except asyncio.CancelledError:
                    seen["cancelled"] += 1
                await assert_fresh(sandbox)

    run(test)
    assert seen["cancelled"] > 0
    assert set(seen) <= {"cancelled", "done"}


@pytest.mark.parametrize("name", MAKERS)
def test_a_disposal_at_any_instant_ends_everything(name):
    dice = random.Random(f"dispose {name}")

    async def test():
        for _ in range(runs_of(name, 12)):
            sandbox = create(name, pool_size=1)
            code = SPIN[MAKERS[name][1]]
            tasks = [asyncio.ensure_future(sandbox.run(code)) for _ in range(3)]
            await asyncio.sleep(dice.choice([0, 0.001, 0.02, 0.3]) * dice.random() * 2)
            began = time.monotonic()
            await asyncio.gather(sandbox.dispose(), sandbox.dispose())
            assert time.monotonic() - began < 5
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(ended, cloche.DisposedError):
                    assert ended.error_code is Code.DISPOSED, ended
            assert not descendants()

    run(test)


@pytest.mark.parametrize("how", ["abort", "dispose", "queue timeout", "cancel"])
def test_a_run_that_waits_for_a_worker_host_can_be_ended(how):
    """As on a busy machine: the box of the first host is three seconds late."""

    async def test():
        gate = asyncio.Event()
        sandbox = create("quickjs", pool_size=1)
        make = sandbox.backend.create

        async def make_late(plan):
            await gate.wait()
            return await make(plan)

        sandbox.backend.create = make_late
        asyncio.get_running_loop().call_later(3, gate.set)
        controller = cloche.AbortController()
        limit_ms = 200 if how == "queue timeout" else 30_000
        task = asyncio.ensure_future(
            sandbox.run("1", signal=controller.signal, queue_timeout_ms=limit_ms)
        )
        try:
            await asyncio.sleep(0.2)
            began = time.monotonic()
            if how == "abort":
                controller.abort()
                assert (await task).error_code is Code.ABORTED
            elif how == "cancel":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            elif how == "dispose":
                await sandbox.dispose()
                assert (await task).error_code is Code.DISPOSED
            else:
                with pytest.raises(cloche.OverloadedError):
                    await task
            assert time.monotonic() - began < 1.5
        finally:
            gate.set()
            await sandbox.dispose()

    run(test)


def hosts_of(root=None):
    """Pids of worker hosts, by language."""
    found = {}
    for pid, process in descendants(root).items():
        if "/opt/cloche/worker.py" in process.command:
            found.setdefault(process.command.split()[-1], []).append(pid)
    return found


def test_a_worker_host_that_is_killed_while_idle_costs_no_run():
    async def test():
        async with create("quickjs", pool_size=1) as sandbox:
            for _ in range(5):
                await assert_fresh(sandbox)
                idle = hosts_of()["javascript"]
                assert idle
                for pid in idle:
                    os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0.3)
                await assert_fresh(sandbox)

    run(test)


def test_a_worker_host_that_is_killed_in_a_run_ends_that_run_as_its_own_kill():
    async def test():
        async with create("quickjs", pool_size=1) as sandbox:
            await assert_fresh(sandbox)
            task = asyncio.ensure_future(sandbox.run("console.log('began'); for (;;);"))
            await asyncio.sleep(0.3)
            killed = hosts_of()["javascript"]
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            result = await task
            assert (result.ok, result.value, result.signal) == (False, None, 9)
            assert result.error_code is Code.EXECUTION_ERROR
            assert result.stdout == "began\n"
            # The idle ones may take longer to die; a run that they have begun would be theirs, too.
            while not set(killed).isdisjoint(hosts_of().get("javascript", ())):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            await assert_fresh(sandbox)

    run(test)


@pytest.mark.parametrize("name", MAKERS)
def test_a_launcher_that_is_killed_costs_the_runs_in_flight_at_most(name):
    async def test():
        async with create(name, pool_size=1) as sandbox:
            await assert_fresh(sandbox)
            task = asyncio.ensure_future(sandbox.run(SPIN[MAKERS[name][1]]))
            await asyncio.sleep(0.3)
            launchers = [pid for pid, each in descendants().items() if each.is_launcher]
            assert launchers
            for pid in launchers:
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(cloche.InternalError):
                await task
            await asyncio.sleep(0.3)
            for _ in range(3):
                await assert_fresh(sandbox)

    run(test)


def test_a_stopped_worker_host_ends_at_the_deadline_of_its_run():
    async def test():
        async with create("quickjs", pool_size=1) as sandbox:
            await assert_fresh(sandbox)
            stopped = hosts_of()["javascript"]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            while any(descendants()[pid].state != "T" for pid in stopped):
                await asyncio.sleep(0.01)  # it stops one thread, and that one the others
            result = await sandbox.run("1", timeout_ms=300)
            assert result.error_code is Code.TIMEOUT
            assert result.duration_ms < 1500
            await assert_fresh(sandbox)

    run(test)


def test_two_event_loops_have_each_their_own_hosts():
    values = []

    async def work(number):
        async with create("quickjs") as sandbox:
            results = await asyncio.gather(
                *(sandbox.run("globalThis.n ??= n; globalThis.n", {"n": number}) for _ in range(10))
            )
            values.extend((number, each.value) for each in results)

    threads = [
        threading.Thread(target=lambda number=number: asyncio.run(work(number)))
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(values) == 20
    assert all(number == value for number, value in values)


@pytest.mark.parametrize("name", ["quickjs", "bun"])
def test_a_fork_of_the_caller_can_do_its_sandbox_no_harm(name):
    async def test():
        async with create(name, pool_size=1) as sandbox:
            await assert_fresh(sandbox)
            pid = os.fork()
            if pid == 0:
                try:
                    sandbox.run("1").send(None)
                except cloche.InvalidRequestError:
                    os._exit(7)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            await assert_fresh(sandbox)

    run(test)


def pidfds():
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            if "pidfd" in str(link.readlink()):
                found[int(link.name)] = os.fstat(int(link.name))
        except OSError:
            continue
    return set(found)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["quickjs", "bun"])
def test_a_sandbox_that_is_forgotten_leaves_no_process(name):
    before = pidfds()

    async def test():
        sandbox = create(name, pool_size=1)
        await assert_fresh(sandbox)
        assert descendants()
        del sandbox

    run(test)
    deadline = time.monotonic() + 5
    while descendants() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert not descendants()
    assert pidfds() <= before


def test_a_worker_host_outlives_no_caller_that_is_killed():
    code = (
        "import asyncio, cloche\n"
        "async def main():\n"
        "    async with cloche.create_worker_sandbox() as sandbox:\n"
        "        await sandbox.run('1')\n"
        "        print('up', flush=True)\n"
        "        await sandbox.run('for (;;);')\n"
        "asyncio.run(main())\n"
    )

    async def test():
        caller = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
        )
        assert caller.stdout is not None
        assert await caller.stdout.readline() == b"up\n"
        assert hosts_of(caller.pid)["javascript"]
        caller.kill()
        await caller.wait()
        deadline = time.monotonic() + 5
        while descendants() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        assert not descendants()

    run(test)
