"""Archives of strangers: read whole, in bounds, or refused."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest
import zstandard

from cloche.store.archive import ArchiveError, is_archive, read_archive

FILES = {"a.txt": b"one", "src/b.txt": b"two\n" * 500, "run.sh": b"#!/bin/sh\n"}
PACKERS = {"tar": bytes, "tar.gz": gzip.compress, "tar.zst": zstandard.compress}


def make_tar(files, *, prefix="", change=lambda info: info, form=tarfile.GNU_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(prefix + path)
            info.size, info.mode = len(content), 0o755 if path.endswith(".sh") else 0o644
            archive.addfile(change(info), io.BytesIO(content))
    return buffer.getvalue()


def make_zip(files, *, mode=0o644, compression=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for path, content in files.items():
            info = zipfile.ZipInfo(path)
            info.create_system, info.compress_type = 3, compression
            info.external_attr = (stat.S_IFREG | (0o755 if path.endswith(".sh") else mode)) << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def read(data, *, entries_count=100, content_bytes=1 << 20):
    return list(read_archive(data, entries_count=entries_count, content_bytes=content_bytes))


def contents(data, **limits):
    return {each.path: each.content for each in read(data, **limits) if stat.S_ISREG(each.mode)}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("prefix", ["", "./"])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_is_read_whole_however_it_is_packed(packer, prefix, form):
    data = PACKERS[packer](make_tar(FILES, prefix=prefix, form=form))
    assert is_archive(data)
    assert contents(data) == FILES
    assert [each.path for each in read(data) if each.mode & 0o111] == ["run.sh"]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_is_read_whole(compression):
    data = make_zip(FILES, compression=compression)
    assert is_archive(data)
    assert contents(data) == FILES
    assert [each.path for each in read(data) if each.mode & 0o111] == ["run.sh"]


def test_long_names_and_names_that_are_not_ascii_are_kept():
    files = {"é/" + "n" * 200 + "/ü.txt": b"x"}
    for data in (make_tar(files), make_tar(files, form=tarfile.PAX_FORMAT), make_zip(files)):
        assert contents(data) == files


@pytest.mark.parametrize(
    ("kind", "is_kind"),
    [
        (tarfile.SYMTYPE, stat.S_ISLNK),
        (tarfile.LNKTYPE, stat.S_ISLNK),
        (tarfile.FIFOTYPE, stat.S_ISFIFO),
        (tarfile.CHRTYPE, stat.S_ISCHR),
        (tarfile.BLKTYPE, stat.S_ISBLK),
        (tarfile.DIRTYPE, stat.S_ISDIR),
        (b"9", stat.S_ISCHR),
    ],
)
def test_what_is_no_file_is_named_as_what_it_is_and_has_no_content(kind, is_kind):
    def change(info):
        info.type, info.linkname, info.size = kind, "/etc/passwd", 0
        return info

    (member,) = read(make_tar({"x": b""}, change=change))
    assert is_kind(member.mode)
    assert member.content == b""


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_an_archive_that_ends_early_is_refused(packer, share):
    whole = PACKERS[packer](make_tar({f"f{at}": bytes([at]) * 3000 for at in range(20)}))
    part = whole[: int(len(whole) * share)]
    with pytest.raises(ArchiveError, match="damaged"):
        read(part)


def test_a_tar_that_was_cut_between_two_entries_is_refused():
    data = make_tar({"a": b"1", "b": b"2"})
    with pytest.raises(ArchiveError, match="no end"):
        read(data[:1024])


def test_a_broken_header_in_the_middle_is_refused_and_no_end():
    data = bytearray(make_tar({"a": b"1", "b": b"2"}))
    data[1024 + 10] ^= 0xFF
    with pytest.raises(ArchiveError, match="no entry and no end"):
        read(bytes(data))


def test_damaged_contents_of_a_zip_are_refused():
    data = bytearray(make_zip({"a": b"1234567890"}, compression=zipfile.ZIP_STORED))
    data[data.index(b"12345")] = 0x41
    with pytest.raises(ArchiveError, match="damaged"):
        read(bytes(data))


def test_an_encrypted_zip_is_refused():
    data = bytearray(make_zip({"a": b"x"}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(ArchiveError, match="encrypted"):
        read(bytes(data))


@pytest.mark.parametrize(
    "make",
    [
        lambda files: gzip.compress(make_tar(files)),
        lambda files: zstandard.compress(make_tar(files)),
        make_zip,
    ],
)
def test_a_bomb_is_refused_before_it_is_unpacked(make):
    data = make({"zeros": bytes(64 << 20)})
    assert len(data) < 1 << 20
    with pytest.raises(ArchiveError, match="unpacks to more than 1 MiB"):
        read(data)


def test_a_zip_that_lies_about_a_size_is_refused():
    data = bytearray(make_zip({"zeros": bytes(64 << 20)}))
    for at in (22, data.index(b"PK\x01\x02") + 24):
        data[at : at + 4] = (10).to_bytes(4, "little")
    with pytest.raises(ArchiveError, match="damaged"):
        read(bytes(data))


def test_too_many_entries_are_refused():
    many = {f"f{at}": b"" for at in range(11)}
    assert len(contents(make_tar(many), entries_count=11)) == 11
    for data in (make_tar(many), make_zip(many)):
        with pytest.raises(ArchiveError, match="more than 10 entries"):
            read(data, entries_count=10)


@pytest.mark.parametrize("data", [b"", b"hello", b"BZh91AY&SY" + bytes(600), b"\xfd7zXZ\0" * 99])
def test_another_format_is_refused(data):
    assert not is_archive(data)
    with pytest.raises(ArchiveError, match="is no tar"):
        read(data)
