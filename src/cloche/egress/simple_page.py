"""What an index says of one project: read from either form of its page, told in one of them.

Source: PEP 503 (HTML), PEP 592 (yanked), PEP 691 (JSON).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from cloche.model.wheel import is_sha256
from cloche.settings.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterable

FILES_LIMIT_COUNT: Final = 50_000
_REQUIREMENT_LENGTH_LIMIT: Final = 200
_HASH: Final = "sha256="


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a project.

    Attributes:
        name: Its file name; a stranger's.
        address: Where it is to be had.
        sha256: Lower-case hex; None where the page has none.
        requires_python: Which Pythons it is for; None where the page does not say.
    """

    name: str
    address: Address
    sha256: str | None
    requires_python: str | None = None


def read_page(document: bytes, base: Address) -> list[ListedFile]:
    """The files of a page; those whose address cannot be used are left out.

    Args:
        document: As it came; a stranger's.
        base: Where it came from.

    Raises:
        ValueError: It is no such page.
    """
    if document.lstrip()[:1] == b"{":
        return _read_json(document, base)
    parser = _Links()
    parser.feed(document.decode("utf-8", "replace"))
    parser.close()
    found = []
    for attributes in parser.links[:FILES_LIMIT_COUNT]:
        url = attributes["href"]
        address = _read_address(url, _read_address(parser.base, base) or base)
        if address is None:
            continue
        fragment = urlsplit(url).fragment
        found.append(
            ListedFile(
                unquote(address.path.rpartition("/")[2]),
                address,
                _read_hash(fragment.removeprefix(_HASH)) if fragment.startswith(_HASH) else None,
                _read_requirement(attributes.get("data-requires-python")),
            )
        )
    return found


class _Links(HTMLParser):
    """The attributes of every link of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.links: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes)
        elif tag == "base" and not self.base:
            self.base = attributes.get("href", "")


def _read_json(document: bytes, base: Address) -> list[ListedFile]:
    try:
        files = json.loads(document)["files"]
        found = []
        for each in files[:FILES_LIMIT_COUNT]:
            address = _read_address(each["url"], base)
            if address is not None and isinstance(each["filename"], str):
                sha256 = _read_hash(each["hashes"].get("sha256"))
                requirement = _read_requirement(each.get("requires-python"))
                found.append(ListedFile(each["filename"], address, sha256, requirement))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("is no page of a project") from error
    return found


def _read_address(url: Any, base: Address) -> Address | None:
    try:
        address = Address.parse(url, base=base)
    except (ValueError, TypeError, AttributeError):
        return None
    # Never from TLS to none.
    return None if base.scheme == "https" and address.scheme != "https" else address


def _read_hash(told: Any) -> str | None:
    text = told.lower() if isinstance(told, str) else ""
    return text if is_sha256(text) else None


def _read_requirement(told: Any) -> str | None:
    if not isinstance(told, str) or not told.isprintable() or not told.isascii():
        return None
    return told if 0 < len(told) <= _REQUIREMENT_LENGTH_LIMIT else None


def write_page(name: str, files: Iterable[ListedFile], mirror: str) -> bytes:
    """The page that a box is given, of files that have a hash.

    Args:
        name: Of the project, normalised.
        files: Which.
        mirror: The address that files are said to have; no slash at its end.
    """
    listed = []
    for each in files:
        entry: dict[str, Any] = {
            "filename": each.name,
            "url": f"{mirror}/files/{name}/{each.sha256}/{each.name}",
            "hashes": {"sha256": each.sha256},
        }
        if each.requires_python is not None:
            entry["requires-python"] = each.requires_python
        listed.append(entry)
    return json.dumps({"meta": {"api-version": "1.0"}, "name": name, "files": listed}).encode()
