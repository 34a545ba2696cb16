"""Archives of strangers, read within bounds: tar (plain, gzip, zstd) and zip.

Nothing is written to disk, and nothing is left out in silence: an archive is read to its end, or it
is refused.
"""

from __future__ import annotations

import gzip
import io
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import zstandard

from cloche.store.tar import BLOCK_BYTES, read_tar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHUNK_BYTES: Final = 1024 * 1024
_WINDOW_LIMIT_BYTES: Final = 128 * 1024 * 1024
# Of a tar, beside contents: a header and padding, twice where a name is long.
_HEADERS_BYTES: Final = 4 * BLOCK_BYTES
# An archive may be packed in several parts, one behind the other; an empty one takes time, too.
_PARTS_LIMIT_COUNT: Final = 50_000
_UNIX: Final = 3
# What `zipfile` unpacks piece by piece; by the other methods, a piece can be as large as it likes.
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_GZIP, _ZSTD, _ZIP, _EMPTY_ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"PK\x05\x06"
_DEFLATED, _ZIP_ENTRY = _GZIP + b"\x08", b"PK\x01\x02"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, zstandard.ZstdError),
    *(EOFError, OSError, ValueError, OverflowError, NotImplementedError),
    *(IndexError, struct.error),  # from zipfile, of fields that are too short
)


class ArchiveError(Exception):
    """An archive that is not read; the text says why, and goes on a sentence about it."""


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive.

    Attributes:
        path: As it stands there, without `./` in front and `/` at the end; a stranger's.
        mode: Kind and permissions, as in `st_mode`. A hard link counts as a link.
        content: Of a file; empty for all else.
    """

    path: str
    mode: int
    content: bytes


def is_archive(data: bytes) -> bool:
    """Whether some bytes start as an archive does that is read here."""
    at = _TAR_MAGIC_AT
    is_tar = data[at : at + len(_TAR_MAGIC)] == _TAR_MAGIC
    return is_tar or data.startswith((_GZIP, _ZSTD, _ZIP, _EMPTY_ZIP))


def read_archive(data: bytes, *, entries_count: int, content_bytes: int) -> Iterator[Member]:
    """Reads an archive, in its order.

    Args:
        data: The whole of it; its first bytes tell the format.
        entries_count: The most entries that it may have.
        content_bytes: The most bytes that all its files together may have.

    Raises:
        ArchiveError: it is damaged, of no known format, encrypted, or over a limit. What has been
            given out before belongs to an archive that is refused.
    """
    count, left_bytes = 0, content_bytes
    try:
        limit_bytes = content_bytes + _HEADERS_BYTES * (entries_count + 1)
        for member in _read(data, entries_count, limit_bytes):
            count += 1
            left_bytes -= len(member.content)
            if count > entries_count:
                raise _too_many(entries_count)
            if left_bytes < 0:
                raise _too_large(content_bytes)
            yield member
    except _DAMAGED as error:
        raise ArchiveError(f"is damaged ({type(error).__name__}: {error})"[:300]) from error


def _too_large(limit_bytes: int) -> ArchiveError:
    return ArchiveError(f"unpacks to more than {limit_bytes // (1024 * 1024)} MiB")


def _too_many(limit_count: int) -> ArchiveError:
    return ArchiveError(f"has more than {limit_count} entries")


def _read(data: bytes, entries_count: int, limit_bytes: int) -> Iterator[Member]:
    if data.startswith((_ZIP, _EMPTY_ZIP)):
        if data.count(_ZIP_ENTRY) > entries_count:  # zipfile makes an object of each, first of all
            raise _too_many(entries_count)
        return _read_zip(data, limit_bytes)
    if data.startswith((_GZIP, _ZSTD)):
        mark = _DEFLATED if data.startswith(_GZIP) else _ZSTD
        if data.count(mark) > _PARTS_LIMIT_COUNT:
            raise ArchiveError(f"is packed in more than {_PARTS_LIMIT_COUNT} parts")
    if data.startswith(_GZIP):
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            return _read_tar(_expand(packed.read, limit_bytes))
    if data.startswith(_ZSTD):
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)
        with decompressor.stream_reader(data, read_across_frames=True) as packed:
            return _read_tar(_expand(packed.read, limit_bytes))
    if not is_archive(data):
        raise ArchiveError("is no tar, tar.gz, tar.zst or zip")
    return _read_tar(data)


def _expand(read: Callable[[int], bytes], limit_bytes: int) -> bytes:
    found = bytearray()
    while chunk := read(_CHUNK_BYTES):
        found += chunk
        if len(found) > limit_bytes:
            raise _too_large(limit_bytes)
    return bytes(found)


def _read_tar(data: bytes) -> Iterator[Member]:
    try:
        for path, mode, content in read_tar(data):
            yield Member(_plain(path), mode, content)
    except ValueError as error:
        raise ArchiveError(f"is damaged ({error})") from error


def _read_zip(data: bytes, limit_bytes: int) -> Iterator[Member]:
    left_bytes = limit_bytes
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if info.flag_bits & 0x1:
                raise ArchiveError(f"is encrypted ({info.filename[:80]!r})")
            if info.compress_type not in _METHODS:
                raise ArchiveError("is packed by another method than deflate")
            left_bytes -= info.file_size  # more than that is not read of it
            if left_bytes < 0:
                raise _too_large(limit_bytes)
            mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
            if not stat.S_IFMT(mode):
                mode |= stat.S_IFDIR if info.orig_filename.endswith("/") else stat.S_IFREG
            content = _read_zipped(archive, info) if stat.S_ISREG(mode) else b""
            yield Member(_plain(info.orig_filename), mode, content)  # `filename` ends at a NUL


def _read_zipped(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with archive.open(info) as file:
        content = file.read(info.file_size)  # `read()` would unpack what comes beyond, too
        if len(content) != info.file_size or file.read(1):
            raise ArchiveError(f"is damaged ({info.filename[:80]!r} has another size)")
    return content


def _plain(path: str) -> str:
    path = path.removeprefix("./")
    return "" if path == "." else path.removesuffix("/") or path
