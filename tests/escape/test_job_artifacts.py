"""Threat: what a step leaves to be collected makes the host read, write or wait (jobs: artifacts).

The collector runs on the host with the host's rights. The controls make the same tree on the host
and read it by path, as a naive collector would.
"""

import hashlib
import os
import stat
import time

import pytest

from cloche.model.job import Verdict
from job_site import open_site, outside, project, said, state_of
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

TOKEN = "token-71d0"
DIST = ["dist/**"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def marker(open_folder):
    """A file of the host with a token in it, which every user may read."""
    path = open_folder / "marker"
    path.write_text(TOKEN)
    path.chmod(0o644)
    return path


# Links


def link_lines(marker):
    return f"""
mkdir -p dist/deep && echo ok > dist/ok.txt && ln dist/ok.txt dist/same.txt
ln -s /etc/passwd dist/passwd; ln -s {marker} dist/m.txt; ln -s / dist/root
ln -s ../../../../../../../..{marker} dist/deep/climb; ln -s {marker.parent} dist/folder
ln -s ok.txt dist/inner; ln -s loop dist/loop; ln -s /proc/self/cwd dist/cwd
mkdir d2 && ln -s ../.. d2/up && echo two > d2/two.txt
"""


LINKS = ["passwd", "m.txt", "root", "deep/climb", "folder", "inner", "loop", "cwd"]


@pytest.mark.case("art-01-symlink")
def test_no_link_is_delivered_or_followed(site, marker):
    globs = [*DIST, "d2/**", "dist/root/etc/*", f"dist/root{marker}", "dist/folder/*", "d2/up/**"]
    ran = site.step(link_lines(marker), artifacts=globs)
    assert ran.verdict is Verdict.PASSED
    assert ran.paths == ["d2/two.txt", "dist/ok.txt", "dist/same.txt"]
    for name in LINKS:
        assert ran.skipped[f"dist/{name}"] == "a link"
    assert ran.skipped["d2/up"] == "a link"
    assert TOKEN.encode() not in ran.everything()
    assert b"root:" not in ran.everything()
    kinds = {path.is_symlink() for path in (ran.out / "artifacts").rglob("*")}
    assert kinds == {False}


def test_the_same_links_do_lead_to_the_host_s_files(tmp_path, marker):
    outside(link_lines(marker), tmp_path)
    assert (tmp_path / "dist/m.txt").read_text() == TOKEN
    assert (tmp_path / "dist/deep/climb").read_text() == TOKEN
    assert (tmp_path / f"dist/root{marker}").read_text() == TOKEN
    assert (tmp_path / "dist/folder/marker").read_text() == TOKEN


@pytest.mark.case("art-01-symlink")
def test_a_folder_that_is_a_link_is_not_entered(site, marker):
    line = f"mkdir -p a/b real; echo x > real/x; ln -s real dist; ln -s {marker.parent} a/b/c"
    ran = site.step(line, artifacts=["dist/**", "dist/x", "a/b/c/marker", "a/*/*/*"])
    assert (ran.verdict, ran.paths) == (Verdict.PASSED, [])
    assert (ran.skipped["dist"], ran.skipped["a/b/c"]) == ("a link", "a link")
    assert TOKEN.encode() not in ran.everything()


PROC_LINKS = """
mkdir -p dist
ln -s /proc/self/environ dist/env.txt
ln -s /proc/thread-self/cmdline dist/cmd.txt
ln -s /proc/self/fd/0 dist/stdin.txt
ln -s /proc/self/root/etc/passwd dist/root.txt
ln -s /proc/1/environ dist/init.txt
echo built
"""


@pytest.mark.case("link-07-supervisor-proc-self")
def test_links_into_proc_tell_nothing_of_the_collector(site, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", TOKEN)
    ran = site.step(PROC_LINKS, artifacts=DIST)
    assert (ran.verdict, ran.paths) == (Verdict.PASSED, [])
    assert [why for path, why in ran.skipped.items() if path.endswith(".txt")] == ["a link"] * 5
    assert TOKEN.encode() not in ran.everything()


def test_the_same_links_do_tell_a_reader_of_itself(tmp_path):
    look = PROC_LINKS + "cat dist/env.txt | tr '\\0' '\\n'"
    assert TOKEN in outside(look, tmp_path, HOST_SECRET=TOKEN).stdout


@pytest.mark.case("link-03-cleanup-chown")
def test_cleaning_up_follows_no_link_and_stops_at_no_locked_folder(site, tmp_path):
    canary = tmp_path / "canary"
    canary.mkdir(mode=0o777)
    (canary / "kept").write_text("kept")
    before = state_of(canary)
    line = f"""
ln -s {canary} d; mkdir -p locked/x dist/locked/x; echo x > locked/x/f; echo x > dist/locked/x/f
chmod 000 locked/x locked dist/locked/x; chmod 000 .
"""
    ran = site.step(line, artifacts=["dist/**"])
    assert ran.verdict is Verdict.PASSED
    assert state_of(canary) == before
    # The observer looks for what is left of the workspace.


# What is no file

SPECIAL = """
mkdir -p dist && echo ok > dist/ok.txt && mkfifo dist/pipe dist/junit.xml && ln -s pipe dist/link
cat > s.js <<'END'
require("node:net").createServer().listen("dist/socket", () => process.exit(0))
END
node s.js || true
"""


@pytest.mark.case("art-02-special-files")
def test_fifos_and_sockets_are_left_at_once_and_said_so(site):
    started_at = time.monotonic()
    ran = site.step(SPECIAL, artifacts=[*DIST, "dist/junit.xml"])
    assert time.monotonic() - started_at < 15
    assert (ran.verdict, ran.paths) == (Verdict.PASSED, ["dist/ok.txt"])
    assert ran.skipped == {
        "dist/pipe": "not a regular file",
        "dist/junit.xml": "not a regular file",
        "dist/link": "a link",
        "dist/socket": "not a regular file",
    }


# A tar of devices and of what overlays read as whiteouts; made here, for there is no mknod inside.
DEVICES = r"""
const fs = require("node:fs");
const octal = (value, width) => value.toString(8).padStart(width - 1, "0") + "\0";
const head = (name, type, major, minor) => {
  const it = Buffer.alloc(512);
  it.write(name, 0); it.write(octal(0o666, 8), 100);
  it.write(octal(0, 8), 108); it.write(octal(0, 8), 116);
  it.write(octal(0, 12), 124); it.write(octal(0, 12), 136); it.write("        ", 148);
  it.write(type, 156); it.write("ustar\x0000", 257);
  it.write(octal(major, 8), 329); it.write(octal(minor, 8), 337);
  it.write(octal(it.reduce((sum, byte) => sum + byte, 0), 7) + " ", 148);
  return it;
};
fs.writeFileSync("devices.tar", Buffer.concat([
  head("null", "3", 1, 3), head("whiteout", "3", 0, 0), head("disk", "4", 8, 0), Buffer.alloc(1024),
]));
"""
UNTAR = "node devices.js; mkdir -p dist; cd dist; tar xf ../devices.tar || true; ls"


@pytest.mark.case("art-02-special-files")
@pytest.mark.parametrize("has_layer", [False, True])
def test_no_device_is_made_on_any_kind_of_workspace(site, has_layer):
    files = project(site.publish("some", [])) if has_layer else {}
    line = f"{UNTAR}; cd /tmp; tar xf /workspace/devices.tar || true; ls"
    ran = site.step(line, {**files, "devices.js": DEVICES}, artifacts=DIST)
    told = ran.lines("attack")
    assert (ran.verdict, ran.paths) == (Verdict.PASSED, [])
    assert sum("Operation not permitted" in line for line in told) == 6
    assert not {"null", "whiteout", "disk"} & set(told)


@needs("root")
def test_the_same_archive_does_make_devices_for_one_who_may(tmp_path):
    done = outside(UNTAR, tmp_path, {"devices.js": DEVICES})
    assert done.stdout.split() == ["disk", "null", "whiteout"], done.stderr
    for path in (tmp_path / "dist").iterdir():
        path.unlink()


# What is a file, but of what mode and how large


@pytest.mark.case("art-04-hardlink-and-modes")
def test_what_is_delivered_is_new_files_with_plain_modes(site):
    package = site.publish("moded", [("package/index.js", "original\n")])
    line = """
mkdir -p dist/shut && cp /usr/bin/true dist/t && chmod 6777 dist/t
ln node_modules/moded/index.js dist/i.js; ln dist/t dist/t2
echo s > dist/secret && chmod 000 dist/secret; echo s > dist/shut/f; chmod 000 dist/shut
"""
    ran = site.step(line, project(package), artifacts=DIST)
    assert ran.verdict is Verdict.PASSED
    reachable = {"dist/i.js", "dist/t", "dist/t2"}
    # A root's collector may read what has no permissions; a plain user's says that it may not.
    assert reachable <= {*ran.paths} <= reachable | {"dist/secret", "dist/shut/f"}
    assert {*ran.paths, *ran.skipped} >= {"dist/secret"}
    files = [path for path in (ran.out / "artifacts").rglob("*") if path.is_file()]
    assert len(files) == len(ran.paths)
    for path in files:
        status = path.stat()
        assert (status.st_mode, status.st_nlink) == (stat.S_IFREG | 0o644, 1), path
        assert status.st_uid == os.geteuid()
        assert os.listxattr(path) == []
    (ran.out / "artifacts/dist/i.js").write_text("changed")
    (tree,) = site.cache_folder.glob("layers/*/tree/node_modules/moded")
    assert (tree / "index.js").read_text() == "original\n"


SPARSE = """
mkdir dist && echo ok > dist/ok
truncate -s 64M dist/giant; truncate -s 3M dist/a; truncate -s 3M dist/b
"""


def test_files_of_holes_count_as_large_as_they_seem(site):
    ran = site.step(SPARSE, artifacts=DIST, limits={"artifacts_mb": 4, "scratch_mb": 64})
    assert (ran.verdict, ran.paths) == (Verdict.PASSED, ["dist/a", "dist/ok"])
    assert "limit" in ran.skipped["dist/giant"]
    assert "limit" in ran.skipped["dist/b"]


def test_no_file_becomes_larger_than_the_scratch(site):
    ran = site.step("truncate -s 5T dist", limits={"scratch_mb": 16})
    assert ran.verdict is Verdict.FAILED


# How many, how deep, how long

TREES = r"""
const fs = require("node:fs");
fs.mkdirSync("dist"); process.chdir("dist");
const [many, deep, length] = process.argv.slice(2, 5).map(Number);
for (let i = 0; i < many; i++) fs.writeFileSync("f" + i, "");
for (let i = 0; i < deep; i++) { fs.mkdirSync("d".repeat(length)); process.chdir("d".repeat(length)); }
fs.writeFileSync("last", "");
"""  # noqa: E501 — a program


@pytest.mark.case("art-05-too-many-deep")
def test_very_many_and_very_deep_files_are_cut_at_the_limits_and_listed_in_bounds(site):
    ran = site.step(
        "node trees.js 30000 1500 4",
        {"trees.js": TREES},
        artifacts=DIST,
        limits={"artifacts_count": 1000},
    )
    assert ran.verdict is Verdict.PASSED
    assert len(ran.paths) == 1000
    assert ran.result.manifest["skipped_count"] == 29_000 + 1
    assert len(ran.skipped) <= 1_001
    assert (ran.out / "manifest.json").stat().st_size < 1024 * 1024


def test_a_path_longer_than_the_host_takes_is_skipped_and_said_so(site):
    ran = site.step("node trees.js 1 40 200", {"trees.js": TREES}, artifacts=DIST)
    assert (ran.verdict, ran.why) == (Verdict.PASSED, None), ran.message
    assert ran.paths == ["dist/f0"]
    assert ran.result.manifest["skipped_count"] == 1


def test_a_list_of_very_long_names_stays_in_bounds(site):
    make = """
const fs = require("node:fs");
fs.mkdirSync("dist"); process.chdir("dist");
for (let i = 0; i < 50; i++) { fs.mkdirSync("d".repeat(250)); process.chdir("d".repeat(250)); }
for (let i = 0; i < 1000; i++) fs.symlinkSync("/etc/passwd", "l".repeat(200) + i);
"""
    ran = site.step("node make.js", {"make.js": make}, artifacts=DIST)
    assert ran.verdict is Verdict.PASSED
    assert ran.result.manifest["skipped_count"] == 1000
    assert (ran.out / "manifest.json").stat().st_size < 1024 * 1024
    assert (ran.out / "audit.json").stat().st_size < 2 * 1024 * 1024


def test_a_hundred_thousand_links_are_left_and_counted(site):
    make = """
const fs = require("node:fs");
fs.mkdirSync("dist");
for (let i = 0; i < 1e5; i++) fs.symlinkSync("/etc/passwd", "dist/l" + i);
fs.writeFileSync("dist/zz", "ok");
"""
    ran = site.step("node make.js", {"make.js": make}, artifacts=DIST)
    assert (ran.verdict, ran.paths) == (Verdict.PASSED, ["dist/zz"])
    assert ran.result.manifest["skipped_count"] == 100_000
    assert len(ran.skipped) == 1_000


def test_the_limits_hold_for_all_steps_of_a_job_together(site):
    steps = {
        name: f"mkdir {name}; head -c 700000 /dev/zero > {name}/f; echo > {name}/g"
        for name in ("a", "b", "c")
    }
    ran = site.steps(
        steps,
        artifacts=["a/**", "b/**", "c/**"],
        limits={"artifacts_mb": 1, "artifacts_count": 4},
    )
    assert ran.verdict is Verdict.PASSED
    assert len(ran.paths) <= 4
    assert sum(each.size_bytes for each in ran.result.artifacts) <= 1024 * 1024


# Names

NAMES = r"""
const fs = require("node:fs");
const odd = ["a\nb", "e\x1b[31mred", "t\tab", "r\r", "\u009b31m", "bell\x07", "-rf", " ", "$(id)"];
fs.mkdirSync("dist");
for (const name of [...odd, "plain"]) fs.writeFileSync("dist/" + name, name);
for (const hex of ["ff", "fe2f61"]) {
  const path = Buffer.concat([Buffer.from("dist/"), Buffer.from(hex, "hex")]);
  if (hex.length > 2) fs.mkdirSync(path.subarray(0, 6));
  fs.writeFileSync(path, "x");
}
console.log(JSON.stringify(fs.readdirSync("dist").length));
"""


def test_no_name_with_control_characters_or_broken_text_is_delivered(site):
    ran = site.step("node names.js", {"names.js": NAMES}, artifacts=DIST)
    assert ran.printed("attack") == 12
    assert ran.paths == ["dist/ ", "dist/$(id)", "dist/-rf", "dist/plain"]
    assert ran.result.manifest["skipped_count"] == 8
    for path in (ran.out / "artifacts").rglob("*"):
        assert path.name.isprintable()
    assert ran.delivered("dist/plain") == b"plain"


def test_a_tree_of_such_names_can_be_made(tmp_path):
    assert said(outside("node names.js", tmp_path, {"names.js": NAMES})) == 12


# What was meant and what came later


def test_stars_alone_find_neither_dependencies_nor_links(site):
    package = site.publish("some", [("package/index.js", "original\n")])
    line = "mkdir -p dist/node_modules/x .git; echo 1 | tee dist/node_modules/x/a .git/b dist/c"
    ran = site.step(line, project(package), artifacts=["**"])
    assert ran.paths == ["a.test.js", "dist/c", "package.json", "pnpm-lock.yaml"]
    spelt = site.step(line, project(package), artifacts=["node_modules/**"])
    assert "node_modules/.pnpm/some@1.0.0/node_modules/some/index.js" in spelt.paths
    assert spelt.skipped["node_modules/some"] == "a link"


def test_what_a_later_step_makes_takes_the_place_of_what_an_earlier_one_made(site):
    ran = site.steps(
        {
            "first": "mkdir -p dist/sub; echo first | tee dist/a dist/sub/old",
            "second": "ls; mkdir dist; echo second > dist/sub; ln -s /etc/passwd dist/a",
        },
        artifacts=DIST,
    )
    assert (ran.verdict, ran.lines("second")) == (Verdict.PASSED, ["package.json"])
    assert (ran.paths, ran.delivered("dist/sub")) == (["dist/sub"], b"second\n")
    assert ran.skipped["dist/a"] == "a link"


def test_nothing_is_delivered_of_a_job_that_did_not_pass(site):
    ran = site.steps({"one": "mkdir dist; echo 1 > dist/a", "two": "exit 1"}, artifacts=DIST)
    assert (ran.verdict, ran.paths) == (Verdict.FAILED, [])
    assert {path.name for path in ran.out.rglob("*")} == {
        "audit.json",
        "log.ndjson",
        "manifest.json",
    }


def test_the_manifest_tells_size_and_hash_of_what_is_there(site):
    ran = site.step("mkdir dist; seq 1000 > dist/a; : > dist/b", artifacts=DIST)
    for each in ran.result.artifacts:
        content = ran.delivered(each.path)
        assert (each.size_bytes, each.sha256) == (
            len(content),
            hashlib.sha256(content).hexdigest(),
        )
