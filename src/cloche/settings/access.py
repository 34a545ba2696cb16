"""What it takes to get to servers of packages: whom to trust, credentials, proxies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cloche.settings.address import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How servers are reached.

    Attributes:
        tool: Whose settings these are.
        fact: What is missing on a host where they do not do.
        trust_command: How the tool is told of an authority to trust.
        credentials: Authorization header by `//host[:port]/path/`.
        ca_files: PEM files of authorities to trust beside the system's.
        ca_texts: The same, as text.
        verify_tls: False only where that was turned off.
        proxies: The proxy by the scheme of what is asked for.
        no_proxy: Domains that are reached directly, with what is below them.
    """

    tool: ClassVar[str]
    fact: ClassVar[str]
    trust_command: ClassVar[str]

    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_files: tuple[Path, ...] = ()
    ca_texts: tuple[str, ...] = ()
    verify_tls: bool = True
    proxies: Mapping[str, Address] = field(default_factory=dict)
    no_proxy: tuple[str, ...] = ()

    def authorization_for(self, address: Address) -> str | None:
        """The header for exactly this address: of the longest path that it lies below."""
        place = f"//{address.netloc}{address.path}"
        found = [key for key in self.credentials if place.startswith(key)]
        return self.credentials[max(found, key=len)] if found else None

    def proxy_for(self, address: Address) -> Address | None:
        """The proxy to ask for this address."""
        labels = address.host.split(".")
        for domain in self.no_proxy:
            tail = [label for label in domain.lower().split(".") if label]
            if tail and labels[-len(tail) :] == tail:
                return None
        return self.proxies.get(address.scheme)
