"""The read-only roots of worker hosts: CPython, an engine, and Cloche's own program around it."""

from __future__ import annotations

import sysconfig
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cloche.environments import roots
from cloche.errors import UnavailableError
from cloche.linux.facts import Fact, Probe, Verdict

if TYPE_CHECKING:
    from cloche.model.plan import Environment

ENGINES: Final = Path(__file__).parent.parent / "snippets" / "engines"
ARGV: Final = ("/usr/bin/python3", "-I", "-S", "-B", "/opt/cloche/worker.pyc")
ENV: Final = MappingProxyType(
    {"PATH": "/usr/bin", "LANG": "C.UTF-8", "TZ": "UTC"} | dict(roots.TRUST_ENVIRONMENT)
)
_PACKAGES: Final = {
    "javascript": ("quickjs_rs", "wasmtime", *roots.PARSER_PACKAGES),
    "python": ("pydantic_monty", "typing_extensions"),
}


@cache
def worker_environment(engine: str, code: Path | None = None) -> Environment:
    """What a worker host needs for an engine.

    Args:
        engine: `javascript` or `python`.
        code: The JavaScript engine as machine code, where it is there.

    Raises:
        UnavailableError: the engine is not installed.
    """
    packages = [roots.find_package(name, fact="worker-engines") for name in _PACKAGES[engine]]
    entries = roots.package_entries(packages)
    entries.append(("bind", f"{roots.SITE}/cloche_engines", str(ENGINES)))
    if code is not None:
        entries.append(("bind", f"{roots.SITE}/quickjs.machine", str(code)))
    extensions = roots.native_code(packages)
    if engine == "python":
        binary = _find_monty()
        entries.append(("bind", "/usr/bin/monty", str(binary)))
        extensions += (binary,)
    programs = ("worker.py", "worker_fetch.py", "worker_http.py")
    return roots.interpreter_environment(f"worker-{engine}", entries, extensions, *programs)


def _find_monty() -> Path:
    """The program in which pydantic-monty runs code; its wheel puts it beside the interpreter."""
    path = Path(sysconfig.get_path("scripts"), "monty")
    if not path.is_file():
        raise UnavailableError(
            "the program of pydantic-monty is not installed",
            fact="worker-engines",
            fix='pip install "cloche[worker]"',
        )
    return path.resolve()


def worker_probes() -> dict[str, Probe]:
    """Probes of what worker sandboxes need beside boxes."""
    return {"worker-engines": _probe_engines}


def _probe_engines() -> Fact:
    needed_by = ("the worker sandbox",)
    fix = 'pip install "cloche[worker]"'
    try:
        for engine in _PACKAGES:
            worker_environment(engine)
    except UnavailableError as error:
        return Fact("worker-engines", Verdict.MISSING, error.message, fix, needed_by)
    found = ", ".join(f"{name} {version(name)}" for name in ("quickjs-rs", "pydantic-monty"))
    return Fact("worker-engines", Verdict.OK, found, needed_by=needed_by)
