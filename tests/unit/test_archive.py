"""Archives of strangers: read whole, in bounds, or refused."""

import gzip
import io
import stat
import struct
import subprocess
import tarfile
import time
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


def test_a_zip_whose_entry_is_shorter_than_it_says_is_refused():
    data = bytearray(make_zip({"a": b"1234567890" * 100}))
    at = data.index(b"PK\x01\x02") + 24  # the uncompressed size; the sum is that of the content
    assert struct.unpack_from("<I", data, at) == (1000,)
    assert contents(bytes(data))  # the control
    struct.pack_into("<I", data, at, 1001)
    with pytest.raises(ArchiveError, match="another size"):
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


# What the bytes of an archive can ask of its reader


def block(name, size, kind=b"0", changes=()):
    """A header with a field of any bytes, its sum right."""
    info = tarfile.TarInfo(name)
    info.type = kind
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for at, data in ((124, size), *changes):
        header[at : at + len(data)] = data
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def about(content, kind=b"x"):
    return block("x", b"%011o\0" % len(content), kind) + content + bytes(-len(content) % 512)


NOTHING = b"%011o\0" % 0
END = bytes(1024)


def test_a_file_of_holes_is_refused_and_not_filled_up():
    places = (386, b"%011o\0" % 0 * 2), (483, b"%011o\0" % (7 << 30))
    with pytest.raises(ArchiveError, match="file of holes"):
        read(block("big", NOTHING, b"S", places) + END, content_bytes=8 << 30)
    record = b"22 GNU.sparse.major=1\n"
    with pytest.raises(ArchiveError, match="file of holes"):
        read(about(record) + block("big", NOTHING) + END)


@pytest.mark.parametrize(
    "content",
    [
        b"9" * 500_000, b"1" * 500_000 + b" hdrcharset", b"11 path=../a\n", b"0 path=a\n",
        b"8 path=a\n", b"9 path=a", b"9 path a\n", b"-1 path=a\n", b"1e1 path=a\n",
    ],
)  # fmt: skip
def test_a_pax_record_of_another_length_is_refused_at_once(content):
    started_at = time.monotonic()
    with pytest.raises(ArchiveError, match="damaged"):
        read(about(content) + block("a", NOTHING) + END)
    assert time.monotonic() - started_at < 1


def test_pax_names_and_sizes_are_those_that_count():
    data = (
        about("13 path=é/b\n9 size=3\n".encode()) + block("a", NOTHING) + b"abc" + bytes(509) + END
    )
    assert contents(data) == {"é/b": b"abc"}
    for record in (b"11 path=ab\n", b"9 size=3\n"):
        with pytest.raises(ArchiveError, match="one name or size"):
            read(about(record, b"g") + block("a", NOTHING) + END)


def test_no_more_stands_before_an_entry_than_four_headers():
    assert contents(about(b"") * 4 + block("a", NOTHING) + END) == {"a": b""}
    with pytest.raises(ArchiveError, match="too much"):
        read(about(b"") * 5 + block("a", NOTHING) + END)


@pytest.mark.parametrize(
    "size",
    [b"\xff" * 12, b"-0000000001\0", b"\x80" + b"\xff" * 11, b"0o17       \0", b"99999999999\0"],
)
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(ArchiveError, match="damaged"):
        read(block("a", size) + END)


@pytest.mark.parametrize("behind", [block("b", NOTHING) + END, b"x" * 512])
@pytest.mark.parametrize("end", [END, bytes(512)])
def test_what_stands_behind_the_end_of_a_tar_is_not_passed_over(behind, end):
    assert contents(block("a", NOTHING) + end) == {"a": b""}
    with pytest.raises(ArchiveError, match="follows its end"):
        read(block("a", NOTHING) + end + behind)


@pytest.mark.live
@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "pax"])
def test_what_tar_makes_is_read_as_it_says(form, tmp_path):
    files = {"a": b"1", "sub/" + "n" * 90: b"2" * 600, "é.txt": b"3"}
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    made = subprocess.run(
        ["tar", f"--format={form}", "-c", *files], cwd=tmp_path, capture_output=True, check=True
    )
    if form == "v7":  # it has no mark by which it could be known
        assert not is_archive(made.stdout)
    else:
        assert contents(made.stdout) == files


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_packed_by_what_cannot_be_unpacked_in_pieces_is_refused(method):
    with pytest.raises(ArchiveError, match="another method"):
        read(make_zip({"zeros": bytes(64 << 20)}, compression=method))


def test_a_zip_of_too_many_entries_is_refused_before_they_are_read(monkeypatch):
    def refuse(*_):
        raise AssertionError("it was opened")

    data = make_zip({f"f{at}": b"" for at in range(11)})
    monkeypatch.setattr(zipfile, "ZipFile", refuse)
    with pytest.raises(ArchiveError, match="more than 10 entries"):
        read(data, entries_count=10)


def test_a_name_in_a_zip_does_not_end_at_a_zero_byte():
    data = make_zip({"a.txt_x": b"1"}).replace(b"a.txt_x", b"a.txt\0x")
    assert [each.path for each in read(data)] == ["a.txt\0x"]


def test_a_zip_with_an_entry_of_no_name_is_read_as_such():
    data = make_zip({"ab": b"1"})
    at = data.index(b"PK\x01\x02")
    data = bytearray(data[:30] + data[32 : at + 46] + data[at + 48 :])
    data[26] = data[at - 2 + 28] = 0
    end = data.index(b"PK\x05\x06")
    data[end + 12], data[end + 16] = data[end + 12] - 2, data[end + 16] - 2
    assert [(each.path, each.content) for each in read(bytes(data))] == [("", b"1")]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_parts_that_follow_each_other_are_one_archive_and_not_endlessly_many(pack):
    tar = make_tar(FILES)
    assert contents(pack(tar[:700]) + pack(b"") + pack(tar[700:])) == FILES
    with pytest.raises(ArchiveError, match="more than 50000 parts"):
        read(pack(b"") * 50_001)
