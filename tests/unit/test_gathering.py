"""Taking files and folders out of a tree that hostile code has filled."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from cloche.linux.gathering import (
    TreeCopy,
    TreeRefusedError,
    copy_around,
    copy_folder,
    copy_tree,
    gather,
)

OTHER = "another file of the host"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text(OTHER)
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


def gathered(folder: Path, *globs: str, entries_limit_count: int = 1000):
    found = {}

    def take(file):
        found[file.path] = (os.read(file.descriptor, 1 << 16), file.globs, file.executable)
        return "not wanted" if file.path.endswith("unwanted") else None

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        skipped, count = gather(descriptor, globs, take, entries_limit_count=entries_limit_count)
    finally:
        os.close(descriptor)
    assert count >= len(skipped)
    return found, skipped


def write(folder: Path, *paths: str) -> None:
    for path in paths:
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(path)


def test_each_file_comes_with_the_globs_that_it_matches(tree):
    write(tree, "dist/a.js", "dist/b/c.css", "src/a.js", "top")
    (tree / "dist/a.js").chmod(0o755)
    found, skipped = gathered(tree, "dist/**", "**/*.js")
    assert found == {
        "dist/a.js": (b"dist/a.js", ("dist/**", "**/*.js"), True),
        "dist/b/c.css": (b"dist/b/c.css", ("dist/**",), False),
        "src/a.js": (b"src/a.js", ("**/*.js",), False),
    }
    assert skipped == {}


def test_dependencies_are_entered_only_where_a_glob_spells_them_out(tree):
    write(tree, "node_modules/a/x.js", "b/node_modules/x.js", "x.js", ".git/x.js")
    assert set(gathered(tree, "**/x.js")[0]) == {"x.js"}
    assert set(gathered(tree, "node_modules/**")[0]) == {"node_modules/a/x.js"}


def test_folders_in_which_nothing_can_match_are_not_looked_at(tree):
    write(tree, *(f"src/{number}" for number in range(50)), "dist/x")
    assert set(gathered(tree, "dist/*", entries_limit_count=5)[0]) == {"dist/x"}
    _, skipped = gathered(tree, "**/x", entries_limit_count=5)
    assert "too many entries to look at" in skipped.values()


@pytest.mark.case("art-01-symlink", "link-07-supervisor-proc-self")
def test_links_are_named_and_never_followed(tree, outside):
    write(tree, "dist/ok.txt")
    for name, target in (
        ("file", outside / "secret"),
        ("folder", outside),
        ("root", "/"),
        ("environment", "/proc/self/environ"),
        ("stdin", "/proc/self/fd/0"),
        ("loop", "loop"),
        ("up", "../.."),
    ):
        (tree / "dist" / name).symlink_to(target)
    found, skipped = gathered(tree, "dist/**", "dist/folder/secret")
    assert set(found) == {"dist/ok.txt"}
    names = ("file", "folder", "root", "environment", "stdin", "loop", "up")
    assert skipped == {f"dist/{name}": "a link" for name in names}
    assert (outside / "secret").read_text() == OTHER  # what the links lead to is there


@pytest.mark.case("art-01-symlink")
def test_a_folder_that_was_replaced_by_a_link_is_named(tree):
    write(tree, "real/ok.txt")
    (tree / "dist").symlink_to("real")
    assert gathered(tree, "dist/**") == ({}, {"dist": "a link"})


@pytest.mark.case("art-02-special-files")
def test_special_files_are_named_and_never_opened(tree):
    write(tree, "dist/ok.txt")
    os.mkfifo(tree / "dist/pipe")
    (tree / "dist/pipelink").symlink_to("pipe")
    here = Path.cwd()
    os.chdir(tree / "dist")  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("s")
    finally:
        os.chdir(here)
    found, skipped = gathered(tree, "dist/**")
    assert set(found) == {"dist/ok.txt"}
    assert skipped == {
        "dist/pipe": "not a regular file",
        "dist/pipelink": "a link",
        "dist/s": "not a regular file",
    }


def test_what_the_taker_leaves_is_named_with_its_reason(tree):
    write(tree, "unwanted", "wanted")
    assert gathered(tree, "*")[1] == {"unwanted": "not wanted"}


def test_names_that_are_no_utf8_and_very_deep_folders_are_named(tree):
    os.close(os.open(os.fsencode(tree) + b"/\xff", os.O_CREAT | os.O_WRONLY))
    write(tree, "/".join("d" * 70) + "/x", "a\x1b[2J", "b\nc", "\u202egpj", "é 👩‍💻")
    found, skipped = gathered(tree, "**")
    assert set(found) == {"é 👩‍💻"}
    assert skipped["\\xff"] == "its name is not UTF-8"
    for name in ("a\x1b[2J", "b\nc", "\u202egpj"):
        assert skipped[name] == "its name has control or invisible characters"
    assert any("deeper than" in why for why in skipped.values())


def copied(tree: Path, target: Path, prefix: str = "", **limits) -> TreeCopy:
    target.mkdir()
    counts = TreeCopy(
        limits.get("limit_bytes", 1 << 20), limits.get("limit_count", 1000), stopped=False
    )
    source, into = os.open(tree, os.O_RDONLY), os.open(target, os.O_RDONLY)
    try:
        copy_tree(source, into, prefix, counts)
    finally:
        os.close(source)
        os.close(into)
    return counts


def test_a_tree_is_copied_with_plain_modes_and_its_inner_links(tree, tmp_path):
    write(tree, "a/run", "a/b/file")
    (tree / "a/run").chmod(0o6711)
    (tree / "a/b/file").chmod(0o600)
    (tree / "a/link").symlink_to("b/file")
    os.link(tree / "a/run", tree / "a/hard")
    counts = copied(tree, tmp_path / "copy")
    copy = tmp_path / "copy/a"
    assert (copy / "run").stat().st_mode & 0o7777 == 0o755
    assert (copy / "b/file").stat().st_mode & 0o7777 == 0o644
    assert (copy / "link").read_text() == "a/b/file"
    assert (copy / "hard").stat().st_nlink == 1
    assert (counts.entries_count, counts.size_bytes) == (6, 2 * len("a/run") + len("a/b/file"))


@pytest.mark.parametrize("link", ["/etc", "../x", "a/../../x", "../../../etc/passwd"])
def test_a_link_that_leads_out_of_the_root_is_refused(tree, tmp_path, link):
    (tree / "link").symlink_to(link)
    with pytest.raises(TreeRefusedError, match="leads out"):
        copied(tree, tmp_path / "copy")


def test_a_link_may_lead_up_as_far_as_the_root(tree, tmp_path):
    (tree / "link").symlink_to("../../packages/a")
    copied(tree, tmp_path / "copy", prefix="packages/b/node_modules/"[:-1] + "/")
    with pytest.raises(TreeRefusedError):
        copied(tree, tmp_path / "other", prefix="packages/")


def test_special_files_in_a_tree_are_refused(tree, tmp_path):
    os.mkfifo(tree / "pipe")
    with pytest.raises(TreeRefusedError, match="pipe"):
        copied(tree, tmp_path / "copy")


def copied_over(tree: Path, target: Path, base: Path, **limits: int) -> TreeCopy:
    """`copied`, of a tree that was laid over `base`."""
    target.mkdir()
    opened = [os.open(folder, os.O_RDONLY) for folder in (tree, target, base)]
    counts = TreeCopy(limits.get("limit_bytes", 1 << 20), 1000, base=opened[2])
    try:
        copy_tree(*opened[:2], "", counts, base=opened[2])
    finally:
        for each in opened:
            os.close(each)
    return counts


@pytest.fixture
def base(tree, tmp_path):
    """What the tree looks like where nobody has changed it."""
    write(tree, "a/same", "a/size", "a/time", "a/mode", "a/kind", "new/file")
    shutil.copytree(tree, tmp_path / "base")
    shutil.rmtree(tmp_path / "base/new")
    (tree / "a/size").write_text("longer than before")
    os.utime(tree / "a/time", ns=(1, 1))
    (tree / "a/mode").chmod(0o755)
    (tree / "a/kind").unlink()
    (tree / "a/kind").symlink_to("same")
    return tmp_path / "base"


def test_only_files_that_nobody_has_changed_are_those_of_the_base(tree, base, tmp_path):
    counts = copied_over(tree, tmp_path / "copy", base)
    assert counts.unchanged == {"a/same"}
    for name in ("same", "size", "time", "mode"):
        file = tmp_path / "copy/a" / name
        assert not file.samefile(base / "a" / name)
        assert file.read_bytes() == (tree / "a" / name).read_bytes()
        assert file.stat().st_mode & 0o111 == (tree / "a" / name).stat().st_mode & 0o111
    assert (tmp_path / "copy/a/kind").is_symlink()
    assert (tmp_path / "copy/new/file").read_text() == "new/file"
    assert counts.size_bytes == copied(tree, tmp_path / "control").size_bytes


def test_a_file_that_only_looks_like_that_of_the_base_becomes_the_base_s(tree, base, tmp_path):
    status = (base / "a/same").stat()
    (tree / "a/same").write_text("evil!!")
    os.utime(tree / "a/same", ns=(status.st_atime_ns, status.st_mtime_ns))
    copied_over(tree, tmp_path / "copy", base)
    assert (tmp_path / "copy/a/same").read_text() == "a/same"


def test_links_of_the_base_lead_nobody_elsewhere(tree, base, tmp_path):
    (tmp_path / "secret").mkdir()
    (base / "a").rename(tmp_path / "secret/a")
    (base / "a").symlink_to("../secret/a")
    assert copied_over(tree, tmp_path / "copy", base).unchanged == set()
    assert (tmp_path / "copy/a/same").read_text() == "a/same"


def test_files_that_are_those_of_the_base_count_too(tree, base, tmp_path):
    with pytest.raises(TreeRefusedError, match="bytes"):
        copied_over(tree, tmp_path / "copy", base, limit_bytes=10)


def test_a_tree_is_bounded_in_apparent_bytes_and_in_entries(tree, tmp_path):
    write(tree, *map(str, range(20)))
    with pytest.raises(TreeRefusedError, match="entries"):
        copied(tree, tmp_path / "count", limit_count=19)
    with (tree / "giant").open("wb") as giant:
        giant.truncate(1 << 40)
    with pytest.raises(TreeRefusedError, match="bytes"):
        copied(tree, tmp_path / "size")


def test_a_folder_that_is_not_there_is_left_out_and_a_link_in_its_place_refused(tree, outside):
    target = outside / "target"
    target.mkdir()
    (tree / "node_modules").symlink_to(outside)
    source, into = os.open(tree, os.O_RDONLY), os.open(target, os.O_RDONLY)
    try:
        copy_folder(source, into, "missing", TreeCopy(1000, 10))
        with pytest.raises(OSError, match="directory"):
            copy_folder(source, into, "node_modules", TreeCopy(1000, 10))
    finally:
        os.close(source)
        os.close(into)
    assert list(target.iterdir()) == []


def test_a_tree_is_copied_around_folders_but_not_around_packages_in_them(tree, tmp_path):
    write(tree, "a/file", "a/lib/file", "a/node_modules/b/file", "a/node_modules/c/file", "d/file")
    write(tree, "a/node_modules/b/node_modules/e/file", "left/file", "ab/file")
    (tmp_path / "target").mkdir()
    source, target = (os.open(tmp_path / name, os.O_RDONLY) for name in ("tree", "target"))
    counts = TreeCopy(1000, 100, left_out=frozenset({"left"}))
    try:
        copy_around(source, target, ["a", "a/node_modules/b"], counts)
    finally:
        os.close(source)
        os.close(target)
    copied = {
        str(path.relative_to(tmp_path / "target"))
        for path in (tmp_path / "target").rglob("*")
        if path.is_file()
    }
    assert copied == {
        "a/node_modules/b/node_modules/e/file",
        "a/node_modules/c/file",
        "ab/file",
        "d/file",
    }
