"""Calls in a snippet: built-ins that Monty has in part, methods as values, generators."""

from __future__ import annotations

import ast
from collections.abc import Set
from typing import Final

from . import monty_names as names
from . import monty_prelude as prelude
from .monty_bindings import Bindings
from .monty_patterns import check_pattern
from .monty_source import Marks, RefusedError, refuse

_TAKING_FUNCTIONS: Final = {
    "collections": frozenset({"Counter", "deque"}),
    "math": frozenset({"prod", "fsum"}),
}
_TAKING_METHODS: Final = frozenset(
    "extend extendleft update union intersection difference issubset issuperset".split()
)
_ONE_ARGUMENT_METHODS: Final = frozenset(
    "union intersection difference symmetric_difference".split()
)
_CODECS: Final = frozenset("utf-8 utf8 UTF-8 UTF8 utf_8 ascii ASCII us-ascii".split())
_JSON_KEYWORDS: Final = frozenset(
    "indent sort_keys ensure_ascii allow_nan separators skipkeys".split()
)


class Calls:
    """Checks the calls of one snippet, and marks those that Monty has to be told of."""

    def __init__(self, source: str, bindings: Bindings, marks: Marks, tools: bool) -> None:
        self._source = source
        self._tools = tools
        self._bindings = bindings
        self._marks = marks
        self._accepted: set[int] = set()  # generator expressions whose surroundings are good
        self._keys: set[int] = set()  # methods that are handed to what calls them at once

    def _refusal(self, construct: str, node: ast.AST) -> RefusedError:
        return refuse(construct, node, self._source)

    def _builtin(self, node: ast.AST, group: Set[str]) -> bool:
        """Whether a node is one of these built-ins, under its own name."""
        return (
            isinstance(node, ast.Name) and node.id in group and not self._bindings.is_bound(node.id)
        )

    def call(self, node: ast.Call, parent: ast.AST) -> None:
        """Check a call."""
        function = node.func
        if isinstance(function, ast.Name) and not self._bindings.is_bound(function.id):
            self._builtin_call(function.id, node)
        elif (origin := self._bindings.origin(function)) is not None:
            self._module_call(origin, node)
        elif isinstance(function, ast.Attribute) and not self._bindings.is_made(function.attr):
            self._method_call(function, node)
        self._note_methods(node)
        if node.args and isinstance(node.args[0], ast.GeneratorExp):
            self._check_generator(node, node.args[0])
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                self._take_all(argument.value)
        if self._takes_all(function) and node.args:
            self._take_all(node.args[0])

    # -- built-ins -----------------------------------------------------------------------------

    def _builtin_call(self, name: str, node: ast.Call) -> None:
        if name in ("repr", "type") and self._tools and node.args:
            self.shown_error(node.args[0])
        if name == "print":
            self._print(node)
        elif name == "hash" and not self._bindings.in_class(node):
            raise self._refusal("`hash` outside a class", node)
        elif name == "type" and (len(node.args) != 1 or node.keywords):
            raise self._refusal("`type` with more than one argument", node)
        elif name in ("getattr", "hasattr", "setattr") and len(node.args) > 1:
            self._attribute_text(name, node)
        elif name == "iter" and len(node.args) > 1:
            raise self._refusal("`iter` with a sentinel", node)
        elif name in ("str", "bytes") and len(node.args) > 1:
            self._codec(node.args[1], node)
        elif len(node.args) + len(node.keywords) > 1 and (
            name.endswith("Error") or name in ("Exception", "BaseException")
        ):
            raise self._refusal("an exception with more than one argument", node)

    def shown_error(self, node: ast.expr) -> None:
        """Refuse to tell the kind of a caught error where it may be a tool's: Monty has none."""
        if isinstance(node, ast.Name) and self._bindings.is_caught(node.id):
            raise self._refusal("the type of a caught error, with tools", node)

    def _print(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg == "file":
                origin = self._bindings.origin(keyword.value)
                if origin not in (("sys", "stdout"), ("sys", "stderr")):
                    raise self._refusal("`print` with a `file` that is not sys.stdout", node)

    def _attribute_text(self, name: str, node: ast.Call) -> None:
        text = node.args[1]
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            if name == "hasattr" or len(node.args) == 3:
                raise self._refusal(f"`{name}` with a computed name", node)
            return
        known = text.value in names.VALUE_METHODS | names.MISSING_ATTRIBUTES
        if text.value.startswith("__") or (known and not self._bindings.is_made(text.value)):
            raise self._refusal(f"`{name}` with {text.value!r}", node)

    def _codec(self, codec: ast.expr, node: ast.Call) -> None:
        if not isinstance(codec, ast.Constant) or codec.value not in _CODECS:
            raise self._refusal("a text encoding other than UTF-8 and ASCII", node)

    # -- modules and methods -------------------------------------------------------------------

    def _module_call(self, origin: tuple[str, str], node: ast.Call) -> None:
        if origin == ("asyncio", "gather") and node.keywords:
            raise self._refusal("`asyncio.gather` with keywords", node)
        if origin[0] == "json":
            taken = _JSON_KEYWORDS if origin[1] == "dumps" else frozenset()
            for keyword in node.keywords:
                if keyword.arg not in taken:
                    raise self._refusal(f"`json.{origin[1]}` with `{keyword.arg}`", node)
        if origin[0] == "re":
            problem = check_pattern(origin[1], node, self._marks)
            if problem is not None:
                raise self._refusal(problem, node)
            if origin[1] != "compile" and self._bindings.in_formatted(node):
                raise self._refusal("a regular expression in an f-string", node)

    def _method_call(self, function: ast.Attribute, node: ast.Call) -> None:
        name = function.attr
        if name in ("encode", "decode"):
            codec = node.args[0] if node.args else None
            for keyword in node.keywords:
                codec = keyword.value if keyword.arg == "encoding" else codec
            if codec is not None:
                self._codec(codec, node)
        if name in ("find", "index", "count", "rfind") and len(node.args) > 1:
            text = node.args[0]
            if isinstance(text, ast.Constant) and text.value == "":
                raise self._refusal(f"`{name}` of an empty text from a place on", node)
        starred = any(isinstance(one, ast.Starred) for one in node.args)
        if name in _ONE_ARGUMENT_METHODS and (len(node.args) != 1 or starred):
            raise self._refusal(f"`{name}` with other than one argument", node)
        if name == "update" and (len(node.args) > 1 or starred):
            raise self._refusal("`update` with more than one argument", node)

    def _note_methods(self, node: ast.Call) -> None:
        """Remember methods that a call takes and is done with when it returns."""
        handed: list[ast.expr] = []
        if self._builtin(node.func, names.CONSUMERS) or (
            isinstance(node.func, ast.Attribute) and node.func.attr == "sort"
        ):
            handed += [one.value for one in node.keywords if one.arg == "key"]
        if self._builtin(node.func, {"map", "filter"}):
            handed += node.args[:1]
        self._keys.update(
            id(one)
            for one in handed
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)
        )

    def method(self, node: ast.Attribute, parent: ast.AST) -> None:
        """Check the use of an attribute that may be a method of a built-in object.

        Monty can call such a method and cannot hand it on, so a function that calls it is.
        """
        called = isinstance(parent, ast.Call) and parent.func is node
        if called or node.attr not in names.VALUE_METHODS:
            return
        if id(node) not in self._keys or self._bindings.in_formatted(node):
            raise self._refusal(f"the method `{node.attr}` without a call", node)
        self._marks.before(node, "(lambda *__cloche_rest: ")
        self._marks.behind(node, "(*__cloche_rest))")

    def method_of_type(self, node: ast.Attribute, kind: str, parent: ast.AST) -> None:
        """Check `str.lower` and the like: a function of an object of the type, and more."""
        called = isinstance(parent, ast.Call) and parent.func is node
        if (kind, node.attr) in names.TYPE_FUNCTIONS and called:
            return
        known = node.attr in names.VALUE_METHODS and node.attr not in names.MISSING_ATTRIBUTES
        if not known or self._bindings.in_formatted(node):
            raise self._refusal(f"`{kind}.{node.attr}`", node)
        self._marks.before(node, f"(lambda {kind}, *__cloche_rest: ")
        self._marks.behind(node, "(*__cloche_rest))")

    # -- generators ----------------------------------------------------------------------------

    def generator(self, node: ast.GeneratorExp, parent: ast.AST) -> None:
        """Refuse a generator expression where its being a list would be seen."""
        if not isinstance(parent, ast.Starred) and id(node) not in self._accepted:
            raise self._refusal("a generator expression that is kept or handed on", node)

    def _check_generator(self, call: ast.Call, node: ast.GeneratorExp) -> None:
        """Accept a generator expression where a list does as well, or can be made to."""
        accepted = self._takes_all(call.func)
        if self._builtin(call.func, names.STOPPERS):
            accepted = self._stops(call, node)
        elif isinstance(call.func, ast.Attribute) and call.func.attr in _TAKING_METHODS:
            receiver = {n.id for n in ast.walk(call.func.value) if isinstance(n, ast.Name)}
            mentioned = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            own = self._bindings.is_made(call.func.attr)
            accepted = bool(receiver) and not receiver & mentioned and not own
        if accepted:
            self._accepted.add(id(node))

    def _stops(self, call: ast.Call, node: ast.GeneratorExp) -> bool:
        """Mark a generator so that its list is left where the built-in would stop taking."""
        if any(isinstance(one, (ast.NamedExpr, ast.Await)) for one in ast.walk(node)):
            return False
        name = call.func.id  # type: ignore[attr-defined]
        if (name != "next" and len(call.args) > 1) or self._bindings.in_formatted(node):
            return False
        opening, closing = prelude.STOPS[name]
        self._marks.before(call.func, prelude.UNTIL)
        self._marks.at(node.lineno, node.col_offset + 1, 0, "lambda: [")
        self._marks.before(node.elt, opening)
        self._marks.behind(node.elt, closing)
        self._marks.at(node.end_lineno or 1, (node.end_col_offset or 1) - 1, -1, "]")
        return True

    def _takes_all(self, function: ast.AST) -> bool:
        """Whether a function takes all of its first argument at once."""
        if self._builtin(function, names.CONSUMERS):
            return True
        if isinstance(function, ast.Attribute) and function.attr == "join":
            return not self._bindings.is_made("join")
        module, name = self._bindings.origin(function) or ("", "")
        return name in _TAKING_FUNCTIONS.get(module, ())

    def _take_all(self, value: ast.expr) -> None:
        """Lead a call of `map` and the like to the one that makes a list."""
        if (
            isinstance(value, ast.Call)
            and not value.keywords
            and self._builtin(value.func, names.LAZY)
            and not self._bindings.in_formatted(value)
        ):
            self._marks.before(value.func, prelude.LISTED)
