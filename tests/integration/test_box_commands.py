"""Several commands in one box: each starts alone, and nothing of one is left when it ends."""

import asyncio
import re

import pytest

from cloche.backends.base import Sinks
from cloche.backends.namespaces import NamespacesBackend
from cloche.environments import roots, runtimes
from cloche.errors import InternalError
from cloche.model.outcome import Cause
from cloche.model.plan import BoxPlan, Command, Scratch
from cloche.model.policy import Limits
from needs import BOX, needs
from observer import descendants

pytestmark = needs(*BOX, "runtime-python")

# Leaves two children in sessions of their own that hold its pipes and ignore polite signals.
LEAVES_CHILDREN = """
import os, signal, time
open("kept", "w").write("by the first")
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
time.sleep(0.1)
print("left", len([p for p in os.listdir("/proc") if p.isdigit()]), flush=True)
os._exit(3)
"""
LOOKS_AROUND = """
import os
print(open("kept").read(), len([p for p in os.listdir("/proc") if p.isdigit()]))
"""


class Session:
    """One box, and what its commands print."""

    def __init__(self, box):
        self.box = box
        self.printed = ""

    async def run(self, code, *argv):
        def take(chunk):
            self.printed += chunk.decode()

        command = Command(argv or ("/usr/bin/python3", "-I", "-S", "-c", code), env={})
        ignore = Sinks(take, take, lambda chunk: None)
        return await self.box.exec(command, stdin=b"", control=b"", sinks=ignore)


def in_a_box(work, **limits):
    async def whole():
        backend = NamespacesBackend()
        try:
            runtime = runtimes.require_runtime("python")
            environment = roots.python_environment(runtime)
            plan = BoxPlan(environment, Limits(**limits), scratch=Scratch.WRITABLE)
            box = await backend.create(plan)
            try:
                return await work(Session(box))
            finally:
                await box.destroy()
        finally:
            await backend.close()

    return asyncio.run(whole())


def guests():
    """Processes in boxes that are no longer the launcher's own program."""
    return [each.command for each in descendants().values() if not each.launches]


def test_nothing_of_a_command_is_left_when_its_end_is_told_and_the_box_lives_on():
    async def work(session):
        first = await session.run(LEAVES_CHILDREN)
        alive = guests()
        second = await session.run(LOOKS_AROUND)
        return first, alive, second, session.printed

    first, alive, second, printed = in_a_box(work)
    assert (first.cause, first.exit_code) == (Cause.EXITED, 3)
    assert alive == []
    assert (second.cause, second.exit_code) == (Cause.EXITED, 0)
    # The control: all three were there while the first ran. The second sees itself alone, in the
    # same files.
    assert re.fullmatch(r"left 3\nby the first 1\n", printed)


def test_a_command_that_cannot_start_says_why_and_the_next_one_runs():
    async def work(session):
        with pytest.raises(InternalError, match=r"No such file or directory.*\(exec\)"):
            await session.run("", "/usr/bin/no-such-program")

    in_a_box(work)


def test_a_deadline_ends_the_box_and_a_later_command_is_told_so_and_does_not_run():
    async def work(session):
        outcome = await session.run("while True: pass")
        assert outcome.cause is Cause.WALL_TIMEOUT
        assert guests() == []
        later = await session.run("print('never')")
        assert later.cause is Cause.WALL_TIMEOUT
        return session.printed

    assert in_a_box(work, timeout_ms=200) == ""
