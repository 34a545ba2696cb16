"""A snippet's text: read by CPython's own parser, marked for Monty, and places led back.

CPython decides what parses and where a mistake is. What Monty is given is the same text with a few
words put in between: around what becomes the value, and where a built-in has to be told that it is
given a generator. Nothing is taken out, so every place in it stands for one in the caller's text.
"""

from __future__ import annotations

import ast
import warnings
from bisect import insort
from dataclasses import dataclass, field

from . import monty_prelude as prelude
from .engine import failure

INVALID = "SANDBOX_INVALID_CODE"
SNIPPET = "snippet.py"
_LEFT_OUT = frozenset({"ctx", "op", "ops", "id", "attr", "arg", "kind", "lineno", "type_ignores"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class RefusedError(Exception):
    """The snippet does not parse, or uses what Monty does not know.

    Attributes:
        body: The text of the last frame that says so.
    """

    def __init__(self, body: str) -> None:
        super().__init__("the snippet is refused")
        self.body = body


def parse(code: str) -> tuple[str, ast.Module]:
    """Parse a snippet.

    Returns:
        Its text without a byte order mark and with plain newlines, as the parser's positions count
        them; and its tree.

    Raises:
        RefusedError: CPython does not compile it.
    """
    source = code.removeprefix("\ufeff")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            tree = compile(source, SNIPPET, "exec", flags, True)
            _compile_whole(source, tree, flags)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise RefusedError(_syntax_failure(error)) from error
    return source.replace("\r\n", "\n").replace("\r", "\n"), tree


def _compile_whole(source: str, tree: ast.Module, flags: int) -> None:
    """Let the compiler look for what its parser does not see; a top-level return is no mistake."""
    if any(isinstance(node, ast.Return) for node in top_level(tree)):
        again = compile(source, SNIPPET, "exec", flags, True)
        tree = ast.fix_missing_locations(_ReturnsAsValues().visit(again))
    compile(tree, SNIPPET, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)


class _ReturnsAsValues(ast.NodeTransformer):
    def visit_Return(self, node: ast.Return) -> ast.stmt:
        return ast.copy_location(ast.Expr(node.value or ast.Constant(None)), node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return node if isinstance(node, (*_FUNCTIONS, ast.expr)) else super().generic_visit(node)


def top_level(tree: ast.Module) -> list[ast.stmt]:
    """The statements that are in no function and no class, in the text's order."""
    found: list[ast.stmt] = []
    waiting: list[ast.AST] = list(reversed(tree.body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            found.append(node)
        if not isinstance(node, (*_FUNCTIONS, ast.expr)):
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))
    return found


def flatten(tree: ast.Module) -> list[tuple[ast.AST, ast.AST]]:
    """Every node of a tree that can be refused, with the one that it is in, outer ones first.

    Operators and contexts are left out. No recursion: guests choose how deep a tree is.
    """
    found: list[tuple[ast.AST, ast.AST]] = []
    waiting: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while waiting:
        pair = waiting.pop()
        found.append(pair)
        node = pair[0]
        for name in reversed(node._fields):
            if name in _LEFT_OUT:
                continue
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                waiting.append((value, node))
            elif isinstance(value, list):
                waiting.extend((one, node) for one in reversed(value) if isinstance(one, ast.AST))
    return found


def _syntax_failure(error: Exception) -> str:
    """The last frame for code that does not compile, in the interpreter's words."""
    line = column = None
    message = str(error)
    if isinstance(error, SyntaxError):
        line, column, message = error.lineno or None, error.offset, error.msg
        if column is not None and column < 1:
            column = None
    elif isinstance(error, (RecursionError, MemoryError)):
        message = "the code is nested too deeply"
    name = type(error).__name__
    shown = "" if line is None else f'  File "{SNIPPET}", line {line}\n'
    return failure(INVALID, name, message, f"{shown}{name}: {message}", line, column)


def column_of(node: ast.stmt | ast.expr, source: str) -> int:
    """The 1-based column of a node, in characters; the parser counts bytes of UTF-8."""
    rows = source.split("\n")
    row = rows[node.lineno - 1].encode() if node.lineno <= len(rows) else b""
    return len(row[: node.col_offset].decode("utf-8", "ignore")) + 1


def refuse(construct: str, node: ast.AST, source: str) -> RefusedError:
    """What Monty does not know, named with its place."""
    if not hasattr(node, "lineno"):
        return RefusedError(unsupported(construct, None, None))
    located: ast.expr = node  # type: ignore[assignment]
    return RefusedError(unsupported(construct, located.lineno, column_of(located, source)))


def unsupported(construct: str, line: int | None, column: int | None) -> str:
    """The last frame for something that only the process sandbox knows."""
    place = "" if line is None else f" (line {line}" + (f", column {column})" if column else ")")
    message = f"{construct} is not in this engine's Python{place}: use the process sandbox"
    stack = "" if line is None else f'  File "{SNIPPET}", line {line}\n'
    return failure(
        INVALID, "UnsupportedError", message, f"{stack}UnsupportedError: {message}", line, column
    )


@dataclass(slots=True)
class Marks:
    """Words to be put into a text.

    Attributes:
        by_line: For a line, counted from 1, where in it (in bytes of UTF-8), in which order and
            what.
    """

    by_line: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    _replaced: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    _count: int = 0

    def before(self, node: ast.AST, text: str) -> None:
        """Put `text` before a node. Of two nodes that start together the outer comes first."""
        self._count += 1
        self.at(node.lineno, node.col_offset, self._count, text)  # type: ignore[attr-defined]

    def behind(self, node: ast.AST, text: str) -> None:
        """Put `text` behind a node. Of two nodes that end together the inner comes first."""
        self._count += 1
        self.at(node.end_lineno, node.end_col_offset, -self._count, text)  # type: ignore[attr-defined]

    def at(self, line: int, offset: int, order: int, text: str) -> None:
        """Put `text` at a place; of several there, those with a lower `order` come first."""
        insort(self.by_line.setdefault(line, []), (offset, order, text))

    def replace(self, node: ast.AST, old: str, new: str) -> None:
        """Put `new` in place of `old`, which is as long and with which a node starts."""
        place = (node.lineno, node.col_offset)  # type: ignore[attr-defined]
        self._replaced[place] = (old, new)

    def apply(self, source: str) -> str:
        """The marked text."""
        if not self.by_line:
            return source
        rows = source.split("\n")
        for (line, offset), (old, new) in self._replaced.items():
            data = rows[line - 1].encode()
            rows[line - 1] = (data[:offset] + new.encode() + data[offset + len(old) :]).decode()
        for line, marks in self.by_line.items():
            row, pieces, start = rows[line - 1].encode(), [], 0
            for offset, _, text in marks:
                pieces += [row[start:offset], text.encode()]
                start = offset
            rows[line - 1] = b"".join([*pieces, row[start:]]).decode()
        return "\n".join(rows)

    def original(self, line: int, column: int, row: str) -> int:
        """The column in the caller's text, 1-based, for one in the marked text.

        Args:
            line: The line, which is the same in both.
            column: The 1-based column in the marked text.
            row: The caller's own line.
        """
        data, shift = row.encode(), 0
        for offset, _, text in self.by_line.get(line, ()):
            place = len(data[:offset].decode("utf-8", "ignore")) + 1
            if column < place + shift + len(text):
                return min(column - shift, place)
            shift += len(text)
        return column - shift


def mark_value(tree: ast.Module, marks: Marks) -> None:
    """Mark what becomes the value: a top-level return's, else that of a last expression."""
    for node in top_level(tree):
        if isinstance(node, ast.Return):
            if node.value is None:
                marks.behind(node, f" {prelude.KEEP}None{prelude.KEEP_END}")
            else:
                _around(node.value, node, marks)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        marks.before(last, prelude.KEEP)
        marks.behind(last, prelude.KEEP_END)


def _around(value: ast.expr, statement: ast.Return, marks: Marks) -> None:
    """Mark a returned value. It may have brackets around it, so `return` itself is the start."""
    start = statement.col_offset + len("return")
    marks.at(statement.lineno, start, -1, f" {prelude.KEEP}")
    marks.behind(statement, prelude.KEEP_END)
