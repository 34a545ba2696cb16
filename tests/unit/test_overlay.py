"""A bundle over a template: every form of it, whose lockfile counts, and what is refused."""

import gzip
import io
import tarfile
import zipfile

import pytest
import zstandard

from cloche.errors import InvalidRequestError
from cloche.jobs.project.bundle import read_bundle
from cloche.jobs.project.overlay import EMPTY, keep_lockfile, lay_over
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import LockfileRule, ReasonCode

TEMPLATE = {
    "package.json": "{}",
    "pnpm-lock.yaml": "lockfileVersion: '9.0'\n",
    "src/App.tsx": "one\ntwo\n",
    "src/old.ts": "",
    "bin/run": "#!/bin/sh\n",
}
CHANGE = {"src/App.tsx": "one\n2\n", "src/new.ts": "new"}
DIFF = """\
diff --git a/src/App.tsx b/src/App.tsx
--- a/src/App.tsx
+++ b/src/App.tsx
@@ -1,2 +1,2 @@
 one
-two
+2
diff --git a/src/new.ts b/src/new.ts
new file mode 100644
--- /dev/null
+++ b/src/new.ts
@@ -0,0 +1 @@
+new
\\ No newline at end of file
"""


def pack(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return buffer.getvalue()


FORMS = {
    "mapping": lambda folder: CHANGE,
    "folder": lambda folder: write_folder(folder, CHANGE),
    "tar": lambda folder: write_file(folder, pack(CHANGE)),
    "tar.gz": lambda folder: write_file(folder, gzip.compress(pack(CHANGE))),
    "tar.zst": lambda folder: write_file(folder, zstandard.compress(pack(CHANGE))),
    "zip": lambda folder: write_file(folder, zipped(CHANGE)),
    "diff": lambda folder: DIFF,
    "diff in a file": lambda folder: write_file(folder, DIFF.encode()),
}


def write_folder(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    return str(folder)


def write_file(folder, data):
    (folder / "bundle").write_bytes(data)
    return str(folder / "bundle")


def merge(source, template=TEMPLATE):
    base = EMPTY if template is None else read_bundle(template)
    return lay_over(base, read_bundle(source))


def refusal(source, template=TEMPLATE):
    with pytest.raises(JobRefusedError) as caught:
        merge(source, template)
    assert caught.value.reason.code is ReasonCode.BUNDLE_REFUSED
    return caught.value.reason.message


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_bundle_comes_to_the_same_files(form, tmp_path):
    merged = merge(FORMS[form](tmp_path))
    expected = {path: text.encode() for path, text in (TEMPLATE | CHANGE).items()}
    assert dict(merged.files) == expected
    assert list(merged.files) == sorted(expected)
    assert merged.executables == {"bin/run"}
    assert merged.sha256 == merge(CHANGE).sha256


def test_a_file_of_the_template_goes_where_its_content_is_none():
    merged = merge({"src/old.ts": None, "src/App.tsx": "x"})
    assert merged.files.keys() == TEMPLATE.keys() - {"src/old.ts"}
    without = {path: text for path, text in TEMPLATE.items() if path != "src/old.ts"}
    assert merged.sha256 == merge({"src/App.tsx": "x"}, without).sha256


def test_a_file_that_goes_and_is_not_there_refuses_the_bundle():
    assert "'src/other.ts' is to go, and is no file" in refusal({"src/other.ts": None})
    assert "is to go" in refusal({"src": None})
    assert "is to go" in refusal({"a": None}, None)


def test_a_file_may_take_a_folders_place_only_when_the_folder_is_empty():
    assert "is a file and a folder" in refusal({"src": "x"})
    merged = merge({"src/App.tsx": None, "src/old.ts": None, "src": "x"})
    assert merged.files["src"] == b"x"


@pytest.mark.case("bun-05-case-collision")
@pytest.mark.parametrize("path", ["SRC/other.ts", "src/app.tsx", "Package.json"])
def test_a_name_that_meets_one_of_the_template_in_another_case_refuses_the_bundle(path):
    assert "is the same as" in refusal({path: "x"})


def test_a_file_that_replaces_an_executable_is_as_executable_as_it_says():
    assert merge({"bin/run": "plain"}).executables == frozenset()
    assert merge({"bin/other": "#!/bin/sh\n"}).executables == {"bin/run", "bin/other"}


def test_what_a_bundle_leaves_out_is_told_and_does_not_touch_the_template():
    merged = merge({"node_modules/x/index.js": "x", "src/new.ts": ""})
    assert merged.left_out == {"node_modules": "the job installs its dependencies itself"}
    assert merged.files.keys() == TEMPLATE.keys() | {"src/new.ts"}


def test_a_diff_without_a_template_can_only_make_files():
    text = "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n"
    assert dict(merge(text, None).files) == {"a": b"x\n"}
    assert "not there" in refusal(DIFF, None)


@pytest.mark.case("bun-01-traversal")
@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", "a\\evil", "~/evil"])
@pytest.mark.parametrize("form", ["tar", "zip", "diff", "mapping"])
def test_no_form_of_a_bundle_leads_out_of_the_project(form, path, tmp_path):
    files = {path: "x"}
    diff = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
    source = {
        "tar": lambda: write_file(tmp_path, pack(files)),
        "zip": lambda: write_file(tmp_path, zipped(files)),
        "diff": lambda: diff,
        "mapping": lambda: files,
    }[form]()
    assert "evil" in refusal(source)


@pytest.mark.case("bun-02-symlink-entry")
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (tarfile.SYMTYPE, "is a link"),
        (tarfile.LNKTYPE, "is a link"),
        (tarfile.FIFOTYPE, "is a FIFO"),
        (tarfile.CHRTYPE, "is a device"),
    ],
)
def test_an_archive_with_more_than_files_and_folders_is_refused(kind, told, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("x")
        info.type, info.linkname = kind, "package.json"
        archive.addfile(info)
    assert told in refusal(write_file(tmp_path, buffer.getvalue()))


def test_an_archive_with_a_setuid_file_is_refused(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("x")
        info.mode = 0o4755
        archive.addfile(info)
    assert "has a setuid" in refusal(write_file(tmp_path, buffer.getvalue()))


@pytest.mark.parametrize("form", ["tar", "zip"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_two_entries_of_one_name_is_refused(form, tmp_path):
    if form == "tar":
        data = pack({"a": "1"})[:1024] + pack({"a": "2"})
    else:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("a", "1")
            archive.writestr("a", "2")
        data = buffer.getvalue()
    assert "is there twice" in refusal(write_file(tmp_path, data))


def test_a_damaged_archive_refuses_the_bundle(tmp_path):
    source = write_file(tmp_path, gzip.compress(pack(CHANGE))[:-9])
    assert "the archive is damaged" in refusal(source)


def test_a_path_that_is_nothing_of_the_kind_is_the_callers_fault(tmp_path):
    for source in (write_file(tmp_path, b"hello"), str(tmp_path / "nowhere")):
        with pytest.raises(InvalidRequestError, match="bundle: "):
            read_bundle(source)


LOCK = "pnpm-lock.yaml"


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (LockfileRule.TEMPLATE, TEMPLATE[LOCK]),
        (LockfileRule.BUNDLE, "bundle's"),
        (LockfileRule.RESOLVE, "bundle's"),
    ],
)
def test_the_rule_says_whose_lockfile_is_kept(rule, kept):
    base = read_bundle(TEMPLATE)
    merged = keep_lockfile(rule, base, lay_over(base, read_bundle({LOCK: "bundle's"})))
    assert merged.files[LOCK] == kept.encode()
    assert (LOCK in merged.left_out) == (rule is LockfileRule.TEMPLATE)


def test_a_bundle_may_not_bring_another_package_managers_lockfile_past_the_templates():
    base = read_bundle(TEMPLATE)
    change = read_bundle({"yarn.lock": "x", LOCK: None})
    merged = keep_lockfile(LockfileRule.TEMPLATE, base, lay_over(base, change))
    assert merged.files[LOCK] == TEMPLATE[LOCK].encode()
    assert "yarn.lock" not in merged.files


def test_a_changed_lockfile_can_be_refused():
    base = read_bundle(TEMPLATE)
    same = lay_over(base, read_bundle({LOCK: TEMPLATE[LOCK], "a": "b"}))
    assert keep_lockfile(LockfileRule.REFUSE_CHANGE, base, same) is same
    other = lay_over(base, read_bundle({LOCK: "other"}))
    with pytest.raises(JobRefusedError, match=r"changes 'pnpm-lock\.yaml'") as caught:
        keep_lockfile(LockfileRule.REFUSE_CHANGE, base, other)
    assert caught.value.reason.code is ReasonCode.LOCKFILE_CHANGED


def test_without_a_lockfile_in_the_template_the_bundles_is_kept():
    base = read_bundle({"package.json": "{}"})
    for rule in (LockfileRule.TEMPLATE, LockfileRule.REFUSE_CHANGE):
        merged = lay_over(base, read_bundle({LOCK: "x"}))
        assert keep_lockfile(rule, base, merged).files[LOCK] == b"x"


def test_no_form_of_a_bundle_makes_what_the_build_makes():
    """Else a diff could put a file among the artifacts that no build has made."""
    base = read_bundle(TEMPLATE, outputs=["dist/**"])
    diff = "--- /dev/null\n+++ b/dist/x\n@@ -0,0 +1 @@\n+x\n"
    for source in ({"dist/x": "x\n", "y": ""}, diff):
        merged = lay_over(base, read_bundle(source, outputs=["dist/**"]), outputs=["dist/**"])
        assert "dist/x" not in merged.files
        assert "makes it anew" in merged.left_out["dist"]
    assert merge(diff).files["dist/x"] == b"x\n"
