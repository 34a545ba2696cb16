"""Which names a scope declares, and where a free name is mentioned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

    from .patch import Patch

_FUNCTIONS: Final = frozenset(
    {
        "function_declaration",
        "generator_function_declaration",
        "function_expression",
        "generator_function",
        "arrow_function",
        "method_definition",
    }
)
_NAMED: Final = frozenset(
    {
        "function_declaration",
        "generator_function_declaration",
        "class_declaration",
        "abstract_class_declaration",
        "enum_declaration",
        "internal_module",
        "module",
        "import_alias",
    }
)
_BLOCKS: Final = frozenset(
    {
        "statement_block",
        "switch_body",
        "for_statement",
        "for_in_statement",
        "catch_clause",
        "class_static_block",
    }
)
_CONTAINERS: Final = frozenset(
    {"export_statement", "expression_statement", "switch_case", "switch_default"}
)
_TYPES: Final = frozenset(
    {
        "type_annotation",
        "type_parameters",
        "type_arguments",
        "interface_declaration",
        "type_alias_declaration",
        "ambient_declaration",
        "implements_clause",
        "nested_type_identifier",
        "type_query",
    }
)


def names_of_declaration(patch: Patch, declaration: Node) -> list[str]:
    """Return what a `const`, `let` or `var` declares, in order."""
    return [
        name
        for declarator in declaration.named_children
        if declarator.type == "variable_declarator"
        for name in _names_of_pattern(patch, declarator.child_by_field_name("name"))
    ]


def mentioned_names(patch: Patch, root: Node) -> dict[str, int]:
    """Count how often each name stands where no type does."""
    counts: dict[str, int] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type in _TYPES:
            continue
        if node.type in ("identifier", "shorthand_property_identifier"):
            name = patch.text(node)
            counts[name] = counts.get(name, 0) + 1
        pending.extend(node.children)
    return counts


def declared_names(patch: Patch, body: Node) -> set[str]:
    """Return what the body of a function or namespace declares, hoisted `var`s included."""
    return {*_lexical_names(patch, body), *_hoisted_names(patch, body)}


def qualify(patch: Patch, body: Node, names: set[str], alias: str) -> None:
    """Make each free mention of `names` below `body` a property of `alias`."""
    pending = [(child, names) for child in body.children]
    while pending:
        node, free = pending.pop()
        if not free or node.type in _TYPES:
            continue
        if node.type == "identifier":
            if patch.text(node) in free:
                patch.before(node, f"{alias}.")
        elif node.type in (
            "shorthand_property_identifier",
            "shorthand_property_identifier_pattern",
        ):
            if patch.text(node) in free:
                patch.after(node, f":{alias}.{patch.text(node)}")
        else:
            inner = free - _own_names(patch, node)
            pending.extend((child, inner) for child in node.children)


def _own_names(patch: Patch, node: Node) -> set[str]:
    """Return the names that a node declares for what is below it."""
    if node.type in _FUNCTIONS:
        names = set()
        for part in ("parameters", "parameter", "name"):
            child = node.child_by_field_name(part)
            if child is not None and child.type != "computed_property_name":
                names |= set(_names_of_pattern(patch, child))
        body = node.child_by_field_name("body")
        return names | (declared_names(patch, body) if body is not None else set())
    if node.type in _NAMED or node.type == "class":
        name = node.child_by_field_name("name")
        names = set(_names_of_pattern(patch, name))
        body = node.child_by_field_name("body")
        if node.type in ("internal_module", "module") and body is not None:
            names |= declared_names(patch, body)
        return names
    if node.type in _BLOCKS:
        names = set(_lexical_names(patch, node))
        for part in ("left", "parameter"):
            child = node.child_by_field_name(part)
            if child is not None and (
                node.type == "catch_clause" or node.child_by_field_name("kind") is not None
            ):
                names |= set(_names_of_pattern(patch, child))
        return names
    return set()


def _lexical_names(patch: Patch, block: Node) -> Iterator[str]:
    pending = list(block.children)
    while pending:
        node = pending.pop()
        if node.type in _CONTAINERS:
            pending.extend(node.children)
        elif node.type in ("lexical_declaration", "variable_declaration"):
            yield from names_of_declaration(patch, node)
        elif node.type == "import_alias":
            yield patch.text(node.named_children[0])
        elif node.type in _NAMED:
            name = node.child_by_field_name("name")
            yield from list(_names_of_pattern(patch, name))[:1]


def _hoisted_names(patch: Patch, body: Node) -> Iterator[str]:
    pending = list(body.children)
    while pending:
        node = pending.pop()
        if node.type in _FUNCTIONS or node.type in _TYPES or node.type.endswith("_expression"):
            continue
        if node.type == "variable_declaration":
            yield from names_of_declaration(patch, node)
        elif node.type == "for_in_statement":
            kind = node.child_by_field_name("kind")
            if kind is not None and kind.type == "var":
                yield from _names_of_pattern(patch, node.child_by_field_name("left"))
        if node.type not in _NAMED and node.type != "class":
            pending.extend(node.children)


def _names_of_pattern(patch: Patch, pattern: Node | None) -> Iterator[str]:
    """Yield the names that a pattern or a list of parameters binds, in order."""
    pending = [pattern] if pattern is not None else []
    while pending:
        node = pending.pop()
        if node.type in ("identifier", "type_identifier", "shorthand_property_identifier_pattern"):
            yield patch.text(node)
        elif node.type in ("assignment_pattern", "object_assignment_pattern"):
            pending.append(node.children[0])  # and not the default
        elif node.type == "pair_pattern":
            value = node.child_by_field_name("value")
            pending += [value] if value is not None else []
        elif node.type in ("required_parameter", "optional_parameter"):
            inner = node.child_by_field_name("pattern")
            pending += [inner] if inner is not None else []
        elif node.type in (
            "object_pattern",
            "array_pattern",
            "rest_pattern",
            "formal_parameters",
            "nested_identifier",
        ):
            pending.extend(reversed(node.named_children))
