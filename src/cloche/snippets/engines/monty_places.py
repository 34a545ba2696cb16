"""Which of the places that Monty tells of an error can be relied on, and what CPython calls them.

An error that passes a `try` or a `with` of the code leaves it, in Monty's frames, at the last thing
that was compiled before: the end of the last handler, of `finally`, or of what is in the `with`. An
error that is from there looks the same. No place is better than a wrong one.
"""

from __future__ import annotations

import ast
from typing import Final

from . import monty_names as names
from .monty_source import column_of

Place = tuple[int | None, int | None]
"""Line and column, 1-based; None: not known."""

_COMPOUND: Final = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.Match, ast.FunctionDef)


class Places:
    """Places in one snippet.

    Args:
        source: The caller's text.
        tree: Its tree.
    """

    def __init__(self, source: str, tree: ast.Module) -> None:
        self._source = source
        self._renamed: dict[tuple[int, int], tuple[ast.stmt, ast.stmt | ast.expr]] = {}
        self._doubtful: set[int] = set()
        self._stopped: dict[tuple[int, int], Place] = {}
        self._raised: dict[int, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and node.exc is not None:
                self._renamed[self._start(node.exc)] = (node, node)
                raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                if isinstance(raised, ast.Name):
                    self._raised.setdefault(node.lineno, set()).add(raised.id)
            elif isinstance(node, ast.Assert) and node.msg is not None:
                self._renamed[self._start(node.msg)] = (node, node.test)
            elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
                self._note_try(node)  # type: ignore[arg-type]
            elif isinstance(node, ast.With):
                last = node.body[-1]
                if len(node.body) > 1 or isinstance(last, _COMPOUND):
                    self._doubt(last)
            elif isinstance(node, ast.Call):
                self._note_call(node)

    def of(self, name: str, line: int, column: int) -> Place:
        """Where CPython says that an error of this name is, for where Monty says it is."""
        if line in self._doubtful and name not in self._raised.get(line, ()):
            return None, None
        statement, shown = self._renamed.get((line, column), (None, None))
        if isinstance(statement, ast.Raise) and name == "NameError":
            shown = None
        if isinstance(statement, ast.Assert) and name != "AssertionError":
            shown = None
        if shown is not None:
            return self._start(shown)
        return self._stopped.get((line, column), (line, column))

    def _start(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        return node.lineno, column_of(node, self._source)

    def _doubt(self, node: ast.stmt | ast.expr | ast.excepthandler) -> None:
        self._doubtful.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))

    def _note_try(self, node: ast.Try) -> None:
        for handler in node.handlers:
            self._doubt(handler)
        for statement in node.finalbody:
            self._doubt(statement)
        if all(isinstance(statement, ast.Pass) for statement in node.finalbody):
            # Nothing is compiled for it: what was compiled before is told.
            last = (node.orelse or node.body)[-1]
            if node.finalbody and len(node.body) > 1:
                self._doubt(last)

    def _note_call(self, node: ast.Call) -> None:
        """A generator's frame is lost: the call around it is told."""
        if (
            isinstance(node.func, ast.Name)
            and node.func.id in names.STOPPERS
            and node.args
            and isinstance(node.args[0], ast.GeneratorExp)
        ):
            line = node.lineno if node.lineno == node.end_lineno else None
            self._stopped[self._start(node)] = (line, None)
