"""Engines inside of a process, as others run them: no box around, nothing to kill from outside.

isolated-vm is built by npm on its first use, into `.bench/` (a C++ compiler is needed); the others
come with the development environment.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pydantic_monty
import quickjs_rs
from py_mini_racer import MiniRacer

from bench.pairs import Action

ISOLATED_VM = "isolated-vm@5.0.4"
_FOLDER = Path(__file__).parent.parent / ".bench" / "isolated-vm"
_INSTALL_TIMEOUT_S = 300.0
CODE = "80 * (1 + 0.25)"
VALUE = 100


async def run_quickjs() -> None:
    """A fresh runtime and context of quickjs-rs, in this process."""
    with quickjs_rs.Runtime() as runtime, runtime.new_context() as context:
        _check(context.eval(CODE))


async def run_mini_racer() -> None:
    """A fresh V8 isolate, in this process."""
    engine = MiniRacer()
    try:
        _check(engine.eval(CODE))
    finally:
        engine.close()


@asynccontextmanager
async def open_monty() -> AsyncIterator[Action]:
    """A fresh session of pydantic-monty's own pool of processes."""
    with pydantic_monty.Monty() as pool:

        async def run() -> None:
            with pool.checkout() as session:
                _check(session.feed_run(CODE))

        yield run


@asynccontextmanager
async def open_isolated_vm() -> AsyncIterator[Action]:
    """A fresh isolate of isolated-vm, under Node; the action's time has two pipes in it.

    Raises:
        RuntimeError: it cannot be installed here; says why.
    """
    await _install_isolated_vm()
    process = await asyncio.create_subprocess_exec(
        "node",
        str(Path(__file__).with_name("isolated_vm.js")),
        env={"NODE_PATH": str(_FOLDER / "node_modules"), "PATH": "/usr/bin:/usr/local/bin"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    async def run() -> None:
        stdin.write(b"\n")
        if not await stdout.readline():
            raise RuntimeError("isolated-vm ended")

    try:
        yield run
    finally:
        stdin.close()
        await process.wait()


async def _install_isolated_vm() -> None:
    if (_FOLDER / "node_modules/isolated-vm/out/isolated_vm.node").is_file():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("isolated-vm cannot be installed: there is no npm")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    (_FOLDER / "package.json").write_text(json.dumps({"name": "bench", "private": True}))
    process = await asyncio.create_subprocess_exec(
        npm,
        "install",
        ISOLATED_VM,
        "--no-audit",
        "--no-fund",
        cwd=_FOLDER,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_INSTALL_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise RuntimeError("isolated-vm could not be built in time") from None
    if process.returncode != 0:
        raise RuntimeError(f"isolated-vm could not be built: {output.decode()[-300:]}")


def _check(value: object) -> None:
    if value != VALUE:
        raise RuntimeError(f"the run failed: {value!r}")
