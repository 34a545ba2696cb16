"""Dependency layers: installed trees, kept by a hash of all that made them.

A layer is a folder `layers/KEY/` with `tree/` (mounted below a step's files, read-only for every
box) and `layer.json`, written last. It appears by one rename, so it is whole or not there. What a
killed Cloche left half-made is removed by the next one.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloche.linux.locks import hold_lock, try_lock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from cloche.linux.gathering import TreeCopy

_PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True)
class Layer:
    """An installed tree.

    Attributes:
        key: Lower-case hex; of everything that made it.
        tree: The folder that is mounted.
        entries_count, size_bytes: What it holds.
    """

    key: str
    tree: Path
    entries_count: int
    size_bytes: int


class LayerStore:
    """The layers of one cache folder; shared with other processes."""

    def __init__(self, cache_folder: Path) -> None:
        """Makes the folder; removes what killed processes left."""
        self._folder = cache_folder / "layers"
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sweep()

    def find(self, key: str) -> Layer | None:
        """The layer, when it is there."""
        folder = self._folder / key
        try:
            described = json.loads((folder / "layer.json").read_bytes())
            return Layer(key, folder / "tree", described["entries_count"], described["size_bytes"])
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError):  # lost, with the host's power perhaps
            return None

    @asynccontextmanager
    async def making(self, key: str) -> AsyncIterator[None]:
        """Held by the one that makes a layer; the others wait, and find it then."""
        async with hold_lock(self._folder / f"{key}.lock"):
            yield

    async def add(self, key: str, fill: Callable[[int], Awaitable[TreeCopy]]) -> Layer:
        """Adds a layer.

        Args:
            key: Its name.
            fill: Called with a descriptor of its empty tree; what it raises is raised here, and
                nothing is left.

        Requires: `making(key)` is held.
        """
        partial = self._folder / f"{_PARTIAL}{secrets.token_hex(8)}"
        held = self._begin(partial)
        try:
            counts = await self._fill(partial, fill)
            layer = {"entries_count": counts.entries_count, "size_bytes": counts.size_bytes}
            (partial / "layer.json").write_text(json.dumps(layer))
            self._replace(key, partial)  # here and now: nothing may come between
        except BaseException:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, partial))
            raise
        finally:
            (self._folder / f"{partial.name}.lock").unlink()
            os.close(held)
        found = self.find(key)
        assert found is not None
        return found

    def _replace(self, key: str, partial: Path) -> None:
        place = self._folder / key
        if place.exists():  # and damaged: it would have been found
            shutil.rmtree(place)
        partial.rename(place)

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

    def _sweep(self) -> None:
        """A half-made layer whose lock nobody holds belongs to nobody."""
        for lock in self._folder.glob(f"{_PARTIAL}*.lock"):
            held = try_lock(lock)
            if held is not None:
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)
                os.close(held)
