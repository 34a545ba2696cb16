"""Class members that JavaScript engines do not all have: parameter properties and `accessor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .patch import Patch, RefusalError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tree_sitter import Node

MODIFIERS: Final = frozenset({"accessibility_modifier", "override_modifier", "readonly"})


def compile_properties(patch: Patch, classes: Iterable[Node], parameters: Iterable[Node]) -> None:
    """Turn parameter properties (`constructor(private a)`) into fields and assignments.

    The fields come first in the class, as they do with TypeScript: so their order, and that they
    hide what a base class defines, is the same. The assignments follow `super()`.

    Args:
        patch: Takes the changes.
        classes: Those with such parameters in one of their methods.
        parameters: All of these parameters.

    Raises:
        RefusalError: one of them is a pattern or belongs to no constructor, or `super()` is not a
            statement of its own.
    """
    assigned: set[int] = set()
    for owner in classes:
        body = owner.child_by_field_name("body")
        for method in body.children if body is not None else ():
            name = method.child_by_field_name("name")
            if method.type == "method_definition" and name and patch.text(name) == "constructor":
                assigned |= _compile_constructor(patch, owner, method)
    for parameter in parameters:
        if parameter.id not in assigned:
            raise RefusalError("a parameter property stands in a constructor only", parameter)


def _compile_constructor(patch: Patch, owner: Node, method: Node) -> set[int]:
    parameters = method.child_by_field_name("parameters")
    members, body = owner.child_by_field_name("body"), method.child_by_field_name("body")
    assert parameters is not None and members is not None and body is not None, "see the query"
    found, names = set(), []
    for parameter in parameters.children:
        if not any(child.type in MODIFIERS for child in parameter.children):
            continue
        pattern = parameter.child_by_field_name("pattern")
        if pattern is None or pattern.type != "identifier":
            raise RefusalError("a parameter property cannot be a pattern", parameter)
        found.add(parameter.id)
        names.append(patch.text(pattern))
    if names:
        derived = any(
            part.type == "extends_clause"
            for child in owner.children
            if child.type == "class_heritage"
            for part in child.children
        )
        patch.after(members.children[0], "".join(f"{name};" for name in names))
        assignments = "".join(f"this.{name}={name};" for name in names)
        patch.after(_place_of_assignments(body, method, derived=derived), f";{assignments}")
    return found


def _place_of_assignments(body: Node, method: Node, *, derived: bool) -> Node:
    """Return the node after which `this` is there: the call of `super`, else the directives."""
    last = body.children[0]
    for statement in body.children[1:-1]:
        inner = next((c for c in statement.named_children if c.type != "comment"), None)
        kind = inner.type if inner is not None else ""
        if derived:
            function = inner.child_by_field_name("function") if inner is not None else None
            if kind == "call_expression" and function is not None and function.type == "super":
                return statement
        elif statement.type == "expression_statement" and kind == "string":
            last = statement
        elif statement.type != "comment":
            break
    if derived:
        raise RefusalError(
            "a constructor with parameter properties calls super() as a statement of its own",
            method,
        )
    return last


def compile_fields(patch: Patch, fields: Iterable[Node]) -> None:
    """Turn `accessor x = 1` into a private field, a getter and a setter.

    Raises:
        RefusalError: the name is computed, and would be computed three times.
    """
    for field in fields:
        if is_accessor(patch, field):
            _compile_accessor(patch, field)


def is_accessor(patch: Patch, field: Node) -> bool:
    """Tell whether a field has a getter and a setter of its own."""
    return any(
        child.type == "accessor" or (child.type == "readonly" and patch.text(child) == "accessor")
        for child in field.children
    )


def _compile_accessor(patch: Patch, field: Node) -> None:
    name = field.child_by_field_name("name")
    assert name is not None, "every field has a name"
    if name.type == "computed_property_name" and name.named_children[0].type not in (
        "string",
        "number",
    ):
        raise RefusalError("an accessor with a computed name is not supported", name)
    static = "static " if any(child.type == "static" for child in field.children) else ""
    storage, value, key = f"#{patch.fresh_name()}", patch.fresh_name(), patch.text(name)
    for child in field.children:
        if child.type in ("accessor", "readonly") and patch.text(child) == "accessor":
            patch.erase_node(child)
    patch.erase_node(name)
    patch.before(
        field,
        f";{static}get {key}(){{return this.{storage}}}"
        f"{static}set {key}({value}){{this.{storage}={value}}}",
    )
    patch.before(name, storage)
