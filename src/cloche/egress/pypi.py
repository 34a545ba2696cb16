"""Fetches wheels from the indexes of pip's settings into the store, each checked by its hash."""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from cloche.egress.connections import ConnectionFailedError, Connections
from cloche.egress.registry import (
    CONNECTIONS_COUNT,
    PackageError,
    read_all,
    too_large,
    try_patiently,
)
from cloche.egress.simple_page import ListedFile, read_page, write_page
from cloche.errors import UnavailableError
from cloche.linux.host import run_command
from cloche.linux.scratch import scratch_folder
from cloche.model.job import ReasonCode
from cloche.model.wheel import PAGE_TYPE, LockedProject, Wheel, normalise_name, read_wheel_name
from cloche.settings.address import Address
from cloche.store.packages import DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from cloche.linux.host import CommandResult
    from cloche.settings import PipSettings
    from cloche.store.packages import PackageStore

PAGE_BYTES_LIMIT: Final = 64 * 1024 * 1024
WHEEL_BYTES_LIMIT: Final = 1024 * 1024 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_PAGE_TYPES: Final = f"{PAGE_TYPE}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_SOURCE_ARCHIVES: Final = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz")


class IndexItems(Mapping[str, "LockedProject | Wheel"]):
    """What a lockfile lets be had, by path: `/simple/NAME/`, `/files/NAME/SHA256/FILENAME`."""

    def __init__(self, projects: Mapping[str, LockedProject]) -> None:
        """Of these projects, by their normalised names."""
        self._projects = projects

    def __getitem__(self, path: str) -> LockedProject | Wheel:
        match path.split("/"):
            case ["", "simple", name, ""]:
                return self._projects[name]
            case ["", "files", name, sha256, file_name]:
                told = read_wheel_name(unquote(file_name))
                if sha256 in self._projects[name].hashes and told is not None and told[0] == name:
                    return Wheel(name, sha256)
        raise KeyError(path)

    def __iter__(self) -> Iterator[str]:
        return iter(())  # nothing is fetched before it is asked for: which wheels, the box decides

    def __len__(self) -> int:
        return 0


def find_index(
    pip: PipSettings,
    run_command: Callable[..., CommandResult] = run_command,
    pip_commands: tuple[tuple[str, ...], ...] = (("pip",), (sys.executable, "-m", "pip")),
) -> Address:
    """The index; where no settings name one, pip itself is asked for its own.

    Raises:
        UnavailableError: No settings name an index, and there is no pip to ask; or they forbid one.
    """
    if pip.has_no_index:
        raise UnavailableError(
            "pip's setting no-index forbids to ask an index",
            fact=pip.fact,
            fix="pip config unset global.no-index, or unset PIP_NO_INDEX",
        )
    if pip.index is not None:
        return pip.index
    for command in pip_commands:
        # What pip takes where nothing is set stands nowhere but in its own help.
        told = run_command(*command, "--isolated", "list", "--help")
        words = " ".join(told.output.split()) if told.exit_code == 0 else ""
        _, found, rest = words.partition("Python Package Index (default ")
        try:
            address = Address.parse(rest.partition(")")[0] if found else "")
        except ValueError:
            continue
        return replace(address, path=address.path.rstrip("/") + "/", query="", user=None)
    raise UnavailableError(
        "no setting names an index, and pip is not here to be asked for its default",
        fact=pip.fact,
        fix="pip config set global.index-url URL, or set PIP_INDEX_URL",
    )


class Index:
    """The indexes that pip's settings name; for one event loop.

    Args:
        pip: Where packages come from, and what it takes to get there.
        store: Where wheels are kept.
        mirror: The address that the files of pages are said to have; no slash at its end.
        run_command: Asks pip for its default index.
        jitter: From 0 to 1; spreads retries.
    """

    def __init__(
        self,
        pip: PipSettings,
        store: PackageStore,
        *,
        mirror: str,
        run_command: Callable[..., CommandResult] = run_command,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._pip = pip
        self._store = store
        self._mirror = mirror
        self._jitter = jitter
        self._connections = Connections(pip)
        self._threads = ThreadPoolExecutor(CONNECTIONS_COUNT, thread_name_prefix="cloche-index")
        self._closing = threading.Event()
        self._find = partial(find_index, pip, run_command)
        self._default: Future[Address] | None = None
        self._lock = threading.Lock()
        self._files: dict[str, tuple[tuple[Address, tuple[ListedFile, ...]], ...]] = {}
        self._folder: Path | None = None
        self._folders = ExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def fetch(self, item: LockedProject | Wheel) -> Path:
        """A project's page, with those of its wheels that the lockfile names; or a wheel.

        A page is there until `close`; a wheel's hash was checked just now.

        Raises:
            PackageError: It cannot be had.
        """
        if self._default is None:
            self._default = self._threads.submit(self._find)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._fetch, item, self._default)

    async def find_scope(self, names: Iterable[str]) -> str:
        """Stands for the credentials that packages are fetched with; empty for none.

        Raises:
            UnavailableError: as `find_index`.
        """
        if not self._pip.credentials:
            return ""  # without asking pip, which takes half a second
        if self._default is None:
            self._default = self._threads.submit(self._find)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._scope, self._default)

    async def close(self) -> None:
        """Ends every download; the pages are gone."""
        self._closing.set()
        self._connections.interrupt()
        try:
            await asyncio.to_thread(self._threads.shutdown)
        finally:
            self._connections.close()
            await asyncio.to_thread(self._folders.close)

    # What follows runs in a thread of its own and may block.

    def _indexes(self, default: Future[Address]) -> tuple[Address, ...]:
        return tuple(dict.fromkeys((default.result(), *self._pip.extra_indexes)))

    def _scope(self, default: Future[Address]) -> str:
        used = [scope for index in self._indexes(default) if (scope := self._scope_of(index))]
        return hashlib.sha256("\n".join(used).encode()).hexdigest() if used else ""

    def _scope_of(self, index: Address) -> str:
        authorization = self._pip.authorization_for(index)
        if authorization is None:
            return ""
        return hashlib.sha256(f"{index}\n{authorization}".encode()).hexdigest()

    def _origin_of(self, index: Address) -> str:
        """What wheels of an index are kept under."""
        return f"{index} {self._scope_of(index)}".rstrip(" ")

    def _fetch(self, item: LockedProject | Wheel, default: Future[Address]) -> Path:
        try:
            indexes = self._indexes(default)
            if isinstance(item, LockedProject):
                return self._make_page(item, indexes)
            for index in indexes:
                if (path := self._store.find(self._origin_of(index), item)) is not None:
                    return path
            return try_patiently(
                lambda: self._download(item, indexes), item, self._closing, self._jitter
            )
        except UnavailableError as error:
            raise PackageError(ReasonCode.REGISTRY_FAILED, f"{item}: {error}") from error
        except OSError as error:
            raise PackageError(
                ReasonCode.HOST_FAILED,
                f"{item}: the cache folder fails: {error.strerror}",
                retry_safe=True,
            ) from error

    def _make_page(self, project: LockedProject, indexes: tuple[Address, ...]) -> Path:
        pages = self._ask(project.name, indexes)
        chosen: list[ListedFile] = []
        for _, files in pages:
            chosen += [each for each in files if each.sha256 in project.hashes]
        wheels = [each for each in chosen if _is_wheel_of(each, project.name)]
        if not wheels:
            listed = [each for _, files in pages for each in files]
            raise _lacking(project, chosen, listed, [index.origin for index, _ in pages])
        page = write_page(project.name, wheels, self._mirror)
        with self._lock:
            if self._folder is None:
                self._folder = self._folders.enter_context(scratch_folder())
        path = self._folder / f"{hashlib.sha256(repr(project).encode()).hexdigest()}.json"
        path.write_bytes(page)
        return path

    def _ask(
        self, name: str, indexes: tuple[Address, ...]
    ) -> tuple[tuple[Address, tuple[ListedFile, ...]], ...]:
        """The files of a project, of each index that has it."""
        with self._lock:
            known = self._files.get(name)
        if known is None:
            found = []
            for index in indexes:
                files = try_patiently(
                    partial(self._ask_one, name, index), name, self._closing, self._jitter
                )
                if files is not None:
                    found.append((index, files))
            if not found:
                origins = ", ".join(index.origin for index in indexes)
                raise PackageError(
                    ReasonCode.PACKAGE_UNAVAILABLE,
                    f"{name}: {origins} has no such project, or not for these credentials",
                )
            known = tuple(found)
            with self._lock:
                self._files[name] = known
        return known

    def _ask_one(self, name: str, index: Address) -> tuple[ListedFile, ...] | None:
        address = replace(index, path=f"{index.path}{name}/")
        try:
            with self._connections.get(address, _PAGE_TYPES) as answer:
                if answer.status == 404:
                    return None
                if answer.status != 200:
                    raise _refused(name, index, answer.status)
                document = read_all(answer, name, PAGE_BYTES_LIMIT)
                return tuple(read_page(document, answer.address))
        except ConnectionFailedError as error:
            raise PackageError(
                ReasonCode.REGISTRY_FAILED, f"{name}: {error}", retry_safe=error.retry
            ) from error
        except ValueError as error:
            raise PackageError(
                ReasonCode.REGISTRY_FAILED, f"{name}: what {index.origin} gave {error}"
            ) from error

    def _download(self, wheel: Wheel, indexes: tuple[Address, ...]) -> Path:
        for index, files in self._ask(wheel.name, indexes):
            for each in files:
                if each.sha256 == wheel.sha256 and _is_wheel_of(each, wheel.name):
                    return self._take(wheel, index, each)
        raise PackageError(
            ReasonCode.PACKAGE_UNAVAILABLE, f"{wheel}: the index has no wheel of this hash"
        )

    def _take(self, wheel: Wheel, index: Address, file: ListedFile) -> Path:
        # Credentials are those of the index, and go to no other origin.
        try:
            with self._connections.get(file.address) as answer:
                if answer.status != 200:
                    raise _refused(wheel, file.address, answer.status)
                with self._store.receive(self._origin_of(index), wheel) as incoming:
                    buffer = memoryview(bytearray(_CHUNK_BYTES))
                    while count := answer.read_into(buffer):
                        if incoming.size_bytes + count > WHEEL_BYTES_LIMIT:
                            raise too_large(wheel, WHEEL_BYTES_LIMIT)
                        incoming.write(buffer[:count])
                    return incoming.keep()
        except ConnectionFailedError as error:
            raise PackageError(
                ReasonCode.REGISTRY_FAILED, f"{wheel}: {error}", retry_safe=error.retry
            ) from error
        except DamagedError as error:
            raise PackageError(
                ReasonCode.INTEGRITY_MISMATCH,
                f"{file.name}: what {file.address.origin} has is not what the lockfile names (its"
                " sha256 differs). Make the lockfile anew and look at what changed",
            ) from error


def _is_wheel_of(file: ListedFile, name: str) -> bool:
    told = read_wheel_name(file.name)
    return told is not None and told[0] == name


def _lacking(
    project: LockedProject, chosen: list[ListedFile], listed: list[ListedFile], origins: list[str]
) -> PackageError:
    """Why none of a project's files may be had."""
    where = ", ".join(origins)
    if chosen:
        return PackageError(
            ReasonCode.DEPENDENCY_REFUSED,
            f"{project}: the lockfile has no wheel of it, and building one runs its code: only"
            " wheels are installed. Choose a version that has one, or put one that you have built"
            " on an index of your own",
        )
    if all(each.sha256 is None for each in listed):
        return PackageError(
            ReasonCode.PACKAGE_UNAVAILABLE,
            f"{project}: {where} tells no sha256 of its files; use an index that does",
        )
    if any(_is_of_version(each.name, project) for each in listed):
        return PackageError(
            ReasonCode.INTEGRITY_MISMATCH,
            f"{project}: no file that {where} has of this version is one that the lockfile names"
            " (each sha256 differs). Make the lockfile anew and look at what changed",
        )
    return PackageError(
        ReasonCode.PACKAGE_UNAVAILABLE, f"{project}: {where} does not have this version"
    )


def _is_of_version(file_name: str, project: LockedProject) -> bool:
    wheel = read_wheel_name(file_name)
    if wheel is not None:
        return wheel[1] in project.versions
    for suffix in _SOURCE_ARCHIVES:
        if file_name.endswith(suffix):
            name, _, version = file_name.removesuffix(suffix).rpartition("-")
            return normalise_name(name) == project.name and version in project.versions
    return False


def _refused(what: object, address: Address, status: int) -> PackageError:
    told = f"{what}: {address.origin} answered {status}"
    if status == 429 or status >= 500:
        return PackageError(ReasonCode.REGISTRY_FAILED, told, retry_safe=True)
    if status in (401, 403):
        told += ". Check the credentials in pip's setting index-url"
    return PackageError(ReasonCode.PACKAGE_UNAVAILABLE, told)
