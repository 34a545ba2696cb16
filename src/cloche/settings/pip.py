"""How pip on this host reaches its indexes, with pip's own precedence.

Environment, the file that PIP_CONFIG_FILE names, the virtual environment's, the user's, the global
ones. A project's own files have no say: their author is whom the boxes are for.

Source: pip's documentation, "Configuration" and "HTTPS Certificates"; PEP 503.
"""

from __future__ import annotations

import base64
import configparser
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cloche.errors import UnavailableError
from cloche.settings.access import Access
from cloche.settings.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_FILE: Final = "pip.conf"
# What is said of every command, and then of the one that installs.
_SECTIONS: Final = ("global", "install")
# What pip's own client is told by, where no setting of pip's is there.
_CERTIFICATE_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# Source: pip's configuration, `strtobool`.
_TRUTHS: Final = ("y", "yes", "t", "true", "on", "1")
_FILE_BYTES_LIMIT: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PipSettings(Access):
    """How pip on this host reaches its indexes.

    The path of an index's address ends with a slash.

    Attributes:
        index: Where packages come from. None: pip's settings name none.
        extra_indexes: Asked, in their order, for what `index` does not have.
        has_no_index: None is to be asked.
    """

    tool = "pip"
    fact = "pip-index"
    trust_command = "pip config set global.cert FILE"

    index: Address | None = None
    extra_indexes: tuple[Address, ...] = ()
    has_no_index: bool = False


def read_pip(
    environment: Mapping[str, str],
    home: Path,
    *,
    etc: Path = Path("/etc"),
    prefix: Path = Path(sys.prefix),
) -> PipSettings:
    """Reads pip's settings.

    Args:
        environment: The variables.
        home: The user's folder.
        etc: The host's settings.
        prefix: The virtual environment that Cloche is in, which may have settings too.

    Raises:
        UnavailableError: A setting cannot be used; names the setting, never its value.
    """
    entries = _read_entries(environment, _paths(environment, home, etc, prefix))
    credentials: dict[str, str] = {}
    index = _take_index(entries.get("index-url", ""), "index-url", credentials)
    extra = [
        _take_index(value, "extra-index-url", credentials)
        for value in entries.get("extra-index-url", "").split()
        # A folder of this host: pip itself could read it, a mirror has no need to.
        if not value.startswith(("file:", "/", "."))
    ]
    certificates = [entries.get("cert"), *map(environment.get, _CERTIFICATE_VARIABLES)]
    named = next((name for name in certificates if name), None)
    return PipSettings(
        index=index,
        has_no_index=entries.get("no-index", "").lower() in _TRUTHS,
        extra_indexes=tuple(address for address in extra if address is not None),
        credentials=MappingProxyType(credentials),
        ca_files=() if named is None else tuple(_certificate_files(Path(named).expanduser())),
        proxies=MappingProxyType(_read_proxies(entries, environment)),
        no_proxy=tuple(
            each.strip()
            for each in _variables(environment).get("no_proxy", "").split(",")
            if each.strip()
        ),
    )


def _read_entries(environment: Mapping[str, str], paths: Iterable[Path]) -> dict[str, str]:
    """The entries of all places; of a key that is in several, the one with precedence."""
    entries: dict[str, str] = {}
    for path in paths:
        entries |= _read_file(path)
    for name, value in environment.items():
        key = name.removeprefix("PIP_").lower().replace("_", "-")
        if name.startswith("PIP_") and value:
            entries[key] = value
    return entries


def _paths(environment: Mapping[str, str], home: Path, etc: Path, prefix: Path) -> Iterator[Path]:
    """The files, from the least to the most important."""
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    for folder in reversed((environment.get("XDG_CONFIG_DIRS") or f"{etc}/xdg").split(":")):
        if folder.startswith("/"):
            yield Path(folder) / "pip" / _FILE
    yield etc / _FILE
    if not named or not Path(named).exists():
        yield home / ".pip" / _FILE
        base = Path(environment.get("XDG_CONFIG_HOME", ""))
        yield (base if base.is_absolute() else home / ".config") / "pip" / _FILE
    yield prefix / _FILE
    if named:
        yield Path(named)


def _read_file(path: Path) -> dict[str, str]:
    """The entries of a file; none where it cannot be read."""
    parser = configparser.RawConfigParser()
    try:
        with path.open("rb") as reader:
            parser.read_string(reader.read(_FILE_BYTES_LIMIT).decode("utf-8", "replace"))
    except OSError:
        return {}
    except configparser.Error as error:
        raise UnavailableError(
            f"pip's settings in {path} cannot be read",
            fact=PipSettings.fact,
            fix=f"correct {path}; `pip config list` shows what pip makes of it",
        ) from error
    entries: dict[str, str] = {}
    for section in _SECTIONS:
        if parser.has_section(section):
            found = parser.items(section)
            entries |= {key.replace("_", "-"): value for key, value in found if value}
    return entries


def _take_index(value: str, key: str, credentials: dict[str, str]) -> Address | None:
    """An index's address; a user named in it becomes a credential for its host."""
    if not value.strip():
        return None
    try:
        address = Address.parse(value.strip())
    except ValueError as error:
        raise _unusable(key, str(error)) from None
    if address.query:
        raise _unusable(key, "is no plain address of an index")
    if address.user is not None:
        # An index of one's own keeps its files on the same host, often beside the pages.
        header = f"Basic {base64.b64encode(address.user.encode()).decode()}"
        credentials.setdefault(f"//{address.netloc}/", header)
    return replace(address, path=address.path.rstrip("/") + "/", user=None)


def _certificate_files(path: Path) -> Iterator[Path]:
    """The file that is named, or those in the folder that is."""
    if path.is_dir():
        yield from sorted(each for each in path.iterdir() if each.suffix in (".pem", ".crt"))
    else:
        yield path


def _read_proxies(entries: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Address]:
    variables = _variables(environment)
    proxies = {}
    for scheme in ("https", "http"):
        value = entries.get("proxy") or variables.get(f"{scheme}_proxy")
        value = value or variables.get("all_proxy")
        if value:
            try:
                proxies[scheme] = Address.parse(value if "://" in value else f"http://{value}")
            except ValueError as error:
                raise _unusable("proxy", str(error)) from None
            if proxies[scheme].scheme != "http":
                raise _unusable("proxy", "is reached over TLS, which is not supported: use http://")
    return proxies


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in environment.items() if value}


def _unusable(key: str, why: str) -> UnavailableError:
    # Never the value: it may be, or hold, a secret.
    return UnavailableError(
        f"pip's setting {key} {why}",
        fact=PipSettings.fact,
        fix=f"pip config set global.{key} VALUE, or pip config unset global.{key}",
    )
