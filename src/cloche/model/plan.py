"""A run after admission: what a box is made of, what runs in it, what was enforced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from cloche.model.policy import Limits


@dataclass(frozen=True, slots=True)
class Environment:
    """The read-only part of a box's root.

    Attributes:
        name: A file name; equal environments have equal names.
        entries: In order, parents first, each (kind, box path, argument). Kinds: `directory`,
            `text` (content), `data` (base64), `copy` and `bind` (host path), `device` (host
            node), `link` (target), `hide`.
    """

    name: str
    entries: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Mount:
    """A host folder seen in the box.

    Attributes:
        host_path: An absolute path of a folder.
        box_path: Where, relative to /workspace.
        unsafe_writable: Lets guest code write into the host's folder.
    """

    host_path: str
    box_path: str
    unsafe_writable: bool = False


class Scratch(StrEnum):
    """What the box may write."""

    NONE = "none"  # /workspace is empty
    SEALED = "sealed"  # /workspace holds the caller's files, read-only
    WRITABLE = "writable"  # /workspace, /tmp and /dev/shm, one quota


@dataclass(frozen=True, slots=True)
class BoxPlan:
    """One box.

    Attributes:
        environment: The read-only part of its root.
        limits: Of what runs in it.
        scratch: What it may write.
        files: Path below /workspace → content, laid in before the first command.
        executables: Those of `files` that may be run.
        layers: Host folders of Cloche's own, seen below /workspace copy-on-write, the first on
            top; `files` lie above them. Takes a writable scratch.
        mounts: Host folders of the caller's.
        listen_ports: TCP ports of the box's own loopback that Cloche serves from outside.
        catch_ports: TCP ports on which a connect to any IPv4 address arrives at Cloche; at most
            32. None: no egress. Some: its name server is Cloche, too.
        require: Control → the mechanism that it must have.
    """

    environment: Environment
    limits: Limits
    scratch: Scratch = Scratch.NONE
    files: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    executables: frozenset[str] = frozenset()
    layers: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    listen_ports: tuple[int, ...] = ()
    catch_ports: tuple[int, ...] = ()
    require: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Command:
    """One command in a box.

    Attributes:
        argv: The first is an absolute box path.
        env: The whole environment.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str = "/workspace"


class Strength(StrEnum):
    """How firmly a control holds."""

    ENFORCED = "enforced"  # by the kernel
    BEST_EFFORT = "best_effort"  # by a watcher, after the fact
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Control:
    """One control as it was read back from the kernel.

    Attributes:
        mechanism: What enforces it, in one word: `cgroup`, `rlimit`, `watchdog`, …
        evidence: Where it was read, and what.
    """

    mechanism: str
    strength: Strength
    evidence: str


@dataclass(frozen=True, slots=True)
class Isolation:
    """What was enforced, by control name; read back from the kernel, never echoed."""

    backend: str
    controls: Mapping[str, Control]
