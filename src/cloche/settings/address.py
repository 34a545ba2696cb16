"""Addresses of servers, each in one spelling."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import quote, unquote, urljoin, urlsplit

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HOST_CHARACTERS: Final = frozenset(string.ascii_lowercase + string.digits + "-_.:")
# What stands in a path or query as it is; a percent sign is taken to be an escape's.
_PLAIN: Final = "/%:@!$&'()*+,;=~-._?"


@dataclass(frozen=True, slots=True)
class Address:
    """`scheme://host[:port]/path[?query]`: lower-case host, no default port, no fragment.

    Attributes:
        scheme: `http` or `https`.
        host: A name or an IP address, without brackets.
        port: Always given.
        path: Begins with a slash.
        query: Without the question mark; may be empty.
        user: `name:password`, if one was given; in no text of the address.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    user: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str, base: Address | None = None) -> Self:
        """Reads an address, relative to `base` where one is given.

        Raises:
            ValueError: It is none of http or https; says why, without its text.
        """
        try:
            parts = urlsplit(urljoin(str(base), text) if base is not None else text)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ValueError("is no address") from None
        if parts.scheme not in DEFAULT_PORTS:
            raise ValueError("is no http:// or https:// address")
        if not host or not _HOST_CHARACTERS.issuperset(host):
            raise ValueError("names no host")
        user = None
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(
            parts.scheme,
            host,
            DEFAULT_PORTS[parts.scheme] if port is None else port,
            quote(parts.path, safe=_PLAIN) or "/",
            quote(parts.query, safe=_PLAIN),
            user,
        )

    @property
    def netloc(self) -> str:
        """The host, and the port where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.netloc}"

    @property
    def target(self) -> str:
        """Path and query, as a request has them."""
        return f"{self.path}?{self.query}" if self.query else self.path

    def __str__(self) -> str:
        return self.origin + self.target
