"""When what was typed is a whole snippet: brackets, strings, comments and indented blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_CLOSER_OF = {"(": ")", "[": "]", "{": "}", "${": "}"}
# A slash behind one of these words starts a regular expression, not a division.
_WORDS_BEFORE_A_PATTERN: Final = frozenset(
    "await case delete do else in instanceof new of return throw typeof void yield".split()
)


def is_whole(lines: Sequence[str], language: str) -> bool:
    """True when these lines can be run, as far as can be told without a parser.

    Two blank lines at the end always can: that is the way out where this is wrong.
    """
    if len(lines) > 2 and not lines[-1].strip() and not lines[-2].strip():
        return True
    text = "\n".join(lines)
    if language != "python":
        return not _is_open_javascript(text)
    is_open, has_block = _scan_python(text)
    # An indented block goes on until a blank line, as in Python's own prompt.
    return not is_open and (not has_block or not lines[-1].strip())


def _scan_python(text: str) -> tuple[bool, bool]:
    """(a bracket, a triple-quoted string or a continued line is open, there is a block)."""
    closers: list[str] = []
    has_block = text.startswith("@")
    last = ""  # the last character of code on this line
    at = 0
    while at < len(text):
        char = text[at]
        if char == "#":
            at = _find(text, "\n", at)
            continue
        if char in "'\"":
            quote = char * 3 if text.startswith(char * 3, at) else char
            end = _skip_string(text, at + len(quote), quote)
            if end is None:
                return True, has_block
            at = end
            last = char
            continue
        if char == "\n" and not closers:
            has_block |= last == ":" or text[at + 1 : at + 2] in ("@", " ", "\t")
            last = ""
        elif char in _CLOSER_OF:
            closers.append(_CLOSER_OF[char])
        elif char in ")]}" and (not closers or closers.pop() != char):
            return False, False  # a mistake, for the run to tell
        elif char == "\\" and at == len(text) - 1:
            return True, has_block
        if not char.isspace():
            last = char
        at += 1
    return bool(closers), has_block or last == ":"


def _is_open_javascript(text: str) -> bool:
    """True when a bracket, a template or a comment is open at the end."""
    open_parts: list[str] = []  # brackets, "${" and "`"
    at = 0
    before = ""  # the code before this place that decides what a slash is
    while at < len(text):
        char = text[at]
        if open_parts and open_parts[-1] == "`":
            if char == "`":
                open_parts.pop()
                before = "`"
            elif text.startswith("${", at):
                open_parts.append("${")
                at += 1
            at += 2 if char == "\\" else 1
            continue
        if text.startswith("//", at):
            at = _find(text, "\n", at)
            continue
        if text.startswith("/*", at):
            if "*/" not in text[at + 2 :]:
                return True
            at = text.index("*/", at + 2) + 2
            continue
        if char in "'\"":
            end = _skip_string(text, at + 1, char)
            if end is None:
                return True
            at = end
        elif char == "/" and _starts_pattern(before):
            at = _skip_pattern(text, at + 1)
        elif char in "`([{":
            open_parts.append(char)
            at += 1
        elif char in ")]}":
            if not open_parts or _CLOSER_OF.get(open_parts.pop()) != char:
                return False  # a mistake, for the run to tell
            at += 1
        else:
            at += 1
        if not char.isspace():
            is_word = char.isalnum() or char in "_$"
            before = before + char if is_word and _is_word(before) else char
        elif _is_word(before) and before not in _WORDS_BEFORE_A_PATTERN:
            before = ")"  # a word has ended: what follows starts another one
    return bool(open_parts)


def _is_word(text: str) -> bool:
    return bool(text) and (text[-1].isalnum() or text[-1] in "_$")


def _starts_pattern(before: str) -> bool:
    if _is_word(before):
        return before in _WORDS_BEFORE_A_PATTERN
    return before not in (")", "]", "}", "`", "'", '"')


def _skip_pattern(text: str, at: int) -> int:
    """Behind a regular expression; just behind its slash when it does not end on its line."""
    start, is_in_class = at, False
    while at < len(text) and text[at] != "\n":
        if text[at] == "\\":
            at += 1
        elif text[at] == "[":
            is_in_class = True
        elif text[at] == "]":
            is_in_class = False
        elif text[at] == "/" and not is_in_class:
            return at + 1
        at += 1
    return start


def _skip_string(text: str, at: int, quote: str) -> int | None:
    """Behind a string; None when more can follow. A plain one ends with its line."""
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text.startswith(quote, at):
            return at + len(quote)
        elif text[at] == "\n" and len(quote) == 1:
            return at
        else:
            at += 1
    return None if len(quote) == 3 or text.endswith("\\") else at


def _find(text: str, what: str, at: int) -> int:
    found = text.find(what, at)
    return len(text) if found < 0 else found
