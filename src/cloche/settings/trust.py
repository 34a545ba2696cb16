"""Which certificate authorities this host trusts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Where distributions keep all of them in one file. Source: Go, crypto/x509/root_linux.go.
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def find_certificates(environment: Mapping[str, str] | None = None) -> Path | None:
    """The file with the certificates of the authorities, or None where there is none.

    Args:
        environment: In place of this process's own; SSL_CERT_FILE wins, as for OpenSSL.
    """
    environment = os.environ if environment is None else environment
    named = environment.get("SSL_CERT_FILE")
    for path in (*([named] if named else []), *_BUNDLES):
        if Path(path).is_file() and os.access(path, os.R_OK):
            return Path(path).resolve()
    return None
