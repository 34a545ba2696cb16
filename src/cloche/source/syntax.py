"""The syntax tree: which grammar reads a text, and a few questions put to its nodes."""

from collections.abc import Iterator, Mapping
from typing import Final

import tree_sitter_javascript
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser, Query, QueryCursor

_LANGUAGES: Final = {
    "javascript": Language(tree_sitter_javascript.language()),
    "typescript": Language(tree_sitter_typescript.language_typescript()),
}
_PARSERS: Final = {name: Parser(language) for name, language in _LANGUAGES.items()}

COMMENTS = frozenset({"comment", "html_comment", "hash_bang_line"})

# A top-level `return` can only be below these; functions and class bodies are not among them.
_STATEMENTS_WITH_STATEMENTS = frozenset(
    {
        "ERROR",
        "statement_block",
        "if_statement",
        "else_clause",
        "for_statement",
        "for_in_statement",
        "while_statement",
        "do_statement",
        "try_statement",
        "catch_clause",
        "finally_clause",
        "switch_statement",
        "switch_body",
        "switch_case",
        "switch_default",
        "labeled_statement",
        "with_statement",
    }
)

# What the grammars take for an expression although a statement cannot begin with it.
_NO_STATEMENT_BEGINS_WITH = frozenset(
    {
        "object",
        "object_pattern",
        "function_expression",
        "generator_function",
        "class",
        "internal_module",
    }
)


def parse(source: bytes, language: str) -> Node:
    """Return the root for `source`, free of errors when any reading of it is.

    The grammars lag behind the language here and there: `using` is known to neither, `static
    accessor` and a name in quotes to one of the two at most; a line break inside a comment ends a
    statement, and so does U+2028, which they overlook. So a text with errors is read again in
    those respects. Only the structure is taken from here: whether the text is valid is for the
    runtime to say.

    Requires: `source` is UTF-8. Ensures: byte offsets are those of `source`.
    """
    first = _PARSERS[language]
    other = _PARSERS["typescript" if language == "javascript" else "javascript"]
    readable = _with_newlines_for_lone_returns(source)
    known = _with_known_words(readable)
    best = first.parse(known).root_node
    if not best.has_error:
        return best
    if known is not readable:
        best = first.parse(readable).root_node
        if not best.has_error:
            return best
    softened = _with_newlines_for_comments(known, best)
    for parser, text in ((first, softened), (other, known), (other, softened), (other, readable)):
        root = parser.parse(text).root_node
        if not root.has_error:
            return root
    return best


class Captures:
    """A tree-sitter query on TypeScript trees: the nodes that it finds, by capture name.

    The walk is native, so that Python sees the few nodes that it has to deal with.
    """

    def __init__(self, query: str) -> None:
        """Compiles the query."""
        self._query = Query(_LANGUAGES["typescript"], query)

    def find(self, root: Node) -> Mapping[str, list[Node]]:
        """Return the nodes below `root`, in no promised order.

        Requires: each pattern is of one node. One that waits for a second node costs time at each
        node until it is left, so that nested ones take quadratic time.
        """
        return QueryCursor(self._query).captures(root)


def first_error(root: Node) -> Node:
    """Return the first node that is wrong or missing. Requires: `root.has_error`."""
    node = root
    while not (node.is_missing or (node.is_error and node is not root)):
        bad = next((child for child in node.children if child.has_error or child.is_missing), None)
        if bad is None:
            break
        node = bad
    return node


def finds_top_level_return(source: bytes, root: Node) -> bool:
    """Tell whether a `return` belongs to the text itself and to none of its functions."""
    if b"return" not in source:
        return False
    pending = [root]
    while pending:
        for child in pending.pop().children:
            if child.type == "return_statement":
                return True
            if child.type in _STATEMENTS_WITH_STATEMENTS:
                pending.append(child)
    return False


def expression_of(statement: Node) -> Node | None:
    """Return the expression that is the whole of `statement`, or None where it is no such thing.

    `{a: 1}` is a block, and `function () {}` no statement at all: put in parentheses they would
    turn into values, so they are left for the runtime to read as they stand.
    """
    if statement.type != "expression_statement" or statement.has_error:
        return None
    expression = next((c for c in statement.named_children if c.type not in COMMENTS), None)
    node = expression
    while node is not None:
        if node.type in _NO_STATEMENT_BEGINS_WITH:
            return None
        node = node.child(0) if node.child_count else None
    return expression


def is_namespace(statement: Node) -> bool:
    """Tell whether `statement` is a TypeScript namespace, which is allowed at top level only."""
    if statement.type == "module":
        return True
    return statement.type == "expression_statement" and any(
        child.type == "internal_module" for child in statement.children
    )


def fields_of(root: Node) -> Iterator[Node]:
    """Yield the fields of classes, in order, as TypeScript's grammar names them."""
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type == "public_field_definition":
            yield node
        pending.extend(reversed(node.children))


def tokens(node: Node) -> Iterator[str]:
    """Yield the tokens of `node` in order, comments left out, each string as one."""
    pending = [node]
    while pending:
        current = pending.pop()
        if current.type in COMMENTS:
            continue
        if current.child_count == 0 or current.type == "string":
            yield (current.text or b"").decode()
        else:
            pending.extend(reversed(current.children))


def _with_newlines_for_lone_returns(source: bytes) -> bytes:
    if b"\r" not in source:
        return source
    return b"\r\n".join(part.replace(b"\r", b"\n") for part in source.split(b"\r\n"))


def _with_known_words(source: bytes) -> bytes:
    """Put words that the grammars know in place of some that they do not, of the same length.

    `using x` becomes `const x`, `await using x` becomes `const x` after blanks, and `accessor x`
    becomes `readonly x` (TypeScript's grammar alone reads that). In valid code these words and a
    name after them on the same line are nothing else.
    """
    text = bytearray(source)
    changed = False
    for word, known in ((b"using", b"const"), (b"accessor", b"readonly")):
        place = source.find(word)
        while place >= 0:
            end = place + len(word)
            if _is_contextual_keyword(source, place, end):
                changed = True
                text[place:end] = known
                head = source[max(0, place - 32) : place].rstrip(b" \t")
                if word == b"using" and head.endswith(b"await"):
                    start = place - len(source[max(0, place - 32) : place]) + len(head) - 5
                    text[start : start + 5] = b" " * 5
            place = source.find(word, end)
    for word in (b"namespace", b"module"):
        place = source.find(word)
        while place >= 0:
            end = place + len(word)
            brace = source.find(b"{", end, end + 256)
            head = source[end:brace] if brace >= 0 else b""
            # The brace of a namespace may stand on a line of its own.
            if (
                b"\n" in head
                and _is_dotted_name(head)
                and _is_contextual_keyword(source, place, end)
            ):
                changed = True
                text[end:brace] = head.replace(b"\r", b" ").replace(b"\n", b" ")
            place = source.find(word, end)
    return bytes(text) if changed else source


def _is_dotted_name(words: bytes) -> bool:
    name = words.strip()
    return len(name.split()) == 1 and all(_continues_name(unit) for unit in name.replace(b".", b""))


def _is_contextual_keyword(source: bytes, start: int, end: int) -> bool:
    if start > 0 and _continues_name(source[start - 1]):
        return False
    place = end
    while source[place : place + 1] in (b" ", b"\t"):
        place += 1
    follows = source[place : place + 11]
    if place == end:
        return follows[:1] == b"#"
    name = follows.split(b" ")[0].split(b"\t")[0]
    return (
        (_continues_name(follows[0]) or follows[:1] in (b"#", b"'", b'"', b"["))
        if follows and name not in (b"in", b"of", b"instanceof", b"as", b"satisfies")
        else False
    )


def _continues_name(unit: int) -> bool:
    return unit >= 0x80 or unit in b"$_\\" or chr(unit).isalnum()


def _with_newlines_for_comments(source: bytes, root: Node) -> bytes:
    text = bytearray(source)
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type == "comment" and b"\n" in source[node.start_byte : node.end_byte]:
            length = node.end_byte - node.start_byte
            text[node.start_byte : node.end_byte] = b" " * (length - 1) + b"\n"
        pending.extend(node.children)
    return bytes(text).replace(b"\xe2\x80\xa8", b"  \n").replace(b"\xe2\x80\xa9", b"  \n")
