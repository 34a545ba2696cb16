"""Whatever bytes come as an archive, they are read within bounds or refused."""

import gzip
import io
import stat
import tarfile
import tracemalloc
import zipfile
from contextlib import suppress

import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloche.store.archive import ArchiveError, Member, is_archive, read_archive

ENTRIES = 20
CONTENT = 64 * 1024
# Of memory, beside the archive itself: its unpacked form, and what it was read into.
MEMORY = 4 * 1024 * 1024

names = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="/\0"), max_size=9)
paths = st.lists(
    names.filter(lambda name: name not in ("", ".", "..")), min_size=1, max_size=3
).map("/".join)
trees = st.dictionaries(paths, st.binary(max_size=700), max_size=4)


def make_tar(files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def make_zip(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path), content, compression)
    return buffer.getvalue()


FORMS = {
    "pax": make_tar,
    "gnu": lambda files: make_tar(files, tarfile.GNU_FORMAT),
    "gzip": lambda files: gzip.compress(make_tar(files), mtime=0),
    "zstd": lambda files: zstandard.compress(make_tar(files)),
    "zip": make_zip,
    "stored": lambda files: make_zip(files, zipfile.ZIP_STORED),
    "bzip2": lambda files: make_zip(files, zipfile.ZIP_BZIP2),
}
SAMPLE = {"a.txt": b"one", "é/" + "n" * 120: b"two\n" * 200, "run.sh": b"#!/bin/sh\n"}
SAMPLES = {form: make(SAMPLE) for form, make in FORMS.items()}


def read(data: bytes) -> list[Member] | None:
    """None for what was refused."""
    with suppress(ArchiveError):
        return list(read_archive(data, entries_count=ENTRIES, content_bytes=CONTENT))
    return None


def check(data: bytes) -> None:
    tracemalloc.start()
    try:
        found = read(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMORY + len(data)
    for member in found or []:
        assert stat.S_IFMT(member.mode)
        assert not member.content or stat.S_ISREG(member.mode)
    assert found is None or len(found) <= ENTRIES
    assert found is None or sum(len(member.content) for member in found) <= CONTENT


@given(st.sampled_from(sorted(FORMS)), trees)
def test_what_was_packed_is_what_is_read(form: str, files: dict[str, bytes]) -> None:
    data = FORMS[form](files)
    if form == "bzip2" and files:
        assert read(data) is None
    elif is_archive(data):  # a tar of nothing has no mark
        found = read(data)
        assert found is not None
        assert {each.path: each.content for each in found} == files


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An archive with bytes changed, cut out or put in, its sums right again where it is a tar."""
    form = draw(st.sampled_from(sorted(SAMPLES)))
    data = bytearray(SAMPLES[form])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        piece = draw(st.binary(max_size=12) | st.sampled_from([b"\xff" * 12, b"\x80" + bytes(11)]))
        data[at : at + draw(st.sampled_from([len(piece), len(piece), 0, 40, 512]))] = piece
    if form in ("pax", "gnu") and draw(st.booleans()):
        for at in range(0, len(data) - 511, 512):
            if any(data[at : at + 512]):
                data[at + 148 : at + 156] = b" " * 8
                data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


@given(damaged())
@settings(max_examples=300)
def test_a_damaged_archive_is_read_in_bounds_or_refused(data: bytes) -> None:
    check(data)


starts = st.sampled_from([b"", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"PK\x05\x06"])


@given(starts, st.binary(max_size=2000))
@example(bytes(257) + b"ustar", bytes(2000))
def test_any_bytes_are_an_archive_or_refused(start: bytes, data: bytes) -> None:
    check(start + data)


def test_the_measure_of_these_tests_knows_a_bomb() -> None:
    bomb = gzip.compress(make_tar({"zeros": bytes(8 << 20)}))
    assert read(bomb) is None
    tracemalloc.start()
    try:
        gzip.decompress(bomb)
        assert tracemalloc.get_traced_memory()[1] > MEMORY
    finally:
        tracemalloc.stop()
