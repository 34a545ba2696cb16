"""Threat: a bundle in another form than a folder gets round the rules, alone or with a template.

Each form that can say it says each attack; the template and what the job may do are the same. The
controls unpack or apply the same bytes with the usual tools and find themselves outside.
"""

import gzip
import io
import stat
import subprocess
import tarfile
import time
import zipfile

import pytest
import zstandard

from cloche.model.job import ReasonCode, Verdict
from job_site import GOOD_TEST, lockfile, manifest, open_site, project, state_of
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

TEMPLATE = {
    "package.json": manifest({"test": "node --test"}),
    "a.test.js": GOOD_TEST,
    "src/App.tsx": "one\n",
    "src/caf\u00e9.ts": "",
}
ARCHIVES = ("tar", "tar.gz", "tar.zst", "zip")
FORMS = (*ARCHIVES, "diff", "mapping")
KINDS = {
    "link": (tarfile.SYMTYPE, stat.S_IFLNK),
    "hard link": (tarfile.LNKTYPE, None),
    "FIFO": (tarfile.FIFOTYPE, stat.S_IFIFO),
    "device": (tarfile.CHRTYPE, stat.S_IFCHR),
    "block device": (tarfile.BLKTYPE, stat.S_IFBLK),
    "socket": (None, stat.S_IFSOCK),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def template(site):
    folder = site.new_folder()
    (folder / "src").mkdir()
    for path, text in TEMPLATE.items():
        (folder / path).write_text(text)
    before = state_of(folder)
    yield folder
    assert state_of(folder) == before


def tarred(entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            path, text = entry
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def zipped(entries):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in entries:
            info = path if isinstance(path, zipfile.ZipInfo) else zipfile.ZipInfo(path)
            archive.writestr(info, text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def packed(form, data):
    pack = {"tar.gz": gzip.compress, "tar.zst": zstandard.compress}.get(form, bytes)
    return pack(data)


def made(form, path, text="x\n"):
    """A bundle of one new file."""
    if form == "mapping":
        return {path: text}
    if form == "diff":
        count = text.count("\n")
        lines = "".join(f"+{line}\n" for line in text.splitlines())
        return f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{count} @@\n{lines}"
    return zipped([(path, text)]) if form == "zip" else packed(form, tarred([(path, text)]))


def run(site, bundle, **fields):
    if isinstance(bundle, bytes):
        path = site.new_folder() / "bundle"
        path.write_bytes(bundle)
        bundle = path
    if isinstance(bundle, str):
        fields = {"bundle": bundle, **fields}
        bundle = {}
    return site.run(bundle, **fields)


def assert_refused(ran, told=""):
    """Before anything has been started."""
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.BUNDLE_REFUSED), ran.message
    assert told in ran.message
    assert ran.result.steps == ()
    names = ["audit.json", "log.ndjson", "manifest.json"]
    assert sorted(path.name for path in ran.out.iterdir()) == names


@pytest.mark.parametrize("form", FORMS)
def test_each_form_does_lay_its_file_over_the_template(site, template, form):
    """The control of all that follows: what is refused is refused for what it is."""
    ran = run(site, made(form, "src/new.ts"), template=str(template), artifacts=["src/**"])
    assert ran.verdict is Verdict.PASSED, ran.message
    assert ran.paths == ["src/App.tsx", "src/café.ts", "src/new.ts"]


@pytest.mark.case("bun-01-traversal")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "path",
    [
        "../evil-1",
        "/tmp/evil-2",
        "src/../../evil-3",
        "..\\evil-4",
        "C:\\evil-5",
        "./../evil-6",
        "~/evil-7",
    ],
)
def test_no_form_lays_a_file_elsewhere(site, template, form, path):
    ran = run(site, made(form, path), template=str(template))
    assert_refused(ran, "evil")
    assert list(site.folder.parent.rglob("evil*")) == []


def test_the_same_bytes_do_lead_out_where_they_are_taken_as_they_are(tmp_path):
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(made("tar", "../evil-1"))) as archive:
        archive.extractall(inner)
    assert (tmp_path / "a/evil-1").exists()
    with zipfile.ZipFile(io.BytesIO(made("zip", "../evil-2"))) as archive:
        for name in archive.namelist():
            (inner / name).write_bytes(archive.read(name))
    assert (tmp_path / "a/evil-2").exists()


def odd_bundle(form, kind, canary):
    """A tree with an entry of a kind, and a file below its name."""
    of_tar, mode = KINDS[kind]
    below = ("odd/owned.txt", "written through")
    if form == "zip":
        info = zipfile.ZipInfo("odd")
        info.create_system, info.external_attr = 3, (mode | 0o777) << 16
        return zipped([(info, str(canary)), below])
    info = tarfile.TarInfo("odd")
    info.type, info.linkname, info.mode = of_tar, str(canary), 0o777
    return packed(form, tarred([info, below]))


@pytest.mark.case("bun-02-symlink-entry")
@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (form, kind)
        for form in ARCHIVES
        for kind, (of_tar, mode) in KINDS.items()
        if (mode if form == "zip" else of_tar) is not None
    ],
)
def test_no_archive_brings_what_is_no_file(site, template, tmp_path, form, kind):
    assert_refused(run(site, odd_bundle(form, kind, tmp_path), template=str(template)), "odd")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.case("bun-02-symlink-entry")
@pytest.mark.parametrize("mode", ["120000", "160000", "104755"])
def test_no_diff_brings_what_is_no_plain_file(site, template, mode):
    text = f"diff --git a/odd b/odd\nnew file mode {mode}\n--- /dev/null\n+++ b/odd\n"
    ran = run(site, f"{text}@@ -0,0 +1 @@\n+/etc\n", template=str(template))
    assert_refused(ran, "the diff's line 2")


def test_the_same_archive_does_write_through_its_link_where_it_is_unpacked(tmp_path):
    (tmp_path / "canary").mkdir()
    (tmp_path / "project").mkdir()
    data = odd_bundle("tar", "link", tmp_path / "canary")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(tmp_path / "project")
    assert (tmp_path / "canary/owned.txt").read_text() == "written through"


@pytest.mark.parametrize("form", ARCHIVES)
@pytest.mark.parametrize("bits", [0o4755, 0o2755, 0o1777])
def test_no_archive_brings_a_file_with_special_bits(site, template, form, bits):
    if form == "zip":
        info = zipfile.ZipInfo("tool")
        info.create_system, info.external_attr = 3, (stat.S_IFREG | bits) << 16
        bundle = zipped([(info, "x")])
    else:
        entry = tarfile.TarInfo("tool")
        entry.mode = bits
        bundle = packed(form, tarred([entry]))
    assert_refused(run(site, bundle, template=str(template)), "setuid, setgid or sticky")


@pytest.mark.case("bun-05-case-collision")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("SRC/other.ts", "is the same as"),
        ("src/app.tsx", "is the same as"),
        ("src/cafe\u0301.ts", "is the same as"),
        ("src/App.tsx/x", "is a file and a folder"),
        ("src", "is a file and a folder"),
        ("Package.json", "is the same as"),
    ],
)
def test_no_form_brings_a_name_that_meets_one_of_the_template(site, template, form, path, told):
    assert_refused(run(site, made(form, path), template=str(template)), told)


@pytest.mark.parametrize("form", [*ARCHIVES, "diff"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_no_form_says_a_file_twice(site, template, form):
    twice = [("x", "1\n"), ("x", "2\n")]
    bundle = {
        "diff": lambda: made("diff", "x", "1\n") + made("diff", "x", "2\n"),
        "zip": lambda: zipped(twice),
    }.get(form, lambda: packed(form, tarred(twice)))()
    assert_refused(run(site, bundle, template=str(template)), "twice")


def bombs():
    zeros = bytes(300 << 20)
    many = [(f"f{at}", "") for at in range(50_001)]
    plain = tarred([])
    holes = tarfile.TarInfo("holes")
    holes.type = tarfile.GNUTYPE_SPARSE
    head = bytearray(holes.tobuf(tarfile.GNU_FORMAT))
    head[386:410], head[483:495] = b"%011o\0" % 0 * 2, b"%011o\0" % (7 << 30)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return {
        "tar.gz": lambda: gzip.compress(tarred([("zeros", zeros.decode())]), 1),
        "tar.zst": lambda: zstandard.compress(tarred([("zeros", zeros.decode())])),
        "zip": lambda: zipped([("zeros", zeros)]),
        "zip, bzip2": lambda: bzip2_bomb(),
        "entries of a tar.gz": lambda: gzip.compress(tarred(many), 1),
        "entries of a zip": lambda: zipped(many),
        "holes": lambda: bytes(head) + plain,
        "parts of a gzip": lambda: gzip.compress(b"") * 100_000,
        "depth": lambda: packed("tar.gz", tarred([("/".join("a" * 500), "")])),
        "name": lambda: packed("tar.gz", tarred([("n" * 100_000, "")])),
    }


def bzip2_bomb():
    """Says that it is small, and is not."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("zeros", bytes(100 << 20))
    data = bytearray(buffer.getvalue())
    for at in (22, data.index(b"PK\x01\x02") + 24):
        data[at : at + 4] = (1000).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("name", bombs())
def test_no_archive_unpacks_to_more_than_a_project_is(site, template, name):
    bundle = bombs()[name]()
    started_at = time.monotonic()
    assert_refused(run(site, bundle, template=str(template)))
    assert time.monotonic() - started_at < 10


@pytest.mark.parametrize("path", ["package.json", "src"])
def test_a_mapping_takes_away_files_of_the_template_alone(site, template, path):
    """The control: one that is there goes, and the template keeps it."""
    gone = run(site, {"src/App.tsx": None}, template=str(template), artifacts=["src/**"])
    assert (gone.verdict, gone.paths) == (Verdict.PASSED, ["src/café.ts"])
    for other in (
        "../src/App.tsx",
        "src/",
        f"{path}/x",
        "SRC/App.tsx",
        "node_modules/../src/App.tsx",
    ):
        assert_refused(run(site, {other: None}, template=str(template)))


def test_a_diff_that_fits_nowhere_changes_nothing(site, template):
    """The control: the same diff of the line that is there."""
    head = "--- a/src/App.tsx\n+++ b/src/App.tsx\n@@ -1 +1 @@\n"
    good = run(site, f"{head}-one\n+1\n", template=str(template), artifacts=["src/App.tsx"])
    assert good.delivered("src/App.tsx") == b"1\n"
    assert_refused(run(site, f"{head}-two\n+1\n", template=str(template)), "src/App.tsx")
    linked = template / "src/App.tsx"
    assert linked.read_text() == "one\n"


@pytest.mark.parametrize("form", FORMS)
def test_no_form_puts_a_file_among_the_artifacts_that_no_step_has_made(site, template, form):
    steps = [{"name": "build", "shell": "mkdir -p dist; echo built > dist/a.txt"}]
    bundle = made(form, "dist/planted.txt")
    ran = run(site, bundle, template=str(template), steps=steps, artifacts=["dist/**"])
    assert (ran.verdict, ran.paths) == (Verdict.PASSED, ["dist/a.txt"])
    assert any(note.startswith("left out: dist") for note in ran.notes)


# Whose lockfile counts


LOCKED, OTHER = "module.exports = 'locked'", "module.exports = 'other'"
LOOK = [{"name": "look", "shell": "node -p \"require('real')\""}]


@pytest.fixture(scope="module")
def locked(site):
    """(A template that locks a package, another lockfile for it, the same package.json.)"""
    real = site.publish("real", [("package/index.js", LOCKED)])
    other = site.publish("real", [("package/index.js", OTHER)], version="1.0.1")
    folder = site.new_folder()
    files = project(real)
    for path, text in files.items():
        (folder / path).write_text(text)
    changed = lockfile([other]).replace('"specifier": "1.0.1"', '"specifier": "1.0.0"')
    return folder, changed, files


@pytest.mark.case("ins-02-lockfile-mismatch")
@pytest.mark.parametrize("form", ["tar", "zip", "mapping", "deletion", "diff"])
def test_no_form_of_a_bundle_changes_the_lockfile_of_the_template(site, locked, form):
    folder, changed, files = locked
    name = "pnpm-lock.yaml"
    bundle = {
        "deletion": lambda: {name: None},
        "diff": lambda: (
            f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-{files[name]}\n"
            f"\\ No newline at end of file\n+{changed}\n"
        ),
    }.get(form, lambda: made(form, name, changed))()
    ran = run(site, bundle, template=str(folder), steps=LOOK)
    assert (ran.verdict, ran.lines("look")) == (Verdict.PASSED, ["locked"]), ran.message
    assert any(name in note and "template's own" in note for note in ran.notes)
    refused = run(site, bundle, template=str(folder), steps=LOOK, lockfile="refuse_change")
    assert (refused.verdict, refused.why) == (Verdict.REJECTED, ReasonCode.LOCKFILE_CHANGED)
    assert refused.result.steps == ()


@pytest.mark.parametrize("name", ["package-lock.json", "npm-shrinkwrap.json"])
def test_a_second_lockfile_beside_the_templates_has_no_say(site, locked, name):
    """npm's would decide who installs, and what."""
    bundle = {name: '{"lockfileVersion": 3, "packages": {"": {}}}'}
    ran = run(site, bundle, template=str(locked[0]), steps=LOOK)
    assert (ran.verdict, ran.lines("look")) == (Verdict.PASSED, ["locked"]), ran.message
    ran = run(site, bundle, template=str(locked[0]), steps=LOOK, lockfile="refuse_change")
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.LOCKFILE_CHANGED)


def test_the_same_lockfile_does_count_where_it_may(site, locked):
    """Its package.json must ask for the same."""
    folder, changed, files = locked
    ran = run(site, {"pnpm-lock.yaml": changed}, template=str(folder), lockfile="bundle")
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.LOCKFILE_OUTDATED), ran.message
    both = {
        "pnpm-lock.yaml": changed.replace('"specifier": "1.0.0"', '"specifier": "1.0.1"'),
        "package.json": files["package.json"].replace('"real": "1.0.0"', '"real": "1.0.1"'),
    }
    ran = run(site, both, template=str(folder), steps=LOOK, lockfile="bundle")
    assert (ran.verdict, ran.lines("look")) == (Verdict.PASSED, ["other"]), ran.message


def test_git_does_apply_what_is_refused_here(tmp_path):
    """The control of links in diffs."""
    (tmp_path / "p").mkdir()
    head = "diff --git a/odd b/odd\nnew file mode 120000\n--- /dev/null\n+++ b/odd\n"
    text = f"{head}@@ -0,0 +1 @@\n+/etc\n"
    done = subprocess.run(["git", "apply", "-"], cwd=tmp_path / "p", input=text.encode())
    assert done.returncode == 0
    assert (tmp_path / "p/odd").is_symlink()
