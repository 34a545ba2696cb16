"""A host process for `test_box_killed.py`: forks one child per line of input, waits for its end.

A child makes a sandbox and starts a run that never ends; it prints its pid at the moment that
the line asks for (`cold`: before the sandbox exists; `warm`: right before the run in flight).
Forked from a process that has imported everything, a child is ready within milliseconds.
"""

import asyncio
import os
import sys

import cloche
from cloche.backends import namespaces
from cloche.snippets import entry, process

# In the box: processes without a parent, in sessions of their own.
ENDLESS = {
    "python": """
import os, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        break
while True:
    time.sleep(5)
""",
    "javascript": """
const { spawn } = require("node:child_process");
const idle = ["-e", "setInterval(() => {}, 1000)"];
spawn("/usr/bin/bun", idle, { detached: true, stdio: "ignore" }).unref();
while (true);
""",
}
assert namespaces and entry and process  # imported beforehand, for speed


async def run(language: str, moment: str) -> None:
    if moment == "cold":
        print(os.getpid(), flush=True)
    async with cloche.create_process_sandbox(language=language, memory_limit_mb=256) as sandbox:
        if moment == "warm":
            await sandbox.run("1")
            print(os.getpid(), flush=True)
        await sandbox.run(ENDLESS[language], timeout_ms=60_000)


def main() -> None:
    for line in sys.stdin:
        language, moment = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(run(language, moment))
            finally:
                os._exit(1)
        os.waitpid(pid, 0)
        print("ended", flush=True)


main()
