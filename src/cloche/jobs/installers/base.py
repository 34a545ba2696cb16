"""What one install is: what goes into its box, what runs there, what is taken out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from cloche.egress.mirror import Served
    from cloche.model.job import Reason

PORT: Final = 4873
"""Of the mirror, on the loopback of the box that installs."""

ADDRESS: Final = f"http://127.0.0.1:{PORT}"


class Source(Protocol):
    """Where items come from: `egress.registry.Registry` is one."""

    async def fetch(self, item: Any, /) -> Path:
        """The item's file, its hash checked; raises PackageError."""

    async def find_scope(self, names: Iterable[str]) -> str:
        """Stands for the credentials that these packages are fetched with."""


@dataclass(frozen=True, slots=True)
class Installation:
    """An install that was read of a project, checked.

    Attributes:
        tool: Who installs: `pnpm`, `npm`, ….
        lockfile: The path of what it installs from, for people.
        origin: Where `items` come from: `npm` or `pypi`.
        items: What the mirror has, by path.
        names: Of the packages that the lockfile has.
        packages_count: How many there are, versions of one name counted each.
        files: All that the box gets, by path from /workspace; of Cloche's own making.
        commands: Run one after another, until one fails.
        renewal: Run before them where an earlier layer lies below: takes away what they would not
            put right themselves. Empty where they cannot start from an earlier layer.
        listing: Those of `files` that say which packages; all others are the same in such a layer.
        env: Of the commands, beside what every step has.
        folders: Relative to /workspace: what is installed, and becomes the layer.
        step_env: Of the steps that follow, beside what every step has.
        step_files: What the steps that follow find in place of the project's own, by path.
        ignored: What of the project has no say, for people.
        reasons: Why it failed, by words in the output that tell so.
    """

    tool: str
    lockfile: str
    origin: str
    items: Mapping[str, Served]
    names: frozenset[str]
    packages_count: int
    files: Mapping[str, bytes]
    commands: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...]
    renewal: tuple[str, ...] = ()
    listing: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    step_env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    step_files: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    ignored: tuple[str, ...] = ()
    reasons: Mapping[str, Reason] = field(default_factory=lambda: MappingProxyType({}))
