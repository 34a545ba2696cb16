"""The syntax tree: which grammar reads a text, and a few questions put to its nodes."""

from collections.abc import Iterator

import tree_sitter_javascript
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser

_PARSERS = {
    "javascript": Parser(Language(tree_sitter_javascript.language())),
    "typescript": Parser(Language(tree_sitter_typescript.language_typescript())),
}

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

    The grammars lag behind the language here and there (`accessor` and a name in quotes are
    known to one of the two only; a line break inside a comment ends a statement, and so does
    U+2028, which they overlook). So a text with errors is read again in both respects. Only the
    structure is taken from here: whether the text is valid is for the runtime to say.

    Requires: `source` is UTF-8. Ensures: byte offsets are those of `source`.
    """
    first = _PARSERS[language]
    other = _PARSERS["typescript" if language == "javascript" else "javascript"]
    readable = _with_newlines_for_lone_returns(source)
    best = first.parse(readable).root_node
    if not best.has_error:
        return best
    softened = _with_newlines_for_comments(readable, best)
    for parser, text in ((first, softened), (other, readable), (other, softened)):
        root = parser.parse(text).root_node
        if not root.has_error:
            return root
    return best


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
