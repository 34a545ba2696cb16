"""Whatever names a generator makes up, a bundle that is taken stays in its folder."""

import tempfile
import unicodedata
from pathlib import Path, PurePosixPath, PureWindowsPath

from hypothesis import example, given
from hypothesis import strategies as st

from cloche.jobs.project.bundle import Bundle, read_bundle
from cloche.jobs.refusal import JobRefusedError

# Pieces that make readers of paths stumble, in any order.
shrapnel = st.lists(
    st.sampled_from(
        ["/", "/", "/", ".", "..", "a", "A", "b", "~", "C:", ":", "\\", " ", "\0", "\n", "%2e", "é",
         "e\u0301", "\u2025", "\uff0f", "\uff0e", "\uff3c", "\uff1a", "\uff23", "\u200d", "\u202e",
         "\ufe0f", "ß", "ss", "\u017f", "\u0131", "İ", "ﬁ", "\u0345", "\u0338", "℀",
         "\ud800", "\udcff", ".git", "node_modules", "n" * 130, "a/" * 40]
    ),
    max_size=7,
).map("".join)  # fmt: skip
paths = shrapnel | st.text(max_size=12)
contents = st.binary(max_size=8) | st.sampled_from(["#!/bin/sh\n", "", "é"])
mappings = st.dictionaries(paths, contents, max_size=6)


def taken(files: dict[str, str | bytes]) -> Bundle | None:
    """The bundle, or None when it was refused in the way that it should be."""
    try:
        return read_bundle(files)
    except JobRefusedError as error:
        assert error.reason.message.isprintable()
        assert len(error.reason.message) < 1000
        return None


def readings(path: str) -> set[str]:
    """What other programs may make of a path."""
    forms = {unicodedata.normalize(form, path) for form in ("NFC", "NFD", "NFKC", "NFKD")}
    bare = {text.replace("\u200d", "").replace("\u200c", "") for text in {path, *forms}}
    texts = {path, *forms, *bare}
    return texts | {text.lower() for text in texts} | {text.casefold() for text in texts}


def stays(path: str) -> bool:
    """Whether no system takes the path out of the folder that it is laid into."""
    folder = PureWindowsPath("D:/some/space")
    there = folder / path
    plain = PurePosixPath(path)
    return (
        str(plain) == path
        and bool(plain.parts)
        and not plain.is_absolute()
        and not {"..", ".", ""} & set(plain.parts)
        and there.is_relative_to(folder)
        and ".." not in there.parts
        and len(there.parts) == len(folder.parts) + len(plain.parts)
        and not path.startswith("~")
    )


def test_the_measure_of_these_tests_knows_a_path_that_leads_out() -> None:
    for path in ("../a", "/a", "a/../b", "C:a", "a\\..\\..\\b", "~/a", "a//b", "./a", "", "."):
        assert not stays(path), path
    assert stays("a/b.c")


@given(mappings)
@example({"ab\uff0fc": ""})
@example({"\u2025": ""})
def test_no_path_of_a_bundle_leads_out_of_its_folder(files: dict[str, str | bytes]) -> None:
    found = taken(files)
    for path in [*found.files, *found.left_out] if found else []:
        assert path.encode().decode() == path
        assert all(stays(reading) for reading in readings(path)), ascii(path)


@given(mappings)
@example({"ﬀ": "", "FF": ""})
@example({"\u0345\u0301": "", "\u0301\u0345": ""})
def test_no_two_files_of_a_bundle_are_one_where_names_are_folded(
    files: dict[str, str | bytes],
) -> None:
    found = taken(files)
    names = set(found.files) if found else set()
    for fold in (
        str.lower,
        lambda text: unicodedata.normalize("NFC", text).casefold(),
        lambda text: unicodedata.normalize("NFKC", text).casefold(),
        lambda text: unicodedata.normalize("NFKC", unicodedata.normalize("NFD", text).casefold()),
    ):
        assert len({fold(name) for name in names}) == len(names)
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    assert not names & folders


@given(mappings)
def test_a_bundle_is_taken_again_as_the_same_in_any_order(files: dict[str, str | bytes]) -> None:
    found = taken(files)
    again = taken(dict(reversed(files.items())))
    assert found == again
    if found:
        kept = read_bundle(found.files)
        assert (kept.files, kept.executables) == (found.files, found.executables)
        assert kept.sha256 == found.sha256
        assert kept.left_out == {}


@given(mappings)
def test_every_file_is_taken_or_left_out_by_name(files: dict[str, str | bytes]) -> None:
    found = taken(files)
    for path, content in files.items() if found else []:
        assert found
        if path in found.files:
            assert found.files[path] == (content.encode() if isinstance(content, str) else content)
        else:
            assert any(path == left or path.startswith(f"{left}/") for left in found.left_out)


@given(mappings)
@example({"a": "#!", "b/c": "é", ".git/x": ""})
def test_a_bundle_written_to_a_folder_is_the_same_bundle(files: dict[str, str | bytes]) -> None:
    found = taken(files)
    if not found:
        return
    with tempfile.TemporaryDirectory() as name:
        for path, content in found.files.items():
            target = Path(name, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(0o755 if path in found.executables else 0o644)
        again = read_bundle(name)
    assert (again.files, again.executables) == (found.files, found.executables)
    assert again.sha256 == found.sha256
