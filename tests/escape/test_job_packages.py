"""Threat: a package gets out of its folder, runs at install, or poisons another job's dependencies.

The packages come from a registry with hashes that are right: what is in them is the attack.
"""

import stat
import tarfile

import pytest

from cloche.model.job import ReasonCode, StepStatus, Verdict
from job_site import (
    manifest,
    open_site,
    outside,
    pack,
    project,
    special,
    state_of,
)
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

INDEX = ("package/index.js", "module.exports = 'original'\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


def assert_plain(tree):
    """A layer's folders, plain files and links that stay inside are all there is."""
    for path in tree.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            assert path.resolve().is_relative_to(tree), path
            assert not path.readlink().is_absolute(), path
        else:
            assert stat.S_ISDIR(mode) or stat.S_ISREG(mode), path
            assert mode & 0o7022 == 0, path


def unpack(data, folder):
    """What an installer does that takes names as they are."""
    place = folder / "project" / "node_modules" / "package"
    place.mkdir(parents=True)
    (folder / "package.tgz").write_bytes(data)
    with tarfile.open(folder / "package.tgz") as archive:
        archive.extractall(place)


# Paths that lead out


@pytest.mark.parametrize(
    "path",
    [
        "package/../../../../evil.txt", "../../../../evil.txt", "package/..\\..\\evil.txt",
        "package/./../../evil.txt", "/evil.txt", "package/a/../../../evil.txt",
    ],
)  # fmt: skip
def test_a_path_in_a_package_that_leads_out_lays_nothing_there(site, path):
    package = site.publish("climber", [INDEX, (path, "x")])
    before = site.trees()
    look = "find / -name 'evil*' -not -path '/proc/*' 2>/dev/null | grep -v 'node_modules/climber'"
    ran = site.run(project(package), steps=[{"name": "look", "shell": f"{look} || true"}])
    if ran.verdict is Verdict.PASSED:  # laid down as a plain name within the package
        assert ran.lines("look") == []
    else:
        assert ran.result.failed_step == "install"
        assert site.trees() == before
    assert list(site.folder.parent.rglob("evil*")) == []


def test_the_same_path_leads_out_where_it_is_taken_as_it_is(tmp_path):
    unpack(pack("climber", "1.0.0", [("package/../../../../evil.txt", "x")]), tmp_path)
    assert (tmp_path / "evil.txt").read_text() == "x"


# What is no plain file

ODD = [
    INDEX,
    special("package/soft", tarfile.SYMTYPE, "/etc/passwd"),
    special("package/folder", tarfile.SYMTYPE, "/tmp"),
    ("package/folder/through.txt", "x"),
    special("package/hard", tarfile.LNKTYPE, "package/package.json"),
    special("package/fifo", tarfile.FIFOTYPE),
    special("package/null", tarfile.CHRTYPE, device=(1, 3)),
    special("package/whiteout", tarfile.CHRTYPE, device=(0, 0)),
]


def test_links_fifos_and_devices_in_a_package_are_not_laid_down(site):
    package = site.publish("odd", ODD)
    look = "cd node_modules/odd; find . -type l -o -type p -o -type c; ls /tmp"
    ran = site.run(project(package), steps=[{"name": "look", "shell": look}])
    assert (ran.verdict, ran.lines("look")) == (Verdict.PASSED, [])
    for tree in site.trees():
        assert_plain(tree)


def test_the_same_package_does_lay_links_and_a_fifo_where_it_is_unpacked_as_it_is(tmp_path):
    unpack(pack("odd", "1.0.0", [each for each in ODD[:2] + ODD[5:6]]), tmp_path)
    place = tmp_path / "project/node_modules/package/package"
    assert (place / "soft").readlink().is_absolute()
    assert (place / "fifo").is_fifo()


def test_setuid_bits_of_a_package_are_dropped(site):
    entry = tarfile.TarInfo("package/tool")
    entry.mode = 0o6777
    package = site.publish("setuid", [INDEX, entry])
    look = "stat -L -c %a node_modules/setuid/tool"
    ran = site.run(project(package), steps=[{"name": "look", "shell": look}])
    assert ran.lines("look") == ["755"]
    for tree in site.trees():
        assert_plain(tree)


def test_names_that_differ_in_case_alone_are_two_packages(site):
    packages = [
        site.publish(name, [("package/index.js", f"module.exports = '{name}'\n")])
        for name in ("twin", "Twin", "TWIN")
    ]
    look = "node -p \"['twin', 'Twin', 'TWIN'].map(require).join()\""
    ran = site.run(project(*packages), steps=[{"name": "look", "shell": look}])
    assert ran.lines("look") == ["twin,Twin,TWIN"]


@pytest.mark.parametrize(
    "name",
    [
        "node_modules", ".bin", ".pnpm", "..", "../x", "@x/..", "@../x", "@x/y/z", "a/b", "a\\b",
        "a\nb", "%2e%2e", "/x", "",
    ],
)  # fmt: skip
def test_a_name_that_is_no_name_of_a_package_is_refused_before_anything_starts(site, name):
    package = site.publish("plain", [INDEX])
    files = project(package)
    # As JSON texts: the names are escaped as they have to be.
    for path in ("package.json", "pnpm-lock.yaml"):
        quoted = manifest(name=name).split('"name": ')[1].split(', "private"')[0][1:-1]
        files[path] = files[path].replace('"plain', f'"{quoted}')
    seen_count = len(site.registry.seen)
    ran = site.run(files)
    assert ran.verdict is Verdict.REJECTED
    assert ran.why in (ReasonCode.DEPENDENCY_REFUSED, ReasonCode.LOCKFILE_INVALID)
    assert ran.result.steps == ()
    assert len(site.registry.seen) == seen_count


# Programs of packages

TAKEN = "#!/bin/sh\necho TAKEN \"$@\"\necho 'ok 1 - taken'; echo '1..1'; exit 0\n"


def test_a_program_of_a_package_is_laid_nowhere_but_beside_the_others(site):
    targets = {
        "../evil": "tool", "../../evil": "tool", "/tmp/evil": "tool", "a/evil": "tool",
        ".": "tool", "..": "tool", "good": "tool", "reach": "../../../../../bin/true",
        "absolute": "/etc/passwd", "evil\n2": "tool",
    }  # fmt: skip
    package = site.publish("programs", [INDEX, ("package/tool", TAKEN)], bin=targets)
    look = "find . /tmp -name 'evil*'; ls node_modules/.bin; node_modules/.bin/good there"
    ran = site.run(project(package), steps=[{"name": "look", "shell": look}])
    lines = ran.lines("look")
    assert lines[0] in ("absolute", "good")  # nothing was found before the list
    assert "TAKEN there" in lines
    assert not [line for line in lines if line.startswith(("evil", ".."))]
    for tree in site.trees():
        assert_plain(tree)


@pytest.mark.parametrize("name", ["sh", "bash", "pnpm"])
def test_no_program_of_a_package_stands_in_for_what_runs_the_scripts(site, name):
    """pnpm puts the packages' programs before all others on the path of a script."""
    package = site.publish(f"taker-{name}", [INDEX, ("package/tool", TAKEN)], bin={name: "tool"})
    ran = site.run(project(package, scripts={"test": "exit 3"}))
    assert "TAKEN" not in "".join(ran.lines("test"))
    assert (ran.verdict, ran.step("test").exit_code) == (Verdict.FAILED, 3)


def test_a_workspace_package_called_pnpm_does_not_stand_in_for_it_either(site):
    files = {
        "package.json": manifest({"test": "exit 3"}, dependencies={"pnpm": "workspace:*"}),
        "pnpm-workspace.yaml": "packages: [p]\n",
        "p/package.json": manifest(name="pnpm", bin={"pnpm": "tool", "sh": "tool"}),
        "p/tool": TAKEN,
        "pnpm-lock.yaml": """
lockfileVersion: '9.0'
settings: {autoInstallPeers: true, excludeLinksFromLockfile: false}
importers:
  .: {dependencies: {pnpm: {specifier: 'workspace:*', version: 'link:p'}}}
  p: {}
""",
    }
    ran = site.run(files)
    assert "TAKEN" not in "".join(ran.lines("test"))
    assert (ran.verdict, ran.step("test").exit_code) == (Verdict.FAILED, 3)


@pytest.mark.case("ins-07-lifecycle-scripts")
def test_no_script_of_a_package_or_of_the_project_runs_at_install(site):
    names = ("preinstall", "install", "postinstall", "prepare", "prepublish")
    ran_it = {name: f"echo RAN-{name} | tee /workspace/RAN-{name} /tmp/RAN-{name}; env"
              for name in (*names, "pnpm:devPreinstall", "prepack")}  # fmt: skip
    package = site.publish(
        "scripted",
        [INDEX, ("package/binding.gyp", '{"targets": [{"target_name": "RAN-gyp"}]}')],
        scripts=ran_it,
    )
    ran = site.run(project(package, scripts=ran_it), without=["build"])
    assert ran.verdict is Verdict.PASSED
    assert b"RAN-" not in (ran.out / "log.ndjson").read_bytes()
    (note,) = [note for note in ran.notes if "runs no scripts" in note]
    assert all(name in note for name in names)
    assert not [path for tree in site.trees() for path in tree.rglob("RAN-*")]


def test_the_same_scripts_do_run_where_they_are_asked_for(site):
    ran = site.steps({"run": "pnpm run postinstall"}, project(scripts={"postinstall": "echo RAN"}))
    assert "RAN" in ran.lines("run")


# What grows when it is unpacked

BOMB = ("package/zeros", bytes(96 * 1024 * 1024))


def test_a_package_that_grows_past_the_scratch_ends_the_install_with_that_reason(site):
    package = site.publish("bomb", [BOMB])
    assert len(site.registry.content(package)) < 1024 * 1024
    before = site.trees()
    ran = site.run(project(package), limits={"scratch_mb": 32, "memory_mb": 256})
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.SCRATCH_FULL)
    assert ran.step("test").status is StepStatus.SKIPPED
    assert site.trees() == before


def test_a_package_that_grows_past_the_memory_ends_the_install_with_that_reason(site):
    package = site.publish("bomb", [BOMB])
    before = site.trees()
    ran = site.run(project(package), limits={"scratch_mb": 2048, "memory_mb": 80})
    assert (ran.verdict, ran.why) == (Verdict.MEMORY_EXCEEDED, ReasonCode.MEMORY)
    assert site.trees() == before


def test_a_package_of_more_files_than_the_scratch_takes_ends_the_install_with_that_reason(site):
    package = site.publish("many", [(f"package/{number}", str(number)) for number in range(1500)])
    before = site.trees()
    ran = site.run(project(package), limits={"scratch_inodes_count": 800})
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.SCRATCH_FULL)
    assert site.trees() == before


def test_a_package_of_very_deep_folders_is_refused_and_leaves_no_layer(site):
    package = site.publish("deep", [INDEX, ("package/" + "d/" * 200 + "file", "x")])
    before = site.trees()
    ran = site.run(project(package))
    assert (ran.verdict, ran.result.failed_step) == (Verdict.FAILED, "install")
    assert ran.why is ReasonCode.DEPENDENCY_REFUSED
    assert site.trees() == before


# One job's dependencies and the next job's

POISON = r"""
cd node_modules
echo POISON >> canary-pkg/index.js
find . -type f -exec sh -c 'chmod u+w "$1"; echo POISON >> "$1"' _ {} \;
chmod -R u+w "$(pnpm store path)" 2>/dev/null || true
find / \( -path /proc -o -path /dev \) -prune -o -type f -writable -print 2>/dev/null |
  while read -r file; do echo POISON >> "$file"; done
rm -rf canary-pkg/lib && mkdir canary-pkg/lib && echo POISON > canary-pkg/lib/a.js
mv .pnpm moved && mkdir .pnpm && cp -r moved/* .pnpm
ln -f canary-pkg/index.js linked && echo POISON >> linked
ln -sf /etc/passwd canary-pkg/package.json
touch -d 2001-01-01 canary-pkg canary-pkg/index.js
truncate -s 0 .modules.yaml
chmod 000 canary-pkg/lib/a.js
"""
CLEAN = "grep -r POISON /workspace /tmp && exit 9; cat node_modules/canary-pkg/lib/a.js; exit 0"


@pytest.mark.case("ins-14-store-poisoning")
def test_a_job_that_changes_its_dependencies_changes_them_for_itself_alone(site):
    package = site.publish("canary-pkg", [INDEX, ("package/lib/a.js", "a\n")])
    before = site.trees()
    first = site.run(project(package))
    assert (first.verdict, first.step("install").cached) == (Verdict.PASSED, False)
    (tree,) = set(site.trees()) - set(before)
    state = state_of(tree)

    poison = {"name": "poison", "shell": POISON + "cat linked; exit 0"}
    clean = {"name": "clean", "shell": CLEAN}
    ran = site.run(project(package), steps=[poison, clean])
    assert ran.lines("poison")[:2] == ["module.exports = 'original'", "POISON"]
    assert (ran.verdict, ran.lines("clean")[-1:]) == (Verdict.PASSED, ["a"]), ran.lines("clean")

    again = site.run(project(package), steps=[clean])
    assert (again.verdict, again.step("install").cached) == (Verdict.PASSED, True)
    assert state_of(tree) == state


def test_the_same_poison_does_reach_whoever_shares_the_folder(tmp_path):
    installed = {
        "node_modules/canary-pkg/index.js": "original",
        "node_modules/canary-pkg/lib/a.js": "a\n",
    }
    outside("cd node_modules && echo POISON >> canary-pkg/index.js", tmp_path, installed)
    assert outside("grep -r POISON node_modules && exit 9", tmp_path).returncode == 9


def test_trust_domains_share_no_layer(site):
    package = site.publish("shared", [INDEX])
    runs = [
        site.run(project(package), trust_domain=domain, without=["build"]).step("install").cached
        for domain in ("one", "two", "one")
    ]
    assert runs == [False, False, True]
