"""Unified diffs, as git and diff -u write them: applied whole and to the letter, or not at all.

No line may be elsewhere than where the diff says, and none may differ: a diff that nearly fits was
made for another file.
"""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cloche.jobs.project.survey import fault_of_mode, refusal, show_path
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode
from cloche.model.snippet_fields import PATH_BYTES_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOWHERE: Final = "/dev/null"
_MODE_WORDS: Final = ("new file mode ", "new mode ", "deleted file mode ", "old mode ")
_IGNORED_WORDS: Final = ("similarity index ", "dissimilarity index ", "index ")
_NO_NEWLINE: Final = b"\\ "
_PATCH_LIMIT_BYTES: Final = 16 * 1024 * 1024  # each of its lines takes far more than it is long
_NAME_LIMIT_CHARS: Final = 4 * PATH_BYTES_LIMIT  # `\\303` is one byte
_SIGNATURE: Final = b"-- "  # before the version at the end of git format-patch
_ESCAPES: Final = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


@dataclass(slots=True)
class _Hunk:
    """Lines of one place: ` `, `-` or `+`, and the line with its end."""

    start: int  # of the old lines, from 0
    lines: list[tuple[bytes, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class _FilePatch:
    """What is to be done with one file."""

    old: str | None = None
    new: str | None = None
    mode: int | None = None
    copies: bool = False
    hunks: list[_Hunk] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Patch:
    """A diff that was read.

    Attributes:
        sha256: Of its bytes, lower-case hex.
    """

    files: tuple[_FilePatch, ...]
    sha256: str

    def apply(
        self, files: Mapping[str, bytes], executables: frozenset[str]
    ) -> tuple[dict[str, bytes], frozenset[str], frozenset[str]]:
        """What it makes of some files.

        Returns:
            The files that it writes; which of them are executable; the paths that go.

        Raises:
            JobRefusedError: it does not fit.
        """
        written: dict[str, bytes] = {}
        runnable: set[str] = set()
        gone: set[str] = set()
        for patch in self.files:
            if patch.old is not None and patch.old not in files:
                raise refusal(patch.old, "is changed by the diff, and is not there")
            is_used = patch.old in gone or patch.old in written
            if patch.new in written or (is_used and not patch.copies):
                raise refusal(str(patch.new or patch.old), "is in the diff twice")
            if patch.new is not None and patch.new != patch.old and patch.new in files:
                raise refusal(patch.new, "is made by the diff, and is there already")
            old = b"" if patch.old is None else files[patch.old]
            content = _apply(patch, old)
            if patch.old is not None and patch.new != patch.old and not patch.copies:
                gone.add(patch.old)
            if patch.new is None:
                if content:
                    raise refusal(str(patch.old), "is removed by the diff, which leaves some of it")
                continue
            written[patch.new] = content
            was_executable = patch.old in executables
            if was_executable if patch.mode is None else patch.mode & 0o111:
                runnable.add(patch.new)
        return written, frozenset(runnable), frozenset(gone)


def _apply(patch: _FilePatch, content: bytes) -> bytes:
    name = str(patch.new or patch.old)
    old = _split(content)
    new: list[bytes] = []
    at = 0
    for hunk in patch.hunks:
        if not at <= hunk.start <= len(old):
            raise _misfit(name, hunk.start, "the file is shorter, or the hunks are out of order")
        new += old[at : hunk.start]
        at = hunk.start
        for sign, line in hunk.lines:
            if sign != b"+":
                if at >= len(old) or old[at] != line:
                    raise _misfit(name, at, "the line is another one")
                at += 1
            if sign != b"-":
                new.append(line)
    new += old[at:]
    for at, line in enumerate(new[:-1]):
        if not line.endswith(b"\n"):  # the next one would become part of it
            raise _misfit(name, at, "the diff says that the file ends there")
    return b"".join(new)


def _split(content: bytes) -> list[bytes]:
    """Lines that end in LF, and in nothing else."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _misfit(name: str, at: int, why: str) -> JobRefusedError:
    return refusal(name, f"does not fit the diff at its line {at + 1}: {why}")


def is_patch(data: bytes) -> bool:
    """Whether some bytes have the head of a diff of a file."""
    lines = _split(data[:65536])
    starts = [line.startswith((b"--- ", b"+++ ")) for line in lines]
    return any(line.startswith(b"diff --git ") for line in lines) or any(
        here and there for here, there in pairwise(starts)
    )


def read_patch(data: bytes) -> Patch:
    """Reads a diff.

    Raises:
        JobRefusedError: it is none, or has what is not read here: binary changes, links, modules.
    """
    if len(data) > _PATCH_LIMIT_BYTES:
        raise JobRefusedError(
            ReasonCode.BUNDLE_REFUSED,
            f"bundle: the diff is over {_PATCH_LIMIT_BYTES // (1024 * 1024)} MiB; give the files"
            " themselves",
        )
    reader = _Reader(_split(data))
    try:
        reader.read()
    except ValueError as error:
        raise JobRefusedError(
            ReasonCode.BUNDLE_REFUSED, f"bundle: the diff's line {reader.at}: {error}"
        ) from error
    return Patch(tuple(reader.files), hashlib.sha256(data).hexdigest())


class _Reader:
    """Goes through the lines of a diff once.

    Attributes:
        at: How many lines were taken; the number of the last one.
        files: What was read so far.
    """

    def __init__(self, lines: list[bytes]) -> None:
        self.at = 0
        self.files: list[_FilePatch] = []
        self._lines = lines
        self._is_git = False  # in the head of a file in git's form

    def read(self) -> None:
        while self.at < len(self._lines):
            line = self._take()
            if line.startswith(b"diff --git "):
                self._begin(_git_names(_text(line)[len("diff --git ") :]))
                self._is_git = True
            elif line.startswith(b"--- ") and self._peek().startswith(b"+++ "):
                self._read_names(line)
            elif line.startswith(b"@@ "):
                self._read_hunk(_text(line))
            elif self._is_git:
                self._read_git_word(_text(line))
            elif self.files and line[:1] in (b"+", b"-", b" ") and not self._ends(line):
                raise ValueError("a line of no hunk; the counts in the hunk's head are wrong")
        if not any(file.hunks or file.mode or file.old != file.new for file in self.files):
            raise ValueError("there is nothing that it changes")

    def _take(self) -> bytes:
        line = self._lines[self.at]
        self.at += 1
        return line

    def _peek(self) -> bytes:
        return self._lines[self.at] if self.at < len(self._lines) else b""

    def _ends(self, line: bytes) -> bool:
        return line.rstrip(b"\n") in (_SIGNATURE, _SIGNATURE.rstrip())

    def _begin(self, names: tuple[str | None, str | None]) -> _FilePatch:
        self.files.append(_FilePatch(*names))
        return self.files[-1]

    def _read_names(self, line: bytes) -> None:
        old = _name(_text(line)[len("--- ") :], "a/")
        new = _name(_text(self._take())[len("+++ ") :], "b/")
        if old is None and new is None:
            raise ValueError("both names are /dev/null")
        if self._is_git:
            file = self.files[-1]
            file.old, file.new = old, new
        else:
            self._begin((old, new))
        self._is_git = False

    def _read_git_word(self, text: str) -> None:
        file = self.files[-1]
        word, _, rest = text.partition(" ")
        if text.startswith(_MODE_WORDS):
            mode = _mode(text.rpartition(" ")[2])
            if text.startswith("new file"):
                file.old = None
            if text.startswith("deleted"):
                file.new = None
            elif not text.startswith("old"):
                file.mode = mode
        elif text.startswith(("rename from ", "copy from ")):
            file.old, file.copies = _unquote(rest.partition(" ")[2]), word == "copy"
        elif text.startswith(("rename to ", "copy to ")):
            file.new = _unquote(rest.partition(" ")[2])
        elif text.startswith(("GIT binary patch", "Binary files ")):
            raise ValueError("a binary change; give the file itself")
        elif not text.startswith(_IGNORED_WORDS):
            self._is_git = False

    def _read_hunk(self, text: str) -> None:
        if not self.files:
            raise ValueError("a hunk before the name of its file")
        self._is_git = False
        parts = text.split(" ")
        if len(parts) < 4 or parts[3] != "@@":
            raise ValueError("the head of a hunk is not `@@ -l,n +l,n @@`")
        start, old_count = _range(parts[1], "-")
        _, new_count = _range(parts[2], "+")
        # A range without lines stands behind the line that it names.
        hunk = _Hunk(start if old_count == 0 else start - 1)
        while old_count or new_count:
            if self.at == len(self._lines):
                raise ValueError("the hunk ends early")
            line = self._take()
            sign, rest = (b" ", line) if line == b"\n" else (line[:1], line[1:])
            old_count -= sign in (b" ", b"-")
            new_count -= sign in (b" ", b"+")
            if sign not in (b" ", b"-", b"+") or old_count < 0 or new_count < 0:
                raise ValueError("the hunk has other lines than its head says")
            if self._peek().startswith(_NO_NEWLINE):
                self._take()
                rest = rest.removesuffix(b"\n")
            hunk.lines.append((sign, rest))
        self.files[-1].hunks.append(hunk)


def _text(line: bytes) -> str:
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise ValueError("a name that is not UTF-8") from None


def _range(text: str, sign: str) -> tuple[int, int]:
    start, comma, count = text.removeprefix(sign).partition(",")
    numbers = (start, count) if comma else (start, "1")
    if not text.startswith(sign) or not all(
        number.isascii() and number.isdigit() and len(number) < 10 for number in numbers
    ):
        raise ValueError("the head of a hunk is not `@@ -l,n +l,n @@`")
    return int(numbers[0]), int(numbers[1])


def _mode(text: str) -> int:
    """A mode as git writes it."""
    if not (text.isascii() and text.isdigit() and len(text) == 6):
        raise ValueError("a mode that is none")
    mode = int(text, 8)
    if not stat.S_ISREG(mode):
        raise ValueError("a link or a module; only plain files can be changed")
    if fault := fault_of_mode(mode):
        raise ValueError(f"a file that {fault}")
    return mode


def _git_names(text: str) -> tuple[str | None, str | None]:
    """Both names in `a/x b/x`; those that follow in lines of their own are better."""
    half = len(text) // 2
    old, new = text[:half], text[half + 1 :]
    if text[half : half + 1] == " " and old.lstrip('"')[2:] == new.lstrip('"')[2:]:
        return _name(old, "a/"), _name(new, "b/")
    old, _, new = text.partition(" ")
    return _name(old, "a/"), _name(new, "b/")


def _name(text: str, prefix: str) -> str | None:
    name = _unquote(text.partition("\t")[0])
    return None if name == _NOWHERE else name.removeprefix(prefix)


def _unquote(text: str) -> str:
    """A name as git writes it: in quotes where it has unusual characters."""
    if not (text.startswith('"') and text.endswith('"') and len(text) > 1):
        return text
    if len(text) > _NAME_LIMIT_CHARS:
        raise ValueError("a name that is too long")
    found = bytearray()
    rest = text[1:-1]
    while rest:
        character, rest = rest[0], rest[1:]
        if character != "\\":
            found += character.encode()
        elif rest[:1] in _ESCAPES:
            found.append(_ESCAPES[rest[0]])
            rest = rest[1:]
        else:
            found.append(int(rest[:3], 8))
            rest = rest[3:]
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise ValueError(f"a name that is not UTF-8: {show_path(text)}") from None
