"""Runs one Python snippet or program inside a box.

Started as `python3 -I -S -B python.py` (or its compiled form); stdlib only, imported by nobody.

In:  fd 3, frames of 4 bytes big-endian length + JSON: the request, then, where it names tools, the
     answers to their calls (`python_tools.py`); closed before any guest code where it names none.
Out: fd 4, frames of 16 bytes nonce + 4 bytes big-endian length + JSON: calls of tools, then at most
     one result; by then all output is in its pipes. A snippet's exit code is 0 when it has a value
     and 1 when it failed; one that leaves by itself (`exit(3)`) sends no result and its exit code
     speaks. A program's exit code is its own; a result only explains it.
Fds 0 to 2 belong to the guest.

A cold start is what a user waits for, so only what is built in or frozen is imported here (`json`
and `typing` cost 10 ms each); what is needed rarely, or after a failure, is in `python_rare.py`.
With the argument `stream` fd 3 is a pipe and there may be no request yet: then what a usual run
needs is loaded first.
Nothing is imported by name once /workspace is on the path: a json.py there shadows nothing here.

A guest that walks the frames above it finds this module. It can then choose its own value or error,
which it could do anyway, and nothing else.
"""

import builtins
import posix
import sys
from _json import encode_basestring, make_encoder, make_scanner
from _sitebuiltins import Quitter
from _thread import _count as thread_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, NoReturn

SNIPPET = "snippet.py"
WORKSPACE = "/workspace"
ONLY_AST = 0x400  # ast.PyCF_ONLY_AST
TOP_LEVEL_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
FUTURES = 0x1FF0000  # what `from __future__ import …` leaves in co_flags, as compile() takes it
COROUTINE = 0x80  # inspect.CO_COROUTINE


class Syntax:
    """What the C scanner asks its decoder for."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def read_request() -> "dict[str, Any]":
    """Read the request on fd 3, and close it where nothing else is to come."""
    data = b""
    needed = 4
    while len(data) < needed:
        chunk = posix.read(3, max(needed - len(data), 65536))
        if not chunk:
            raise EOFError("the request ended early")
        data += chunk
        if needed == 4 and len(data) >= 4:
            needed += int.from_bytes(data[:4], "big")
    request = decoded(data[4:needed])
    if not request.get("tools"):
        posix.close(3)
    return request


def decoded(data: bytes) -> "dict[str, Any]":
    """The object in some JSON."""
    scan: Any = make_scanner(Syntax)  # type: ignore[arg-type]
    return scan(data.decode(), 0)[0]  # type: ignore[no-any-return]


def send(nonce: str, text: str) -> None:
    """Write the result frame. Lone surrogates, which UTF-8 has no bytes for, go as JSON escapes."""
    body = text.encode("utf-8", "backslashreplace")
    data = bytes.fromhex(nonce) + len(body).to_bytes(4, "big") + body
    while data:
        data = data[posix.write(4, data) :]


def part(name: str) -> "Any":
    """Load a file beside this one that most runs never need, past `sys.path` and `sys.modules`."""
    external: Any = sys.modules["_frozen_importlib_external"]
    path = f"{__file__.rpartition('/')[0]}/{name}.py"
    try:
        code = external.SourcelessFileLoader(name, f"{path}c").get_code(name)
    except OSError:  # not compiled, as outside of a box
        code = external.SourceFileLoader(name, path).get_code(name)
    module = type(sys)(name)
    exec(code, module.__dict__)
    return module


def rare() -> "Any":
    """Errors, values that the C encoder refuses, top-level return and await."""
    return part("python_rare")


def refuse(value: object) -> "NoReturn":
    """Be json's `default`: what it takes by itself is all that has a JSON form."""
    raise TypeError(type(value).__name__)


def value_text(value: object, request: "dict[str, Any]") -> str:
    """The frame's JSON for a value: what `json.dumps` takes, with NaN and Infinity as null."""
    if value is None:
        return '{"ok":true}'
    sys.set_int_max_str_digits(request["digit_limit"])
    encode = make_encoder({}, refuse, encode_basestring, None, ":", ",", False, False, False)
    try:
        text = "".join(encode(value, 0))
    except Exception:
        return rare().value_text(value, request)  # type: ignore[no-any-return]
    # A text with fewer brackets cannot be nested deeper, nor a shorter one have more bytes.
    brackets = text.count("[") + text.count("{")
    if brackets > request["depth_limit"] or len(text) * 6 > request["value_limit_bytes"]:
        return rare().checked(text, request)  # type: ignore[no-any-return]
    return f'{{"ok":true,"value":{text}}}'


def compiled(source: str) -> "list[CodeType]":
    """Compile a snippet: its statements, then its value if the last one is an expression.

    In two parts the module stays a module: every name is a global, every position the caller's.
    """
    tree = compile(source, SNIPPET, "exec", ONLY_AST | TOP_LEVEL_AWAIT, True)
    last = tree.body.pop() if tree.body and type(tree.body[-1]).__name__ == "Expr" else None
    body = compile(tree, SNIPPET, "exec", TOP_LEVEL_AWAIT, True)
    if last is None:
        return [body, compile("None", SNIPPET, "eval", 0, True)]
    expression: Any = compile("None", SNIPPET, "eval", ONLY_AST, True)
    expression.body = last.value
    flags = TOP_LEVEL_AWAIT | body.co_flags & FUTURES
    return [body, compile(expression, SNIPPET, "eval", flags, True)]


def main_module(folder: str, argv: list[str]) -> "dict[str, Any]":
    """Put a fresh `__main__` in this one's place, with what guests expect around it."""
    module = type(sys)("__main__")
    module.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = module
    sys.argv = argv
    sys.path.insert(0, folder)
    for name in ("exit", "quit"):  # `site`, which is not loaded, has them
        setattr(builtins, name, Quitter(name, "Ctrl-D (i.e. EOF)"))
    return module.__dict__


def synchronous(parts: "list[CodeType]", names: "dict[str, Any]") -> object:
    """Run a snippet's parts; the last one's result is the value."""
    value = None
    for code in parts:
        value = eval(code, names)  # noqa: S307 - running code is what this program is for
    return value


def run_snippet(request: "dict[str, Any]") -> None:
    """Run a snippet, send its value or its error, and end the process."""
    source = request["code"].removeprefix("\ufeff")
    try:
        parts = compiled(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        parts = rare().compiled_with_return(source, error)
        if isinstance(parts, str):
            leave(parts, request, {})
    if any(code.co_flags & COROUTINE for code in parts):
        evaluate = rare().asynchronous()
    else:
        evaluate = synchronous
    names = main_module(WORKSPACE, [SNIPPET])
    names.update(request["context"])
    if request.get("tools"):
        names["tools"] = part("python_tools").make_tools(request, rare(), Syntax)
    try:
        text = value_text(evaluate(parts, names), request)
    except SystemExit:
        raise
    except BaseException as error:
        text = rare().error_text(error, source, SNIPPET)
    leave(text, request, names)


def leave(text: str, request: "dict[str, Any]", names: "dict[str, Any]") -> "NoReturn":
    """End now: threads and timers do not hold a snippet, and the interpreter's end takes 2 ms.

    The run may be killed as soon as its result is out, so that goes last.
    """
    if thread_count() == 0:
        names.clear()  # closes, and so writes out, the files that it left open
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except Exception:
            continue  # the guest closed or replaced it
    send(request["nonce"], text)
    posix._exit(0 if text.startswith('{"ok":true') else 1)


def set_variables(variables: "dict[str, str]") -> None:
    """Set environment variables, as if they had been there from the start."""
    import os
    import time

    os.environ.update(variables)
    if "TZ" in variables:
        time.tzset()


def warm_up() -> None:
    """Load what usual runs need, and go their way once, before there is a request."""
    import asyncio
    import json
    import os

    del asyncio, json, os
    request = decoded(b'{"depth_limit": 9, "value_limit_bytes": 99, "digit_limit": 4300}')
    value_text(synchronous(compiled("a = [1, 'x']\n{'a': a}"), {}), request)


def run_program(request: "dict[str, Any]") -> None:
    """Run a file as the interpreter runs its main module.

    An error leaves here as it leaves a main module, so that the interpreter does what it always
    does with it (message, exit code, threads, atexit); only its traceback starts at the guest's.
    """
    path = request["path"]
    names = main_module(path.rpartition("/")[0], [path, *request["args"]])
    external: Any = sys.modules["_frozen_importlib_external"]
    names["__loader__"] = external.SourceFileLoader("__main__", path)
    names.update(__file__=path, __cached__=None)
    code = None
    with open(path, "rb") as file:
        data = file.read()
    try:
        code = compile(data, path, "exec", 0, True)
        exec(code, names)
    except SystemExit:
        raise
    except BaseException as error:
        send(request["nonce"], rare().program_error_text(error, data, path, code is None))
        trace, shown = error.__traceback__, sys.excepthook

        def hook(kind: type[BaseException], value: BaseException, _trace: object) -> None:
            value.__traceback__ = trace
            shown(kind, value, trace)

        sys.excepthook = hook
        raise


def main() -> None:
    """Read the request and do it."""
    if sys.argv[1:] == ["stream"]:
        warm_up()
    request = read_request()
    if request.get("env"):
        set_variables(request["env"])
    # Line by line, so that what was printed before a kill is kept.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if request["mode"] == "snippet":
        run_snippet(request)
    else:
        run_program(request)


main()
