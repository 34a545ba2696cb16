"""Which regular expressions mean the same to Monty's engine and to CPython's.

Monty's is another engine: what a pattern that can match nothing finds in a row, how `$` treats a
last newline, and what escapes mean, differs. So only patterns that are written down in the snippet
and are made of parts that were measured to be the same are taken.
"""

from __future__ import annotations

import ast
from typing import Final

from .monty_source import Marks

_FLAGS_PLACE: Final = {
    "compile": 1,
    "search": 2,
    "match": 2,
    "fullmatch": 2,
    "findall": 2,
    "finditer": 2,
    "split": 3,
    "sub": 4,
}
"""Functions that take a pattern, and which of their arguments are the flags."""
_REPEATED: Final = frozenset({"compile", "findall", "finditer", "split", "sub"})
_FLAGS: Final = frozenset({"I", "IGNORECASE", "M", "MULTILINE", "S", "DOTALL"})
_PLAIN_ESCAPES: Final = frozenset("dDwWsSbnrtfvA\\.^$*+?{}[]()|/-\"'#&~@!%,:;<>=_` ")


def check_pattern(function: str, call: ast.Call, marks: Marks) -> str | None:
    """Say what is wrong with a call of a function of `re`; None: nothing.

    Monty's `$` is the very end, CPython's also in front of a last newline; the pattern is marked.
    """
    if function not in _FLAGS_PLACE:
        return None
    pattern = call.args[0] if call.args else None
    if not isinstance(pattern, ast.Constant) or not isinstance(pattern.value, str):
        return "a regular expression that is computed"
    if any(one.arg not in ("flags", "count", "maxsplit", "string") for one in call.keywords):
        return f"`re.{function}` with these keywords"
    if any(isinstance(one, ast.Starred) for one in call.args):
        return f"`re.{function}` with such arguments"
    flags = _flags_of(function, call)
    if flags is None:
        return "a regular expression with these flags"
    if function == "sub" and not _is_plain_replacement(call):
        return "`re.sub` with such a replacement"
    reader = _Reader(pattern.value)
    reader.alternatives()
    if reader.problem is None and reader.place < len(pattern.value):
        reader.problem = "a bracket without its other half"
    if reader.problem is not None:
        return f"a regular expression with {reader.problem}"
    if function in _REPEATED and reader.may_be_empty:
        return "a regular expression that matches the empty text"
    if reader.ends and not flags & {"M", "MULTILINE"}:
        if pattern.value.count("$") != reader.ends:
            return "a regular expression with `$` in two meanings"
        marks.before(pattern, "(")
        marks.behind(pattern, ").replace('$', '(?=\\\\n?\\\\z)')")
    return None


def _flags_of(function: str, call: ast.Call) -> frozenset[str] | None:
    """Names of the flags of a call; None: some cannot be told, or are not the same in Monty."""
    given = [one.value for one in call.keywords if one.arg == "flags"]
    given += call.args[_FLAGS_PLACE[function] :]
    found: set[str] = set()
    for node in (inner for one in given for inner in ast.walk(one)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id != "re":
                found.add(node.id)
        elif not isinstance(node, (ast.BinOp, ast.BitOr, ast.expr_context)):
            return None
    return frozenset(found) if found <= _FLAGS else None


def _is_plain_replacement(call: ast.Call) -> bool:
    """A text without backslashes other than group numbers, or a function."""
    if len(call.args) < 2:
        return False
    replacement = call.args[1]
    if isinstance(replacement, ast.Constant):
        text = replacement.value
        if not isinstance(text, str):
            return False
        parts = text.split("\\")[1:]
        return all(part[:1].isdigit() and part[:1] != "0" for part in parts)
    return False


def _is_count(text: str) -> bool:
    return len(text) < 4 and text.isascii() and text.isdecimal()


class _Reader:
    """Reads a pattern by recursive descent; `problem` says why it is none of ours."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.place = 0
        self.problem: str | None = None
        self.may_be_empty = False
        self.ends = 0
        self._depth = 0

    def alternatives(self) -> bool:
        """Read `a|b`; return whether it can match the empty text."""
        self._depth += 1
        if self._depth > 20:
            self.problem = "brackets that deep"
        empty = self._sequence()
        while self.problem is None and self._next() == "|":
            self.place += 1
            empty = self._sequence() or empty
        self._depth -= 1
        self.may_be_empty = empty
        return empty

    def _next(self) -> str:
        return self.pattern[self.place : self.place + 1]

    def _sequence(self) -> bool:
        empty = True
        while self.problem is None and self._next() not in ("", "|", ")"):
            one = self._piece()
            empty = empty and one
        return empty

    def _piece(self) -> bool:
        empty = self._atom()
        quantifier = self._next()
        if self.problem is None and quantifier and quantifier in "*+?{":
            if empty:
                self.problem = "a quantifier after what may take nothing"
            if quantifier == "{":
                end = self.pattern.find("}", self.place)
                low, _, high = self.pattern[self.place + 1 : end].partition(",")
                if end < 0 or not _is_count(low) or (high and not _is_count(high)):
                    self.problem = "such a `{`"
                    return empty
                self.place = end + 1
                empty = empty or int(low) == 0
            else:
                self.place += 1
                empty = empty or quantifier in "*?"
            if self._next() == "?":
                self.place += 1
            if self._next() and self._next() in "*+?{":
                self.problem = "a quantifier after a quantifier"
        return empty

    def _atom(self) -> bool:
        character = self._next()
        self.place += 1
        if character == "(":
            return self._group()
        if character == "[":
            self._set()
            return False
        if character == "\\":
            return self._escape()
        if character == "$":
            self.ends += 1
            return True
        if character == "^":
            return True
        if character in "*+?{}]":
            self.problem = f"such a `{character}`"
        return False

    def _group(self) -> bool:
        looks = False
        if self._next() == "?":
            if self.pattern.startswith("?:", self.place):
                self.place += 2
            elif self.pattern.startswith(("?=", "?!"), self.place):
                self.place += 2
                looks = True
            elif self.pattern.startswith(("?<=", "?<!"), self.place):
                self.place += 3
                looks = True
            elif self.pattern.startswith("?P<", self.place):
                end = self.pattern.find(">", self.place)
                name = self.pattern[self.place + 3 : end]
                if end < 0 or not name.isidentifier() or not name.isascii():
                    self.problem = "such a group"
                    return True
                self.place = end + 1
            else:
                self.problem = "such a group"
                return True
        empty = self.alternatives()
        if self._next() != ")":
            self.problem = self.problem or "a bracket without its other half"
        self.place += 1
        return empty or looks

    def _escape(self) -> bool:
        character = self._next()
        self.place += 1
        if character not in _PLAIN_ESCAPES or not character:
            self.problem = f"`\\{character}`"
        return character in ("b", "A")

    def _set(self) -> None:
        """Read `[…]`: characters, ranges and classes; nothing that another engine nests."""
        if self._next() == "^":
            self.place += 1
        start = self.place
        while self.problem is None:
            character = self._next()
            self.place += 1
            if character == "":
                self.problem = "a `[` without its other half"
            elif character == "]":
                if self.place - 1 == start:
                    self.problem = "such a `[`"
                return
            elif character == "\\":
                self._escape()
            elif character in "[&~" or (character == "-" and self._next() == "-"):
                self.problem = "such a `[`"
