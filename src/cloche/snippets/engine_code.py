"""The JavaScript engine as machine code: compiled once on a host, in a box, and kept in the cache.

Compiling takes a worker host a second of its start. What is kept is a program that runs in worker
hosts, like the engine itself: whoever can write the cache can change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import platform
import secrets
from typing import TYPE_CHECKING, Final

from cloche.backends.base import Sinks
from cloche.environments import roots, workers
from cloche.errors import InternalError
from cloche.model.plan import BoxPlan, Command
from cloche.model.policy import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cloche.backends.base import Backend

_LIMIT_BYTES: Final = 64 * 1024 * 1024
_LIMITS = Limits(timeout_ms=60_000, memory_mb=1024)
_KEY_SCHEME = "cloche engine 1"


async def find_engine_code(backend: Backend, cache_folder: Path) -> Path | None:
    """The file with the machine code of this version of the engine; made where there is none.

    Returns:
        None where the cache cannot be written: each host then compiles for itself.

    Raises:
        UnavailableError: the engine is not installed, or no box can be made.
        InternalError: it could not be compiled.
    """
    path = cache_folder / "engines" / await asyncio.to_thread(_name)
    if path.is_file():
        return path
    code = await _compile(backend)
    try:
        await asyncio.to_thread(_keep, path, code)
    except OSError:
        return None
    return path


def _name() -> str:
    """Equal names are of equal engines on equal machines."""
    digest = hashlib.sha256(f"{_KEY_SCHEME} {platform.machine()}\n".encode())
    for file in _sources():
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        if file.suffix in (".py", ".js", ".wasm"):
            digest.update(file.read_bytes())
        else:  # a library of 40 MB: a new release has another time or size
            digest.update(f"{file.stat().st_mtime_ns}\n".encode())
    return f"{digest.hexdigest()[:32]}.machine"


def _sources() -> Iterator[Path]:
    yield from sorted(workers.ENGINES.glob("quickjs*.py"))
    yield from sorted(workers.ENGINES.glob("prelude*.js"))
    yield from (workers.ENGINES / name for name in ("binary.py", "machine.py"))
    for name in ("quickjs_rs", "wasmtime"):
        package = roots.find_package(name, fact="worker-engines")
        yield from sorted(package.rglob("*.wasm"))
        yield from sorted(package.rglob("*.so"))


async def _compile(backend: Backend) -> bytes:
    code, errors = bytearray(), bytearray()

    def take(chunk: bytes) -> None:
        code.extend(chunk[: _LIMIT_BYTES - len(code)])

    def hear(chunk: bytes) -> None:
        errors.extend(chunk[: 4096 - len(errors)])

    box = await backend.create(BoxPlan(workers.worker_environment("javascript"), _LIMITS))
    try:
        command = Command((*workers.ARGV, "compile"), workers.ENV)
        sinks = Sinks(hear, hear, take)
        outcome = await box.exec(command, stdin=b"", control=b"", sinks=sinks)
    finally:
        await asyncio.shield(box.destroy())
    if outcome.exit_code != 0 or not code:
        words = errors.decode(errors="replace").strip()[-500:]
        raise InternalError(
            f"the engine could not be compiled ({outcome.cause}): {words}", retry_safe=True
        )
    return bytes(code)


def _keep(path: Path, code: bytes) -> None:
    """Writes the file in one step; others may do the same at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with open(descriptor, "wb") as writer:
            os.fchmod(descriptor, 0o644)  # a box reads it under a uid of its own
            writer.write(code)
        partial.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
