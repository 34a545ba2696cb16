"""How npm on this host reaches its registries, with npm's own precedence.

Environment, the user's npmrc, the global one, the one built into npm. A project's npmrc has no
say: its author is whom the boxes are for.

Source: npm's documentation, "config" and "npmrc"; @npmcli/config; npm-registry-fetch, auth.
"""

from __future__ import annotations

import base64
import binascii
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cloche.errors import UnavailableError
from cloche.settings.access import Access
from cloche.settings.address import Address
from cloche.settings.npmrc import Entries, expand_variables, read_npmrc

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Where npm is usually told of its global settings, for a host that has them and no npm.
_GLOBAL_FILES: Final = ("/usr/local/etc/npmrc", "/usr/etc/npmrc", "/etc/npmrc")
# `//host/path/:KEY` in an npmrc.
_CREDENTIAL_KEYS: Final = ("_authToken", "_auth", "username", "_password")
# What stands for "not set".
_NOTHING: Final = ("", "null", "undefined", "true", "false")


@dataclass(frozen=True, slots=True)
class NpmSettings(Access):
    """How npm on this host reaches its registries.

    The path of a registry's address ends with a slash.

    Attributes:
        registry: Where packages come from. None: npm's settings name none.
        scopes: The same by scope (`@scope`), for scopes that have a registry of their own.
    """

    tool = "npm"
    fact = "npm-registry"
    trust_command = "npm config set cafile FILE"

    registry: Address | None = None
    scopes: Mapping[str, Address] = field(default_factory=dict)

    def registry_of(self, name: str) -> Address | None:
        """The registry that has the package `name`; None: npm's default."""
        scope, slash, _ = name.partition("/")
        return self.scopes.get(scope.lower(), self.registry) if slash else self.registry


def read_npm(environment: Mapping[str, str], home: Path) -> NpmSettings:
    """Reads npm's settings.

    Raises:
        UnavailableError: A setting cannot be used; names the setting, never its value.
    """
    entries = _read_all_entries(environment, home)
    credentials = dict(_read_credentials(entries))

    def address(key: str) -> Address | None:
        value = _text(entries, key)
        return None if value is None else _take_address(value, key, credentials)

    scopes = {
        key.removesuffix(":registry").lower(): url
        for key in entries
        if key.startswith("@") and key.endswith(":registry") and (url := address(key))
    }
    ca_files = [_text(entries, "cafile"), environment.get("NODE_EXTRA_CA_CERTS")]
    paths = [_expand_home(name, home) for name in ca_files if name]
    return NpmSettings(
        registry=address("registry"),
        scopes=MappingProxyType(scopes),
        credentials=MappingProxyType(credentials),
        # npm and Node pass over a file that is not there.
        ca_files=tuple(dict.fromkeys(path for path in paths if path.is_file())),
        ca_texts=tuple(
            text.replace("\\n", "\n") for text in entries.get("ca", ()) if text not in _NOTHING
        ),
        verify_tls=entries.get("strict-ssl", ["true"])[-1] != "false",
        proxies=MappingProxyType(_read_proxies(entries, environment)),
        no_proxy=_read_no_proxy(entries, environment),
    )


def _read_all_entries(environment: Mapping[str, str], home: Path) -> Entries:
    """The entries of all places; of a key that is in several, the one with precedence."""
    of_environment = _environment_entries(environment)
    user_file = _text(of_environment, "userconfig")
    user_path = _expand_home(user_file, home) if user_file else home / ".npmrc"
    of_user = read_npmrc(user_path, environment)
    built_in = _built_in_entries(environment)
    known = built_in | of_user | of_environment
    of_global: Entries = {}
    for path in _global_paths(known, environment, home):
        if path.is_file():
            of_global = read_npmrc(path, environment)
            break
    return built_in | of_global | of_user | of_environment


def _environment_entries(environment: Mapping[str, str]) -> Entries:
    entries: Entries = {}
    for name, value in environment.items():
        key = name[len("npm_config_") :]
        if not name.lower().startswith("npm_config_") or not key or not value:
            continue
        if not key.startswith("//"):
            key = (key[0] + key[1:].replace("_", "-")).lower()
        # A list is handed down with empty lines between its items.
        values = value.split("\n\n") if key == "ca" else [value]
        entries[key] = [expand_variables(each.strip(), environment) for each in values]
    return entries


def _built_in_entries(environment: Mapping[str, str]) -> Entries:
    """Of the file that a distribution may have put beside npm's own program."""
    program = shutil.which("npm", path=environment.get("PATH", ""))
    if program is None:
        return {}
    return read_npmrc(Path(program).resolve().parent.parent / "npmrc", environment)


def _global_paths(known: Entries, environment: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Where the global settings may be; the first file that is there counts."""
    named = _text(known, "globalconfig")
    prefix = _text(known, "prefix") or environment.get("PREFIX")
    node = shutil.which("node", path=environment.get("PATH", ""))
    if named:
        yield _expand_home(named, home)
    elif prefix:
        yield _expand_home(prefix, home) / "etc/npmrc"
    elif node:
        yield Path(node).parent.parent / "etc/npmrc"
    else:
        yield from map(Path, _GLOBAL_FILES)


def _read_proxies(entries: Entries, environment: Mapping[str, str]) -> dict[str, Address]:
    variables = {name.lower(): value for name, value in environment.items() if value}
    set_one = _text(entries, "https-proxy") or _text(entries, "proxy")
    for_https = set_one or variables.get("https_proxy")
    for_http = for_https or variables.get("http_proxy") or variables.get("proxy")
    proxies = {}
    for scheme, value in (("https", for_https), ("http", for_http)):
        if value:
            try:
                proxies[scheme] = Address.parse(value)
            except ValueError as error:
                raise _unusable("proxy", str(error)) from None
            if proxies[scheme].scheme != "http":
                raise _unusable("proxy", "is reached over TLS, which is not supported: use http://")
    return proxies


def _read_no_proxy(entries: Entries, environment: Mapping[str, str]) -> tuple[str, ...]:
    variables = {name.lower(): value for name, value in environment.items()}
    value = ",".join(entries.get("noproxy", ())) or variables.get("no_proxy", "")
    return tuple(each.strip() for each in value.split(",") if each.strip())


def _read_credentials(entries: Entries) -> Iterator[tuple[str, str]]:
    """Yields (`//host[:port]/path/`, header)."""
    for place in sorted({key.rpartition(":")[0] for key in entries if key.startswith("//")}):
        values = {key: _text(entries, f"{place}:{key}") for key in _CREDENTIAL_KEYS}
        # What names a variable that is not set is no credential.
        token, auth, user, password = (
            None if value is None or "${" in value else value for value in values.values()
        )
        if token:
            header = f"Bearer {token}"
        elif auth:
            header = f"Basic {auth}"
        elif user and password:
            try:
                plain = base64.b64decode(password)
            except (binascii.Error, ValueError):
                raise _unusable(f"{place}:_password", "is not base64") from None
            header = _basic(user.encode() + b":" + plain)
        else:
            continue
        if not header.isascii() or not header.isprintable():
            raise _unusable(f"{place}:…", "holds characters that no header may hold")
        host, _, path = place.removeprefix("//").partition("/")
        yield f"//{host.lower()}{_as_folder(path)}", header


def _basic(plain: bytes) -> str:
    return f"Basic {base64.b64encode(plain).decode()}"


def _take_address(value: str, key: str, credentials: dict[str, str]) -> Address:
    """A registry's address; a user named in it becomes a credential."""
    try:
        address = Address.parse(value)
    except ValueError as error:
        raise _unusable(key, str(error)) from None
    if address.query:
        raise _unusable(key, "is no plain address of a registry")
    path = _as_folder(address.path)
    if address.user is not None:
        credentials.setdefault(f"//{address.netloc}{path}", _basic(address.user.encode()))
    return replace(address, path=path, user=None)


def _as_folder(path: str) -> str:
    """A path with one slash before and after it."""
    inner = path.strip("/")
    return f"/{inner}/" if inner else "/"


def _unusable(key: str, why: str) -> UnavailableError:
    # Never the value: it may be, or hold, a secret.
    return UnavailableError(
        f"npm's setting {key} {why}",
        fact="npm-registry",
        fix=f"npm config set {key} VALUE, or npm config delete {key}",
    )


def _text(entries: Entries, key: str) -> str | None:
    """The value of a key; None where it is missing, empty or turned off."""
    values = entries.get(key, ())
    value = values[-1] if values else ""
    return None if value in _NOTHING else value


def _expand_home(name: str, home: Path) -> Path:
    return home / name[2:] if name.startswith("~/") else Path(name).absolute()
