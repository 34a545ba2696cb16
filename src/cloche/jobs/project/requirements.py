"""A requirements.txt as a lockfile: every line one version, with the hashes of its files.

Source: pip's documentation, "Requirements File Format" and "Secure installs"; PEP 508.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cloche.jobs.project.entries import show
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode
from cloche.model.wheel import LockedProject, is_sha256, is_version, normalise_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REQUIREMENTS: Final = "requirements.txt"
_BYTES_LIMIT: Final = 16 * 1024 * 1024
_LINES_LIMIT_COUNT: Final = 10_000
_HASHES_LIMIT_COUNT: Final = 2_000
_HASH: Final = "--hash="
_SHA256: Final = "sha256:"
_MAKE_ANEW: Final = (
    "make the file with `uv pip compile --generate-hashes` or `pip-compile --generate-hashes`"
)
# What stands for a place that no index has.
_SOURCES: Final = ("git+", "hg+", "svn+", "bzr+", "http:", "https:", "file:", "ssh:")
_EDITABLES: Final = ("-e", "--editable")
_MARKER: Final = frozenset(string.ascii_letters + string.digits + " _.-+*!<>=~()'\",")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line.

    Attributes:
        name: Normalised.
        extras: Normalised, in their order.
        version: Exact.
        marker: Of the environments that it is for; empty for all.
        hashes: SHA-256 of its files, lower-case hex; at least one.
    """

    name: str
    extras: tuple[str, ...]
    version: str
    marker: str
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        marker = f" ; {self.marker}" if self.marker else ""
        hashes = "".join(f" {_HASH}{_SHA256}{each}" for each in self.hashes)
        return f"{self.name}{extras}=={self.version}{marker}{hashes}"


def read_requirements(data: bytes) -> tuple[Requirement, ...]:
    """Reads the file.

    Raises:
        JobRefusedError: DEPENDENCY_REFUSED: a line asks for what is on no index. LOCKFILE_INVALID:
            a line has an option, or pins no version or no sha256; or it is no such file.
    """
    if len(data) > _BYTES_LIMIT:
        raise _invalid(f"has {len(data)} bytes, over {_BYTES_LIMIT}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _invalid(f"byte {error.start} is not UTF-8") from error
    found = tuple(_read_line(line, number) for number, line in _join_lines(text))
    if len(found) > _LINES_LIMIT_COUNT:
        raise _invalid(f"has {len(found)} requirements, over {_LINES_LIMIT_COUNT}")
    return found


def lock_projects(requirements: Iterable[Requirement]) -> dict[str, LockedProject]:
    """What may be had of an index, by name; lines of one name, for other environments, add up."""
    versions: dict[str, set[str]] = {}
    hashes: dict[str, set[str]] = {}
    for each in requirements:
        versions.setdefault(each.name, set()).add(each.version)
        hashes.setdefault(each.name, set()).update(each.hashes)
    return {
        name: LockedProject(name, tuple(sorted(versions[name])), frozenset(hashes[name]))
        for name in sorted(versions)
    }


def _invalid(why: str) -> JobRefusedError:
    return JobRefusedError(ReasonCode.LOCKFILE_INVALID, f"{REQUIREMENTS}: {why}; {_MAKE_ANEW}")


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, with the number of the first; continued ones as one.

    Source: pip's req_file, `join_lines`: a comment ends a line even where a backslash follows.
    """
    parts: list[str] = []
    first = 0
    for number, raw in enumerate(text.splitlines(), 1):
        first = first or number
        is_comment = raw.lstrip().startswith("#")
        if raw.endswith("\\") and not is_comment:
            parts.append(raw[:-1])
            continue
        parts.append("" if is_comment else raw)
        line = _strip_comment("".join(parts))
        if line:
            yield first, line
        parts, first = [], 0
    line = _strip_comment("".join(parts))
    if line:
        yield first, line


def _strip_comment(line: str) -> str:
    words = line.replace("\t", " ").split(" ")
    for index, word in enumerate(words):
        if word.startswith("#"):
            words = words[:index]
            break
    return " ".join(words).strip()


def _read_line(line: str, number: int) -> Requirement:
    where = f"line {number}"
    words = line.split()
    if words[0].startswith("-"):
        raise _refuse_option(words, number)
    count = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    stated, _, marker = " ".join(words[:count]).partition(";")
    marker = marker.strip()
    if "@" in stated or "/" in stated or stated.lower().startswith((*_SOURCES, ".")):
        raise JobRefusedError(
            ReasonCode.DEPENDENCY_REFUSED,
            f"{REQUIREMENTS}: {where}: {show(stated.strip())} is no version of an index's: URLs,"
            " repositories and paths are not installed. Name a released version",
        )
    name, extras, version = _read_stated(stated, where)
    if not _MARKER.issuperset(marker):
        raise _invalid(f"{where}: {show(marker)} is no environment marker")
    hashes = tuple(dict.fromkeys(_read_hashes(words[count:], f"{where}: {name}")))
    if not hashes:
        raise _invalid(f"{where}: {name}=={version} has no sha256")
    if len(hashes) > _HASHES_LIMIT_COUNT:
        raise _invalid(f"{where}: {name} has {len(hashes)} hashes, over {_HASHES_LIMIT_COUNT}")
    return Requirement(name, extras, version, marker, hashes)


def _refuse_option(words: list[str], number: int) -> JobRefusedError:
    option = words[0].partition("=")[0]
    where = f"{REQUIREMENTS}: line {number}"
    if option in _EDITABLES or (option.startswith("-e") and not option.startswith("--")):
        return JobRefusedError(
            ReasonCode.DEPENDENCY_REFUSED,
            f"{where}: {show(' '.join(words))} is not installed: no code of the project runs in the"
            " install. Take the line out (`uv export --no-emit-project`); steps find what is in"
            " `src/` without it",
        )
    return JobRefusedError(
        ReasonCode.LOCKFILE_INVALID,
        f"{where}: the option {show(option)} has no place here: indexes are those of pip's settings"
        " on this host, and all requirements stand in this file. Take the line out",
    )


def _read_stated(stated: str, where: str) -> tuple[str, tuple[str, ...], str]:
    left, found, version = (part.strip() for part in stated.partition("=="))
    project, bracket, rest = left.partition("[")
    name = normalise_name(project.strip())
    extras: tuple[str | None, ...] = ()
    if bracket:
        inner, closed, after = rest.partition("]")
        extras = tuple(normalise_name(each.strip()) for each in inner.split(",") if each.strip())
        if not closed or after.strip():
            name = None
    if name is None or None in extras:
        if not found and any(sign in left for sign in "<>~!="):
            raise _invalid(f"{where}: {show(left)} pins no version: `name==version` does")
        raise _invalid(f"{where}: {show(stated.strip())} is no requirement")
    if not found:
        raise _invalid(f"{where}: {name} pins no version: `{name}==version` does")
    if not is_version(version):
        raise _invalid(f"{where}: {name}: {show(version)} is no exact version")
    return name, tuple(each for each in extras if each is not None), version


def _read_hashes(words: list[str], where: str) -> Iterator[str]:
    """The SHA-256 among the hashes of a line."""
    for word in words:
        if not word.startswith(_HASH):
            raise _invalid(f"{where}: {show(word)} is no --hash=sha256:…")
        value = word.removeprefix(_HASH)
        if value.startswith(_SHA256):
            sha256 = value.removeprefix(_SHA256).lower()
            if not is_sha256(sha256):
                raise _invalid(f"{where}: {show(value)} is no sha256")
            yield sha256
