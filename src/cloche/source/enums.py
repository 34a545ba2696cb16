"""The members of an enum: numbers with a way back to the name, strings, names of earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from .patch import Patch, RefusalError

if TYPE_CHECKING:
    from tree_sitter import Node

Kind = Literal["number", "string", "computed"]
KnownEnums = dict[tuple[object, ...], dict[str, Kind]]
"""By list of statements and name: the members so far, merged ones together."""

_WRAPPERS: Final = frozenset(
    {
        "parenthesized_expression",
        "as_expression",
        "satisfies_expression",
        "non_null_expression",
    }
)


def compile_enum(
    patch: Patch, node: Node, enum: str, known: KnownEnums, key: tuple[object, ...]
) -> None:
    """Turn the members into statements of the block that the body becomes.

    A number is found by its name and its name by the number. A member without a value is one more
    than the one before; what that is may be left to the run time.

    Raises:
        RefusalError: a name is computed, or a member needs a value and has none.
    """
    body = node.child_by_field_name("body")
    assert body is not None, "checked by the caller"
    members = known.setdefault(key, {})
    by_name = {name[-1]: kinds for name, kinds in known.items()}
    previous: tuple[str, Kind, int | None] | None = None
    for member in body.named_children:
        if member.type == "comment":
            continue
        named = member.child_by_field_name("name") if member.type == "enum_assignment" else member
        assert named is not None, "every member has a name"
        name, quoted = _name(patch, named)
        value = member.child_by_field_name("value") if member.type == "enum_assignment" else None
        if value is None:
            text, number = _next(enum, previous, member)
            patch.after(named, f"]={text}]={quoted};")
            kind: Kind = "number"
        else:
            kind = _kind(patch, value, members, by_name)
            _lead_to_members(patch, value, enum, members)
            patch.after(named, "]")
            patch.after(value, ";" if kind == "string" else f"]={quoted};")
            number = _integer(patch.text(value))
        _quote(patch, named, enum, reverse=kind != "string")
        if name is not None:
            members[name] = kind
        previous = (quoted, kind, number)
    for child in body.children:
        if child.type == ",":
            patch.erase_node(child)


def _name(patch: Patch, named: Node) -> tuple[str | None, str]:
    """Return the name, where a plain identifier can mean it, and the name as a string literal."""
    if named.type == "computed_property_name":
        inner = named.named_children[0] if named.named_children else named
        if inner.type not in ("string", "template_string") or inner.named_child_count > 1:
            raise RefusalError("the name of an enum's member cannot be computed", named)
        named = inner
    text = patch.text(named)
    if named.type == "property_identifier":
        return text, f'"{text}"'
    if named.type in ("string", "template_string"):
        return text[1:-1], text
    raise RefusalError("the name of an enum's member is an identifier or a string", named)


def _quote(patch: Patch, named: Node, enum: str, *, reverse: bool) -> None:
    prefix = f"{enum}[{enum}[" if reverse else f"{enum}["
    if named.type == "property_identifier":
        patch.before(named, f'{prefix}"')
        # Before the `]` that was put there: what belongs to the name itself closes it first.
        patch.close(named, '"')
        return
    if named.type == "computed_property_name":
        patch.erase_node(named.children[0])
        patch.erase_node(named.children[-1])
    patch.before(named, prefix)


def _next(
    enum: str, previous: tuple[str, Kind, int | None] | None, member: Node
) -> tuple[str, int | None]:
    if previous is None:
        return "0", 0
    quoted, kind, number = previous
    if kind != "number":
        raise RefusalError(
            "this member of an enum needs a value: the one before it is no constant number", member
        )
    if number is None:
        return f"{enum}[{quoted}]+1", None
    return str(number + 1), number + 1


def _integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        return None
    return int(text) if digits == "0" or digits[0] != "0" else None


def _kind(
    patch: Patch, value: Node, members: dict[str, Kind], by_name: dict[object, dict[str, Kind]]
) -> Kind:
    """Return what a value is as far as the text tells."""
    pending, kinds = [value], set()
    while pending:
        node = pending.pop()
        if node.type in _WRAPPERS:
            pending.append(node.named_children[0])
        elif node.type == "type_assertion":
            pending.append(node.named_children[-1])
        elif node.type == "binary_expression" and node.children[1].type == "+":
            pending += (node.children[0], node.children[2])
        elif node.type in ("string", "template_string"):
            kinds.add("string")
        elif node.type == "binary_expression" or node.type == "unary_expression":
            kinds.add(_arithmetic(patch, node, members, by_name))
        else:
            kinds.add(_leaf(patch, node, members, by_name))
    if "string" in kinds:
        return "string"
    return "computed" if "computed" in kinds else "number"


def _arithmetic(
    patch: Patch, node: Node, members: dict[str, Kind], by_name: dict[object, dict[str, Kind]]
) -> Kind:
    """Return "number" for arithmetic on constants, whatever it is about otherwise."""
    pending = [node]
    while pending:
        current = pending.pop()
        if current.type in ("binary_expression", "unary_expression"):
            operator = current.child_by_field_name("operator")
            if operator is None or operator.type not in _ARITHMETIC:
                return "computed"
            pending += current.named_children
        elif current.type in _WRAPPERS:
            pending.append(current.named_children[0])
        elif _leaf(patch, current, members, by_name) == "computed":
            return "computed"
    return "number"


_ARITHMETIC: Final = frozenset(
    {"+", "-", "*", "/", "%", "**", "<<", ">>", ">>>", "&", "|", "^", "~"}
)


def _leaf(
    patch: Patch, node: Node, members: dict[str, Kind], by_name: dict[object, dict[str, Kind]]
) -> Kind:
    if node.type == "number":
        return "number"
    text = patch.text(node)
    if node.type == "identifier":
        return "number" if text in ("Infinity", "NaN") else members.get(text, "computed")
    owner = node.child_by_field_name("object")
    if owner is not None and owner.type == "identifier":
        key = node.child_by_field_name("property") or node.child_by_field_name("index")
        name = patch.text(key).strip("\"'") if key is not None else ""
        return by_name.get(patch.text(owner), {}).get(name, "computed")
    return "computed"


def _lead_to_members(patch: Patch, value: Node, enum: str, members: dict[str, Kind]) -> None:
    """Lead the names of earlier members, which are in scope here, to the enum's properties."""
    pending = [value]
    while pending:
        node = pending.pop()
        if node.type == "identifier" and patch.text(node) in members:
            patch.before(node, f"{enum}.")
        elif node.type == "shorthand_property_identifier" and patch.text(node) in members:
            patch.after(node, f":{enum}.{patch.text(node)}")
        pending.extend(node.children)
