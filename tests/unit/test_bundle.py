"""A bundle is taken whole or refused whole, whatever its generator made."""

import errno
import hashlib
import os
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloche.errors import InvalidRequestError
from cloche.jobs.project import bundle as reading
from cloche.jobs.project import survey as rules
from cloche.jobs.project.bundle import Bundle, read_bundle
from cloche.jobs.refusal import JobRefusedError
from cloche.linux import trees
from cloche.linux.trees import Entry, Tree
from cloche.model.job import ReasonCode

PROJECT = {"package.json": "{}", "src/main.ts": "export {};\n", "src/ui/App.tsx": "é"}


def short(value: Any) -> str:
    """For a test's id."""
    return ascii(value)[:40] if isinstance(value, str) else type(value).__name__


def refusal(source: Any, **options: Any) -> str:
    """The message with which a bundle is refused."""
    with pytest.raises(JobRefusedError) as caught:
        read_bundle(source, **options)
    assert caught.value.reason.code is ReasonCode.BUNDLE_REFUSED
    message = caught.value.reason.message
    assert message.isprintable()
    assert len(message) < 1000
    return message


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        target.chmod(0o644)
    return folder


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    here = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


# --- What is taken


def test_a_mapping_is_taken_as_bytes_by_sorted_path() -> None:
    found = read_bundle({"b/c": b"\xff\0", "a.txt": "é", "B.txt": ""})
    assert list(found.files.items()) == [
        ("B.txt", b""),
        ("a.txt", "é".encode()),
        ("b/c", b"\xff\0"),
    ]
    assert found.left_out == {}
    assert found.executables == frozenset()


def test_a_folder_and_a_mapping_of_the_same_files_are_the_same_bundle(tmp_path: Path) -> None:
    write(tmp_path, {**PROJECT, "run.sh": "#!/bin/sh\n"})
    (tmp_path / "run.sh").chmod(0o700)
    (tmp_path / "empty/folder").mkdir(parents=True)
    from_folder = read_bundle(str(tmp_path))
    assert from_folder == read_bundle({**PROJECT, "run.sh": "#!/bin/sh\n"})
    assert from_folder == read_bundle(from_folder.files)
    assert from_folder.executables == {"run.sh"}
    assert len(from_folder.files) == 4


def test_an_empty_bundle_is_taken(tmp_path: Path) -> None:
    assert read_bundle({}).files == {}
    assert read_bundle(str(tmp_path)) == read_bundle({})


def test_nobody_can_change_a_bundle() -> None:
    given = dict(PROJECT)
    found = read_bundle(given)
    given["later"] = "x"
    assert "later" not in found.files
    with pytest.raises(TypeError):
        found.files["later"] = b""  # type: ignore[index]
    with pytest.raises(TypeError):
        found.left_out["later"] = ""  # type: ignore[index]
    with pytest.raises(AttributeError):
        found.sha256 = ""  # type: ignore[misc]


@pytest.mark.parametrize("mode", [0o100, 0o010, 0o001, 0o755])
def test_any_x_bit_makes_a_file_of_a_folder_executable(tmp_path: Path, mode: int) -> None:
    write(tmp_path, {"a": "", "b": "#!/bin/sh\n"})
    (tmp_path / "a").chmod(0o600 | mode)
    assert read_bundle(str(tmp_path)).executables == {"a"}


def test_only_what_starts_with_a_hash_bang_is_executable_in_a_mapping() -> None:
    found = read_bundle({"a": "#!/bin/sh", "b": b"#!", "c": " #!", "d": "#", "e": ""})
    assert found.executables == {"a", "b"}


def test_the_hash_is_that_of_the_documented_framing() -> None:
    framed = b"cloche-bundle-1\0"
    for path, kind, content in ((b"a", b"x", b"#!\n"), ("é/b".encode(), b"-", b"")):
        framed += len(path).to_bytes(8, "big") + path + kind
        framed += len(content).to_bytes(8, "big") + content
    found = read_bundle({"é/b": "", "a": "#!\n"})
    assert found.sha256 == hashlib.sha256(framed).hexdigest()


def test_the_hash_tells_apart_paths_contents_and_modes(tmp_path: Path) -> None:
    write(tmp_path, {"a": "b"})
    hashes = [
        read_bundle(files).sha256
        for files in ({}, {"a": "b"}, {"ab": ""}, {"a": "", "b": ""}, {"a": "b", "c": ""})
    ]
    (tmp_path / "a").chmod(0o755)
    hashes.append(read_bundle(str(tmp_path)).sha256)
    assert len(set(hashes)) == len(hashes)


def test_the_hash_covers_what_is_taken_and_nothing_else() -> None:
    with_extras = read_bundle({**PROJECT, ".git/HEAD": "x", "node_modules/a/b": "y"})
    assert with_extras.sha256 == read_bundle(PROJECT).sha256


# --- Paths


@pytest.mark.case("bun-01-traversal")
@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("../evil-1.txt", "the part `..`"),
        ("/tmp/evil-2.txt", "is absolute"),
        ("a/../../evil-3.txt", "the part `..`"),
        ("..\\evil-4.txt", "a backslash"),
        ("C:\\evil-5.txt", "a backslash"),
        ("./../evil-6.txt", "the part `.`"),
        ("a/./b/../../../evil-7.txt", "the part `.`"),
        ("a/..", "the part `..`"),
        ("..", "the part `..`"),
        (".", "the part `.`"),
        ("a/.", "the part `.`"),
        ("", "an empty part"),
        ("a//b", "an empty part"),
        ("a/", "an empty part"),
        ("//host/share", "is absolute"),
        ("~/.bashrc", "starts with `~`"),
        ("~", "starts with `~`"),
        ("~root/x", "starts with `~`"),
        ("C:/evil", "a drive letter"),
        ("c:evil", "a drive letter"),
        ("z:", "a drive letter"),
        ("\\\\host\\share", "a backslash"),
        ("a\\b", "a backslash"),
        ("a\0b", "a control character (U+0000)"),
        ("a\nb", "a control character (U+000A)"),
        ("a\x1b[2Jb", "a control character (U+001B)"),
        ("a\x7f", "a control character (U+007F)"),
        ("a\x85b", "a control character (U+0085)"),
        ("a\u2028b", "a line separator"),
        ("a\u2029b", "a paragraph separator"),
        ("a\u202egpj.exe", "an invisible character (U+202E)"),
        ("a\u2066b", "an invisible character (U+2066)"),
        ("a\u200bb", "an invisible character (U+200B)"),
        ("\ufeffpackage.json", "an invisible character (U+FEFF)"),
        ("a\U000e0041b", "an invisible character (U+E0041)"),
        ("a\udcffb", "is not UTF-8"),
        ("a\ud800b", "is not UTF-8"),
        ("n" * 256, "a name of over 255 bytes"),
        ("é" * 128, "a name of over 255 bytes"),
        ("a/" * 512 + "b", "is over 1024 bytes long"),
        ("é" * 600, "is over 1024 bytes long"),
        ("x" * 10_000_000, "is over 1024 bytes long"),
        ("/".join("a" * 65), "more than 64 folders deep"),
        # What another program may make of a name by normalising it.
        ("\u2025/evil", "another path when it is normalised: it has the part `..`"),
        ("a/\uff0e\uff0e/evil", "another path when it is normalised: it has the part `..`"),
        (".\u200d./evil", "another path when it is normalised: it has the part `..`"),
        ("a/\u200d/b", "another path when it is normalised: it has an empty part"),
        ("\uff0fetc", "another path when it is normalised: it is absolute"),
        ("..\uff3cevil", "another path when it is normalised: it has a backslash"),
        ("\uff23\uff1aevil", "another path when it is normalised: it starts with a drive letter"),
        ("\uff5e/evil", "another path when it is normalised: it starts with `~`"),
    ],
    ids=short,
)
def test_a_path_that_is_not_plain_is_refused_by_name_and_rule(path: str, rule: str) -> None:
    message = refusal({**PROJECT, path: "x"})
    assert rule in message
    assert message.startswith(f"bundle: {path[:80]!r}")


@pytest.mark.parametrize(
    "path",
    [
        "[id]/(group)/@modal/page.tsx", "..a", "a..b/...", ".env", "a b.txt", "-rf", "$HOME", "*",
        "a/~/b", "a/C:/b", "ab:c", "é/日本語/א.ts", "👩\u200d💻.md", "\u0645\u06cc\u200c\u062e",
        "CON", "nul.txt", "n" * 255, "/".join("a" * 64), "a/" * 40 + "n" * 200, "½.txt", "….md",
        "\ufdfa" * 40, "__proto__", "constructor", "%2e%2e/x", "x\u3000y",
    ],
    ids=short,
)  # fmt: skip
def test_a_plain_path_is_taken_as_it_stands(path: str) -> None:
    assert read_bundle({path: "x"}).files == {path: b"x"}


@pytest.mark.case("bun-01-traversal")
def test_of_several_bad_paths_the_first_in_order_is_named_and_the_others_counted() -> None:
    paths = ["z/../z", "src/main.ts", "../evil", "a//b"]
    for given in (paths, paths[::-1]):
        message = refusal(dict.fromkeys(given, ""))
        assert "'../evil'" in message
        assert "and 2 more" in message
    assert "more" not in refusal({"../evil": "", "a": ""})


def test_every_path_is_checked_before_any_content() -> None:
    assert "'z/../z'" in refusal({"a": 7, "z/../z": ""})


@pytest.mark.parametrize("name", [b"a\xff", b"a\\b", b"a\nb", "a\u202eb".encode(), b"c:x", b"~x"])
def test_a_name_that_is_not_plain_is_refused_in_a_folder_too(tmp_path: Path, name: bytes) -> None:
    write(tmp_path, PROJECT)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    assert repr(os.fsdecode(name)) in refusal(str(tmp_path))


def test_a_bad_folder_is_not_entered(tmp_path: Path) -> None:
    write(tmp_path, {"a\\b/" + "x/" * 70 + "c": ""})
    message = refusal(str(tmp_path))
    assert message.startswith("bundle: 'a\\\\b' has a backslash")
    assert "more" not in message


@pytest.mark.parametrize("key", [7, None, b"a", ("a",), 10**5000, float("nan")], ids=short)
def test_a_key_that_is_no_text_is_refused(key: Any) -> None:
    assert "paths are text" in refusal({"package.json": "{}", key: ""})


# --- Two entries, one name


CASE_05 = {
    "package.json": "{}", "Src/a.ts": "1", "src/a.ts": "2", "caf\u00e9.ts": "3",
    "cafe\u0301.ts": "4", "stra\u00dfe.ts": "5", "strasse.ts": "6", "x": "file", "x/y": "dir",
    "package.JSON": "{}",
}  # fmt: skip


@pytest.mark.case("bun-05-case-collision")
def test_a_bundle_of_colliding_names_is_refused_with_all_of_them_counted() -> None:
    message = refusal(CASE_05)
    assert "'café.ts' is the same as" in message
    assert "and 4 more" in message  # src, straße or strasse, x, package.json


@pytest.mark.case("bun-05-case-collision")
@pytest.mark.parametrize(
    "paths",
    [
        ("Src/a.ts", "src/a.ts"),
        ("Src/a.ts", "src/b.ts"),
        ("caf\u00e9.ts", "cafe\u0301.ts"),
        ("stra\u00dfe.ts", "strasse.ts"),
        ("STRASSE", "stra\u1e9ee"),
        ("package.json", "package.JSON"),
        ("a/b/C/d", "a/b/c/e"),
        ("ﬁle", "file"),
        ("K", "\u212a"),
        ("s", "\u017f"),
        ("\uff21.ts", "a.ts"),
        ("x²", "x2"),
        ("\u3385", "kb"),
        ("❤", "❤\ufe0f"),
        ("ab", "a\u200db"),
        ("\u1fb3", "\u03b1\u03b9"),
        ("X", "x/y"),
        ("x", "X/y"),
    ],
)
def test_two_names_that_some_file_system_takes_for_one_are_refused(paths: tuple[str, str]) -> None:
    assert "is the same as" in refusal(dict.fromkeys(paths, ""))
    for path in paths:  # each alone is fine
        assert read_bundle({path: ""}).files == {path: b""}


@pytest.mark.case("bun-05-case-collision")
@pytest.mark.parametrize("below", ["x/y", "x/y/z"])
def test_one_name_for_a_file_and_a_folder_is_refused(below: str) -> None:
    assert refusal({"x": "", below: ""}).startswith("bundle: 'x' is a file and a folder")


@pytest.mark.case("bun-05-case-collision")
def test_colliding_names_are_refused_in_a_folder_too(tmp_path: Path) -> None:
    write(tmp_path, {"Src/a.ts": "1", "package.json": "{}"})
    (tmp_path / "src").mkdir()
    if len(list(tmp_path.iterdir())) < 3:
        pytest.skip("needs a file system that tells letters of either case apart")
    assert refusal(str(tmp_path)).startswith("bundle: 'src' is the same as 'Src'")


def test_equal_names_in_different_folders_are_no_collision() -> None:
    paths = ["a/Index.ts", "b/index.ts", "index.TS", "a/a/INDEX.ts"]
    assert set(read_bundle(dict.fromkeys(paths, "")).files) == set(paths)


# --- What is no file


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, in_folder(path.parent):
        listener.bind(path.name)  # a socket's path has at most 107 bytes


def make_with_mode(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_text("#!/bin/sh\n")
        path.chmod(mode)
        assert stat.S_IMODE(path.stat().st_mode) == mode

    return make


@pytest.mark.case("bun-02-symlink-entry")
@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "is a link"),
        (lambda path: path.symlink_to("package.json"), "is a link"),
        (lambda path: path.symlink_to("/"), "is a link"),
        (lambda path: path.symlink_to("."), "is a link"),
        (lambda path: path.symlink_to("nowhere"), "is a link"),
        (lambda path: os.mkfifo(path), "is a FIFO"),
        (make_socket, "is a socket"),
        (make_with_mode(0o4755), "setuid, setgid or sticky bit"),
        (make_with_mode(0o2755), "setuid, setgid or sticky bit"),
        (make_with_mode(0o1644), "setuid, setgid or sticky bit"),
    ],
)
@pytest.mark.parametrize("name", ["odd", "src/ui/odd"])
def test_an_entry_that_is_no_plain_file_is_refused_by_name(
    tmp_path: Path, make: Callable[[Path], None], rule: str, name: str
) -> None:
    write(tmp_path, PROJECT)
    assert len(read_bundle(str(tmp_path)).files) == 3
    make(tmp_path / name)
    message = refusal(str(tmp_path))
    assert message.startswith(f"bundle: {name!r} ")
    assert rule in message
    assert "more" not in message


@pytest.mark.case("bun-02-symlink-entry")
def test_all_entries_that_are_no_plain_files_are_counted(tmp_path: Path) -> None:
    write(tmp_path, PROJECT)
    (tmp_path / "link").symlink_to(tmp_path.parent)
    os.mkfifo(tmp_path / "pipe")
    make_with_mode(0o4755)(tmp_path / "suid")
    message = refusal(str(tmp_path))
    assert message.startswith("bundle: 'link' is a link")
    assert "and 2 more" in message


@pytest.mark.case("bun-02-symlink-entry")
@pytest.mark.parametrize("content", [{"type": "symlink", "target": "/"}, 7, ["x"]])
def test_a_mapping_can_give_nothing_but_files(content: Any) -> None:
    message = refusal({**PROJECT, "link": content})
    assert message.startswith("bundle: 'link' must be text or bytes")
    assert "'link' is a file and a folder" in refusal({"link": content, "link/owned.txt": ""})


def test_a_device_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    list_only(monkeypatch, "null")
    assert refusal("/dev").startswith("bundle: 'null' is a device")


def test_another_file_system_below_the_folder_is_not_entered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    list_only(monkeypatch, "proc")
    message = refusal("/")
    assert message.startswith("bundle: 'proc' is on another file system")


def list_only(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = Tree.list_folder

    def listed(tree: Tree, path: str, limit_count: int) -> list[Entry]:
        return [entry for entry in real(tree, path, limit_count) if entry.path == name]

    monkeypatch.setattr(Tree, "list_folder", listed)


def test_a_hard_link_is_a_file_like_any_other(tmp_path: Path) -> None:
    write(tmp_path, PROJECT)
    (tmp_path / "again.json").hardlink_to(tmp_path / "package.json")
    assert read_bundle(str(tmp_path)).files["again.json"] == b"{}"


def test_text_that_has_no_bytes_is_refused() -> None:
    message = refusal({"a": "x", "b": "\ud800", "c": "\udcff"})
    assert message.startswith("bundle: 'b' has text with a lone surrogate")
    assert "and 1 more" in message


# --- What is left out


ANYWHERE = ("node_modules", ".git", ".hg", ".svn", ".pnpm-store", ".DS_Store")
AT_THE_TOP = (
    ".next", ".nuxt", ".output", ".svelte-kit", ".turbo", ".cache", ".vite", ".parcel-cache",
    "coverage",
)  # fmt: skip


def taken_both_ways(folder: Path, files: dict[str, str], outputs: tuple[str, ...] = ()) -> Bundle:
    """The bundle of these files, which is the same from a mapping as from a folder."""
    found = read_bundle(files, outputs=outputs)
    assert found == read_bundle(str(write(folder, files)), outputs=outputs)
    return found


@pytest.mark.parametrize("name", ANYWHERE)
def test_what_a_job_makes_itself_is_left_out_at_any_depth(tmp_path: Path, name: str) -> None:
    kept = {f"{name}x": "", f"x{name}/y": "", "a/package.json": ""}
    extra = {f"{name}/a/b": "1", f"{name}/{name}/c": "2", f"a/{name}/d": "3", f"b/c/{name}": "4"}
    found = taken_both_ways(tmp_path, {**kept, **extra})
    assert set(found.files) == set(kept)
    assert set(found.left_out) == {name, f"a/{name}", f"b/c/{name}"}
    assert all(why.isprintable() and len(why) > 10 for why in found.left_out.values())


@pytest.mark.parametrize("name", AT_THE_TOP)
def test_output_of_builds_is_left_out_at_the_top_only(tmp_path: Path, name: str) -> None:
    found = taken_both_ways(tmp_path, {f"{name}/a": "", f"src/{name}/b": "", "c": ""})
    assert set(found.files) == {f"src/{name}/b", "c"}
    assert set(found.left_out) == {name}


@pytest.mark.parametrize(
    ("glob", "folders"),
    [
        ("dist/**", {"dist"}),
        ("dist/assets/*.js", {"dist"}),
        ("dist/**/*.js", {"dist"}),
        ("out/index.html", {"out"}),
        ("*/dist/**", {"src/dist"}),
        ("src/out/**", {"src/out"}),
        ("src/**", set()),
        ("src/*.js", set()),
        ("**/dist", set()),
        ("di?t/**", set()),
        ("[d]ist/**", set()),
        ("report.json", set()),
        ("dist", set()),
        ("*", set()),
    ],
)
def test_the_folders_that_an_artifact_glob_names_are_left_out_and_no_others(
    tmp_path: Path, glob: str, folders: set[str]
) -> None:
    paths = ("dist/a", "dist/assets/b.js", "out/b", "src/dist/c", "report.json", "src/out/d")
    found = taken_both_ways(tmp_path, dict.fromkeys(paths, ""), (glob,))
    assert set(found.left_out) == folders
    gone = tuple(f"{folder}/" for folder in folders)
    assert set(found.files) == {path for path in paths if not path.startswith(gone)}


def test_a_folder_whose_name_looks_like_a_glob_is_kept() -> None:
    assert set(read_bundle({"[id]/page.ts": ""}, outputs=("[id]/**",)).files) == {"[id]/page.ts"}


def test_what_is_left_out_is_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path, {**PROJECT, "node_modules/a\\b/c": "", "coverage/x/Y": "", "coverage/x/y": ""})
    (tmp_path / "node_modules/link").symlink_to("/")
    os.mkfifo(tmp_path / "node_modules/pipe")
    make_with_mode(0o4755)(tmp_path / "node_modules/suid")
    (tmp_path / "src/node_modules").symlink_to("/")
    (tmp_path / ".git").symlink_to("/etc/passwd")
    found = read_bundle(str(tmp_path))
    assert set(found.files) == set(PROJECT)
    assert set(found.left_out) == {"node_modules", "src/node_modules", ".git", "coverage"}


def test_a_path_in_a_mapping_is_checked_even_when_it_would_be_left_out() -> None:
    assert "'node_modules/../../evil'" in refusal({"node_modules/../../evil": ""})


# --- Bounds


def test_more_entries_than_the_limit_are_refused_in_a_mapping() -> None:
    below = {f"d/f{at}": "" for at in range(rules.ENTRIES_LIMIT_COUNT - 1)}
    assert len(read_bundle(below).files) == 49_999  # and their folder
    assert "more than 50000 files and folders" in refusal({**below, "d/one-more": ""})


def test_more_entries_than_the_limit_are_refused_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "ENTRIES_LIMIT_COUNT", 10)
    write(tmp_path, {f"d/f{at}": "" for at in range(9)} | {"node_modules/a": ""})
    assert "more than 10 files and folders" in refusal(str(tmp_path))
    (tmp_path / "d/f0").unlink()
    assert len(read_bundle(str(tmp_path)).files) == 8
    (tmp_path / "d/a/b").mkdir(parents=True)  # empty folders count as well
    assert "more than 10 files and folders" in refusal(str(tmp_path))


def test_a_folder_of_too_many_entries_is_not_listed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "ENTRIES_LIMIT_COUNT", 10)
    write(tmp_path, {f"f{at}": "" for at in range(300)})
    looked_at: list[str] = []
    real = os.scandir

    class Listing:
        def __init__(self, descriptor: int) -> None:
            self._entries = real(descriptor)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            return self

        def __exit__(self, *_: object) -> None:
            self._entries.close()

        def __iter__(self) -> Iterator[os.DirEntry[str]]:
            for entry in self._entries:
                looked_at.append(entry.name)
                yield entry

    monkeypatch.setattr(trees.os, "scandir", Listing)
    assert "more than 10 files and folders" in refusal(str(tmp_path))
    assert len(looked_at) == 11


def test_content_up_to_the_limit_is_taken_and_a_byte_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CONTENT_LIMIT_BYTES", 10)
    files = {"a": "12345", "b": "éé1"}
    assert read_bundle(files) == read_bundle(str(write(tmp_path, files)))
    for source in ({**files, "b": "ééé"}, str(write(tmp_path, {"b": "ééé"}))):
        assert refusal(source).startswith("bundle: 'b' with its 6 bytes takes the bundle over")


def test_a_huge_file_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, PROJECT)
    os.truncate(tmp_path / "src/main.ts", 1 << 40)  # sparse
    monkeypatch.delattr(Tree, "read_file")
    assert "'src/main.ts' with its 1099511627776 bytes" in refusal(str(tmp_path))


def test_deep_folders_are_refused_without_going_down_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[str] = []
    real = Tree.list_folder

    def listed(tree: Tree, path: str, limit_count: int) -> list[Entry]:
        entered.append(path)
        return real(tree, path, limit_count)

    monkeypatch.setattr(Tree, "list_folder", listed)
    with in_folder(tmp_path):
        Path("/".join("d" * 400)).mkdir(parents=True)
    message = refusal(str(tmp_path))
    assert "more than 64 folders deep" in message
    assert max(path.count("/") + 1 for path in entered) == 64
    entered.clear()
    with in_folder(tmp_path):
        Path("/".join(["n" * 200] * 8)).mkdir(parents=True)
    assert "and 1 more" in refusal(str(tmp_path))
    assert max(map(len, entered)) <= 1024


# --- A folder that changes while it is read


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder outside of the project, with a file of a name that is in the project too."""
    return write(tmp_path / "outside", {"main.ts": "the secret", "App.tsx": "the secret"})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write(tmp_path / "project", PROJECT)


def swap_for_link(path: Path, target: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(target)


def before_listing(monkeypatch: pytest.MonkeyPatch, folder: str, act: Callable[[], None]) -> None:
    """Acts just before a folder is listed, after its name was seen."""
    real = Tree.list_folder

    def listed(tree: Tree, path: str, limit_count: int) -> list[Entry]:
        if path == folder:
            act()
        return real(tree, path, limit_count)

    monkeypatch.setattr(Tree, "list_folder", listed)


def before_reading(monkeypatch: pytest.MonkeyPatch, file: str, act: Callable[[], None]) -> None:
    """Acts just before a file is read, after all was surveyed."""
    real = Tree.read_file

    def read(tree: Tree, entry: Entry) -> bytes:
        if entry.path == file:
            act()
        return real(tree, entry)

    monkeypatch.setattr(Tree, "read_file", read)


def test_a_folder_swapped_for_a_link_before_it_is_listed_is_refused(
    project: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_listing(monkeypatch, "src", lambda: swap_for_link(project / "src", secret))
    assert refusal(str(project)).startswith("bundle: 'src' changed while it was read")
    assert (project / "src/main.ts").read_text() == "the secret"  # for who follows


@pytest.mark.parametrize("swapped", ["src", "src/main.ts"])
def test_what_is_swapped_for_a_link_before_it_is_read_is_refused(
    project: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    target = secret if swapped == "src" else secret / "main.ts"
    before_reading(monkeypatch, "src/main.ts", lambda: swap_for_link(project / swapped, target))
    assert refusal(str(project)).startswith("bundle: 'src/main.ts' is a link")
    assert (project / "src/main.ts").read_text() == "the secret"


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


@pytest.mark.parametrize(
    "change",
    [
        replace_by(os.mkfifo),
        replace_by(make_socket),
        replace_by(Path.mkdir),
        replace_by(lambda path: None),
        lambda path: path.write_text("longer than it was before"),
        lambda path: path.write_text(""),
        lambda path: path.chmod(0o4644),
        lambda path: path.chmod(0o755),
    ],
    ids="fifo socket folder gone longer shorter setuid executable".split(),
)
def test_a_file_that_is_another_when_it_is_read_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    assert set(read_bundle(str(project)).files) == set(PROJECT)
    before_reading(monkeypatch, "src/main.ts", lambda: change(project / "src/main.ts"))
    message = refusal(str(project))
    assert message.startswith("bundle: 'src/main.ts' changed while it was read")


def test_a_folder_that_vanishes_before_it_is_listed_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_listing(monkeypatch, "src", lambda: (project / "src").rename(project / "else"))
    assert refusal(str(project)).startswith("bundle: 'src' changed while it was read")


def test_a_file_replaced_by_one_of_the_same_size_is_read_whole(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write(project.parent, {"other": "import 's';"})
    before_reading(
        monkeypatch, "src/main.ts", lambda: (other / "other").rename(project / "src/main.ts")
    )
    assert read_bundle(str(project)).files["src/main.ts"] == b"import 's';"


@pytest.mark.parametrize("size_bytes", [0, 4, 6, 1 << 40])
def test_a_file_that_grows_or_shrinks_under_the_reader_is_refused_and_not_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    write(tmp_path, {"log": "12345"})
    real = os.fstat
    resized: list[int] = []

    def fstat(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        if not resized:
            resized.append(size_bytes)
            os.truncate(tmp_path / "log", size_bytes)
            os.utime(tmp_path / "log", ns=(status.st_atime_ns, status.st_mtime_ns))  # hides it
        return status

    with Tree(str(tmp_path)) as tree:
        (entry,) = tree.list_folder("", 10)
        assert tree.read_file(entry) == b"12345"
        monkeypatch.setattr(trees.os, "fstat", fstat)
        with pytest.raises(OSError, match="Changed while it was read"):
            tree.read_file(entry)
    assert resized


def test_a_file_written_under_the_reader_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"log": "12345"})
    os.utime(tmp_path / "log", (1, 1))
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        (tmp_path / "log").write_text("54321")
        return status

    with Tree(str(tmp_path)) as tree:
        (entry,) = tree.list_folder("", 10)
        monkeypatch.setattr(trees.os, "fstat", fstat)
        with pytest.raises(OSError, match="Changed while it was read"):
            tree.read_file(entry)


def test_what_is_no_regular_file_is_not_read_by_a_tree(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with Tree(str(tmp_path)) as tree:
        (entry,) = tree.list_folder("", 10)
        with pytest.raises(OSError, match="Not a regular file"):
            tree.read_file(entry)


def deny(monkeypatch: pytest.MonkeyPatch, *closed: str) -> None:
    """Closes these paths, also to root."""
    real = trees.open_beneath

    def opened(folder: int, name: str, flags: int) -> int:
        if name in closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return real(folder, name, flags)

    monkeypatch.setattr(trees, "open_beneath", opened)


@pytest.mark.parametrize("closed", ["src", "src/main.ts"])
def test_an_entry_that_cannot_be_read_is_refused_by_name(
    project: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    deny(monkeypatch, closed)
    message = refusal(str(project))
    assert message.startswith(f"bundle: {closed!r} cannot be read (Permission denied)")


def test_folders_that_cannot_be_read_are_counted_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "ENTRIES_LIMIT_COUNT", 4)
    deny(monkeypatch, "a", "b", "c", "d")
    for name in "abcd":
        (tmp_path / name).mkdir()
    assert "and 3 more" in refusal(str(tmp_path))


# --- The caller's own mistakes


def test_the_folder_itself_may_be_reached_through_a_link(project: Path) -> None:
    link = project.with_name("link")
    link.symlink_to(project)
    assert read_bundle(str(link)) == read_bundle(f"{link}/") == read_bundle(PROJECT)


def test_a_folder_by_a_relative_path_is_taken(project: Path) -> None:
    with in_folder(project):
        assert read_bundle(".") == read_bundle(PROJECT)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "No such file or directory"),
        ("package.json", "is no folder, tar"),
        ("pipe", "Not a directory"),
        ("loop", "Too many levels of symbolic links"),
        ("a\0b", "Not a path"),
        ("a\ud800b", "Not a path"),
        ("n" * 5000, "File name too long"),
    ],
    ids=short,
)
def test_a_folder_that_cannot_be_read_is_an_invalid_request(
    project: Path, name: str, why: str
) -> None:
    os.mkfifo(project / "pipe")
    (project / "loop").symlink_to("loop")
    with pytest.raises(InvalidRequestError, match=why) as caught:
        read_bundle(f"{project}/{name}")
    assert caught.value.retry_safe
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("name", "is_hinted"), [("job.yaml", True), ("job.yml", True), ("j.json", True), ("j", False)]
)
def test_a_spec_in_the_place_of_a_bundle_is_told_its_own(
    tmp_path: Path, name: str, is_hinted: bool
) -> None:
    (tmp_path / name).write_text("bundle: .\n")
    with pytest.raises(InvalidRequestError, match="is no folder") as caught:
        read_bundle(str(tmp_path / name))
    assert ("`cloche job run -f FILE`" in caught.value.message) is is_hinted


def test_a_folder_that_cannot_be_listed_is_an_invalid_request(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(monkeypatch, ".")
    with pytest.raises(InvalidRequestError, match="Permission denied"):
        read_bundle(str(project))


@pytest.mark.parametrize("source", [None, 7, b"/tmp", Path("/tmp"), ["a"], {"a"}])
def test_a_source_of_another_type_is_an_invalid_request(source: Any) -> None:
    with pytest.raises(InvalidRequestError, match="must be a path, a diff or a mapping"):
        read_bundle(source)


def test_no_descriptor_is_left_open_whatever_happens(project: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    read_bundle(str(project))
    assert descriptors() == before
    os.mkfifo(project / "src/pipe")
    refusal(str(project))
    assert descriptors() == before
