"""Runs snippets on CPython as the process sandbox does: one JSON list on stdin, one on stdout.

Each result is `[body, stdout, stderr]`: the last frame as the guest's harness writes it, or
`{"ok": true, "exit": code}` for code that leaves by itself, and what was printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import io
import json
import sys
import warnings
from pathlib import Path
from typing import Any

RARE = Path(__file__).parents[2] / "src/cloche/guest/python_rare.py"
LIMITS = {"value_limit_bytes": 1 << 20, "depth_limit": 256, "digit_limit": 4300}
ONLY_AST, TOP_LEVEL_AWAIT, COROUTINE = 0x400, 0x2000, 0x80


def load() -> Any:
    spec = importlib.util.spec_from_file_location("python_rare", RARE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rare = load()


def compiled(source: str) -> list[Any]:
    """As the guest's `compiled`."""
    import ast

    tree: Any = compile(source, rare.SNIPPET, "exec", ONLY_AST | TOP_LEVEL_AWAIT, True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    body = compile(tree, rare.SNIPPET, "exec", TOP_LEVEL_AWAIT, True)
    if last is None:
        return [body, compile("None", rare.SNIPPET, "eval", 0, True)]
    flags = TOP_LEVEL_AWAIT | body.co_flags & 0x1FF0000
    return [body, compile(ast.Expression(last.value), rare.SNIPPET, "eval", flags, True)]


async def evaluate(parts: list[Any], names: dict[str, Any]) -> Any:
    value: Any = None
    for code in parts:
        value = eval(code, names)
        if code.co_flags & COROUTINE:
            value = await value
    return value


def body_of(source: str, context: dict[str, Any]) -> str:
    try:
        parts = compiled(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        found = rare.compiled_with_return(source, error)
        if isinstance(found, str):
            return found
        parts = found
    names: dict[str, Any] = {"__name__": "__main__", **context}
    try:
        if any(code.co_flags & COROUTINE for code in parts):
            value = asyncio.run(evaluate(parts, names))
        else:
            value = None
            for code in parts:
                value = eval(code, names)
        return '{"ok":true}' if value is None else rare.value_text(value, LIMITS)
    except SystemExit as error:
        return json.dumps({"ok": True, "exit": error.code or 0})
    except BaseException as error:
        return rare.error_text(error, source, rare.SNIPPET)


def main() -> None:
    warnings.simplefilter("ignore")
    results = []
    for source in json.load(sys.stdin):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            body = body_of(source, {})
        results.append([json.loads(body), out.getvalue(), err.getvalue()])
    json.dump(results, sys.stdout)


main()
