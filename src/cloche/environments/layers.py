"""Dependency layers: installed trees, kept by a hash of all that made them.

A layer is a folder `layers/KEY/` with `tree/` (mounted below a step's files, read-only for every
box) and `layer.json`, written last. It appears by one rename, so it is whole or not there. What a
killed Cloche left half-made is removed by the next one.

Whoever uses a layer shares the lock of its `layer.json`; whoever removes it has that lock alone.
The time of that file is when the layer was last used.

A layer can start from another one (`find_base`); `contents.json` says what it can give to a later
one. No two layers share a file.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cloche.environments.trees import digest_tree, stamp_tree
from cloche.linux.locks import hold_lock, try_hold, try_lock, try_share
from cloche.linux.threads import finish_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from cloche.linux.gathering import TreeCopy

_PARTIAL: Final = ".partial-"
_GONE: Final = ".gone-"
_DESCRIPTION: Final = "layer.json"
_DESCRIPTION_BYTES_LIMIT: Final = 64 * 1024
_CONTENTS: Final = "contents.json"
# How many layers are looked at for one to start from: those used last.
_BASES_LIMIT_COUNT: Final = 8
_TRIES_COUNT: Final = 10
_TRY_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class MadeOf:
    """What makes a layer the like of another.

    Attributes:
        family: Of all that made it but for the packages; empty where no layer starts from another.
        packages: The hash of each package, by its name and version.
    """

    family: str = ""
    packages: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def shared_with(self, packages: Mapping[str, str]) -> frozenset[str] | None:
        """The packages that both have; None where one name stands for two packages."""
        both = self.packages.keys() & packages.keys()
        is_same = all(self.packages[name] == packages[name] for name in both)
        return frozenset(both) if is_same else None


@dataclass(slots=True)
class Layer:
    """An installed tree that is in use until it is closed.

    Attributes:
        key: Lower-case hex; of everything that made it.
        tree: The folder that is mounted.
        entries_count, size_bytes: What it holds.
        sha256: Of its names, kinds and contents: see `trees.digest_tree`.
    """

    key: str
    tree: Path
    entries_count: int
    size_bytes: int
    sha256: str
    _held: int = -1

    def read_digests(self) -> dict[str, str]:
        """The SHA-256 of each file that it was made with, by path. Blocks."""
        contents = _read_contents(self.tree.parent)
        return {} if contents is None else contents[1]

    def close(self) -> None:
        """Lets go: from now on it may be removed. Idempotent."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


@dataclass(frozen=True, slots=True)
class Stored:
    """A layer as it lies in the store.

    Attributes:
        used_at: Seconds since the epoch.
        is_used: Somebody uses it now.
        family: See `MadeOf`.
    """

    key: str
    size_bytes: int
    entries_count: int
    used_at: float
    is_used: bool
    family: str = ""


class LayerStore:
    """The layers of one cache folder; shared with other processes."""

    def __init__(self, cache_folder: Path) -> None:
        """Makes the folder; removes what killed processes left."""
        self._folder = cache_folder / "layers"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sweep()

    def find(self, key: str) -> Layer | None:
        """The layer, when it is there and as it was made; close it. Blocks.

        One that has been changed since (a file is missing, or of another size or time) is removed.
        """
        held = self._open(key)
        if held is None:
            return None
        described = _read_description(held)
        tree = self._folder / key / "tree"
        if described is not None and stamp_tree(tree) == described["stamp"]:
            os.utime(held)
            counts = described["entries_count"], described["size_bytes"]
            return Layer(key, tree, *counts, described["sha256"], held)
        os.close(held)
        self._discard(key)
        return None

    async def take(self, key: str) -> Layer | None:
        """`find`, beside the event loop."""

        def let_go(found: Layer | None) -> None:
            if found is not None:
                found.close()

        return await finish_in_thread(self.find, key, let_go=let_go)

    async def take_base(self, made_of: MadeOf) -> tuple[Layer, frozenset[str]] | None:
        """`find_base`, beside the event loop."""

        def let_go(found: tuple[Layer, frozenset[str]] | None) -> None:
            if found is not None:
                found[0].close()

        return await finish_in_thread(self.find_base, made_of, let_go=let_go)

    def find_base(self, made_of: MadeOf) -> tuple[Layer, frozenset[str]] | None:
        """The layer that a new one has most packages in common with, and which; close it. Blocks.

        None where no layer of the family has half of them.
        """
        if not made_of.family:
            return None
        found: list[tuple[int, str, frozenset[str]]] = []
        family = [each for each in self.list() if each.family == made_of.family]
        for each in family[-_BASES_LIMIT_COUNT:]:
            contents = _read_contents(self._folder / each.key)
            shared = None if contents is None else made_of.shared_with(contents[0])
            if shared is not None and len(shared) * 2 >= len(made_of.packages) > 0:
                found.append((len(shared), each.key, shared))
        if not found:
            return None
        _, key, shared = max(found, key=lambda each: each[:2])
        layer = self.find(key)
        return None if layer is None else (layer, shared)

    def _open(self, key: str) -> int | None:
        """The description of a layer, its lock shared; None where it is not there, or is going."""
        path = self._folder / key / _DESCRIPTION
        try:
            held = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        for _ in range(_TRIES_COUNT):
            # Held alone for the moment in which it is looked at, or put elsewhere.
            with suppress(OSError):
                if try_share(held) and os.path.samestat(os.fstat(held), path.lstat()):
                    return held
            time.sleep(_TRY_S)
        os.close(held)
        return None

    @asynccontextmanager
    async def making(self, key: str) -> AsyncIterator[None]:
        """Held by the one that makes a layer; the others wait, and find it then."""
        async with hold_lock(self._folder / f"{key}.lock"):
            yield

    async def add(
        self,
        key: str,
        fill: Callable[[int], Awaitable[TreeCopy]],
        *,
        made_of: MadeOf | None = None,
        base: Layer | None = None,
    ) -> Layer:
        """Adds a layer; close it.

        Args:
            key: Its name.
            fill: Called with a descriptor of its empty tree; what it raises is raised here, and
                nothing is left.
            made_of: By which a later layer finds it as its base.
            base: What it starts from, in use.

        Requires: `making(key)` is held.
        """
        partial = self._folder / f"{_PARTIAL}{secrets.token_hex(8)}"
        held = self._begin(partial)
        try:
            counts = await self._fill(partial, fill)
            described = await finish_in_thread(
                _describe, partial, counts, made_of or MadeOf(), base
            )
            return self._publish(key, partial, described)  # here and now: nothing may come between
        except BaseException:
            await finish_in_thread(shutil.rmtree, partial)
            raise
        finally:
            (self._folder / f"{partial.name}.lock").unlink()
            os.close(held)

    def _publish(self, key: str, partial: Path, described: dict[str, Any]) -> Layer:
        """Gives a layer its name, in use before anybody can find it: it could be pruned at once."""
        place = self._folder / key
        used = os.open(partial / _DESCRIPTION, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            try_share(used)
            if place.exists():  # and damaged: it would have been found
                self._discard(key)
            partial.rename(place)
        except BaseException:
            os.close(used)
            raise
        counts = described["entries_count"], described["size_bytes"]
        return Layer(key, place / "tree", *counts, described["sha256"], used)

    def _begin(self, partial: Path) -> int:
        while (held := try_lock(self._folder / f"{partial.name}.lock")) is None:
            time.sleep(0.001)  # another process looks whether somebody holds it
        (partial / "tree").mkdir(parents=True)
        partial.chmod(0o700)
        return held

    async def _fill(self, partial: Path, fill: Callable[[int], Awaitable[TreeCopy]]) -> TreeCopy:
        tree = os.open(partial / "tree", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return await fill(tree)
        finally:
            os.close(tree)

    def list(self) -> list[Stored]:
        """What is there, that which was used longest ago first. Blocks."""
        return sorted(self._each(), key=lambda stored: stored.used_at)

    def _each(self) -> Iterator[Stored]:
        for folder in list(self._folder.iterdir()):
            held = None if folder.name.startswith(".") else self._open(folder.name)
            if held is None:
                continue
            try:
                described = _read_description(held)
                if described is not None:
                    counts = described["size_bytes"], described["entries_count"]
                    used_at = os.fstat(held).st_mtime
                    yield Stored(
                        folder.name,
                        *counts,
                        used_at,
                        is_used=not try_hold(held),
                        family=described["family"],
                    )
            finally:
                os.close(held)

    def prune(self, limit_bytes: int) -> tuple[int, int]:
        """Removes layers until the others are within a size; never one in use. Blocks.

        Returns:
            How many were removed, and their bytes.
        """
        stored = self.list()
        total_bytes = sum(each.size_bytes for each in stored)
        removed_count = removed_bytes = 0
        for each in stored:
            if total_bytes - removed_bytes <= limit_bytes:
                break
            if self.remove(each.key):
                removed_count += 1
                removed_bytes += each.size_bytes
        return removed_count, removed_bytes

    def verify(self, key: str) -> bool:
        """Whether every file of a layer has the content that it was made with. Blocks."""
        held = self._open(key)
        if held is None:
            return False
        try:
            described = _read_description(held)
            tree = self._folder / key / "tree"
            return described is not None and digest_tree(tree).sha256 == described["sha256"]
        finally:
            os.close(held)

    def remove(self, key: str) -> bool:
        """Removes a layer; False when it is in use, or not there. Blocks."""
        held = self._open(key)
        if held is None:
            return False
        try:
            if not try_hold(held):
                return False
            gone = self._put_aside(key)
        finally:
            os.close(held)
        if gone is not None:
            shutil.rmtree(gone, ignore_errors=True)
        return gone is not None

    def _discard(self, key: str) -> None:
        """Puts a damaged layer out of the way; who still uses it keeps what there is of it."""
        gone = self._put_aside(key)
        if gone is not None:
            _clear(gone)

    def _put_aside(self, key: str) -> Path | None:
        gone = self._folder / f"{_GONE}{secrets.token_hex(8)}"
        try:
            (self._folder / key).rename(gone)
        except OSError:  # somebody else was faster
            return None
        return gone

    def _sweep(self) -> None:
        """A half-made layer whose lock nobody holds belongs to nobody."""
        for gone in self._folder.glob(f"{_GONE}*"):
            _clear(gone)
        for lock in self._folder.glob(f"{_PARTIAL}*.lock"):
            held = try_lock(lock)
            if held is not None:
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)
                os.close(held)


def _clear(gone: Path) -> None:
    """Removes what was put aside, unless somebody still uses it."""
    held = -1
    try:
        held = os.open(gone / _DESCRIPTION, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not try_hold(held):
            return
    except OSError:  # without a description nobody can use it
        pass
    finally:
        if held >= 0:
            os.close(held)
    shutil.rmtree(gone, ignore_errors=True)


def _describe(
    partial: Path, counts: TreeCopy, made_of: MadeOf, base: Layer | None
) -> dict[str, Any]:
    tree = partial / "tree"
    of_base = {} if base is None else base.read_digests()
    digest = digest_tree(
        tree, {path: of_base[path] for path in counts.unchanged if path in of_base}
    )
    if made_of.family:
        contents = {"packages": dict(made_of.packages), "files": digest.files}
        (partial / _CONTENTS).write_text(json.dumps(contents))
    layer = {
        "entries_count": counts.entries_count,
        "size_bytes": counts.size_bytes,
        "sha256": digest.sha256,
        "stamp": stamp_tree(tree),
        "family": made_of.family,
    }
    (partial / _DESCRIPTION).write_text(json.dumps(layer))
    return layer


def _read_contents(folder: Path) -> tuple[dict[str, str], dict[str, str]] | None:
    """Hashes of packages and of files; None where the layer has none, or they are damaged."""
    try:
        contents = json.loads((folder / _CONTENTS).read_bytes())
        packages, files = contents["packages"], contents["files"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    is_whole = isinstance(packages, dict) and isinstance(files, dict)
    return (packages, files) if is_whole else None


def _read_description(descriptor: int) -> dict[str, Any] | None:
    """None for one that is damaged, or from another version of Cloche."""
    try:
        described = json.loads(os.pread(descriptor, _DESCRIPTION_BYTES_LIMIT, 0))
        numbers = [described[name] for name in ("entries_count", "size_bytes")]
        texts = [described[name] for name in ("sha256", "stamp", "family")]
    except (ValueError, LookupError, TypeError):
        return None
    is_whole = all(isinstance(number, int) for number in numbers)
    return described if is_whole and all(isinstance(text, str) for text in texts) else None
