"""The registry's signatures of packages: that it, and no one in between, names these hashes.

A registry that signs has its public keys at `-/npm/v1/keys`, and with each version signatures over
`name@version:integrity`. One that does not fit is refused. A package without one is told, not
refused: whoever can leave out the signature can leave out the keys.

Source: docs.npmjs.com, "About registry signatures"; pacote's lib/registry.js.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from cloche.egress.registry import PackageError
from cloche.model.job import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    from cloche.egress.registry import Registry
    from cloche.model.package import Package

    Keys = Mapping[str, EllipticCurvePublicKey]

KEYS_PATH: Final = "-/npm/v1/keys"
REQUESTS_COUNT: Final = 12
"""At a time: half of a registry's connections, since packages are fetched meanwhile."""

_KEYS_BYTES_LIMIT: Final = 256 * 1024
_KEYS_LIMIT_COUNT: Final = 100
_SIGNATURES_LIMIT_COUNT: Final = 20
# Of one version; one with a long README is not asked again in another way.
_MANIFEST_BYTES_LIMIT: Final = 2 * 1024 * 1024
_SCHEME: Final = "ecdsa-sha2-nistp256"


@dataclass(frozen=True, slots=True)
class Signatures:
    """How many packages of an install have which kind of signature.

    Attributes:
        verified_count: It fits.
        unsigned_count: The registry signs packages, and not this one.
        unknown_count: It, or the keys, could not be had, or it is of no key that holds now.
        not_offered_count: The registry has no keys.
    """

    verified_count: int = 0
    unsigned_count: int = 0
    unknown_count: int = 0
    not_offered_count: int = 0


class _Kind(Enum):
    VERIFIED = auto()
    UNSIGNED = auto()
    UNKNOWN = auto()
    NOT_OFFERED = auto()


async def check_signatures(
    registry: Registry, packages: Iterable[Package], clock: Callable[[], float]
) -> Signatures:
    """Checks the signatures of packages, by the hashes that the lockfile has.

    Asks each registry for its keys and, where it has any, for each package's own metadata.

    Args:
        registry: Where the packages come from.
        packages: Which.
        clock: Seconds since the epoch; keys that have expired are not used.

    Raises:
        PackageError: SIGNATURE_INVALID: one does not fit.
        UnavailableError: as `Registry.group`.
    """
    by_name: dict[str, list[Package]] = {}
    for package in packages:
        by_name.setdefault(package.name, []).append(package)
    kinds: Counter[_Kind] = Counter()
    asking = asyncio.Semaphore(REQUESTS_COUNT)

    async def check(package: Package, keys: Keys) -> None:
        async with asking:
            kinds[await _check(registry, package, keys)] += 1

    try:
        async with asyncio.TaskGroup() as tasks:
            for names in (await registry.group(by_name)).values():
                keys = await _fetch_keys(registry, names[0], clock())
                for package in (each for name in names for each in by_name[name]):
                    if not keys:
                        kinds[_Kind.NOT_OFFERED if keys is None else _Kind.UNKNOWN] += 1
                    else:
                        tasks.create_task(check(package, keys))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return Signatures(*(kinds[kind] for kind in _Kind))


async def _fetch_keys(registry: Registry, name: str, now: float) -> Keys | None:
    """The keys of the registry that a package comes from, by name; None where it does not sign."""
    try:
        answer = await registry.ask(name, KEYS_PATH, _KEYS_BYTES_LIMIT, patiently=True)
    except PackageError:
        return {}
    return None if answer is None else _read_keys(answer, now)


def _read_keys(document: bytes, now: float) -> Keys:
    """The keys by their names, without those that have expired or are of another kind.

    Args:
        document: As a registry gave it; a stranger's.
        now: Seconds since the epoch.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    keys = {}
    for entry in _read_list(document, "keys")[:_KEYS_LIMIT_COUNT]:
        try:
            if entry["scheme"] != _SCHEME or not _is_valid_at(entry.get("expires"), now):
                continue
            key = load_der_public_key(base64.b64decode(entry["key"], validate=True))
            if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1":
                keys[str(entry["keyid"])] = key
        except (ValueError, LookupError, TypeError, AttributeError, UnsupportedAlgorithm):
            continue
    return keys


def _is_valid_at(expires: Any, now: float) -> bool:
    if expires is None:
        return True
    at = datetime.fromisoformat(expires)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() > now


def _read_list(document: bytes, *path: str) -> list[Any]:
    """The list at a path of names; empty for anything else."""
    try:
        found = json.loads(document)
        for name in path:
            found = found[name]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    return found if isinstance(found, list) else []


async def _check(registry: Registry, package: Package, keys: Keys) -> _Kind:
    version = package.version.partition("+")[0]
    path = f"{package.name.replace('/', '%2f')}/{version}"
    try:
        answer = await registry.ask(package.name, path, _MANIFEST_BYTES_LIMIT)
    except PackageError:
        answer = None
    if answer is None:
        return _Kind.UNKNOWN
    signatures = _read_list(answer, "dist", "signatures")
    return _verify(package, signatures, keys)


def _verify(package: Package, signatures: list[Any], keys: Keys) -> _Kind:
    """What a package's signatures are worth; all of known keys must fit.

    Raises:
        PackageError: SIGNATURE_INVALID.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    message = f"{package}:{package.integrity}".encode()
    kind = _Kind.UNKNOWN if signatures else _Kind.UNSIGNED
    for entry in signatures[:_SIGNATURES_LIMIT_COUNT]:
        key = keys.get(str(entry.get("keyid"))) if isinstance(entry, dict) else None
        if key is None:
            continue
        try:
            signature = base64.b64decode(entry["sig"], validate=True)
            key.verify(signature, message, ec.ECDSA(SHA256()))
        except (InvalidSignature, ValueError, LookupError, TypeError) as error:
            raise PackageError(
                ReasonCode.SIGNATURE_INVALID,
                f"{package}: the registry's signature does not fit what the lockfile names. Make"
                " the lockfile anew and look at what changed",
            ) from error
        kind = _Kind.VERIFIED
    return kind
