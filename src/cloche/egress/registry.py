"""Fetches packages from npm registries into the store, each checked against its hash."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cloche.egress.connections import ConnectionFailedError, Connections
from cloche.errors import UnavailableError
from cloche.linux.host import run_command
from cloche.model.job import ReasonCode
from cloche.settings.address import Address
from cloche.store.packages import DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from cloche.egress.connections import Answer
    from cloche.linux.host import CommandResult
    from cloche.model.package import Package
    from cloche.settings import NpmSettings
    from cloche.store.packages import PackageStore

CONNECTIONS_COUNT: Final = 24
TARBALL_BYTES_LIMIT: Final = 300 * 1024 * 1024
METADATA_BYTES_LIMIT: Final = 32 * 1024 * 1024
# Of the long form, with each version's README in some registries; the longest are some 40 MB.
WHOLE_METADATA_BYTES_LIMIT: Final = 128 * 1024 * 1024
RETRY_DELAYS_S: Final = (0.2, 0.8)
_CHUNK_BYTES: Final = 256 * 1024
# The short form where a registry has it. Source: npm's registry documentation, package-metadata.
_METADATA_TYPES: Final = "application/vnd.npm.install-v1+json, application/json;q=0.9"

_Got = TypeVar("_Got")


class PackageError(Exception):
    """A package could not be had.

    Attributes:
        code: `package_unavailable`, `integrity_mismatch`, `registry_failed` or `host_failed`.
        message: Which package, why, and what to do; no secrets.
        retry_safe: Asking again later may well help.
    """

    def __init__(self, code: ReasonCode, message: str, *, retry_safe: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_safe = retry_safe


def find_registry(
    npm: NpmSettings,
    run_command: Callable[..., CommandResult] = run_command,
    npm_command: Sequence[str] = ("npm",),
) -> Address:
    """The default registry; where no settings name one, npm itself is asked for its own.

    Raises:
        UnavailableError: No settings name a registry, and there is no npm to ask.
    """
    if npm.registry is not None:
        return npm.registry
    # Without --global the npmrc of whatever project this runs in would have its say.
    result = run_command(*npm_command, "config", "get", "registry", "--global")
    told = result.output.splitlines()[-1:] if result.exit_code == 0 else []
    try:
        address = Address.parse("".join(told).strip())
    except ValueError as error:
        raise UnavailableError(
            "no setting names a registry, and npm is not here to be asked for its default",
            fact="npm-registry",
            fix="npm config set registry URL, or set npm_config_registry",
        ) from error
    return replace(address, path=address.path.rstrip("/") + "/", query="", user=None)


def try_patiently(
    attempt: Callable[[], _Got], what: object, closing: threading.Event, jitter: Callable[[], float]
) -> _Got:
    """Tries a download again where that may help. Blocks.

    Args:
        attempt: The download; raises PackageError.
        what: Is downloaded, for people.
        closing: Ends the waiting.
        jitter: From 0 to 1; spreads retries.

    Raises:
        PackageError: That of the last attempt.
    """
    for delay_s in (*RETRY_DELAYS_S, None):
        if closing.is_set():
            raise PackageError(
                ReasonCode.REGISTRY_FAILED, f"{what}: no longer waited for", retry_safe=True
            )
        try:
            return attempt()
        except PackageError as error:
            # Wrong bytes may have been a proxy's or a cache's; once more tells.
            is_first_damage = (
                error.code is ReasonCode.INTEGRITY_MISMATCH and delay_s == RETRY_DELAYS_S[0]
            )
            if delay_s is None or not (error.retry_safe or is_first_damage):
                raise
        closing.wait(delay_s * (1 + jitter()))
    raise AssertionError("the last attempt returns or raises")


class Registry:
    """The registries that npm's settings name; for one event loop.

    Args:
        npm: Where packages come from, and what it takes to get there.
        store: Where they are kept.
        run_command: Asks npm for its default registry.
        npm_command: How npm is started.
        jitter: From 0 to 1; spreads retries.
    """

    def __init__(
        self,
        npm: NpmSettings,
        store: PackageStore,
        *,
        run_command: Callable[..., CommandResult] = run_command,
        npm_command: Sequence[str] = ("npm",),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._jitter = jitter
        self._connections = Connections(npm)
        self._threads = ThreadPoolExecutor(CONNECTIONS_COUNT, thread_name_prefix="cloche-registry")
        self._fetches: dict[tuple[str, str, str], asyncio.Future[Path]] = {}
        self._closing = threading.Event()
        self._npm = npm
        self._find = partial(find_registry, npm, run_command, npm_command)
        self._default: Future[Address] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def fetch(self, package: Package) -> Path:
        """The package's tarball in the store, its hash checked just now.

        Those who ask for one package at one time share one download, which goes on when one of
        them no longer waits.

        Raises:
            PackageError: It cannot be had.
        """
        key = (package.name, package.version, package.integrity)
        fetch = self._fetches.get(key)
        if fetch is None:
            if self._default is None:
                self._default = self._threads.submit(self._find)
            loop = asyncio.get_running_loop()
            fetch = loop.run_in_executor(self._threads, self._fetch, package, self._default)
            self._fetches[key] = fetch

            def forget(done: asyncio.Future[Path]) -> None:
                del self._fetches[key]
                if not done.cancelled():
                    done.exception()  # it may be that nobody waits any more

            fetch.add_done_callback(forget)
        return await asyncio.shield(fetch)

    async def close(self) -> None:
        """Ends every download; those who wait for one are told so."""
        self._closing.set()
        self._connections.interrupt()
        try:
            await asyncio.to_thread(self._threads.shutdown)
        finally:
            self._connections.close()

    async def fetch_metadata(self, name: str, *, is_short: bool = False) -> bytes:
        """What the registry says of a package: whole, or in the short form where it has one.

        Raises:
            PackageError: It cannot be had.
        """
        if self._default is None:
            self._default = self._threads.submit(self._find)
        loop = asyncio.get_running_loop()
        types = _METADATA_TYPES if is_short else "application/json"
        return await loop.run_in_executor(
            self._threads, self._ask_for_metadata, name, types, self._default
        )

    async def ask(
        self, name: str, path: str, limit_bytes: int, *, patiently: bool = False
    ) -> bytes | None:
        """What the registry that a package comes from has at a path.

        Args:
            name: The package's.
            path: Below the registry's own; safe in a URL.
            limit_bytes: Of what is read.
            patiently: Asks again where that may help; else once.

        Returns:
            None where it has nothing there.

        Raises:
            PackageError: It cannot be had.
        """
        if self._default is None:
            self._default = self._threads.submit(self._find)
        ask = partial(self._ask, name, path, "application/json", limit_bytes, self._default)
        if patiently:
            ask = partial(try_patiently, ask, name, self._closing, self._jitter)
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    async def group(self, names: Iterable[str]) -> dict[str, list[str]]:
        """The names of packages by the address of the registry that they come from.

        Raises:
            UnavailableError: as `find_registry`.
        """
        if self._default is None:
            self._default = self._threads.submit(self._find)
        default = await asyncio.wrap_future(self._default)
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(str(self._npm.registry_of(name) or default), []).append(name)
        return groups

    async def find_scope(self, names: Iterable[str]) -> str:
        """Stands for the credentials that some packages are fetched with; empty for none.

        What was had with them is not given to anyone who has others, or none.

        Raises:
            UnavailableError: as `find_registry`.
        """
        if not self._npm.credentials:
            return ""  # without asking npm for its own registry, which takes a fifth of a second
        if self._default is None:
            self._default = self._threads.submit(self._find)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._scope, set(names), self._default)

    # What follows runs in a thread of its own and may block.

    def _ask_for_metadata(self, name: str, types: str, default: Future[Address]) -> bytes:
        path = name.replace("/", "%2f")
        ask = partial(self._ask, name, path, types, WHOLE_METADATA_BYTES_LIMIT, default)
        document = try_patiently(ask, name, self._closing, self._jitter)
        if document is None:
            raise _refused(name, self._npm.registry_of(name) or default.result(), 404)
        return document

    def _ask(
        self, name: str, path: str, types: str, limit_bytes: int, default: Future[Address]
    ) -> bytes | None:
        """Once; None where there is nothing at that path."""
        try:
            registry = self._npm.registry_of(name) or default.result()
            address = replace(registry, path=registry.path + path)
            with self._connections.get(address, types) as answer:
                if answer.status == 404:
                    return None
                if answer.status != 200:
                    raise _refused(name, registry, answer.status)
                return read_all(answer, name, limit_bytes)
        except ConnectionFailedError as error:
            raise PackageError(
                ReasonCode.REGISTRY_FAILED, f"{name}: {error}", retry_safe=error.retry
            ) from error
        except UnavailableError as error:
            raise PackageError(ReasonCode.REGISTRY_FAILED, f"{name}: {error}") from error

    def _scope(self, names: set[str], default: Future[Address]) -> str:
        registries = {self._npm.registry_of(name) for name in names}
        known = {registry or default.result() for registry in registries}
        used = {self._scope_of(registry) for registry in known} - {""}
        return hashlib.sha256("\n".join(sorted(used)).encode()).hexdigest() if used else ""

    def _scope_of(self, registry: Address) -> str:
        authorization = self._npm.authorization_for(registry)
        if authorization is None:
            return ""
        return hashlib.sha256(f"{registry}\n{authorization}".encode()).hexdigest()

    def _origin_of(self, registry: Address) -> str:
        """What packages of a registry are kept under."""
        return f"{registry} {self._scope_of(registry)}".rstrip(" ")

    def _fetch(self, package: Package, default: Future[Address]) -> Path:
        try:
            registry = self._npm.registry_of(package.name) or default.result()
            path = self._store.find(self._origin_of(registry), package)
            return path or try_patiently(
                lambda: self._download(registry, package), package, self._closing, self._jitter
            )
        except UnavailableError as error:
            raise PackageError(ReasonCode.REGISTRY_FAILED, f"{package}: {error}") from error
        except OSError as error:
            raise PackageError(
                ReasonCode.HOST_FAILED,
                f"{package}: the cache folder fails: {error.strerror}",
                retry_safe=True,
            ) from error

    def _download(self, registry: Address, package: Package) -> Path:
        try:
            usual = replace(registry, path=registry.path + package.tarball_path)
            path = self._take(usual, registry, package)
            if path is None:
                other = self._find_tarball(registry, package)
                path = None if other in (None, usual) else self._take(other, registry, package)
        except ConnectionFailedError as error:
            raise PackageError(
                ReasonCode.REGISTRY_FAILED, f"{package}: {error}", retry_safe=error.retry
            ) from error
        if path is None:
            raise _refused(package, registry, 404)
        return path

    def _take(self, address: Address, registry: Address, package: Package) -> Path | None:
        """Downloads a tarball into the store; None where there is none."""
        with self._connections.get(address) as answer:
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise _refused(package, registry, answer.status)
            with self._store.receive(self._origin_of(registry), package) as incoming:
                buffer = memoryview(bytearray(_CHUNK_BYTES))
                while count := answer.read_into(buffer):
                    if incoming.size_bytes + count > TARBALL_BYTES_LIMIT:
                        raise too_large(package, TARBALL_BYTES_LIMIT)
                    incoming.write(buffer[:count])
                try:
                    return incoming.keep()
                except DamagedError as error:
                    raise PackageError(
                        ReasonCode.INTEGRITY_MISMATCH,
                        f"{package}: what {registry.origin} has is not what the lockfile names "
                        "(its sha512 differs). Make the lockfile anew and look at what changed",
                    ) from error

    def _find_tarball(self, registry: Address, package: Package) -> Address | None:
        """Where the registry says that it keeps the tarball; always on its own origin.

        Some registries name the host that they are a mirror of: the path is taken, the host is
        not.
        """
        path = registry.path + package.name.replace("/", "%2f")
        with self._connections.get(replace(registry, path=path), _METADATA_TYPES) as answer:
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise _refused(package, registry, answer.status)
            metadata = _read_metadata(answer, package)
        try:
            told = Address.parse(metadata["versions"][package.version]["dist"]["tarball"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        return replace(registry, path=told.path, query=told.query)


def _read_metadata(answer: Answer, package: Package) -> Any:
    try:
        return json.loads(read_all(answer, package, METADATA_BYTES_LIMIT))
    except (ValueError, RecursionError):
        return None


def read_all(answer: Answer, package: object, limit_bytes: int) -> bytes:
    """The body of an answer about a package.

    Raises:
        PackageError: It is longer than that.
        ConnectionFailedError: as `Answer.read_into`.
    """
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    text = bytearray()
    while count := answer.read_into(buffer):
        if len(text) + count > limit_bytes:
            raise too_large(package, limit_bytes)
        text += buffer[:count]
    return bytes(text)


def too_large(package: object, limit_bytes: int) -> PackageError:
    """Why it is not taken."""
    return PackageError(
        ReasonCode.PACKAGE_UNAVAILABLE, f"{package}: it is over the limit of {limit_bytes} bytes"
    )


def _refused(package: Package | str, registry: Address, status: int) -> PackageError:
    told = f"{package}: {registry.origin} answered {status}"
    if status == 429 or status >= 500:
        return PackageError(ReasonCode.REGISTRY_FAILED, told, retry_safe=True)
    if status == 404:
        hint = "It has no such version, or not for these credentials"
    elif status in (401, 403):
        hint = f"Check the credentials: npm login --registry {registry}"
    else:
        hint = "Check npm's setting registry"
    return PackageError(ReasonCode.PACKAGE_UNAVAILABLE, f"{told}. {hint}")
