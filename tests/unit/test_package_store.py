"""Tarballs on disk: none stands in for another, none is believed, none is half there."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cloche.errors import UnavailableError
from cloche.model.package import Package
from cloche.store.packages import DamagedError, PackageStore
from registry_server import integrity_of

REGISTRY = "https://registry.test/"
DATA = b"the bytes of a tarball" * 1000
PACKAGE = Package("@scope/name", "1.0.0", integrity_of(DATA))

# Writes into a store and waits; told a word, it keeps what it has written.
WRITER = f"""
import sys
from pathlib import Path
from cloche.model.package import Package
from cloche.store.packages import PackageStore
store = PackageStore(Path(sys.argv[1]))
with store.receive({REGISTRY!r}, Package("@scope/name", "1.0.0", sys.argv[2])) as incoming:
    incoming.write(b"the bytes of a tarball" * 1000)
    print("written", flush=True)
    sys.stdin.readline()
    incoming.keep()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache/packages"


@pytest.fixture
def store(folder: Path) -> PackageStore:
    return PackageStore(folder)


def put(store: PackageStore, package: Package = PACKAGE, data: bytes = DATA) -> Path:
    with store.receive(REGISTRY, package) as incoming:
        incoming.write(data[:100])
        incoming.write(memoryview(data)[100:])
        assert incoming.size_bytes == len(data)
        return incoming.keep()


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


def start_writer(folder: Path) -> "subprocess.Popen[str]":
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), PACKAGE.integrity],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None and writer.stdout.readline() == "written\n"
    return writer


def end_writer(writer: "subprocess.Popen[str]", *, kill: bool) -> None:
    if kill:
        writer.kill()
    writer.communicate("\n")


def test_what_was_put_in_is_found_read_only_and_by_nobody_else(
    store: PackageStore, folder: Path
) -> None:
    assert store.find(REGISTRY, PACKAGE) is None
    path = put(store)
    assert store.find(REGISTRY, PACKAGE) == path
    assert path.read_bytes() == DATA
    assert path.stat().st_mode & 0o777 == 0o444
    assert folder.stat().st_mode & 0o777 == 0o700
    assert PackageStore(folder).find(REGISTRY, PACKAGE) == path


@pytest.mark.parametrize(
    ("registry", "package"),
    [
        ("https://other.test/", PACKAGE),
        ("https://registry.test/other/", PACKAGE),
        (REGISTRY, Package("@scope/nam", "e1.0.0", PACKAGE.integrity)),
        (REGISTRY, Package("@scope/name", "1.0.1", PACKAGE.integrity)),
        (REGISTRY, Package("@scope/name", "1.0.0", integrity_of(b"other"))),
    ],
)
def test_a_package_of_another_origin_name_version_or_hash_is_another(
    store: PackageStore, registry: str, package: Package
) -> None:
    put(store)
    assert store.find(registry, package) is None
    assert store.find(REGISTRY, Package("@scope/name", "1.0.0", PACKAGE.integrity, False))


def test_a_file_put_in_the_place_of_another_is_dropped(store: PackageStore) -> None:
    other = Package("other", "1.0.0", integrity_of(b"other"))
    other_path = put(store, other, b"other")
    path = put(store)
    path.unlink()
    other_path.rename(path)
    assert store.find(REGISTRY, PACKAGE) is None
    assert not path.exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "link", "fifo", "socket"])
def test_a_damaged_file_is_noticed_and_dropped(store: PackageStore, damage: str) -> None:
    path = put(store)
    path.chmod(0o600)
    if damage == "cut":
        os.truncate(path, len(DATA) - 1)
    elif damage == "flipped":
        path.write_bytes(b"T" + DATA[1:])
    elif damage == "link":
        elsewhere = path.with_name("elsewhere")
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
    else:
        path.unlink()
        os.mknod(path, 0o600 | {"fifo": 0o010000, "socket": 0o140000}[damage])
    assert store.find(REGISTRY, PACKAGE) is None
    assert not path.is_symlink() and not path.exists()
    assert store.find(REGISTRY, PACKAGE) is None
    assert put(store) == path


def test_bytes_with_another_hash_are_never_kept(store: PackageStore, folder: Path) -> None:
    with pytest.raises(DamagedError):
        put(store, data=DATA + b"!")
    assert store.find(REGISTRY, PACKAGE) is None
    assert files(folder) == set()


def test_what_was_not_kept_is_gone(store: PackageStore, folder: Path) -> None:
    with pytest.raises(KeyError):
        with store.receive(REGISTRY, PACKAGE) as incoming:
            incoming.write(DATA)
            assert len(files(folder)) == 1  # the control: it was there
            raise KeyError
    assert files(folder) == set()


@pytest.mark.live
def test_what_a_killed_process_was_writing_is_removed_at_the_next_start(folder: Path) -> None:
    writer = start_writer(folder)
    end_writer(writer, kill=True)
    assert len(files(folder)) == 1
    assert PackageStore(folder).find(REGISTRY, PACKAGE) is None
    assert files(folder) == set()


@pytest.mark.live
def test_what_another_process_is_still_writing_is_left_to_it(folder: Path) -> None:
    writer = start_writer(folder)
    try:
        store = PackageStore(folder)
        assert len(files(folder)) == 1
        assert store.find(REGISTRY, PACKAGE) is None
    finally:
        end_writer(writer, kill=False)
    assert writer.returncode == 0
    assert store.find(REGISTRY, PACKAGE)


def test_another_store_of_one_process_leaves_what_is_being_written(folder: Path) -> None:
    with PackageStore(folder).receive(REGISTRY, PACKAGE) as incoming:
        other = PackageStore(folder)
        incoming.write(DATA)
        incoming.keep()
    assert other.find(REGISTRY, PACKAGE)


def test_threads_that_put_in_one_package_at_once_all_succeed(store: PackageStore) -> None:
    together = threading.Barrier(8)
    found = []

    def work() -> None:
        together.wait()
        found.append(put(store))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [store.find(REGISTRY, PACKAGE)] * 8


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(UnavailableError, match="may be written by others") as caught:
        PackageStore(folder)
    assert "CLOCHE_CACHE_DIR" in caught.value.fix


def test_a_folder_that_others_may_read_is_closed_to_them(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    PackageStore(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="missing fact: root (only root can give a file away)")
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.chown(folder, 12345, 12345)
    with pytest.raises(UnavailableError, match="belongs to user 12345"):
        PackageStore(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="missing fact: root (only root can give a file away)")
def test_a_file_of_another_user_is_dropped(store: PackageStore) -> None:
    path = put(store)
    os.chown(path, 12345, 12345)
    assert store.find(REGISTRY, PACKAGE) is None


def test_a_link_in_the_folders_place_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.parent.mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError, match="is a link"):
        PackageStore(folder)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot be used"):
        PackageStore(tmp_path / "file/packages")
