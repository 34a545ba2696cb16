"""Threat: a project of npm's resolves, runs or fetches what its lockfile does not vouch for.

What `test_job_packages.py` is for pnpm. The lockfiles are made by hand: each lies in one place.
"""

import http.server
import json
import threading

import pytest

from cloche.model.job import ReasonCode, Verdict
from job_site import GOOD_TEST, SCRIPTS, manifest, open_site, outside, state_of
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

INDEX = ("package/index.js", "module.exports = 'original'\n")
LOOK = "node -p \"require('canary-pkg')\""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def canary_pkg(site):
    return site.publish("canary-pkg", [INDEX, ("package/lib/a.js", "a\n")])


@pytest.fixture
def elsewhere():
    """(Address of a listener of the host that has everything, what it was asked for.)"""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def entry(package, **changes):
    fields = {"version": package.version, "integrity": package.integrity, **changes}
    return {name: value for name, value in fields.items() if value is not None}


def lock(entries, wanted):
    """A package-lock.json; `entries` by the name of the package."""
    packages = {f"node_modules/{name}": each for name, each in entries.items()}
    root = {"name": "made", "version": "1.0.0", "dependencies": wanted}
    whole = {"name": "made", "version": "1.0.0", "lockfileVersion": 3, "requires": True}
    return json.dumps({**whole, "packages": {"": root, **packages}})


def project(package, scripts=None, specifier="1.0.0", fields=None, **changes):
    wanted = {package.name: specifier}
    scripts = {**SCRIPTS, **(scripts or {})}
    return {
        "package.json": manifest(scripts, dependencies=wanted, **(fields or {})),
        "package-lock.json": lock({package.name: entry(package, **changes)}, wanted),
        "a.test.js": GOOD_TEST,
    }


def assert_rejected(site, files, why, told=""):
    seen_count = len(site.registry.seen)
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, why), ran.message
    assert told in ran.message
    assert (ran.result.steps, len(site.registry.seen)) == ((), seen_count)


def test_the_project_that_all_of_them_are_made_of_does_pass(site, canary_pkg):
    ran = site.run(project(canary_pkg), steps=[{"name": "look", "shell": LOOK}])
    assert (ran.verdict, ran.lines("look")) == (Verdict.PASSED, ["original"]), ran.message


@pytest.mark.case("ins-01-missing-lockfile")
@pytest.mark.parametrize("other", [None, "yarn.lock", "bun.lock"])
def test_no_version_is_resolved_without_a_lockfile(site, canary_pkg, other):
    files = {**project(canary_pkg), **({other: ""} if other else {})}
    del files["package-lock.json"]
    seen_count = len(site.registry.seen)
    ran = site.run(files)
    assert ran.verdict is Verdict.REJECTED
    assert ran.why in (ReasonCode.LOCKFILE_MISSING, ReasonCode.LOCKFILE_INVALID)
    assert (ran.result.steps, len(site.registry.seen)) == ((), seen_count)


@pytest.mark.case("ins-02-lockfile-mismatch", "ver-06-step-order")
def test_a_lockfile_that_is_only_at_odds_with_its_own_entries_installs_nothing(site, canary_pkg):
    """Its own dependencies match package.json; the entry is another version."""
    other = site.publish("canary-pkg", [INDEX], version="2.0.0")
    files = project(canary_pkg)
    wanted = {"canary-pkg": "1.0.0"}
    files["package-lock.json"] = lock({"canary-pkg": entry(other)}, wanted)
    before = site.trees()
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.LOCKFILE_OUTDATED), ran.message
    assert ran.result.failed_step == "install"
    assert [step.status.value for step in ran.result.steps[1:]] == ["skipped", "skipped"]
    assert site.trees() == before

    files["package-lock.json"] = lock({}, wanted)
    assert site.run(files).why is ReasonCode.LOCKFILE_OUTDATED


SHA512 = "sha512-" + "A" * 86 + "=="
FOREIGN = {
    "git": {"resolved": "git+ssh://git@git.test/owner/name.git#0", "integrity": None},
    "git with a hash": {"resolved": "git+https://git.test/owner/name.git#0"},
    "a folder": {"resolved": "file:../canary-pkg"},
    "a tarball of the project": {"resolved": "file:canary-pkg.tgz"},
    "another host": {"resolved": "@ELSEWHERE@/other-name/-/other-name-1.0.0.tgz"},
    "another path": {"resolved": "@ELSEWHERE@/canary-pkg.tgz"},
    "a query": {"resolved": "@ELSEWHERE@/canary-pkg/-/canary-pkg-1.0.0.tgz?to=elsewhere"},
    "no hash": {"integrity": None},
    "an old hash": {"integrity": "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk="},
    "two hashes": {"integrity": f"{SHA512} {SHA512}"},
    "another name": {"name": "../canary-pkg"},
    "another version": {"version": "../1.0.0"},
    "a link out": {"resolved": "../elsewhere", "link": True},
    "a link to nothing": {"resolved": "packages/none", "link": True},
}


@pytest.mark.case("ins-03-git-dependency", "ins-04-foreign-tarball")
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_the_registry_does_not_vouch_for_is_refused_by_name(site, canary_pkg, elsewhere, kind):
    changes = json.loads(json.dumps(FOREIGN[kind]).replace("@ELSEWHERE@", elsewhere[0]))
    files = project(canary_pkg, **changes)
    assert_rejected(site, files, ReasonCode.DEPENDENCY_REFUSED, "node_modules/canary-pkg")
    assert elsewhere[1] == []


@pytest.mark.case("ins-04-foreign-tarball")
def test_an_address_of_another_host_is_asked_for_nowhere(site, canary_pkg, elsewhere):
    """Its path is as a registry has it, and no other entry is there to compare: only the hash
    counts, and the bytes come from where npm's own settings say.
    """
    address = f"{elsewhere[0]}/canary-pkg/-/canary-pkg-1.0.0.tgz"
    ran = site.run(
        project(canary_pkg, resolved=address, fields={"name": "foreign"}),
        steps=[{"name": "look", "shell": LOOK}],
    )
    assert (ran.verdict, ran.lines("look")) == (Verdict.PASSED, ["original"]), ran.message
    assert elsewhere[1] == []
    other = site.publish("other-pkg", [INDEX])
    wanted = {"canary-pkg": "1.0.0", "other-pkg": "1.0.0"}
    entries = {"canary-pkg": entry(canary_pkg, resolved=address)}
    for name in ("other-pkg", "other-pkg/node_modules/other-pkg"):
        where = f"{site.registry.url}/{other.tarball_path}"
        entries[name] = entry(other, resolved=where)
    files = project(canary_pkg)
    files["package.json"] = manifest(SCRIPTS, dependencies=wanted)
    files["package-lock.json"] = lock(entries, wanted)
    assert_rejected(site, files, ReasonCode.DEPENDENCY_REFUSED, "another host")


def test_a_package_that_says_it_is_bundled_is_fetched_from_nowhere(site, canary_pkg, elsewhere):
    files = project(canary_pkg, resolved=f"{elsewhere[0]}/x.tgz", inBundle=True, integrity=None)
    before = site.trees()
    ran = site.run(files, steps=[{"name": "look", "shell": LOOK}])
    assert ran.verdict is Verdict.FAILED
    assert elsewhere[1] == []
    assert "original" not in ran.lines("look")
    assert ran.result.failed_step == "look" or site.trees() == before


@pytest.mark.case("ins-07-lifecycle-scripts")
def test_no_script_of_a_package_or_of_the_project_runs_at_install(site):
    names = ("preinstall", "install", "postinstall", "preprepare", "prepare", "postprepare",
             "prepublish", "dependencies")  # fmt: skip
    ran_it = {name: f"echo RAN-{name} | tee /workspace/RAN-{name}" for name in names}
    gyp = ("package/binding.gyp", '{"targets": [{"target_name": "RAN-gyp"}]}')
    package = site.publish("scripted", [INDEX, gyp], scripts=ran_it)
    files = project(package, scripts=ran_it, hasInstallScript=True)
    ran = site.run(files, without=["build"])
    assert ran.verdict is Verdict.PASSED, ran.message
    assert b"RAN-" not in (ran.out / "log.ndjson").read_bytes()
    assert not [path for tree in site.trees() for path in tree.rglob("RAN-*")]
    # The control: the same script, asked for.
    ran = site.run(files, steps=[{"name": "look", "shell": "npm run postinstall"}])
    assert "RAN-postinstall" in ran.lines("look")


@pytest.mark.case("ins-09-npmrc-redirect")
@pytest.mark.parametrize("path", [".npmrc", "package.json/.npmrc", "packages/x/.npmrc"])
def test_no_npmrc_sends_the_install_or_a_script_elsewhere(
    site, canary_pkg, elsewhere, monkeypatch, path
):
    monkeypatch.setenv("HOST_SECRET", "secret-of-the-host")
    if path.startswith("package.json"):
        path = "npmrc"  # one that `userconfig` names
    files = project(canary_pkg, fields={"name": f"npmrc{len(path)}"})
    files[path] = (
        f"registry={elsewhere[0]}/${{HOST_SECRET}}/\n//127.0.0.1/:_authToken=${{HOST_SECRET}}\n"
        "userconfig=npmrc\nscript-shell=/workspace/taken\nnode-options=--require=/workspace/t.js\n"
        "ignore-scripts=false\npackage-lock=false\nprefix=/workspace/p\n"
    )
    files["taken"] = "#!/bin/sh\necho TAKEN\n"
    files["t.js"] = "console.log('TAKEN')"
    ran = site.run(files)
    assert ran.verdict is Verdict.PASSED, ran.message
    assert elsewhere[1] == []
    assert b"secret-of-the-host" not in ran.everything()
    assert "TAKEN" not in "".join([*ran.lines("install"), *ran.lines("test"), *ran.lines("build")])


@pytest.mark.case("ins-11-package-manager-field")
@pytest.mark.parametrize("asked", ["npm@6.0.0", "yarn@1.22.22", "", "npm@@ELSEWHERE@/n.tgz"])
def test_no_other_package_manager_or_runtime_is_fetched_or_run(site, canary_pkg, elsewhere, asked):
    fields = {
        "packageManager": asked.replace("@ELSEWHERE@", elsewhere[0]),
        "engines": {"node": "12", "npm": "6"},
    }
    scripts = {"build": "mkdir dist; npm --version > dist/npm; node --version > dist/node"}
    ran = site.run(project(canary_pkg, scripts=scripts, fields=fields))
    assert ran.verdict is Verdict.PASSED, ran.message
    assert not ran.delivered("dist/npm").startswith(b"6.")
    assert not ran.delivered("dist/node").startswith(b"v12.")
    assert elsewhere[1] == []


@pytest.mark.case("ins-11-package-manager-field")
@pytest.mark.parametrize("kind", ["packageManager", "runtime"])
def test_what_a_project_wants_downloaded_is_not_and_npm_says_so(site, canary_pkg, kind):
    """npm's own check of `devEngines` ends its `npm run`; the install does not see the field."""
    wanted = {"name": "npm" if kind == "packageManager" else "node", "version": "6.0.0"}
    fields = {
        "name": f"wants-{kind}".lower(),
        "devEngines": {kind: {**wanted, "onFail": "download"}},
    }
    ran = site.run(project(canary_pkg, fields=fields))
    assert (ran.verdict, ran.result.failed_step) == (Verdict.FAILED, "test")
    assert "EBADDEVENGINES" in "".join(ran.lines("test"))
    assert ran.result.denied == ()


TAKEN = "#!/bin/sh\necho TAKEN \"$@\"\necho 'ok 1 - taken'; echo '1..1'; exit 0\n"


@pytest.mark.parametrize("name", ["sh", "bash", "npm", "env"])
def test_no_program_of_a_package_stands_in_for_what_runs_the_scripts(site, name):
    """npm puts the packages' programs before all others on the path of a script."""
    package = site.publish(f"taker-{name}", [INDEX, ("package/tool", TAKEN)], bin={name: "tool"})
    files = project(package, scripts={"test": "exit 3"}, bin={name: "tool"})
    ran = site.run(files)
    assert "TAKEN" not in "".join(ran.lines("test"))
    assert (ran.verdict, ran.step("test").exit_code) == (Verdict.FAILED, 3)
    # The control: a script that names it has it.
    ran = site.run({**files, "package.json": files["package.json"].replace("exit 3", name)})
    assert "TAKEN" in "".join(ran.lines("test"))


POISON = """
cd node_modules
echo POISON >> canary-pkg/index.js; echo POISON > planted; mkdir -p .bin; echo POISON > .bin/tool
rm -rf canary-pkg/lib; ln -s /etc canary-pkg/lib
echo POISON >> .package-lock.json
chmod 000 canary-pkg; touch -d 2001-01-01 .
find / -path /proc -prune -o -name '*.tgz' -print -o -name layers -print 2>/dev/null || true
"""


@pytest.mark.case("ins-14-store-poisoning")
def test_a_job_that_changes_its_dependencies_changes_them_for_itself_alone(site, canary_pkg):
    files = project(canary_pkg, fields={"name": "poisoned"})
    before = set(site.trees())
    first = site.run(files)
    assert (first.verdict, first.step("install").cached) == (Verdict.PASSED, False), first.message
    (tree,) = set(site.trees()) - before
    state = state_of(tree)
    clean = {"name": "clean", "shell": "grep -rs POISON . && exit 9; cat node_modules/*/lib/a.js"}
    poison = {"name": "poison", "shell": POISON + "exit 0"}
    ran = site.run(files, steps=[poison, clean])
    assert ran.lines("poison") == []  # nothing of the stores is in sight
    assert (ran.verdict, ran.lines("clean")) == (Verdict.PASSED, ["a"])
    again = site.run(files, steps=[clean])
    assert (again.step("install").cached, again.lines("clean")) == (True, ["a"])
    assert state_of(tree) == state


def test_the_same_poison_does_reach_whoever_shares_the_folder(tmp_path):
    installed = {"node_modules/canary-pkg/index.js": "", "node_modules/canary-pkg/lib/a.js": ""}
    outside("cd node_modules && echo POISON >> canary-pkg/index.js", tmp_path, installed)
    assert outside("grep -r POISON . && exit 9", tmp_path).returncode == 9


@pytest.mark.case("ins-14-store-poisoning")
@pytest.mark.parametrize(
    "damage",
    [
        lambda tree: (tree / "node_modules/canary-pkg/index.js").write_text("POISON"),
        lambda tree: (tree / "node_modules/canary-pkg/lib/a.js").unlink(),
        lambda tree: (tree / "node_modules/planted.js").write_text("POISON"),
        lambda tree: (tree.parent / "layer.json").write_text("{}"),
        lambda tree: (tree.parent / "layer.json").write_text("["),
        lambda tree: (tree.parent / "layer.json").unlink(),
    ],
    ids=["changed", "removed", "added", "other-description", "no-json", "no-description"],
)
def test_a_layer_that_was_changed_on_the_disk_is_made_anew(site, canary_pkg, damage):
    files = project(canary_pkg, fields={"name": "damaged"})
    look = {"name": "look", "shell": f"{LOOK}; cat node_modules/*/lib/a.js; ls node_modules"}
    good = site.run(files, steps=[look])
    key = site.cache_folder / "layers" / good.result.audit["layer"]["key"] / "tree"
    damage(key)
    again = site.run(files, steps=[look])
    assert (again.verdict, again.step("install").cached) == (Verdict.PASSED, False), again.message
    assert again.lines("look") == good.lines("look") == ["original", "a", "canary-pkg"]
    assert again.result.audit["layer"]["sha256"] == good.result.audit["layer"]["sha256"]
    third = site.run(files, steps=[look])
    assert (third.step("install").cached, third.lines("look")) == (True, good.lines("look"))
