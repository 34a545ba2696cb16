"""Projects of npm's: installed frozen from their lockfile, with nothing of theirs having a say."""

import json

import pytest

from cloche.model.job import ReasonCode, Verdict
from job_site import GOOD_TEST, manifest, open_site
from needs import BOX, JOB, needs
from registry_server import integrity_of

pytestmark = needs(*BOX, *JOB)

SCRIPTS = {
    "test": "node --test",
    "build": "mkdir -p dist && node -p \"require('canary')\" > dist/a.txt && npm run more",
    "more": "tool > dist/b.txt",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def canary(site):
    files = [("package/index.js", "module.exports = 'here';"), ("package/ran.js", "")]
    return site.publish("canary", files, scripts={"postinstall": "echo > RAN"})


@pytest.fixture(scope="module")
def tool(site):
    program = "#!/usr/bin/env node\nconsole.log('tool')\n"
    return site.publish("@s/tool", [("package/bin.js", program)], bin={"tool": "bin.js"})


def lockfile(packages, /, **changes):
    wanted = {each.name: each.version for each in packages}
    entries = {
        f"node_modules/{each.name}": {
            "version": each.version,
            "integrity": each.integrity,
            "hasInstallScript": True,
            **({"bin": {"tool": "bin.js"}} if "tool" in each.name else {}),
        }
        for each in packages
    }
    root = {"name": "made", "version": "1.0.0", "dependencies": wanted}
    whole = {"name": "made", "version": "1.0.0", "lockfileVersion": 3, "requires": True}
    return json.dumps({**whole, "packages": {"": root, **entries}, **changes})


def project(*packages, scripts=None, **fields):
    wanted = {each.name: each.version for each in packages}
    return {
        "package.json": manifest({**SCRIPTS, **(scripts or {})}, dependencies=wanted, **fields),
        "package-lock.json": lockfile(packages),
        "a.test.js": GOOD_TEST,
    }


def test_a_project_is_installed_tested_and_built_by_npm(site, canary, tool):
    files = project(canary, tool, name="first")
    first = site.run(files)
    assert first.verdict is Verdict.PASSED, first.message
    assert first.delivered("dist/a.txt") == b"here\n"
    assert first.delivered("dist/b.txt") == b"tool\n"
    assert first.step("test").argv == ("npm", "run", "test")
    assert first.step("install").argv[:2] == ("/usr/bin/npm", "ci")
    again = site.run(files)
    assert [again.step("install").cached, first.step("install").cached] == [True, False]
    layers = [run.result.audit["layer"] for run in (first, again)]
    assert layers[0]["sha256"] == layers[1]["sha256"]


@pytest.mark.case("ins-07-lifecycle-scripts", "ins-09-npmrc-redirect")
def test_neither_scripts_nor_settings_of_the_project_have_a_say(site, canary, tool):
    files = project(
        canary,
        tool,
        scripts={
            "preinstall": "touch PRE",
            "prepare": "touch PREPARE",
            "postinstall": "touch POST",
        },
    )
    files[".npmrc"] = "registry=http://127.0.0.1:9/\nscript-shell=/workspace/evil\nignore-scripts=0"
    files["packages/.npmrc"] = "x"
    look = "ls; [ ! -e node_modules/canary/RAN ]; ls node_modules/canary; npm run more"
    ran = site.run(files, steps=[{"name": "look", "shell": f"mkdir dist; {look}"}])
    assert ran.verdict is Verdict.PASSED, ran.message
    lines = set(ran.lines("look"))
    assert lines.isdisjoint({"PRE", "MADE", "POST", "RAN"})
    assert "ran.js" in lines  # the control: the package is there
    assert any(".npmrc has no say" in note for note in ran.notes)


@pytest.mark.case("ins-02-lockfile-mismatch")
def test_a_lockfile_that_does_not_match_rejects_the_project(site, canary):
    files = project(canary)
    files["package.json"] = manifest(SCRIPTS, dependencies={"canary": "2.0.0"})
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.LOCKFILE_OUTDATED)
    assert "does not match the dependencies of 'package.json'" in ran.message


def test_bytes_that_are_not_those_of_the_lockfile_do_not_come_in(site, canary):
    files = project(canary)
    files["package-lock.json"] = files["package-lock.json"].replace(
        canary.integrity, integrity_of(b"other")
    )
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.INTEGRITY_MISMATCH)


@pytest.mark.case("ins-01-missing-lockfile")
def test_dependencies_without_a_lockfile_are_not_resolved_in_silence(site, canary):
    files = project(canary)
    del files["package-lock.json"]
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.LOCKFILE_MISSING)


def test_a_workspace_is_linked_and_has_its_own_dependencies(site, canary):
    other = site.publish("canary", [("package/index.js", "module.exports = 2;")], version="2.0.0")
    entries = {
        "": {"name": "made", "version": "1.0.0", "workspaces": ["packages/*"],
             "dependencies": {"canary": "1.0.0"}},
        "node_modules/canary": {"version": "1.0.0", "integrity": canary.integrity},
        "node_modules/x": {"resolved": "packages/x", "link": True},
        "packages/x": {"name": "x", "version": "1.0.0", "dependencies": {"canary": "2.0.0"}},
        "packages/x/node_modules/canary": {"version": "2.0.0", "integrity": other.integrity},
    }  # fmt: skip
    x = {"name": "x", "version": "1.0.0", "dependencies": {"canary": "2.0.0"}}
    files = {
        "package.json": manifest({}, dependencies={"canary": "1.0.0"}, workspaces=["packages/*"]),
        "package-lock.json": lockfile([], packages=entries),
        "packages/x/package.json": json.dumps(x),
        "packages/x/index.js": "module.exports = require('canary') + 1;",
    }
    line = "node -p \"require('x') + ' ' + require('canary')\""
    ran = site.run(files, steps=[{"name": "a", "shell": line}])
    assert ran.verdict is Verdict.PASSED, ran.message
    assert ran.lines("a") == ["3 here"]
