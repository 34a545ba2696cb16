"""Whatever stands in a diff, it is applied to the letter or refused."""

import difflib
from collections import Counter
from contextlib import suppress

from hypothesis import assume, example, given
from hypothesis import strategies as st

from cloche.jobs.project.bundle import Bundle, read_bundle
from cloche.jobs.project.overlay import lay_over
from cloche.jobs.project.patches import read_patch
from cloche.jobs.refusal import JobRefusedError

lines = st.lists(
    st.sampled_from(
        [
            b"a",
            b"b",
            b"",
            b" x",
            b"-- ",
            b"--- a",
            b"+++ b",
            b"@@ -1 +1 @@",
            b"\\ x",
            b"\r",
            b"\xff",
            b"diff --git a/f b/f",
        ]
    ),
    max_size=12,
)
texts = st.builds(lambda each, end: b"\n".join(each) + end, lines, st.sampled_from([b"", b"\n"]))
contents = texts.filter(lambda text: text != b"")
paths = st.sampled_from(["f", "src/g.ts", "a b", "é.txt", "ü/h"])
TEMPLATE = {"f": b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n", "g": b"g\n", "x/h": b"h"}


def make_diff(path: str, old: bytes | None, new: bytes | None, context: int = 3) -> bytes:
    """As `diff -u` has it: of one file, which is made, changed or removed."""
    found = bytearray()
    for line in difflib.diff_bytes(
        difflib.unified_diff,
        *([] if text is None else _split(text) for text in (old, new)),
        b"/dev/null" if old is None else b"a/" + path.encode(),
        b"/dev/null" if new is None else b"b/" + path.encode(),
        n=context,
        lineterm=b"\n",
    ):
        found += line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
    return bytes(found)


def _split(text: bytes) -> list[bytes]:
    parts = [part + b"\n" for part in text.split(b"\n")]
    parts[-1] = parts[-1][:-1]
    return [part for part in parts if part]


def apply(template: dict[str, bytes], diff: bytes) -> Bundle:
    return lay_over(read_bundle(template), read_patch(diff))


@given(paths, contents, contents, st.integers(0, 3))
def test_a_diff_makes_the_file_that_it_was_made_of(
    path: str, old: bytes, new: bytes, context: int
) -> None:
    assume(old != new)
    rest = {"other": b"untouched"}
    there = {path: old, **rest}
    assert apply(there, make_diff(path, old, new, context)).files == {path: new, **rest}
    assert apply(rest, make_diff(path, None, new)).files == {path: new, **rest}
    assert apply(there, make_diff(path, old, None)).files == rest


@given(contents, contents, contents)
@example(b"a\n", b"a", b"a\na")
def test_a_diff_of_another_file_is_refused_or_comes_to_its_own_lines(
    old: bytes, new: bytes, other: bytes
) -> None:
    """Where it fits by chance, all that it does not name is as it was."""
    assume(old != new and other != old)
    diff = make_diff("f", old, new)
    with suppress(JobRefusedError):
        found = apply({"f": other, "g": b"g"}, diff).files
        assert found["g"] == b"g"
        put, gone = (
            Counter(line[1:] for line in diff.split(b"\n") if line.startswith(sign))
            for sign in (b"+", b"-")
        )
        before, after = (Counter(text.split(b"\n")) for text in (other, found["f"]))
        assert after - before <= put
        assert before - after <= gone


SAMPLE = (
    make_diff("f", TEMPLATE["f"], b"one\n2\nthree\nfour\nfive\nsix\n7\neight\n", 1)
    + b'diff --git "a/\\303\\251" "b/\\303\\251"\nnew file mode 100755\nindex 0..1\n'
    + b"--- /dev/null\n+++ b/\xc3\xa9\n@@ -0,0 +1 @@\n+x\n"
    + b"diff --git a/g b/k\nsimilarity index 100%\nrename from g\nrename to k\n"
)
pieces = st.binary(max_size=6) | st.sampled_from(
    [
        b"-1",
        b"+",
        b"-",
        b" ",
        b"\n",
        b"@@ -1 +1 @@\n",
        b"--- a/g\n+++ b/g\n",
        b"--- /dev/null\n",
        b'"',
        b"\\",
        b"new mode -100644\n",
        b"new mode 104755\n",
        b"9" * 30,
        b"diff --git a/f b/f\n",
        b"\0",
    ]
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = SAMPLE
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(pieces) + data[at + draw(st.sampled_from([0, 0, 1, 2, 20])) :]
    return data


def named_in(diff: bytes) -> bytes:
    return diff.replace(b"\\303\\251", "é".encode())


@given(damaged())
@example(SAMPLE + b"new mode -100644\n")
@example(SAMPLE.replace(b"100755", b"7" * 60))
@example(b'--- /dev/null\n+++ "' + b"x" * 100_000 + b'"\n@@ -0,0 +1 @@\n+x\n')
def test_a_damaged_diff_changes_no_file_that_it_does_not_name(diff: bytes) -> None:
    with suppress(JobRefusedError):
        found = apply(TEMPLATE, diff)
        for path in {*TEMPLATE, *found.files}:
            if found.files.get(path) != TEMPLATE.get(path):
                assert path.encode() in named_in(diff)
        for line in found.files.get("f", b"").split(b"\n"):
            assert line in TEMPLATE["f"].split(b"\n") or b"+" + line in diff


@given(st.binary(max_size=300))
def test_any_bytes_are_a_diff_or_refused(data: bytes) -> None:
    for text in (data, b"--- a/f\n+++ b/f\n" + data, b"diff --git a/f b/f\n" + data):
        with suppress(JobRefusedError):
            apply(TEMPLATE, text)


@given(
    st.dictionaries(paths, contents, max_size=4),
    st.dictionaries(paths, st.none() | contents, max_size=4),
)
def test_what_a_bundle_does_not_name_stays_as_the_template_has_it(
    template: dict[str, bytes], change: dict[str, bytes | None]
) -> None:
    with suppress(JobRefusedError):
        found = lay_over(read_bundle(template), read_bundle(change))
        expected = {**template, **change}
        assert found.files == {path: data for path, data in expected.items() if data is not None}
        again = lay_over(found, read_bundle({path: d for path, d in change.items() if d}))
        assert (again.files, again.sha256) == (found.files, found.sha256)


@given(*[st.dictionaries(paths, contents, max_size=3)] * 3)
def test_two_bundles_after_each_other_are_one(
    first: dict[str, bytes], second: dict[str, bytes], third: dict[str, bytes]
) -> None:
    one, two, three = map(read_bundle, (first, second, third))
    after_each_other = lay_over(lay_over(one, two), three)
    at_once = lay_over(one, lay_over(two, three))
    assert after_each_other.files == at_once.files == {**first, **second, **third}
    assert after_each_other.sha256 == at_once.sha256
