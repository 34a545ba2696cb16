"""What a lockfile of Python's names: projects of an index, and wheels of these."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Final

NAME_LENGTH_LIMIT: Final = 214
SHA256_HEX_LENGTH: Final = 64
PAGE_TYPE: Final = "application/vnd.pypi.simple.v1+json"
"""Source: PEP 691."""

_LOWER: Final = frozenset(string.ascii_lowercase + string.digits)
_NAME: Final = frozenset(string.ascii_letters + string.digits + "-_.")
_FILE_NAME: Final = _NAME | frozenset("+!")
_VERSION: Final = _NAME | frozenset("+!")


@dataclass(frozen=True, slots=True)
class LockedProject:
    """A project of an index, and what a lockfile has of it.

    Attributes:
        name: Normalised.
        versions: As the lockfile spells them, sorted.
        hashes: SHA-256 of the files that may be had, lower-case hex.
        wanted: Worth fetching before it is asked for.
    """

    name: str
    versions: tuple[str, ...]
    hashes: frozenset[str]
    wanted: bool = False

    @property
    def is_counted(self) -> bool:
        """A page is no package."""
        return False

    @property
    def media_type(self) -> str:
        """Of its page, as it is served."""
        return PAGE_TYPE

    def __str__(self) -> str:
        return f"{self.name}=={','.join(self.versions)}"


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel.

    Attributes:
        name: Of its project, normalised.
        sha256: Lower-case hex.
        wanted: Worth fetching before it is asked for.
    """

    name: str
    sha256: str
    wanted: bool = False

    @property
    def is_counted(self) -> bool:
        """It is a package."""
        return True

    @property
    def media_type(self) -> str:
        """As it is served."""
        return "application/octet-stream"

    @property
    def digest(self) -> tuple[str, bytes]:
        """Its hash, and by which algorithm."""
        return "sha256", bytes.fromhex(self.sha256)

    @property
    def key(self) -> tuple[str, ...]:
        """What no other file of its index shares."""
        return "wheel", self.name, self.sha256

    def __str__(self) -> str:
        return f"{self.name} (sha256:{self.sha256[:12]}…)"


def normalise_name(name: str) -> str | None:
    """The one spelling of a project's name; None where it is no name. Source: PEP 503."""
    if not name or len(name) > NAME_LENGTH_LIMIT or not _NAME.issuperset(name):
        return None
    if name[0] in "-_." or name[-1] in "-_.":
        return None
    words = name.lower().replace("_", "-").replace(".", "-").split("-")
    return "-".join(word for word in words if word)


def is_sha256(text: str) -> bool:
    """Whether it is a SHA-256 in lower-case hex."""
    return len(text) == SHA256_HEX_LENGTH and frozenset("0123456789abcdef").issuperset(text)


def is_version(text: str) -> bool:
    """Whether it may stand for an exact version: no wildcard, no space, nothing of a shell's."""
    starts = text[:1].lower() in _LOWER
    return starts and len(text) <= NAME_LENGTH_LIMIT and _VERSION.issuperset(text)


def read_wheel_name(file_name: str) -> tuple[str, str] | None:
    """The normalised project and the version of a wheel's file name; None for any other file.

    Source: packaging.python.org, "Binary distribution format", file name convention.
    """
    stem = file_name.removesuffix(".whl")
    if stem == file_name or not _FILE_NAME.issuperset(file_name):
        return None
    parts = stem.split("-")
    name = normalise_name(parts[0])
    if len(parts) not in (5, 6) or name is None or not is_version(parts[1]):
        return None
    return name, parts[1]
