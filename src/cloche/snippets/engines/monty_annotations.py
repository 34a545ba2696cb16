"""Annotations: CPython computes those of parameters, modules and classes, Monty none."""

from __future__ import annotations

import ast

from . import monty_names as names
from .monty_bindings import Bindings
from .monty_source import refuse

_PLAIN = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.BinOp)
_PLAIN_DETAILS = (ast.expr_context, ast.BitOr)


def check_annotations(source: str, tree: ast.Module, bindings: Bindings) -> None:
    """Refuse annotations that CPython might not be able to compute.

    Raises:
        RefusedError: One is more than names, or has a name that may not be bound by then.
    """
    postponed = any(
        isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in tree.body
    )
    if postponed:
        return
    for annotation in bindings.annotations:
        for node in ast.walk(annotation):
            if not isinstance(node, (*_PLAIN, *_PLAIN_DETAILS)):
                raise refuse("an annotation that is computed", annotation, source)
            if isinstance(node, ast.Name):
                known = bindings.is_bound_before(node) or (
                    node.id in names.KNOWN_BUILTINS and not bindings.is_bound(node.id)
                )
                if not known:
                    raise refuse(f"the annotation `{node.id}`, bound later", node, source)
            module = bindings.module(node.value) if isinstance(node, ast.Attribute) else None
            if (
                isinstance(node, ast.Attribute)
                and module is not None
                and node.attr not in names.MODULES[module]
            ):
                raise refuse(f"`{module}.{node.attr}`", node, source)
