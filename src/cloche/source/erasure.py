"""TypeScript to JavaScript, in place: types become blanks, line and column stay the caller's.

What TypeScript adds at run time (enums, namespaces, parameter properties, accessors) is compiled
on the lines where it stands, by insertions that `edits` records. Types are taken away without a
look at what they say: an import or an export is elided only where it is written with `type`.

Source: ts-blank-space, "Where are my semicolons?" and its notes on arrow functions, for the
places where a blank would let the next line continue the line before.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from . import declarations, decorators, members, syntax
from .patch import Patch, RefusalError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tree_sitter import Node

_QUERY: Final = syntax.Captures(
    """
    [(type_annotation) (type_parameters) (type_arguments) (asserts_annotation)
     (type_predicate_annotation) (implements_clause) (accessibility_modifier)
     (override_modifier)] @erased
    (abstract_class_declaration) @abstract
    [(class) (class_declaration) (abstract_class_declaration)] @class
    (method_definition) @method
    (public_field_definition) @field
    [(required_parameter) (optional_parameter)] @parameter
    (variable_declarator) @declarator

    [(as_expression) (satisfies_expression)] @cast
    (non_null_expression) @certain
    (type_assertion) @assertion
    (binary_expression) @binary
    (arrow_function) @arrow

    [(interface_declaration) (type_alias_declaration) (ambient_declaration)
     (function_signature) (method_signature) (abstract_method_signature)
     (index_signature)] @statement
    (import_statement) @import
    (import_alias) @alias
    (export_statement) @export
    [(enum_declaration) (module) (internal_module)] @declaration

    [(expression_statement) (lexical_declaration) (variable_declaration) (return_statement)
     (throw_statement) (export_statement) (public_field_definition)] @ended
    """
)
_TERMINATORS: Final = (b"\n", b"\r", b"\xe2\x80\xa8", b"\xe2\x80\xa9")
_COMPOUND: Final = frozenset(
    {
        "binary_expression",
        "as_expression",
        "satisfies_expression",
        "unary_expression",
        "await_expression",
    }
)
_ENDING_IN_TYPES: Final = frozenset(
    {
        "type_annotation",
        "lookup_type",
        "array_type",
        "union_type",
        "intersection_type",
        "function_type",
        "constructor_type",
        "conditional_type",
        "readonly_type",
        "index_type_query",
    }
)
_PLAIN_TYPES: Final = frozenset({"identifier", "member_expression", "string", "number", "null"})


def erase(source: bytes, root: Node) -> Patch:
    """Return what turns a TypeScript text into JavaScript.

    Args:
        source: The text, UTF-8.
        root: Its tree, free of errors.

    Raises:
        RefusalError: it holds what no module of JavaScript can say.
    """
    patch = Patch(source)
    found = _QUERY.find(root)
    eraser = _Eraser(patch, found)
    eraser.erase_expressions()
    eraser.erase_statements()
    outside = eraser.outside
    members.compile_fields(patch, outside(found.get("field", ())))
    properties = [
        parameter
        for parameter in outside(found.get("parameter", ()))
        if any(child.type in members.MODIFIERS for child in parameter.children)
    ]
    if properties:
        members.compile_properties(patch, outside(found.get("class", ())), properties)
    declarations.compile_declarations(
        patch, root, outside(found.get("declaration", ())), outside(found.get("alias", ()))
    )
    decorators.compile_decorators(patch, root)
    return patch


def lower(source: bytes, root: Node) -> Patch:
    """Return what turns new JavaScript into what every engine reads: no `accessor`."""
    patch = Patch(source)
    if b"accessor" in source:
        members.compile_fields(patch, syntax.fields_of(root))
    decorators.compile_decorators(patch, root)
    return patch


class _Eraser:
    def __init__(self, patch: Patch, found: Mapping[str, list[Node]]) -> None:
        self._patch = patch
        self._found = found
        # A statement that ends without a semicolon, ended by a line break: where a blanked piece
        # is its end, the semicolon is put there, lest the next line continue it.
        self._ends = {node.end_byte for node in found.get("ended", ())}
        self._gone: list[tuple[int, int]] = []

    def _erase(self, start: int, end: int, first: str = "") -> None:
        self._patch.erase(start, end, first or (";" if end in self._ends else ""))

    def _has_line_break(self, start: int, end: int) -> bool:
        piece = self._patch.source[start:end]
        return any(terminator in piece for terminator in _TERMINATORS)

    def outside(self, nodes: list[Node] | tuple[()]) -> list[Node]:
        """Those of `nodes` that are not part of a declaration without run time."""
        starts = [start for start, _ in self._gone]
        result = []
        for node in sorted(nodes, key=lambda node: node.start_byte):
            index = bisect_right(starts, node.start_byte) - 1
            if index < 0 or self._gone[index][1] <= node.start_byte:
                result.append(node)
        return result

    def erase_expressions(self) -> None:
        """Types, casts and marks within what stays."""
        patch, found = self._patch, self._found
        for node in (*found.get("method", ()), *found.get("field", ())):
            self._erase_modifiers(node)
        for node in found.get("parameter", ()):
            self._erase_parameter(node)
        for node in found.get("abstract", ()):
            patch.erase_node(next(c for c in node.children if c.type == "abstract"))
        for node in found.get("declarator", ()):
            for child in node.children[1:2]:
                if child.type == "!":
                    self._erase(child.start_byte, child.end_byte)
        for node in found.get("certain", ()):
            self._erase(node.end_byte - 1, node.end_byte)
        for node in found.get("erased", ()):
            if node.type == "type_annotation":
                self._erase_type(node.start_byte, node)
            else:
                self._erase(node.start_byte, node.end_byte)
        for node in found.get("cast", ()):
            keyword = next(c for c in node.children if c.type in ("as", "satisfies"))
            self._erase_type(keyword.start_byte, node.children[-1])
        for node in found.get("binary", ()):
            left = node.children[0]
            if left.type in ("as_expression", "satisfies_expression"):
                # `a + b as T * c` is `(a + b) * c`.
                inner = left.children[0]
                if inner.type in _COMPOUND:
                    patch.before(left, "(")
                    patch.after(inner, ")")
            elif left.type == "binary_expression":
                self._erase_arguments_of_tag(node)
        for node in found.get("assertion", ()):
            # In parentheses, since `<T>{}` is no block and `return <T>` may end its line.
            types = node.children[0]
            patch.erase(types.start_byte, types.end_byte, "(")
            patch.after(node, ")")
        for node in found.get("arrow", ()):
            self._keep_arrow_on_its_line(node)
            self._keep_parameters_on_their_line(node)

    def _erase_modifiers(self, member: Node) -> None:
        for index, child in enumerate(member.children):
            if child.type in ("(", "=", "statement_block"):
                break
            if child.type in ("?", "!"):
                self._erase(child.start_byte, child.end_byte)
            elif child.type in members.MODIFIERS and self._patch.text(child) != "accessor":
                # What follows the first word of a member may begin with `[` or `*`.
                self._patch.erase_node(child, "" if index else ";")

    def _erase_parameter(self, node: Node) -> None:
        for child in node.children:
            if child.type in ("?", "readonly"):
                self._patch.erase_node(child)
            elif child.type == "this":
                after = node.next_sibling
                comma = after is not None and after.type == ","
                self._patch.erase(
                    node.start_byte, after.end_byte if comma and after else node.end_byte
                )

    def _erase_type(self, start: int, node: Node) -> None:
        """Blank from `start` to the end of a type, which is where a line begins with a bracket.

        The grammar lets a type go on there; the language does not.
        """
        end, kind = node.end_byte, node.type
        while kind in _ENDING_IN_TYPES and node.named_children:
            if kind in ("lookup_type", "array_type"):
                bracket = next(child for child in node.children if child.type == "[")
                node = node.children[0]
                if self._has_line_break(node.end_byte, bracket.start_byte):
                    end = node.end_byte
            else:
                node = node.named_children[-1]
            kind = node.type
        self._erase(start, end, ";" if self._begins_anew(end) else "")

    def _begins_anew(self, end: int) -> bool:
        """Tell whether a line that begins after `end` would continue the one before, wrongly."""
        rest = self._patch.source[end : end + 4096]
        following = rest.lstrip(b" \t\r\n\x0b\x0c")
        gap = len(rest) - len(following)
        return following[:1] in (b"(", b"[", b"`") and self._has_line_break(end, end + gap)

    def _erase_arguments_of_tag(self, node: Node) -> None:
        """``tag<T>`text` ``, which the grammar takes for two comparisons."""
        left, middle, right = node.children[0], node.children[1], node.children[2]
        if len(left.children) != 3 or left.children[1].type != "<" or middle.type != ">":
            return
        if left.children[2].type in _PLAIN_TYPES and right.type == "template_string":
            self._patch.erase(left.children[1].start_byte, middle.end_byte)

    def _keep_arrow_on_its_line(self, node: Node) -> None:
        parameters = node.child_by_field_name("parameters")
        result = node.child_by_field_name("return_type")
        if parameters is None or result is None:
            return
        if self._has_line_break(result.start_byte, result.end_byte) or self._has_line_break(
            parameters.end_byte, result.start_byte
        ):
            self._patch.erase(parameters.end_byte - 1, result.end_byte, last=")")

    def _keep_parameters_on_their_line(self, node: Node) -> None:
        types = node.child_by_field_name("type_parameters")
        parameters = node.child_by_field_name("parameters")
        if parameters is None or types is None:
            return
        if not self._has_line_break(types.start_byte, parameters.start_byte):
            return
        if node.start_byte == types.start_byte:  # perhaps after `return`
            self._patch.before(node, "(")
            self._patch.erase(types.start_byte, parameters.start_byte)
            self._patch.after(node, ")")
            # The parenthesis on the first line keeps the rest from being cut off.
        else:  # after `async`
            self._patch.erase(types.start_byte, parameters.start_byte + 1, "(")

    def erase_statements(self) -> None:
        """Declarations that exist for the types' sake alone, and refusals of what has no form."""
        for node in self._found.get("statement", ()):
            self._drop(node)
        for node in self._found.get("field", ()):
            self._erase_field(node)
        self._keep_outermost()
        for node in self.outside(self._found.get("import", ())):
            self._erase_import(node)
        for node in self.outside(self._found.get("export", ())):
            self._erase_export(node)
        self._keep_outermost()

    def _keep_outermost(self) -> None:
        kept: list[tuple[int, int]] = []
        for piece in sorted(self._gone, key=lambda piece: (piece[0], -piece[1])):
            if not kept or piece[0] >= kept[-1][1]:
                kept.append(piece)
        self._gone = kept

    def _drop(self, node: Node) -> None:
        self._patch.erase_node(node, ";")
        self._gone.append((node.start_byte, node.end_byte))

    def _erase_field(self, node: Node) -> None:
        for child in node.children:
            if child.type in ("declare", "abstract"):
                self._drop(node)
                return

    def _erase_import(self, node: Node) -> None:
        kinds = [child.type for child in node.children]
        if "type" in kinds:
            self._drop(node)
        elif "import_require_clause" in kinds:
            raise RefusalError(
                "`import … = require()` has no meaning in a module: use `import … from`", node
            )
        elif "import_clause" in kinds:
            clause = node.children[kinds.index("import_clause")]
            for names in clause.children:
                self._erase_specifiers(names)

    def _erase_specifiers(self, names: Node) -> None:
        for specifier in names.children:
            if any(child.type == "type" for child in specifier.children):
                after = specifier.next_sibling
                comma = after is not None and after.type == ","
                end = after.end_byte if comma and after else specifier.end_byte
                self._patch.erase(specifier.start_byte, end)

    def _erase_export(self, node: Node) -> None:
        kinds = [child.type for child in node.children]
        if "=" in kinds[:2]:
            raise RefusalError("`export =` has no meaning in a module: use `export default`", node)
        declaration = node.child_by_field_name("declaration")
        gone = ("interface_declaration", "type_alias_declaration", "ambient_declaration")
        kind = declaration.type if declaration is not None else ""
        if "type" in kinds[:2] or kinds[1:2] == ["as"] or kind in (*gone, "function_signature"):
            self._drop(node)
        elif "export_clause" in kinds:
            self._erase_specifiers(node.children[kinds.index("export_clause")])
