"""Which names a snippet binds, and what they can be told to be by looking at its text."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection

from . import monty_names as names

_INERT = frozenset(
    {
        *(ast.Constant, ast.BinOp, ast.Compare, ast.Subscript, ast.Tuple, ast.List, ast.keyword),
        *(ast.Expr, ast.Return, ast.Assign, ast.AugAssign, ast.If, ast.For, ast.While),
    }
)
"""Kinds of nodes that bind nothing themselves."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class Bindings:
    """What a snippet binds anywhere: scopes are not told apart, so that a doubt stays a doubt.

    Attributes:
        annotation_nodes: Ids of the nodes in annotations.
        annotations: The annotations.

    Args:
        nodes: The snippet's nodes, each with the one that it is in.
        given: Names that it finds bound.
    """

    def __init__(self, nodes: list[tuple[ast.AST, ast.AST]], given: Collection[str]) -> None:
        self._bound = set(given)
        self._stored: set[str] = set(given)
        self._functions: set[str] = set()
        self._made: set[str] = set()
        self._modules: dict[str, str] = {}
        self._imported: dict[str, tuple[str, str]] = {}
        self._class_nodes: set[int] = set()
        self._class_body_nodes: set[int] = set()
        self._formatted_nodes: set[int] = set()
        self._first: dict[str, int] = dict.fromkeys(given, 0)
        self._caught: set[str] = set()
        self.annotations: list[ast.expr] = []
        self.annotation_nodes: set[int] = set()
        for node, _ in nodes:
            if type(node) not in _INERT:
                self._note(node)
        self._bound |= self._stored
        for name in self._stored:
            self._modules.pop(name, None)
            self._imported.pop(name, None)

    def _note(self, node: ast.AST) -> None:
        match node:
            case ast.Name(ctx=ast.Store() | ast.Del()):
                self._store(node.id, node.lineno)
            case ast.Attribute(ctx=ast.Store()):
                self._made.add(node.attr)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._annotation(node.returns)
                self._store(node.name, node.end_lineno or node.lineno)
                self._functions.add(node.name)
            case ast.ClassDef():
                self._store(node.name, node.end_lineno or node.lineno)
                self._note_class(node)
            case ast.JoinedStr():
                self._formatted_nodes.update(id(inner) for inner in ast.walk(node))
            case ast.arg():
                self._annotation(node.annotation)
                self._stored.add(node.arg)
            case ast.AnnAssign():
                self._annotation(node.annotation)
            case ast.ExceptHandler(name=str(caught)):
                self._stored.add(caught)
                self._caught.add(caught)
            case ast.MatchAs() | ast.MatchStar():
                self._stored.update({node.name} if node.name else ())
            case ast.MatchMapping():
                self._stored.update({node.rest} if node.rest else ())
            case ast.Import():
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self._bound.add(name)
                    self._first.setdefault(name, node.lineno)
                    self._modules[name] = alias.name
            case ast.ImportFrom():
                for alias in node.names:
                    name = alias.asname or alias.name
                    self._bound.add(name)
                    self._first.setdefault(name, node.lineno)
                    self._imported[name] = (node.module or "", alias.name)
            case ast.Call(func=ast.Name(id="namedtuple") | ast.Attribute(attr="namedtuple")):
                texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
                for text in texts:
                    if isinstance(text, str):
                        self._made.update(text.replace(",", " ").split())
            case _:
                return

    def _annotation(self, node: ast.expr | None) -> None:
        if node is not None:
            self.annotations.append(node)
            self.annotation_nodes.update(id(inner) for inner in ast.walk(node))

    def _store(self, name: str, line: int) -> None:
        self._stored.add(name)
        self._first[name] = min(line, self._first.get(name, line))

    def _note_class(self, node: ast.ClassDef) -> None:
        waiting: list[tuple[ast.AST, bool]] = [(one, True) for one in node.body]
        while waiting:
            inner, direct = waiting.pop()
            self._class_nodes.add(id(inner))
            if direct:
                self._class_body_nodes.add(id(inner))
            direct = direct and not isinstance(inner, _SCOPES)
            waiting.extend((child, direct) for child in ast.iter_child_nodes(inner))
        for one in node.body:
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._made.add(one.name)
            elif isinstance(one, ast.Assign):
                self._made.update(t.id for t in one.targets if isinstance(t, ast.Name))
            elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                self._made.add(one.target.id)

    def is_bound(self, name: str) -> bool:
        """Whether the snippet may have bound a name, so that it is no built-in."""
        return name in self._bound

    def is_bound_before(self, node: ast.Name) -> bool:
        """Whether a name is bound by a statement that ends before a node's line."""
        line = self._first.get(node.id)
        return line is not None and line < node.lineno

    def in_formatted(self, node: ast.AST) -> bool:
        """Whether a node is in an f-string, and its place is not to be relied on.

        Source: CPython gives nodes in f-strings their own places since 3.12 (PEP 701).
        """
        return sys.version_info < (3, 12) and id(node) in self._formatted_nodes

    def is_function(self, name: str) -> bool:
        """Whether a name is that of one of the snippet's functions."""
        return name in self._functions

    def is_caught(self, name: str) -> bool:
        """Whether a name is that of a caught error."""
        return name in self._caught

    def is_made(self, attribute: str) -> bool:
        """Whether the snippet's own objects may have an attribute."""
        return attribute in self._made

    def in_class(self, node: ast.AST) -> bool:
        """Whether a node is in a class."""
        return id(node) in self._class_nodes

    def in_class_body(self, node: ast.AST) -> bool:
        """Whether a node is in a class and in no function of it."""
        return id(node) in self._class_body_nodes

    def module(self, node: ast.AST) -> str | None:
        """The module that a node is, if it is one for certain."""
        if not isinstance(node, ast.Name):
            return None
        name = self._modules.get(node.id)
        return name if name in names.MODULES else None

    def origin(self, node: ast.AST) -> tuple[str, str] | None:
        """The module and the name there that a node stands for, if it is one for certain."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id)
        if isinstance(node, ast.Attribute) and (module := self.module(node.value)):
            return (module, node.attr)
        return None
