"""What is started in a box for each language and mode: argv, files and the request on fd 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cloche.environments import roots, runtimes
from cloche.errors import InvalidRequestError, UnavailableError
from cloche.frames import DEPTH_LIMIT, DIGITS_LIMIT, encode_request
from cloche.model.plan import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloche.model.plan import Environment
    from cloche.model.snippet import SandboxOptions
    from cloche.snippets.transformer import Module

_RUNTIME_OF: Final = {"javascript": "bun", "typescript": "bun", "python": "python"}
_MAIN_FILE: Final = {
    "javascript": "main.js",
    "typescript": "main.ts",
    "python": "main.py",
}
_LANGUAGES_OF: Final = {
    "bun": ("javascript", "typescript"),
    "python": ("python",),
}
_BASE_ENV: Final = {
    "PATH": "/usr/bin",
    "HOME": roots.GUEST_HOME,
    "TMPDIR": roots.GUEST_HOME,
    "LANG": "C.UTF-8",
    "TZ": "UTC",
}
# No crash reports, no updates, no cache on disk.
_BUN_ENV: Final = {"DO_NOT_TRACK": "1", "BUN_RUNTIME_TRANSPILER_CACHE_PATH": "0"}
_BUN: Final = ("/usr/bin/bun", "--no-install")
_PYTHON: Final = ("/usr/bin/python3", "-I", "-S", "-B", "/opt/cloche/python.pyc")


def choose_runtime(options: SandboxOptions) -> runtimes.Runtime:
    """The runtime that will run the code.

    Raises:
        InvalidRequestError: the runtime does not run the language.
        UnavailableError: it is not installed here, has a known flaw, or is not supported yet.
    """
    name = options.runtime or _RUNTIME_OF[options.language]
    if name not in _LANGUAGES_OF:
        raise UnavailableError(
            f"runtime: {name} has no harness in this version",
            fact=f"harness-{name}",
            fix="use runtime bun for JavaScript and TypeScript",
        )
    if options.language not in _LANGUAGES_OF[name]:
        raise InvalidRequestError(
            f"runtime: {name} does not run {options.language}", retry_safe=True
        )
    return runtimes.require_runtime(name)


def environment_of(runtime: runtimes.Runtime) -> Environment:
    """The box's root for a runtime."""
    if runtime.name == "bun":
        return roots.bun_environment(runtime)
    return roots.python_environment(runtime)


def files_of(code: str, options: SandboxOptions) -> dict[str, bytes]:
    """What is laid into /workspace: the caller's files and, for a program, its code.

    Raises:
        InvalidRequestError: the caller's files have the name of the program's.
    """
    files = {
        path: content.encode() if isinstance(content, str) else content
        for path, content in options.files.items()
    }
    if options.mode == "program":
        main = _MAIN_FILE[options.language]
        if main in files:
            raise InvalidRequestError(
                f"files: {main} is where the program itself goes", retry_safe=True
            )
        files[main] = code.encode()
    return files


def build_command(
    code: str,
    context: Mapping[str, Any],
    options: SandboxOptions,
    *,
    nonce: bytes,
    module: Module | None,
) -> Command:
    """The command of a run.

    Args:
        code: The caller's text.
        context: Checked.
        options: Of the run.
        nonce: What the result frame will start with.
        module: What the transformer made of a JavaScript or TypeScript snippet.
    """
    python = options.language == "python"
    request: dict[str, Any] = {"nonce": nonce.hex(), "mode": options.mode}
    env = {**_BASE_ENV, **({} if python else _BUN_ENV), **options.env}
    if options.mode == "program":
        path = f"/workspace/{_MAIN_FILE[options.language]}"
        request |= {"path": path, "args": list(options.args)}
        argv = (
            _PYTHON
            if python
            else (*_BUN, "--preload", "/opt/cloche/bun_program.mjs", path, *options.args)
        )
        return Command(argv, env, control=encode_request(request))
    request |= {
        "context": dict(context),
        "value_limit_bytes": options.value_limit_bytes,
        "depth_limit": DEPTH_LIMIT,
        "digit_limit": DIGITS_LIMIT,
    }
    if module is None:
        request["code"] = code
        return Command(_PYTHON, env, control=encode_request(request))
    request |= {
        "code": module.code,
        "loader": "ts" if options.language == "typescript" else "js",
        "map": module.map,
        "imports": module.imports,
        "check": module.check,
        "suspect": module.suspect,
    }
    return Command((*_BUN, "/opt/cloche/bun.mjs"), env, control=encode_request(request))
