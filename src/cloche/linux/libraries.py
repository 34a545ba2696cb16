"""Shared libraries that a binary needs, as the dynamic loader itself resolves them."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

_TIMEOUT_S = 30
# Source: elf.h
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB = 1, 5
_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class Libraries:
    """What a dynamically linked binary needs.

    Attributes:
        loader: The path of the dynamic loader that the binary names, or None for a static one.
        paths: Host path by the name that the loader looks for.
    """

    loader: str | None
    paths: dict[str, str]


def _segments(header: bytes, reader: BinaryIO) -> Iterator[tuple[int, int, int, int]]:
    """(type, offset, address, size) of each program header. Source: man 5 elf."""
    table, entry_bytes, count = (
        *struct.unpack_from("<Q", header, 32),
        *struct.unpack_from("<HH", header, 54),
    )
    reader.seek(table)
    entries = reader.read(entry_bytes * count)
    for start in range(0, len(entries), entry_bytes):
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", entries, start)
        yield kind, offset, address, size


def _read_header(binary: Path, reader: BinaryIO) -> bytes:
    header = reader.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{binary} is no 64-bit little-endian ELF")
    return header


def read_loader(binary: Path) -> str | None:
    """The dynamic loader that a 64-bit little-endian ELF names; None for a static binary."""
    with binary.open("rb") as reader:
        for kind, offset, _, size in _segments(_read_header(binary, reader), reader):
            if kind == _PT_INTERP:
                reader.seek(offset)
                return reader.read(size).rstrip(b"\0").decode()
    return None


def read_needed(binary: Path) -> frozenset[str]:
    """The names of the libraries that an ELF itself asks for; none for a static one."""
    with binary.open("rb") as reader:
        segments = list(_segments(_read_header(binary, reader), reader))
        entries = b""
        for kind, offset, _, size in segments:
            if kind == _PT_DYNAMIC:
                reader.seek(offset)
                entries = reader.read(size)
        pairs = list(struct.iter_unpack("<QQ", entries))
        addresses = [value for tag, value in pairs if tag == _DT_STRTAB]
        names = [value for tag, value in pairs if tag == _DT_NEEDED]
        if not addresses or not names:
            return frozenset()
        for kind, offset, address, size in segments:
            if kind == _PT_LOAD and address <= addresses[0] < address + size:
                reader.seek(offset + addresses[0] - address)
                table = reader.read(max(names) + _NAME_BYTES)
                return frozenset(table[at : table.index(0, at)].decode() for at in names)
    raise ValueError(f"{binary} has no table of names")


def find_libraries_of(binaries: Iterable[Path]) -> Libraries:
    """What several binaries need together; the loader is asked only where a name is new.

    Raises:
        OSError: as `find_libraries`; or they name different loaders.
        ValueError: one is no ELF of this kind.
    """
    loader: str | None = None
    paths: dict[str, str] = {}
    for binary in binaries:
        # Some ask for the loader by name; it lists itself for none.
        known = paths.keys() | ({Path(loader).name} if loader else set())
        if read_needed(binary) <= known:
            continue
        found = find_libraries(binary)
        if loader is not None and found.loader != loader:
            raise OSError(f"{binary} is loaded by {found.loader}, others by {loader}")
        loader = found.loader
        paths |= found.paths
    return Libraries(loader, paths)


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
