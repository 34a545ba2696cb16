"""Enums, namespaces and import aliases as JavaScript, on the lines where they stand.

    enum E { A, B = 2 }        var E=E||{};{ E[E["A"]=0]="A"; E[E["B"]=2]="B"; }
    namespace N { export …}    var N=N||{};{((N1)=>{ …;N1.x=x; })(N);}

Blocks and not expressions, since a declaration that ends a snippet is not its value. In blocks
and functions `let` stands for `var`. Declarations of one name in one list of statements are
merged into the first; a function or a class may be that.

What a namespace exports stays a local name in it and becomes a property besides, with a getter and
a setter where it can be assigned. Another body of the same namespace has only the property.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from . import enums, scopes
from .patch import Patch, RefusalError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tree_sitter import Node

_NAMESPACES: Final = frozenset({"module", "internal_module"})
_FUNCTIONS_AND_CLASSES: Final = frozenset(
    {
        "function_declaration",
        "generator_function_declaration",
        "class_declaration",
        "abstract_class_declaration",
    }
)
_WITHOUT_RUN_TIME: Final = frozenset(
    {
        "interface_declaration",
        "type_alias_declaration",
        "ambient_declaration",
        "function_signature",
        "comment",
        "empty_statement",
        "{",
        "}",
    }
)


@dataclass
class _Body:
    """One body of a namespace: where it is, the name of its object in it, what it is part of."""

    node: Node
    alias: str
    identity: tuple[object, ...]
    exported: set[str] = field(default_factory=set)


def compile_declarations(
    patch: Patch, root: Node, nodes: Iterable[Node], aliases: Iterable[Node]
) -> None:
    """Compile all of them.

    Args:
        patch: Takes the changes.
        root: The whole tree.
        nodes: Enums and namespaces that have a run time, in the order of the text.
        aliases: `import a = b.c`.

    Raises:
        RefusalError: one of them has no form in JavaScript.
    """
    compiler = _Compiler(patch, root)
    for node in nodes:
        compiler.declare(node)
    compiler.alias(list(aliases))
    compiler.qualify()


class _Compiler:
    def __init__(self, patch: Patch, root: Node) -> None:
        self._patch = patch
        self._root = root
        self._bodies: dict[int, _Body] = {}
        self._taken: dict[int, set[str]] = {}  # by the list of statements
        self._enums: enums.KnownEnums = {}
        self._hollow: list[tuple[int, int]] = []  # namespaces of types

    def declare(self, node: Node) -> None:
        """Compile one; what encloses it was compiled before."""
        if any(start <= node.start_byte < end for start, end in self._hollow[-1:]):
            return
        statement, container = _place(node)
        exported = statement.type == "export_statement"
        if node.type in _NAMESPACES and not _has_run_time(node):
            self._patch.erase_node(statement, ";")
            self._hollow.append((statement.start_byte, statement.end_byte))
            return
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is None or body is None or name.type == "string":
            raise RefusalError("a namespace that has a run time needs a name", node)
        parts = _parts(self._patch, name)
        outer = self._bodies.get(container.id) if exported else None
        head = self._binding(container, parts[0], outer)
        self._patch.erase(statement.start_byte, body.start_byte)
        if node.type == "enum_declaration":
            self._patch.before(statement, head)
            key = (self._identity(container, outer), parts[0])
            enums.compile_enum(self._patch, node, parts[0], self._enums, key)
            return
        self._open_namespace(statement, body, parts, head, self._identity(container, outer))

    def _identity(self, container: Node, outer: _Body | None) -> tuple[object, ...]:
        return outer.identity if outer is not None else (container.id,)

    def _binding(self, container: Node, name: str, outer: _Body | None) -> str:
        """Return what declares a name, once for a list of statements."""
        taken = self._taken.get(container.id)
        if taken is None:
            taken = self._taken[container.id] = set(_functions_and_classes(self._patch, container))
        first = name not in taken
        taken.add(name)
        if not first:
            return ""
        if outer is not None:
            return f"let {name}={outer.alias}.{name}||={{}};"
        return f"var {name}={name}||{{}};" if container.type == "program" else f"let {name}={{}};"

    def _open_namespace(
        self,
        statement: Node,
        body: Node,
        parts: list[str],
        head: str,
        identity: tuple[object, ...],
    ) -> None:
        opening, closing, alias = head, "", ""
        for index, part in enumerate(parts):
            if index:
                opening += f"let {part}={alias}.{part}||={{}};"
            alias = self._patch.fresh_name()
            opening += f"{{(({alias})=>" if index == len(parts) - 1 else f"{{(({alias})=>{{"
            closing = f")({part});}}" + ("}" if index else "") + closing
            identity = (*identity, part)
        # The innermost closing comes first; each outer one closes the arrow's body before it.
        self._patch.before(statement, opening)
        self._patch.after(body, closing)
        inner = self._bodies[body.id] = _Body(body, alias, identity)
        for child in body.children:
            if child.type == "export_statement":
                self._export(child, inner)

    def _export(self, statement: Node, body: _Body) -> None:
        declaration = statement.child_by_field_name("declaration")
        if declaration is None or any(c.type == "default" for c in statement.children):
            if any(child.type == "type" for child in statement.children):
                return
            raise RefusalError("a namespace exports declarations only", statement)
        keyword = statement.children[0]
        if keyword.type == "decorator":
            keyword = next(c for c in statement.children if c.type == "export")
        kind = declaration.type
        name = declaration.child_by_field_name("name")
        if kind in ("enum_declaration", *_NAMESPACES):
            if name is not None and (kind == "enum_declaration" or _has_run_time(declaration)):
                body.exported.add(_parts(self._patch, name)[0])
            return
        if kind in _WITHOUT_RUN_TIME:
            return
        self._patch.erase_node(keyword)
        alias = body.alias
        if kind in _FUNCTIONS_AND_CLASSES and name is not None:
            names = [self._patch.text(name)]
            self._patch.after(statement, f";{alias}.{names[0]}={names[0]};")
        elif kind in ("lexical_declaration", "variable_declaration"):
            names = scopes.names_of_declaration(self._patch, declaration)
            constant = declaration.children[0].type == "const"
            made = (
                f"{alias}.{name}={name};" if constant else _live_property(alias, name)
                for name in names
            )
            self._patch.after(statement, ";" + "".join(made))
        elif kind == "import_alias":
            names = [self._patch.text(declaration.named_children[0])]
            self._patch.after(statement, f";{alias}.{names[0]}={names[0]};")
        else:
            raise RefusalError("a namespace exports declarations only", statement)
        body.exported.update(names)

    def alias(self, nodes: list[Node]) -> None:
        """`import a = b.c`: a variable, or nothing where only types speak of it."""
        if not nodes:
            return
        mentioned = scopes.mentioned_names(self._patch, self._root)
        for node in nodes:
            if any(start <= node.start_byte < end for start, end in self._hollow):
                continue
            exported = node.parent is not None and node.parent.type == "export_statement"
            statement = node.parent if exported and node.parent is not None else node
            name = self._patch.text(node.named_children[0])
            outside = statement.parent is not None and statement.parent.type == "program"
            if mentioned.get(name, 0) < 2 and (not exported or outside):
                self._patch.erase_node(statement, ";")
            else:
                if outside:
                    self._patch.erase(statement.start_byte, node.start_byte)
                self._patch.erase_node(node.children[0], "const")

    def qualify(self) -> None:
        """Lead names that another body of a namespace exports to the property."""
        exported: dict[tuple[object, ...], list[_Body]] = {}
        for body in self._bodies.values():
            exported.setdefault(body.identity, []).append(body)
        for bodies in exported.values():
            if len(bodies) < 2:
                continue
            everything = set().union(*(body.exported for body in bodies))
            for body in bodies:
                foreign = everything - scopes.declared_names(self._patch, body.node)
                scopes.qualify(self._patch, body.node, foreign, body.alias)


def _live_property(alias: str, name: str) -> str:
    return (
        f'Object.defineProperty({alias},"{name}",{{get:()=>{name},set:({alias})=>{{{name}={alias}'
        "},enumerable:true,configurable:true});"
    )


def _place(node: Node) -> tuple[Node, Node]:
    """Return the statement that a declaration is, and what this is a statement of."""
    statement = node
    while (parent := statement.parent) is not None and parent.type in (
        "export_statement",
        "expression_statement",
    ):
        statement = parent
    if parent is None:
        raise RefusalError("a declaration stands in a list of statements", node)
    return statement, parent


def _parts(patch: Patch, name: Node) -> list[str]:
    parts: list[str] = []
    pending = [name]
    while pending:
        node = pending.pop()
        if node.child_count:
            pending.extend(reversed(node.named_children))
        else:
            parts.append(patch.text(node))
    return parts


def _functions_and_classes(patch: Patch, container: Node) -> Iterable[str]:
    for statement in container.children:
        declaration = statement
        if statement.type == "export_statement":
            declaration = statement.child_by_field_name("declaration") or statement
        if declaration.type in _FUNCTIONS_AND_CLASSES:
            name = declaration.child_by_field_name("name")
            if name is not None:
                yield patch.text(name)


def _has_run_time(namespace: Node) -> bool:
    """Tell whether a namespace holds anything but types, at any depth."""
    pending = [namespace]
    while pending:
        body = pending.pop().child_by_field_name("body")
        for statement in body.children if body is not None else ():
            inner = statement
            if statement.type == "export_statement":
                if any(child.type == "type" for child in statement.children):
                    continue
                inner = statement.child_by_field_name("declaration") or statement
            elif statement.type == "expression_statement" and statement.children:
                inner = statement.children[0]
            if inner.type in _NAMESPACES:
                pending.append(inner)
            elif inner.type not in _WITHOUT_RUN_TIME and inner.type != "import_alias":
                return True
    return False
