"""Unified diffs are applied whole and to the letter, or not at all."""

import difflib
import shutil
import subprocess
import time

import pytest

from cloche.jobs.project.patches import is_patch, read_patch
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode

OLD = {
    "a.txt": b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n",
    "end.txt": b"no newline",
    "src/gone.ts": b"export {};\n",
    "run.sh": b"#!/bin/sh\n",
    "crlf.txt": b"a\r\nb\r\n",
}


def apply(text, files=OLD, executables=frozenset({"run.sh"})):
    data = text if isinstance(text, bytes) else text.encode()
    written, runnable, gone = read_patch(data).apply(files, executables)
    merged = {path: content for path, content in files.items() if path not in gone} | written
    return merged, (executables - gone - written.keys()) | runnable


def refusal(text, files=OLD):
    with pytest.raises(JobRefusedError) as caught:
        apply(text, files)
    assert caught.value.reason.code is ReasonCode.BUNDLE_REFUSED
    return caught.value.reason.message


def test_a_line_is_changed():
    text = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    assert apply(text)[0]["a.txt"] == OLD["a.txt"].replace(b"two", b"2")


def test_files_are_made_removed_moved_copied_and_made_executable():
    text = """\
diff --git a/new.ts b/new.ts
new file mode 100755
index 0000000..1111111
--- /dev/null
+++ b/new.ts
@@ -0,0 +1,2 @@
+export {};
+// new
diff --git a/empty b/empty
new file mode 100644
index 0000000..e69de29
diff --git a/src/gone.ts b/src/gone.ts
deleted file mode 100644
--- a/src/gone.ts
+++ /dev/null
@@ -1 +0,0 @@
-export {};
diff --git a/end.txt b/moved.txt
similarity index 100%
rename from end.txt
rename to moved.txt
diff --git a/crlf.txt b/copied.txt
similarity index 100%
copy from crlf.txt
copy to copied.txt
diff --git a/run.sh b/run.sh
old mode 100755
new mode 100644
-- 
2.47.0
"""
    files, executables = apply(text)
    assert files["new.ts"] == b"export {};\n// new\n"
    assert files["empty"] == b""
    assert files["moved.txt"] == OLD["end.txt"]
    assert files["copied.txt"] == files["crlf.txt"] == OLD["crlf.txt"]
    assert files.keys().isdisjoint({"src/gone.ts", "end.txt"})
    assert executables == {"new.ts"}


def test_the_end_without_a_newline_is_kept_and_can_change():
    text = (
        "--- a/end.txt\n+++ b/end.txt\n@@ -1 +1,2 @@\n-no newline\n"
        "\\ No newline at end of file\n+a line\n+no newline\n\\ No newline at end of file\n"
    )
    assert apply(text)[0]["end.txt"] == b"a line\nno newline"


def test_carriage_returns_belong_to_lines():
    text = b"--- a/crlf.txt\n+++ b/crlf.txt\n@@ -2 +2 @@\n-b\r\n+c\r\n"
    assert apply(text)[0]["crlf.txt"] == b"a\r\nc\r\n"
    assert "another one" in refusal(text.replace(b"-b\r\n", b"-b\n").decode())


def test_names_in_quotes_and_with_times_behind_them_are_read():
    name = 'caf\\303\\251 \\"x\\".txt'
    text = f'--- "a/{name}"\n+++ "b/{name}"\n@@ -1 +1 @@\n-1\n+2\n'
    assert apply(text, {'café "x".txt': b"1\n"})[0] == {'café "x".txt': b"2\n"}
    text = "--- a.txt\t2026-01-01 00:00:00\n+++ a.txt\t2026-01-02\n@@ -10 +10 @@\n-ten\n+10\n"
    assert apply(text)[0]["a.txt"].endswith(b"nine\n10\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "a\nb\n"),
        ("a\nb\n", ""),
        ("\n".join(map(str, range(100))), "\n".join(str(n) for n in range(100) if n % 7)),
        ("x\n" * 50, "x\n" * 20 + "y\n" + "x\n" * 31),
    ],
)
def test_what_difflib_writes_is_applied(old, new):
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), "a/f", "b/f"
    )
    text = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    assert apply(text, {"f": old.encode()})[0]["f"] == new.encode()


@pytest.mark.live
@pytest.mark.skipif(shutil.which("git") is None, reason="missing fact: git")
def test_what_git_writes_is_applied(tmp_path):
    def git(*words):
        return subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True).stdout

    def write(files):
        for path, content in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(content)

    git("init", "-q")
    git("config", "core.autocrlf", "false")
    write({**OLD, "name with space": b"1\n", "é": b"2\n"})
    git("add", ".")
    git("-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "old")
    (tmp_path / "run.sh").chmod(0o755)
    new = {
        "a.txt": OLD["a.txt"].replace(b"nine\n", b"9\n9\n"),
        "end.txt": b"with newline\n",
        "moved/crlf.txt": OLD["crlf.txt"],
        "name with space": b"1\n2\n",
        "é": b"3\n",
        "src/new.ts": b"",
        "run.sh": OLD["run.sh"],
    }
    for path in ("src/gone.ts", "crlf.txt"):
        (tmp_path / path).unlink()
    write(new)
    git("add", "--all")
    diff = git("diff", "--cached", "-M")
    old = {**OLD, "name with space": b"1\n", "é": b"2\n"}
    assert apply(diff, old, frozenset()) == (new, {"run.sh"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n", "not there"),
        ("--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+1\n", "there already"),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-other\n+2\n", "line 1: the line is another"),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -2 +2 @@\n-one\n+2\n", "line 2: the line is another"),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -99 +99 @@\n-one\n+2\n", "the file is shorter"),
        (
            "--- a/a.txt\n+++ b/a.txt\n@@ -5 +5 @@\n-five\n+5\n@@ -1 +1 @@\n-one\n+1\n",
            "out of order",
        ),
        ("--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", "leaves some of it"),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n\\ No\n", "line 1: the diff says"),
        (
            "--- a/end.txt\n+++ b/end.txt\n@@ -1 +1,2 @@\n-no newline\n\\ No\n+1\n\\ No\n+2\n",
            "line 1: the diff says that the file ends there",
        ),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n-two\n", "other lines than its head"),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n", "ends early"),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n+more\n", "no hunk"),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -x +1 @@\n-one\n+1\n", "is not `@@"),
        ("--- a/a.txt\n+++ b/a.txt\n@@ one @@\n", "is not `@@"),
        ("@@ -1 +1 @@\n-one\n+1\n", "before the name"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-1\n+2\n", "both names"),
        ("diff --git a/a.txt b/a.txt\n", "nothing that it changes"),
        ("diff --git a/l b/l\nnew file mode 120000\n", "a link or a module"),
        ("diff --git a/m b/m\nnew file mode 160000\n", "a link or a module"),
        ("diff --git a/b b/b\nGIT binary patch\nliteral 1\n", "binary"),
        ("diff --git a/b b/b\nBinary files a/b and b/b differ\n", "binary"),
        (
            "--- a/end.txt\n+++ b/end.txt\n@@ -1 +1 @@\n-no newline\n+x\n",
            "the line is another one",
        ),
        (
            "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n"
            "--- a/a.txt\n+++ b/a.txt\n@@ -2 +2 @@\n-two\n+2\n",
            "twice",
        ),
        # What is changed first and then goes would stay as it was changed.
        (
            "--- a/end.txt\n+++ b/end.txt\n@@ -1 +1 @@\n-no newline\n\\ No\n+x\n"
            "diff --git a/end.txt b/b\nrename from end.txt\nrename to b\n",
            "twice",
        ),
        (
            "--- a/src/gone.ts\n+++ b/src/gone.ts\n@@ -1 +1 @@\n-export {};\n+x\n"
            "--- a/src/gone.ts\n+++ /dev/null\n@@ -1 +0,0 @@\n-export {};\n",
            "twice",
        ),
        ("diff --git a/run.sh b/run.sh\nold mode 100755\nnew mode 104755\n", "setuid"),
        ("diff --git a/run.sh b/run.sh\nnew mode -100755\n", "a mode that is none"),
        (f"diff --git a/run.sh b/run.sh\nnew mode {'7' * 60}\n", "a mode that is none"),
        ("diff --git a/run.sh b/run.sh\nnew mode 0o1006\n", "a mode that is none"),
    ],
)
def test_a_diff_that_does_not_fit_is_refused_and_says_where(text, why):
    assert why in refusal(text)


def test_a_diff_with_a_name_or_of_a_size_that_none_has_is_refused_at_once():
    name = "x" * 1_000_000
    started_at = time.monotonic()
    assert "too long" in refusal(f'--- /dev/null\n+++ "{name}"\n@@ -0,0 +1 @@\n+x\n')
    assert time.monotonic() - started_at < 1
    huge = "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n" + "\n" * (16 << 20)
    assert "over 16 MiB" in refusal(huge)


def test_a_diff_is_known_by_its_head():
    assert is_patch(b"diff --git a/x b/x\n")
    assert is_patch(b"some words\n\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n")
    for data in (b"", b"--- a\n", b"# title\n--- \ntext\n", b"\0\1\2"):
        assert not is_patch(data)
