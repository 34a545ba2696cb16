"""A package of a registry as a lockfile names it: name, version and the hash of its tarball."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

# Source: npm's validate-npm-package-name; the rare old names with !'()* are left out.
NAME_LENGTH_LIMIT: Final = 214
VERSION_LENGTH_LIMIT: Final = 256
SHA512_BYTES: Final = 64

_DIGITS: Final = frozenset("0123456789")
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_NAME_CHARACTERS: Final = _LETTERS | _DIGITS | frozenset("-_.~")
_VERSION_CHARACTERS: Final = _LETTERS | _DIGITS | frozenset("-.")
_SRI_PREFIX: Final = "sha512-"


@dataclass(frozen=True, slots=True)
class Package:
    """One version of a package. What it is made of must have passed `check_package`.

    Attributes:
        name: As in the registry, `left-pad` or `@scope/name`.
        version: A whole semantic version.
        integrity: The tarball's hash, as one SRI token: `sha512-` and base64.
        wanted: This platform installs it; worth fetching before it is asked for.
    """

    name: str
    version: str
    integrity: str
    wanted: bool = True

    @property
    def is_counted(self) -> bool:
        """It is a package."""
        return True

    @property
    def media_type(self) -> str:
        """Of its tarball, as it is served."""
        return "application/octet-stream"

    @property
    def digest(self) -> tuple[str, bytes]:
        """The hash of its tarball, and by which algorithm."""
        return "sha512", self.sha512

    @property
    def key(self) -> tuple[str, ...]:
        """What no other package of its registry shares."""
        return self.name, self.version, self.integrity

    @property
    def sha512(self) -> bytes:
        """The tarball's hash."""
        return base64.b64decode(self.integrity.removeprefix(_SRI_PREFIX), validate=True)

    @property
    def tarball_path(self) -> str:
        """Where a registry keeps it by convention, below its own address."""
        base_name = self.name.rpartition("/")[2]
        # Registries and package managers leave the build out: it makes no other version.
        version = self.version.partition("+")[0]
        return f"{self.name}/-/{base_name}-{version}.tgz"

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def check_package(name: str, version: str, integrity: str) -> None:
    """Checks what an untrusted lockfile says of a package.

    What passes is safe in a URL's path and in a message: no slash but the scope's, no `..`, no
    percent sign, no control character.

    Raises:
        ValueError: Says which of the three is wrong, and why.
    """
    if not is_package_name(name):
        raise ValueError(f"{_show(name)} is no name of a package")
    if not _is_version(version):
        raise ValueError(f"{name}: {_show(version)} is no exact version")
    why = _integrity_fault(integrity)
    if why is not None:
        raise ValueError(f"{name}@{version}: its integrity {_show(integrity)} {why}")


def _show(text: str) -> str:
    """Guest text for a message: short, with nothing that a terminal would act on."""
    return ascii(text if len(text) <= 120 else text[:117] + "...")


def is_package_name(name: str) -> bool:
    """Whether it is `left-pad` or `@scope/name`."""
    scope, slash, rest = name.rpartition("/")
    if len(name) > NAME_LENGTH_LIMIT or not _is_word(rest):
        return False
    if slash:
        return scope.startswith("@") and _is_word(scope[1:])
    return not rest.startswith("_") and rest.lower() not in ("node_modules", "favicon.ico")


def _is_word(text: str) -> bool:
    return bool(text) and not text.startswith(".") and _NAME_CHARACTERS.issuperset(text)


def _is_version(version: str) -> bool:
    """Whether it is `1.2.3`, `1.2.3-beta.1`, `1.2.3+build` or both.

    Source: semver.org 2.0.0, §2, §9, §10.
    """
    rest, plus, build = version.partition("+")
    core, hyphen, prerelease = rest.partition("-")
    numbers = core.split(".")
    return (
        len(version) <= VERSION_LENGTH_LIMIT
        and len(numbers) == 3
        and all(_is_number(number) for number in numbers)
        and (not hyphen or _are_identifiers(prerelease))
        and (not plus or _are_identifiers(build))
    )


def _is_number(text: str) -> bool:
    return bool(text) and _DIGITS.issuperset(text) and (text == "0" or not text.startswith("0"))


def _are_identifiers(text: str) -> bool:
    return _VERSION_CHARACTERS.issuperset(text) and all(text.split("."))


def _integrity_fault(integrity: str) -> str | None:
    if not integrity.startswith(_SRI_PREFIX):
        return "is not one sha512"
    encoded = integrity.removeprefix(_SRI_PREFIX)
    try:
        digest = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return "is not one sha512 in base64"
    # Two spellings of one hash would be two packages of one content.
    if len(digest) != SHA512_BYTES or base64.b64encode(digest).decode() != encoded:
        return f"is not one sha512 of {SHA512_BYTES} bytes"
    return None
