"""Threat: a bundle's names, links or kinds of files lead out of the project (jobs: bundles).

A bundle is refused as a whole, before a box is made or a package is fetched. The controls lay the
same names out on the host and find themselves outside.
"""

import contextlib
import os
import socket

import pytest

from cloche.model.job import ReasonCode, Verdict
from job_site import Ran, manifest, open_site, outside, project, state_of
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

LONG = "a" * 256


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def canary(tmp_path):
    """A folder of the host that anyone may write into."""
    folder = tmp_path / "canary"
    folder.mkdir()
    (folder / "kept").write_text("kept")
    folder.chmod(0o777)
    return folder


def assert_refused(ran: Ran, path: str) -> None:
    """Names the entry, and nothing has been started."""
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.BUNDLE_REFUSED)
    assert repr(path)[1:-1][:40] in ran.message
    assert ran.result.steps == ()
    assert sorted(path.name for path in ran.out.iterdir()) == [
        "audit.json",
        "log.ndjson",
        "manifest.json",
    ]


@pytest.mark.case("bun-01-traversal", "api-13-file-keys")
@pytest.mark.parametrize(
    "path",
    [
        "../evil-1.txt", "/tmp/evil-2.txt", "a/../../evil-3.txt", "..\\evil-4.txt",
        "C:\\evil-5.txt", "./../evil-6.txt", "a/./b/../../../evil-7.txt", "~/evil-8.txt",
        "c:evil-9.txt", "a//evil-10.txt", "", ".", "a/", "a\0b", "a\nb", f"{LONG}/x",
        "\u2025/evil-11.txt", "\uff0e\uff0e/evil-12.txt", "a\uff0f..\uff0f..\uff0fevil-13.txt",
        "evil\u202e14.txt", "/".join("a" * 65), "\udcff",
    ],
)  # fmt: skip
def test_a_path_that_is_not_plain_refuses_the_bundle_by_name(site, path):
    package = site.publish("never-fetched")
    seen_count = len(site.registry.seen)
    ran = site.run({**project(package), path: "x"})
    assert_refused(ran, path)
    assert len(site.registry.seen) == seen_count
    assert list(site.folder.parent.rglob("evil*")) == []


def test_the_same_paths_do_lead_out_where_they_are_joined(tmp_path):
    folder = tmp_path / "project" / "a"
    folder.mkdir(parents=True)
    for path in ("../../evil-1.txt", str(tmp_path / "evil-2.txt")):
        (folder / path).write_text("x")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "evil-1.txt", "evil-2.txt", "project",
    ]  # fmt: skip


@pytest.mark.case("bun-05-case-collision")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Src/a.ts", "src/a.ts"), ("caf\u00e9.ts", "cafe\u0301.ts"),
        ("stra\u00dfe.ts", "strasse.ts"), ("x", "x/y"), ("package.json", "package.JSON"),
        ("\ufb01le.ts", "file.ts"), ("a\u00adb", "ab"), ("K.ts", "\u212a.ts"),
    ],
)  # fmt: skip
def test_two_names_that_some_file_system_takes_for_one_refuse_the_bundle(site, one, other):
    ran = site.run({"package.json": manifest(), one: "1", other: "2"})
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.BUNDLE_REFUSED)
    assert ran.result.steps == ()


def make_link(path, canary):
    path.symlink_to(canary)


def make_inner_link(path, canary):
    path.symlink_to("package.json")


def make_socket(path, canary):
    with socket.socket(socket.AF_UNIX) as end:
        with contextlib.chdir(path.parent):  # a socket's whole path must be short
            end.bind(path.name)


def make_setuid(path, canary):
    path.write_text("#!/bin/sh\n")
    path.chmod(0o4755)


MAKERS = {
    "link": make_link,
    "inner-link": make_inner_link,
    "fifo": lambda path, canary: os.mkfifo(path),
    "socket": make_socket,
    "setuid": make_setuid,
}


@pytest.mark.case("bun-02-symlink-entry")
@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_no_plain_file_refuses_the_bundle_by_name(site, canary, kind):
    folder = site.new_folder()
    (folder / "package.json").write_text(manifest({"test": "node --test"}))
    (folder / "src").mkdir()
    MAKERS[kind](folder / "src" / "odd", canary)
    before = state_of(canary)
    assert_refused(site.run(folder), "src/odd")
    assert state_of(canary) == before


@needs("root")
@pytest.mark.case("bun-02-symlink-entry")
def test_a_device_refuses_the_bundle_by_name(site):
    folder = site.new_folder()
    (folder / "package.json").write_text(manifest())
    os.mknod(folder / "null", 0o020666, os.makedev(1, 3))
    assert_refused(site.run(folder), "null")


@pytest.mark.case("bun-04-two-step")
def test_a_link_that_one_job_left_is_not_there_in_the_next(site, canary):
    first = site.step(f"ln -s {canary} uploads; ls -d uploads/kept || true", artifacts=["**"])
    assert first.verdict is Verdict.PASSED
    assert first.skipped["uploads"] == "a link"
    upload = {"uploads/x.txt": "x"}
    second = site.step("stat -c %F uploads; cat uploads/x.txt", upload, artifacts=["uploads/*"])
    assert second.lines("attack") == ["directory", "x"]
    assert second.delivered("uploads/x.txt") == b"x"
    assert [path.name for path in canary.iterdir()] == ["kept"]


def test_the_two_do_meet_in_one_folder(tmp_path, canary):
    outside(f"ln -s {canary} uploads", tmp_path)
    outside("true", tmp_path, {"uploads/x.txt": "x"})
    assert (canary / "x.txt").read_text() == "x"


def test_dependencies_that_come_with_the_bundle_are_left_out_whatever_they_are(site, canary):
    """A folder, and a link in its place that pnpm would install through."""
    real = site.publish("real", [("package/index.js", "module.exports = 'locked'")])
    look = "node -p \"require('real')\"; ls node_modules node_modules/.bin || true"
    steps = [{"name": "look", "shell": look}]
    planted = {
        "node_modules/real/index.js": "module.exports = 'planted'",
        "node_modules/.bin/planted": "#!/bin/sh\n",
        "src/node_modules/real/index.js": "module.exports = 'planted'",
    }
    ran = site.run({**project(real), **planted}, steps=steps)
    assert "locked" in ran.lines("look")
    assert "planted" not in "".join(ran.lines("look"))
    assert [note for note in ran.notes if note.startswith("left out: node_modules")]

    folder = site.new_folder()
    for path, content in project(real).items():
        (folder / path).write_text(content)
    (folder / "node_modules").symlink_to(canary)
    before = state_of(canary)
    ran = site.run(folder, steps=steps)
    assert ran.verdict is Verdict.PASSED
    assert "locked" in ran.lines("look")
    assert state_of(canary) == before


def test_a_hard_link_in_a_bundle_is_a_copy_for_the_job(site, canary):
    folder = site.new_folder()
    (folder / "package.json").write_text(manifest())
    os.link(canary / "kept", folder / "same")
    ran = site.run(
        folder,
        steps=[{"name": "write", "shell": "cat same; echo more >> same; stat -c %h same"}],
        artifacts=["same"],
    )
    assert ran.lines("write") == ["kept1"]
    assert (canary / "kept").read_text() == "kept"
    assert ran.delivered("same") == b"keptmore\n"


@pytest.mark.parametrize("name", [".wh.node_modules", ".wh..wh..opq", "work", "layer-0", "merged"])
def test_names_that_mean_something_to_overlays_are_plain_names(site, name):
    real = site.publish("real", [("package/index.js", "module.exports = 'locked'")])
    files = {**project(real), name: "mine", f"a/{name}/b": "mine too"}
    look = f"node -p \"require('real')\"; cat '{name}'; cat 'a/{name}/b'"
    ran = site.run(files, steps=[{"name": "look", "shell": look}])
    assert ran.lines("look") == ["locked", "minemine too"]
