"""Copying files out of a folder that hostile code has filled."""

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloche.linux.files import collect, matches, open_beneath

COUNT, BYTES = 100, 1 << 20


def collected(
    folder: Path, *globs: str, limit_bytes: int = BYTES, limit_count: int = COUNT
) -> tuple[dict[str, bytes], dict[str, str]]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return collect(
            descriptor, globs or ("**",), limit_bytes=limit_bytes, limit_count=limit_count
        )
    finally:
        os.close(descriptor)


def test_regular_files_that_match_come_back_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/x.txt").write_bytes(b"\xff\0")
    (tmp_path / "y.txt").write_text("y")
    (tmp_path / ".hidden").touch()
    assert collected(tmp_path) == ({".hidden": b"", "a/b/x.txt": b"\xff\0", "y.txt": b"y"}, {})
    assert collected(tmp_path, "*.txt")[0] == {"y.txt": b"y"}
    assert collected(tmp_path, "a/**/*.txt", "nothing")[0] == {"a/b/x.txt": b"\xff\0"}


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path has at most 107 bytes
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "a link"),
        (lambda path: path.symlink_to("secret"), "a link"),
        (lambda path: path.symlink_to(path.name), "a link"),
        (lambda path: path.symlink_to("nowhere"), "a link"),
        (lambda path: os.mkfifo(path), "not a regular file"),
        (make_socket, "not a regular file"),
    ],
)
def test_what_is_no_regular_file_is_left_and_said_so(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "plain").write_text("x")
    make(folder / "odd")
    assert collected(folder) == ({"plain": b"x"}, {"odd": reason})


def test_a_linked_folder_is_not_entered(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "workspace"
    for path in (outside, folder):
        path.mkdir()
    (outside / "secret").write_text("s")
    (folder / "link").symlink_to(outside)
    (folder / "up").symlink_to("..")
    assert collected(folder, "**", "link/*", "up/**") == ({}, {"link": "a link", "up": "a link"})
    assert (folder / "link/secret").read_text() == "s"  # a follower would have read it


def test_a_sparse_giant_is_left_without_being_read(tmp_path: Path) -> None:
    with (tmp_path / "giant").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "small").write_text("x")
    found, skipped = collected(tmp_path)
    assert found == {"small": b"x"}
    assert skipped == {"giant": f"its {1 << 40} bytes pass the limit"}


def test_bytes_and_numbers_are_bounded_in_all(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name * 4)
    found, skipped = collected(tmp_path, limit_bytes=9)
    assert sum(map(len, found.values())) <= 9
    assert sorted(found) == ["a", "b"] and "limit" in skipped["c"]
    found, skipped = collected(tmp_path, limit_count=1)
    assert sorted(found) == ["a"] and sorted(skipped) == ["b", "c"]
    assert collected(tmp_path, limit_bytes=12)[0].keys() == set("abc")


def test_a_name_that_is_no_utf8_is_left_and_shown_escaped(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"d\xff")
    odd.mkdir()
    (odd / "in.txt").touch()
    (tmp_path / os.fsdecode(b"x\xfe.txt")).touch()
    (tmp_path / "é\n.txt").touch()
    found, skipped = collected(tmp_path)
    assert found == {"é\n.txt": b""}
    assert skipped == {
        r"x\xfe.txt": "its name is not UTF-8",
        r"d\xff/in.txt": "its name is not UTF-8",
    }
    for text in skipped:
        text.encode()


def test_a_tree_that_is_too_deep_is_left_and_said_so(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for level in range(300):
        os.mkdir("dir", dir_fd=here)
        below = os.open("dir", os.O_RDONLY, dir_fd=here)
        if level in (3, 299):
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.close(here)
        here = below
    os.close(here)
    found, skipped = collected(tmp_path)
    assert list(found) == ["dir/dir/dir/dir/file"]
    (reason,) = skipped.values()
    assert "deeper" in reason
    for text in skipped:
        text.encode()


def test_a_deep_tree_of_names_that_are_no_utf8_is_shown_escaped(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"/".join([b"\xff"] * 80))).mkdir(parents=True)
    for text in collected(tmp_path)[1]:
        text.encode()


@pytest.mark.skipif(os.geteuid() == 0, reason="missing fact: a plain user (root opens everything)")
def test_folders_and_files_of_mode_0_are_left_and_said_so_to_a_plain_user(tmp_path: Path) -> None:
    closed, file = tmp_path / "closed", tmp_path / "file"
    closed.mkdir()
    file.touch()
    closed.chmod(0)
    file.chmod(0)
    try:
        found, skipped = collected(tmp_path)
    finally:
        closed.chmod(0o700)
    assert found == {}
    assert skipped == {"closed": "Permission denied", "file": "Permission denied"}


@pytest.mark.skipif(os.geteuid() != 0, reason="missing fact: root")
def test_folders_and_files_of_mode_0_are_no_obstacle_to_root(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/file").write_text("x")
    (tmp_path / "closed/file").chmod(0)
    (tmp_path / "closed").chmod(0)
    assert collected(tmp_path) == ({"closed/file": b"x"}, {})


def test_a_name_that_turns_into_a_link_while_it_is_read_gives_no_foreign_byte(
    tmp_path: Path,
) -> None:
    """The guest is dead by contract; the reader holds on its own all the same."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    (folder / "plain").write_text("plain")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (folder / "new").symlink_to("../secret")
            (folder / "new").replace(folder / "target")
            (folder / "new").write_text("mine")
            (folder / "new").replace(folder / "target")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        contents = {collected(folder)[0].get("target", b"none") for _ in range(300)}
    finally:
        stop.set()
        thread.join()
    assert b"secret" not in contents
    assert contents & {b"mine", b"none"}


@pytest.mark.parametrize("name", ["../secret", "link", "link/x", "/etc/passwd", "sub/../../secret"])
def test_nothing_outside_of_a_folder_can_be_opened_through_it(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "workspace"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").touch()
    (folder / "link").symlink_to("..")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError):
            os.close(open_beneath(descriptor, name, os.O_RDONLY))
        os.close(open_beneath(descriptor, "sub", os.O_RDONLY))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("path", "glob", "expected"),
    [
        ("a", "a", True),
        ("a", "*", True),
        ("a/b", "*", False),
        ("a/b", "*/*", True),
        ("a/b/c", "**", True),
        ("a", "**", True),
        ("a/b/c", "a/**", True),
        ("a", "a/**", True),
        ("b/c", "a/**", False),
        ("c.txt", "**/*.txt", True),
        ("a/b/c.txt", "**/*.txt", True),
        ("a/b/c.txt", "**/b/*.txt", True),
        ("a/b/c.txt", "*.txt", False),
        ("a/x/b/y/c", "a/**/b/**/c", True),
        ("a/b/c", "a/**/b/**/c", True),
        ("a/c", "a/**/b/**/c", False),
        ("abc", "a?c", True),
        ("a/c", "a?c", False),
        ("b", "[a-c]", True),
        ("d", "[!a-c]", True),
        ("A", "a", False),
        (".x", "*", True),
        ("a\nb", "a*b", True),
        ("a*", "a[*]", True),
        ("ab", "a[*]", False),
        ("[", "[", True),
    ],
)
def test_globs_mean_what_they_mean_elsewhere(path: str, glob: str, expected: bool) -> None:
    assert matches(path, glob) is expected


def test_a_match_takes_little_time_whatever_the_guest_calls_its_files() -> None:
    started = time.monotonic()
    assert not matches("/".join(["a" * 200] * 40), "/".join(["**", "a*a*a*a*b"] * 6))
    assert time.monotonic() - started < 1
