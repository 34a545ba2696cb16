"""From a snippet to an ES module whose default export is the snippet's value.

The caller's text is never printed anew: a few words are spliced in, on the caller's own lines.
There are two shapes.

Without a top-level `return` the text stays at the top level of the module, where imports,
namespaces and top-level `await` are at home, and a final expression statement becomes

    export default await (EXPRESSION);

With one, `return` needs a function, and everything after the imports, namespaces, enums and
types that the text begins with goes into it (imports further down are moved up):

    export default await (async () => { … return VALUE; … return (EXPRESSION);
    })();

Nobody imports a snippet, so its own exports have no effect and are blanked out; what they
declare stays.

**The value** is that of the final statement when that is an expression statement (`export
default EXPRESSION` and `export = EXPRESSION` count as one). What does nothing where it stands
is no final statement: an empty statement, a function declaration, an import, a type. So
`5; const a = 1` has no value, and `f(); function f() {…}` has that of `f()`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tree_sitter import Node

from . import syntax
from .erasure import erase, lower
from .patch import RefusalError
from .positions import Edit, Splice, apply_splices, blank, compose_edits, locate

Language = Literal["javascript", "typescript"]

_TYPES = frozenset({"interface_declaration", "type_alias_declaration", "ambient_declaration"})
_IMPORTS = frozenset({"import_statement", "import_alias"})
_INERT = (
    syntax.COMMENTS
    | _TYPES
    | _IMPORTS
    | {
        "empty_statement",
        "function_declaration",
        "generator_function_declaration",
        "function_signature",
    }
)
_LEADING = syntax.COMMENTS | _TYPES | _IMPORTS | {"empty_statement", "enum_declaration"}

_DEFAULT_DECLARATIONS = frozenset(
    {
        "function_declaration",
        "generator_function_declaration",
        "function_signature",
        "class_declaration",
        "abstract_class_declaration",
        "interface_declaration",
    }
)

_OPEN = "export default await (async () => {"
_CLOSE = "\n})();"
# Without an import or export a runtime may take the text for CommonJS, which is not strict. It
# always comes first: Bun leaves the position 1:1 out of its stacks.
_MODULE_MARK = "export {};"


@dataclass(frozen=True, slots=True)
class Import:
    """A static import or re-export: the specifier as written, and where it stands.

    Runtimes that cannot find a module do not say where it was asked for.
    """

    specifier: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Transformed:
    """An ES module, and what leads from its positions back to the caller's.

    Attributes:
        code: The module. Its default export, where it has one, is the snippet's value, already
            awaited; the value comes to pass while the module is evaluated.
        line_offset: Lines put before the caller's first one. Always 0 at present.
        edits: Insertions, in order; see `map_position`.
        imports: What the text imports, types included.
        check: None, or (the parser here found an error) the caller's text. The runtime's own
            parser has to read it before `code` is run. Its verdict stands: the grammars here do
            not know every novelty. An error about a top-level return is not one.
        suspect: Where the error was found (line, column), when `check` is given: for a runtime
            that gives no position of its own.
        unclear: The error is in the final statement, so that its value, if any, would be lost. A
            runtime whose own parser accepts the text must refuse it all the same.
        erased: `code` is plain JavaScript. False where the text is TypeScript that the grammar
            here does not know: a runtime that reads TypeScript itself may still run it.
    """

    code: str
    line_offset: int
    edits: tuple[Edit, ...]
    imports: tuple[Import, ...]
    check: str | None = None
    suspect: tuple[int, int] | None = None
    unclear: bool = False
    erased: bool = True


@dataclass(frozen=True, slots=True)
class Refused:
    """The text is not run: why, and where in the caller's text (1-based)."""

    message: str
    line: int
    column: int


def transform(code: str, language: Language) -> Transformed | Refused:
    """Turn a snippet into a module of plain JavaScript.

    Args:
        code: The caller's text. Lone surrogates are read as U+FFFD.
        language: Which grammar is tried first, and whether there are types to take away.
    """
    text = code.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    source = text.encode()
    root = syntax.parse(source, language)
    imports = tuple(_imports_of(source, root))
    if root.has_error:
        suspect = locate(source, syntax.first_error(root).start_byte)
        module = _Module(source, root)
        made = module.make()
        if isinstance(made, Refused):
            return made
        return Transformed(
            *made,
            imports,
            check=text,
            suspect=suspect,
            unclear=_is_unclear(module.final),
            erased=language == "javascript",
        )
    try:
        plain, erasing = _erase(source, root, language)
    except RefusalError as refusal:
        return Refused(refusal.message, *locate(source, refusal.node.start_byte))
    plain_root = syntax.parse(plain, "javascript") if erasing is not None else root
    if plain_root.has_error:
        plain, plain_root = source, root
    module = _Module(plain, plain_root)
    made = module.make()
    if isinstance(made, Refused):
        return made
    if erasing is None:
        return Transformed(*made, imports)
    if plain is source:
        return Transformed(*made, imports, erased=language == "javascript")
    module_text, line_offset, edits = made
    return Transformed(module_text, line_offset, tuple(compose_edits(erasing, edits)), imports)


def _erase(source: bytes, root: Node, language: Language) -> tuple[bytes, list[Edit] | None]:
    """Return plain JavaScript and the edits that led to it, or None where it was that already."""
    patch = erase(source, root) if language == "typescript" else lower(source, root)
    if not patch:
        return source, None
    text, edits = apply_splices(source, patch.splices())
    return text.encode(), edits


class _Module:
    """The splices that make a module of one text, gathered statement by statement."""

    def __init__(self, source: bytes, root: Node) -> None:
        self.source = source
        self._root = root
        self.statements = root.children
        self.splices = [Splice(0, 0, _MODULE_MARK)]
        if source.startswith(b"#!"):
            self.splices.append(Splice(0, 2, "//"))
        self.final = next((s for s in reversed(self.statements) if not _is_inert(s)), None)

    def make(self) -> tuple[str, int, tuple[Edit, ...]] | Refused:
        """Return the module, its line offset and its edits."""
        if syntax.finds_top_level_return(self.source, self._root):
            refusal = self.wrap()
            if refusal is not None:
                return refusal
        else:
            self.keep()
        text, edits = apply_splices(self.source, self.splices)
        return text, 0, tuple(edits)

    def keep(self) -> None:
        """Leave the text at the top level of the module."""
        value = _value_of(self.final)
        for statement in self.statements:
            if statement.type == "export_statement" and (statement != self.final or value is None):
                self._strip_export(statement)
        if self.final is None or value is None:
            return
        if self.final.type == "expression_statement":
            self._insert(value.start_byte, "export default await (")
        else:
            assign = next((child for child in self.final.children if child.type == "="), None)
            if assign is not None:
                self._overwrite(assign, " ")
            self._insert(value.start_byte, "await (" if assign is None else "default await (")
        self._insert(value.end_byte, ")")

    def wrap(self) -> Refused | None:
        """Put all but the leading declarations into a function, for the sake of `return`."""
        opening = next(index for index, s in enumerate(self.statements) if not _may_stay_outside(s))
        place = self.statements[opening].start_byte
        value = _value_of(self.final)
        moved: list[str] = []
        for index, statement in enumerate(self.statements):
            declaration = _declared(statement)
            if index > opening and syntax.is_namespace(declaration):
                return Refused(
                    "a namespace that follows other statements cannot be used together with "
                    "a top-level return: move it to the top",
                    *locate(self.source, statement.start_byte),
                )
            if index > opening and declaration.type in _IMPORTS:
                moved.append(_one_line(syntax.tokens(declaration)))
                self._overwrite(statement)
            elif index > opening and _reexports(statement):
                moved += _side_effect_import(statement)
                self._overwrite(statement)
            elif index > opening and declaration.type == "ambient_declaration":
                self._overwrite(statement)
            elif statement.type == "export_statement":
                if statement == self.final and value is not None:
                    self._return_export(statement, value)
                else:
                    self._strip_export(statement)
            elif statement == self.final and value is not None:
                self._insert(value.start_byte, "return (")
                self._insert(value.end_byte, ")")
        # Before what is inserted at the same place for the statement itself.
        self.splices.insert(1, Splice(place, place, "".join(moved) + _OPEN))
        self._insert(len(self.source), _CLOSE)
        return None

    def _strip_export(self, statement: Node) -> None:
        """Take the export away and leave what it declares, on the same columns."""
        value = _exported_value(statement)
        keywords = [c for c in statement.children if c.type in ("export", "default", "=")]
        if statement.has_error:
            return
        if value is not None:
            # The leading semicolon keeps `(` from continuing the statement before.
            self._overwrite(keywords[0], ";void ")
            self._overwrite(keywords[-1], "(")
            self._insert(value.end_byte, ")")
        elif (declaration := statement.child_by_field_name("declaration")) is not None:
            if len(keywords) > 1 and declaration.type not in _DEFAULT_DECLARATIONS:
                return  # `export default const`: for the runtime to refuse
            for keyword in keywords:
                self._overwrite(keyword)
        elif (specifier := _specifier(statement)) and _side_effect_import(statement):
            self._overwrite(keywords[0], "import")
            self._overwrite_between(keywords[0].end_byte, specifier.start_byte)
        else:
            self._overwrite(statement)

    def _return_export(self, statement: Node, value: Node) -> None:
        keywords = [c for c in statement.children if c.type in ("export", "default", "=")]
        self._overwrite(keywords[0], "return")
        self._overwrite(keywords[-1], "(")
        self._insert(value.end_byte, ")")

    def _insert(self, offset: int, text: str) -> None:
        self.splices.append(Splice(offset, offset, text))

    def _overwrite(self, node: Node, text: str = "") -> None:
        self._overwrite_between(node.start_byte, node.end_byte, text)

    def _overwrite_between(self, start: int, end: int, text: str = "") -> None:
        blanked = blank(self.source[start:end].decode())
        self.splices.append(Splice(start, end, text + blanked[len(text) :]))


def _imports_of(source: bytes, root: Node) -> Iterator[Import]:
    for statement in root.children:
        specifier = _specifier(statement)
        if specifier is not None:
            yield Import(_text(specifier).strip("'\""), *locate(source, specifier.start_byte))


def _is_unclear(final: Node | None) -> bool:
    """Tell whether the final statement was not understood, and might have a value."""
    if final is None or not final.has_error:
        return False
    return final.type in ("ERROR", "expression_statement", "export_statement")


def _is_inert(statement: Node) -> bool:
    """Tell whether `statement` does nothing where it stands."""
    if statement.type != "export_statement":
        return statement.type in _INERT
    declaration = statement.child_by_field_name("declaration")
    return declaration.type in _INERT if declaration else _exported_value(statement) is None


def _may_stay_outside(statement: Node) -> bool:
    declaration = _declared(statement)
    return (
        declaration.type in _LEADING
        or syntax.is_namespace(declaration)
        or (statement.type == "export_statement" and _reexports(statement))
    )


def _value_of(statement: Node | None) -> Node | None:
    """Return the expression whose value a final `statement` gives, if any."""
    if statement is None or statement.has_error:
        return None
    if statement.type == "export_statement":
        return _exported_value(statement)
    return syntax.expression_of(statement)


def _exported_value(statement: Node) -> Node | None:
    """Return the expression of `export default EXPRESSION` or `export = EXPRESSION`."""
    value = statement.child_by_field_name("value")
    if value is not None:
        return value
    children = [child for child in statement.children if child.type not in syntax.COMMENTS]
    return children[2] if len(children) > 2 and children[1].type == "=" else None


def _declared(statement: Node) -> Node:
    """Return what an export declares, and any other statement itself."""
    if statement.type != "export_statement":
        return statement
    return statement.child_by_field_name("declaration") or statement


def _reexports(statement: Node) -> bool:
    return statement.type == "export_statement" and _specifier(statement) is not None


def _specifier(statement: Node) -> Node | None:
    if statement.type not in ("import_statement", "export_statement"):
        return None
    source = statement.child_by_field_name("source")
    if source is not None:
        return source
    for child in statement.named_children:  # import name = require("specifier")
        if child.type == "import_require_clause":
            return child.child_by_field_name("source")
    return None


def _side_effect_import(statement: Node) -> list[str]:
    """Return what is left of a re-export that nobody reads: nothing when it is of types only."""
    if any(child.type == "type" for child in statement.children):
        return []
    specifier = _specifier(statement)
    rest = [c for c in statement.children if specifier and c.start_byte >= specifier.start_byte]
    return [_one_line(("import", *(token for child in rest for token in syntax.tokens(child))))]


def _one_line(words: Iterable[str]) -> str:
    text = " ".join(words)
    return text if text.endswith(";") else text + ";"


def _text(node: Node) -> str:
    return (node.text or b"").decode()
