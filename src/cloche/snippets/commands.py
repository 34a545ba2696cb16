"""What is started in a box for each language and mode: argv, files and the request on fd 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cloche.environments import roots, runtimes
from cloche.errors import InvalidRequestError
from cloche.frames import DEPTH_LIMIT, DIGITS_LIMIT, encode_request
from cloche.model.plan import Command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloche.model.plan import Environment
    from cloche.model.snippet import SandboxOptions
    from cloche.snippets.transformer import Module

_RUNTIME_OF: Final = {"javascript": "bun", "typescript": "bun", "python": "python"}
_MAIN_FILE: Final = {
    "javascript": "main.js",
    "typescript": "main.ts",
    "python": "main.py",
}
_SCRIPTS: Final = ("javascript", "typescript")
_LANGUAGES_OF: Final = {
    "bun": _SCRIPTS,
    "deno": _SCRIPTS,
    "node": _SCRIPTS,
    "python": ("python",),
}
_BASE_ENV: Final = {
    "PATH": "/usr/bin",
    "HOME": roots.GUEST_HOME,
    "TMPDIR": roots.GUEST_HOME,
    "LANG": "C.UTF-8",
    "TZ": "UTC",
}
# No crash reports, no updates, no questions, no colours, no cache on disk.
_ENV_OF: Final = {
    "bun": {"DO_NOT_TRACK": "1", "BUN_RUNTIME_TRANSPILER_CACHE_PATH": "0"},
    "deno": {
        "DENO_DIR": "/nonexistent",
        "DENO_CACHE_DB_MODE": "disabled",
        "DENO_NO_UPDATE_CHECK": "1",
        "NO_COLOR": "1",
    },
    "node": {},
    "python": {},
}
# Types are not only stripped: enums, namespaces and parameter properties work too. Node calls that
# experimental on stderr.
_NODE_TYPES: Final = (
    "--experimental-transform-types",
    "--enable-source-maps",
    "--disable-warning=ExperimentalWarning",
)
_START: Final = {
    "bun": ("/usr/bin/bun", "--no-install"),
    # The box is the wall: everything in it is permitted, and nothing comes from outside.
    "deno": (
        *("/usr/bin/deno", "run", "--quiet", "--allow-all", "--no-prompt", "--no-check"),
        # With --no-npm a bare name of a built-in (`import "fs"`) is not found either.
        *("--no-remote", "--cached-only", "--no-lock", "--no-code-cache"),
    ),
    "node": ("/usr/bin/node",),
    "python": ("/usr/bin/python3", "-I", "-S", "-B"),
}
_SNIPPET: Final = {
    # A bunfig.toml or .env among the caller's files is a program's own affair, not a snippet's:
    # its `preload` would run before the harness.
    "bun": ("--config=/dev/null", "--no-env-file", "/opt/cloche/bun.mjs"),
    "deno": ("--no-config", "/opt/cloche/deno.mjs"),
    "node": (*_NODE_TYPES, "/opt/cloche/node.mjs"),
    "python": ("/opt/cloche/python.pyc",),
}
# What loads a program's harness before the program.
_PROGRAM: Final = {
    "bun": ("--preload",),
    # What was written for Node runs too, where it uses `require`.
    "deno": ("--unstable-detect-cjs", "--preload"),
    "node": ("--require",),
}


def _runtime_name(options: SandboxOptions) -> str:
    return options.runtime or _RUNTIME_OF[options.language]


def choose_runtime(options: SandboxOptions) -> runtimes.Runtime:
    """The runtime that will run the code.

    Raises:
        InvalidRequestError: the runtime does not run the language.
        UnavailableError: it is not installed here, or has a known flaw.
    """
    name = _runtime_name(options)
    if options.language not in _LANGUAGES_OF[name]:
        raise InvalidRequestError(
            f"runtime: {name} does not run {options.language}", retry_safe=True
        )
    return runtimes.require_runtime(name)


def environment_of(runtime: runtimes.Runtime) -> Environment:
    """The box's root for a runtime."""
    if runtime.name == "python":
        return roots.python_environment(runtime)
    return roots.script_environment(runtime)


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


def _heap_flags(options: SandboxOptions) -> tuple[str, ...]:
    """V8 collects in time for the run's limit, and not for the host's memory, which it sees.

    The limit itself is the kernel's: V8's heap alone may come to it, so that V8 never ends first.
    """
    limit_mb = options.memory_limit_mb
    young_mb = max(1, min(16, limit_mb // 32))  # V8's own: 16, three times over
    return f"--max-old-space-size={limit_mb}", f"--max-semi-space-size={young_mb}"


def command_of(options: SandboxOptions, *, stream: bool = False) -> Command:
    """What is started for a language and mode; `stream`: fd 3 is a pipe, not a memory file."""
    name = _runtime_name(options)
    networked = options.allow_network or options.allow_hosts
    trust = roots.TRUST_ENVIRONMENT if networked else {}
    env = {**_BASE_ENV, **_ENV_OF[name], **trust, **options.env}
    start = _START[name]
    if name == "node":
        start = (*start, *_heap_flags(options))
    elif name == "deno":
        start = (*start, f"--v8-flags={','.join(_heap_flags(options))}")
    if options.mode == "snippet" or name == "python":
        stream_argument = ("stream",) if stream and name != "deno" else ()  # it finds out
        return Command((*start, *_SNIPPET[name], *stream_argument), env)
    harness = f"/opt/cloche/{name}_program.mjs"
    main = (f"/workspace/{_MAIN_FILE[options.language]}", *options.args)
    types = _NODE_TYPES if name == "node" and options.language == "typescript" else ()
    return Command((*start, *types, *_PROGRAM[name], harness, *main), env)


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
    code: str | Module,
    context: Mapping[str, Any],
    options: SandboxOptions,
    nonce: bytes,
    *,
    tools: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> bytes:
    """The frame on fd 3 for a snippet.

    Args:
        code: The caller's text for Python, what the transformer made of it otherwise.
        context: Checked.
        options: Of the run.
        nonce: What the result frame will start with.
        tools: The names of the run's tools.
        env: Variables to set before the code runs, where the runtime has started already.
    """
    request: dict[str, Any] = {
        "nonce": nonce.hex(),
        "mode": "snippet",
        "tools": list(tools),
        **({"env": dict(env)} if env else {}),
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
            "loader": "js" if code.erased else "ts",
            "name": "snippet.ts" if options.language == "typescript" else "snippet.js",
            "map": code.map,
            "imports": code.imports,
            "check": code.check,
            "suspect": code.suspect,
            "unclear": code.unclear,
        }
    return encode_request(request)
