"""Looks through a snippet for what Monty lacks or does differently, before any of it runs.

A refusal is cheap, a wrong answer is not: whatever cannot be told apart by looking (a name that may
be one of several things) is refused. What is known to differ and cannot be seen in the text stands
in docs/python-subset.md.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Set
from typing import Any, Final

from . import monty_names as names
from . import monty_prelude as prelude
from .monty_annotations import check_annotations
from .monty_bindings import Bindings
from .monty_calls import Calls
from .monty_source import Marks, RefusedError, flatten, refuse

_REFUSED_NODES: Final = {
    "Yield": "`yield`",
    "YieldFrom": "`yield from`",
    "TryStar": "`except*`",
    "AsyncFor": "`async for`",
    "AsyncWith": "`async with`",
    "TypeAlias": "`type`",
    "TemplateStr": "a template string",
}
_PLAIN_NODES: Final = frozenset(
    "Module Expr Assign AugAssign For While If With Raise Try Assert Global Nonlocal Pass Break"
    " Continue Return ExceptHandler BoolOp NamedExpr BinOp UnaryOp IfExp Set ListComp Lambda alias"
    " SetComp DictComp Await Compare JoinedStr Starred List Tuple Slice"
    " withitem keyword arguments Match match_case MatchValue MatchSingleton MatchSequence"
    " MatchMapping MatchStar MatchAs MatchOr".split()
)


def check(
    source: str, tree: ast.Module, context: Mapping[str, object], tools: Set[str], marks: Marks
) -> None:
    """Check a snippet, and mark what Monty has to be told.

    Args:
        source: The snippet's text, as `monty_source.parse` returned it.
        tree: Its tree.
        context: Values that it finds under their names.
        tools: Names of the tools that it may call.
        marks: Where marks are put.

    Raises:
        RefusedError: It uses what Monty does not know.
    """
    nodes = flatten(tree)
    bindings = Bindings(nodes, {*context, *({"tools"} if tools else ())})
    _Check(source, tree, bindings, bool(tools), marks).run(nodes)
    check_annotations(source, tree, bindings)


class _Check:
    def __init__(
        self, source: str, tree: ast.Module, bindings: Bindings, tools: bool, marks: Marks
    ) -> None:
        self._source = source
        self._bindings = bindings
        self._tools = tools
        self._marks = marks
        self._calls = Calls(source, bindings, marks, tools)
        self._tree = tree
        self._handlers: dict[str, Callable[[Any, ast.AST], None]] = {
            "AnnAssign": self._annotated,
            "AsyncFunctionDef": self._function,
            "Attribute": self._attribute,
            "Call": self._calls.call,
            "ClassDef": self._class,
            "Constant": self._constant,
            "Delete": self._delete,
            "Dict": self._dict,
            "FormattedValue": self._formatted,
            "FunctionDef": self._function,
            "GeneratorExp": self._calls.generator,
            "Import": self._import,
            "ImportFrom": self._import_from,
            "MatchClass": self._class_pattern,
            "Name": self._name,
            "Subscript": self._subscript,
            "arg": self._parameter,
            "comprehension": self._comprehension,
        }

    def run(self, nodes: list[tuple[ast.AST, ast.AST]]) -> None:
        """Look at every node; annotations are not run by Monty, and are looked at elsewhere."""
        handlers, skipped = self._handlers, self._bindings.annotation_nodes
        for node, parent in nodes:
            kind = type(node).__name__
            handler = handlers.get(kind)
            if handler is None:
                if kind not in _PLAIN_NODES:
                    raise self._refusal(_REFUSED_NODES.get(kind, f"`{kind}`"), node)
            elif id(node) not in skipped:
                handler(node, parent)

    def _refusal(self, construct: str, node: ast.AST) -> RefusedError:
        return refuse(construct, node, self._source)

    # -- names and attributes ------------------------------------------------------------------

    def _name(self, node: ast.Name, parent: ast.AST) -> None:
        name = node.id
        if name.startswith(prelude.OWN_PREFIX):
            raise self._refusal(f"the name `{name}`", node)
        if isinstance(node.ctx, ast.Store):
            if name.startswith("__") and name.endswith("__"):
                raise self._refusal(f"setting `{name}`", node)
        elif self._bindings.is_bound(name):
            self._check_stream(node, parent)
        elif name in names.KNOWN_BUILTINS and name not in names.BUILTINS:
            raise self._refusal(f"`{name}`", node)
        elif name not in names.BUILTINS and isinstance(parent, ast.Call) and parent.func is node:
            # Monty looks for a function only after it has computed what it is called with.
            self._marks.before(node, f"({name} and ")
            self._marks.behind(node, ")")

    def _check_stream(self, node: ast.expr, parent: ast.AST) -> None:
        """Let `sys.stdout` and `sys.stderr` be nothing but a print's file."""
        origin = self._bindings.origin(node)
        if origin is None or origin[0] != "sys" or origin[1] not in ("stdout", "stderr"):
            return
        if not (isinstance(parent, ast.keyword) and parent.arg == "file"):
            raise self._refusal(f"`sys.{origin[1]}` other than as a print's `file`", node)

    def _attribute(self, node: ast.Attribute, parent: ast.AST) -> None:
        module = self._bindings.module(node.value)
        if module is not None:
            self._module_attribute(module, node, parent)
        elif isinstance(node.ctx, ast.Store):
            self._stored_attribute(node)
        elif node.attr.startswith("__"):
            self._special_attribute(node)
        elif isinstance(node.value, ast.Name) and node.value.id == "tools" and self._tools:
            return
        elif (
            isinstance(node.value, ast.Name)
            and node.value.id in names.TYPES
            and not self._bindings.is_bound(node.value.id)
        ):
            self._calls.method_of_type(node, node.value.id, parent)
        elif not self._bindings.is_made(node.attr):
            if node.attr in names.MISSING_ATTRIBUTES:
                raise self._refusal(f"the attribute `{node.attr}`", node)
            self._calls.method(node, parent)

    def _module_attribute(self, module: str, node: ast.Attribute, parent: ast.AST) -> None:
        name = node.attr
        if name not in names.MODULES[module]:
            raise self._refusal(f"`{module}.{name}`", node)
        if not isinstance(node.ctx, ast.Load):
            raise self._refusal(f"setting `{module}.{name}`", node)
        self._check_stream(node, parent)
        if (module, name) == ("asyncio", "run") and _awaits_at_top(self._tree):
            raise self._refusal("`asyncio.run` beside an `await` of the top level", node)

    def _stored_attribute(self, node: ast.Attribute) -> None:
        if node.attr.startswith("__"):
            self._check_private(node)
        if isinstance(node.value, ast.Name):
            if self._bindings.is_function(node.value.id):
                raise self._refusal("an attribute of a function", node)
            if node.value.id == "tools" and self._tools:
                raise self._refusal("setting an attribute of `tools`", node)

    def _check_private(self, node: ast.Attribute) -> None:
        if node.attr.endswith("__"):
            raise self._refusal(f"setting the attribute `{node.attr}`", node)
        if not self._bindings.in_class(node):
            raise self._refusal(f"the private name `{node.attr}` outside its class", node)

    def _special_attribute(self, node: ast.Attribute) -> None:
        """Of those with two underscores only `type(x).__name__` is there."""
        if not node.attr.endswith("__"):
            self._check_private(node)
        elif node.attr != "__name__":
            raise self._refusal(f"the attribute `{node.attr}`", node)
        elif not (isinstance(node.value, ast.Call) and self._is_builtin(node.value.func, "type")):
            raise self._refusal("`__name__` of anything but `type(…)`", node)

    def _is_builtin(self, node: ast.AST, name: str) -> bool:
        return isinstance(node, ast.Name) and node.id == name and not self._bindings.is_bound(name)

    def _subscript(self, node: ast.Subscript, parent: ast.AST) -> None:
        origin = self._bindings.origin(node.value)
        if origin is not None and origin[0] == "typing":
            raise self._refusal(f"`typing.{origin[1]}[…]` outside an annotation", node)

    # -- statements ----------------------------------------------------------------------------

    def _delete(self, node: ast.Delete, parent: ast.AST) -> None:
        """Let an object of the prelude, which deletes what it is asked for, stand for `del`."""
        if isinstance(parent, ast.ClassDef):
            raise self._refusal("a statement in a class that is no method and no variable", node)
        for target in node.targets:
            if not isinstance(target, ast.Subscript):
                raise self._refusal("`del` of anything but an item", node)
            if isinstance(target.slice, ast.Slice) and target.slice.step is not None:
                raise self._refusal("`del` of every nth item", node)
            self._marks.before(target.value, prelude.DELETER)
            self._marks.behind(target.value, prelude.DELETER_END)
            target.ctx = ast.Load()
        self._marks.replace(node, "del", prelude.DEL)

    def _annotated(self, node: ast.AnnAssign, parent: ast.AST) -> None:
        if not isinstance(node.target, ast.Name):
            raise self._refusal("an annotation of something other than a name", node)

    def _import(self, node: ast.Import, parent: ast.AST) -> None:
        for alias in node.names:
            if alias.name not in names.MODULES or alias.name == "__future__":
                raise self._refusal(f"the module `{alias.name}`", node)

    def _import_from(self, node: ast.ImportFrom, parent: ast.AST) -> None:
        module = "." * node.level + (node.module or "")
        if module not in names.MODULES:
            raise self._refusal(f"the module `{module}`", node)
        for alias in node.names:
            if alias.name not in names.MODULES[module]:
                raise self._refusal(f"`{module}.{alias.name}`", node)
            if module == "__future__" and alias.asname:
                raise self._refusal("a renamed `__future__` feature", node)

    def _comprehension(self, node: ast.comprehension, parent: ast.AST) -> None:
        if node.is_async:
            raise self._refusal("an asynchronous comprehension", node.target)
        if self._bindings.in_class_body(parent):
            raise self._refusal("a comprehension in a class body", parent)

    def _class_pattern(self, node: ast.MatchClass, parent: ast.AST) -> None:
        name = node.cls.id if isinstance(node.cls, ast.Name) else ""
        if name in names.LAZY and not self._bindings.is_bound(name):
            raise self._refusal(f"`{name}` as a pattern", node)

    # -- definitions ---------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, parent: ast.AST) -> None:
        if getattr(node, "type_params", None):
            raise self._refusal("a type parameter", node)
        if isinstance(parent, ast.ClassDef):
            if node.decorator_list:
                raise self._refusal("a decorated method", node.decorator_list[0])
            special = node.name.startswith("__") and node.name.endswith("__")
            if special and node.name not in names.CLASS_METHODS:
                raise self._refusal(f"the method `{node.name}`", node)
        elif node.name.startswith("__"):
            raise self._refusal(f"a function of the name `{node.name}`", node)

    def _class(self, node: ast.ClassDef, parent: ast.AST) -> None:
        if node.bases or node.keywords:
            raise self._refusal("a class with a base class", node)
        if getattr(node, "type_params", None):
            raise self._refusal("a type parameter", node)
        methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        if "__getitem__" in methods and "__iter__" not in methods:
            raise self._refusal("`__getitem__` without `__iter__`", node)
        for statement in node.body:
            self._check_member(statement)

    def _check_member(self, statement: ast.stmt) -> None:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Pass():
                return
            case ast.Assign(targets=[ast.Name()]) | ast.AnnAssign(target=ast.Name()):
                return
            case ast.Expr(value=ast.Constant()):
                return
        raise self._refusal("a statement in a class that is no method and no variable", statement)

    def _parameter(self, node: ast.arg, parent: ast.AST) -> None:
        if node.arg.startswith(prelude.OWN_PREFIX):
            raise self._refusal(f"the name `{node.arg}`", node)

    # -- values --------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant, parent: ast.AST) -> None:
        if isinstance(node.value, complex):
            raise self._refusal("a complex number", node)
        if (
            isinstance(node.value, str)
            and not node.value.isascii()
            and any("\ud800" <= character <= "\udfff" for character in node.value)
        ):
            raise self._refusal("a lone surrogate", node)

    def _formatted(self, node: ast.FormattedValue, parent: ast.AST) -> None:
        if self._tools and node.conversion == ord("r"):
            self._calls.shown_error(node.value)

    def _dict(self, node: ast.Dict, parent: ast.AST) -> None:
        """Of equal keys Monty keeps the last one, CPython the first."""
        kinds: dict[object, type] = {}
        for key in node.keys:
            if isinstance(key, ast.Constant):
                kind = type(key.value)
                if kinds.setdefault(key.value, kind) is not kind:
                    raise self._refusal("a dict of keys that are equal and not the same", node)


def _awaits_at_top(tree: ast.Module) -> bool:
    """Whether an `await` stands outside of all functions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Await):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))
    return False
