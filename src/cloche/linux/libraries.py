"""Shared libraries that a binary needs, as the dynamic loader itself resolves them."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMEOUT_S = 30
_PT_INTERP = 3


@dataclass(frozen=True, slots=True)
class Libraries:
    """What a dynamically linked binary needs.

    Attributes:
        loader: The path of the dynamic loader that the binary names, or None for a static one.
        paths: Host path by the name that the loader looks for.
    """

    loader: str | None
    paths: dict[str, str]


def read_loader(binary: Path) -> str | None:
    """The dynamic loader that a 64-bit little-endian ELF names; None for a static binary.

    Source: man 5 elf.
    """
    with binary.open("rb") as reader:
        header = reader.read(64)
        if header[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{binary} is no 64-bit little-endian ELF")
        table, entry_bytes, count = (
            *struct.unpack_from("<Q", header, 32),
            *struct.unpack_from("<HH", header, 54),
        )
        reader.seek(table)
        for _ in range(count):
            entry = reader.read(entry_bytes)
            if struct.unpack_from("<I", entry)[0] == _PT_INTERP:
                offset, size = struct.unpack_from("<Q16xQ", entry, 8)
                reader.seek(offset)
                return reader.read(size).rstrip(b"\0").decode()
    return None


def find_libraries(binary: Path, modules: Iterable[Path] = ()) -> Libraries:
    """Asks the binary's own loader what it would load, `modules` included.

    Raises:
        OSError: the loader could not be run, or a library is missing.
    """
    loader = read_loader(binary)
    if loader is None:
        return Libraries(None, {})
    preload = ":".join(map(str, modules))
    command = [loader, *(["--preload", preload] if preload else []), "--list", str(binary)]
    answer = subprocess.run(
        command, capture_output=True, text=True, env={}, timeout=_TIMEOUT_S, check=False
    )
    paths: dict[str, str] = {}
    for line in answer.stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow or "/" in name:
            continue  # the kernel's own, the loader, a preloaded module
        path = rest.rpartition(" (")[0]
        if not path.startswith("/"):
            raise OSError(f"{binary} needs {name}, which the loader does not find")
        paths[name] = path
    if not paths:
        raise OSError(f"{loader} does not list {binary}: {answer.stderr.strip()[:500]}")
    return Libraries(loader, paths)
