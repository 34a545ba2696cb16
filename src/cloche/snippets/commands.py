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
# A bunfig.toml or .env among the caller's files is a program's own affair, not a snippet's:
# its `preload` would run before the harness.
_BUN_SNIPPET: Final = (*_BUN, "--config=/dev/null", "--no-env-file", "/opt/cloche/bun.mjs")
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
        if any(path == main or path.startswith(f"{main}/") for path in files):
            raise InvalidRequestError(
                f"files: {main} is where the program itself goes", retry_safe=True
            )
        files[main] = code.encode()
    return files


def command_of(options: SandboxOptions) -> Command:
    """What is started for a language and mode."""
    python = options.language == "python"
    env = {**_BASE_ENV, **({} if python else _BUN_ENV), **options.env}
    if python:
        return Command(_PYTHON, env)
    if options.mode == "snippet":
        return Command(_BUN_SNIPPET, env)
    main = f"/workspace/{_MAIN_FILE[options.language]}"
    argv = (*_BUN, "--preload", "/opt/cloche/bun_program.mjs", main, *options.args)
    return Command(argv, env)


def request_for_program(options: SandboxOptions, nonce: bytes) -> bytes:
    """The frame on fd 3 for a program, which lies in /workspace."""
    return encode_request(
        {
            "nonce": nonce.hex(),
            "mode": "program",
            "path": f"/workspace/{_MAIN_FILE[options.language]}",
            "args": list(options.args),
        }
    )


def request_for_snippet(
    code: str | Module, context: Mapping[str, Any], options: SandboxOptions, nonce: bytes
) -> bytes:
    """The frame on fd 3 for a snippet.

    Args:
        code: The caller's text for Python, what the transformer made of it otherwise.
        context: Checked.
        options: Of the run.
        nonce: What the result frame will start with.
    """
    request: dict[str, Any] = {
        "nonce": nonce.hex(),
        "mode": "snippet",
        "context": dict(context),
        "value_limit_bytes": options.value_limit_bytes,
        "depth_limit": DEPTH_LIMIT,
        "digit_limit": DIGITS_LIMIT,
    }
    if isinstance(code, str):
        request["code"] = code
    else:
        request |= {
            "code": code.code,
            "loader": "ts" if options.language == "typescript" else "js",
            "map": code.map,
            "imports": code.imports,
            "check": code.check,
            "suspect": code.suspect,
            "unclear": code.unclear,
        }
    return encode_request(request)
