"""Projects of Yarn's: installed frozen from their lockfile, with nothing of theirs having a say."""

import json
import subprocess
from urllib.request import urlopen

import pytest

from cloche.environments.runtimes import require_runtime
from cloche.environments.yarn_tools import yarn_folder
from cloche.model.job import ReasonCode, Verdict
from job_site import GOOD_TEST, manifest, open_site
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

SCRIPTS = {
    "test": "node --test",
    "build": "mkdir -p dist && node -p \"require('canary')\" > dist/a.txt && yarn run more",
    "more": "tool > dist/b.txt",
}
SETTINGS = "nodeLinker: node-modules\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


def publish(site, name, entries, version="1.0.0", **fields):
    """Publishes a package; its metadata has the fields too, as a registry's has."""
    package = site.publish(name, entries, version, **fields)
    with urlopen(site.registry.url + name.replace("/", "%2f"), timeout=10) as answer:
        told = json.load(answer)
    told["versions"][version] |= fields
    site.registry.describe(name, told)
    return package


@pytest.fixture(scope="module")
def canary(site):
    files = [("package/index.js", "module.exports = 'here';"), ("package/ran.js", "")]
    return publish(site, "canary", files, scripts={"postinstall": "echo > RAN"})


@pytest.fixture(scope="module")
def tool(site):
    program = "#!/usr/bin/env node\nconsole.log('tool')\n"
    return publish(site, "@s/tool", [("package/bin.js", program)], bin={"tool": "bin.js"})


def lock(site, files):
    """The lockfile that Yarn itself makes of a project."""
    folder = site.new_folder()
    for path, text in {**files, ".yarnrc.yml": SETTINGS, "yarn.lock": ""}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    variables = {
        "HOME": str(folder),
        "PATH": "/usr/bin:/bin",
        "YARN_NPM_REGISTRY_SERVER": site.registry.url.rstrip("/"),
        "YARN_UNSAFE_HTTP_WHITELIST": "127.0.0.1",
        "YARN_ENABLE_TELEMETRY": "0",
        "YARN_NPM_MINIMAL_AGE_GATE": "0",
    }
    program = yarn_folder(site.cache_folder) / "bin/yarn.js"
    subprocess.run(
        [require_runtime("node").host_path, program, "install", "--mode=update-lockfile"],
        cwd=folder,
        env=variables,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return (folder / "yarn.lock").read_text()


def project(site, *packages, scripts=None, **fields):
    wanted = {each.name: each.version for each in packages}
    files = {
        "package.json": manifest({**SCRIPTS, **(scripts or {})}, dependencies=wanted, **fields),
        "a.test.js": GOOD_TEST,
    }
    return {**files, "yarn.lock": lock(site, files), ".yarnrc.yml": SETTINGS}


def test_a_project_is_installed_tested_and_built_by_yarn(site, canary, tool):
    files = project(site, canary, tool, name="first")
    first = site.run(files)
    assert first.verdict is Verdict.PASSED, first.message
    assert first.delivered("dist/a.txt") == b"here\n"
    assert first.delivered("dist/b.txt") == b"tool\n"
    assert first.step("test").argv == ("yarn", "run", "test")
    assert first.step("install").argv[:3] == ("/usr/bin/yarn", "install", "--immutable")
    again = site.run(files)
    assert [again.step("install").cached, first.step("install").cached] == [True, False]
    layers = [run.result.audit["layer"] for run in (first, again)]
    assert layers[0]["sha256"] == layers[1]["sha256"]
    assert first.result.audit["toolchain"]["yarn"] == "4.18.1"


def test_two_installs_of_one_lockfile_make_the_same_layer(site, canary):
    files = project(site, canary)
    runs = [site.run(files, without=["build"], trust_domain=each) for each in ("one", "two")]
    assert [run.verdict for run in runs] == [Verdict.PASSED] * 2
    assert [run.step("install").cached for run in runs] == [False, False]
    assert len({run.result.audit["layer"]["sha256"] for run in runs}) == 1


def test_an_older_lockfile_is_installed_and_run_as_well(site, canary, tool):
    files = project(site, canary, tool)
    files["yarn.lock"] = files["yarn.lock"].replace("  version: 10\n", "  version: 8\n")
    assert "  version: 8\n" in files["yarn.lock"]
    ran = site.run(files)
    assert ran.verdict is Verdict.PASSED, ran.message


@pytest.mark.case("ins-07-lifecycle-scripts", "ins-11-package-manager-field")
def test_neither_scripts_nor_settings_of_the_project_have_a_say(site, canary, tool):
    scripts = {"preinstall": "touch PRE", "postinstall": "touch POST", "prepare": "touch PREPARE"}
    files = project(site, canary, tool, scripts=scripts, packageManager="yarn@3.0.0")
    evil = "require('fs').writeFileSync('/workspace/EVIL', '');"
    plugin = f"{evil} module.exports = {{name: 'e', factory: () => ({{}})}};"
    files[".yarnrc.yml"] = (
        f"{SETTINGS}yarnPath: ./evil.cjs\nplugins:\n  - path: ./plugin.cjs\n"
        "npmRegistryServer: http://127.0.0.1:9\nenableScripts: true\nchecksumBehavior: ignore\n"
    )
    files |= {"evil.cjs": evil, "plugin.cjs": plugin, ".pnp.cjs": evil, "sub/.yarnrc.yml": "x: ["}
    look = "ls -A; [ ! -e node_modules/canary/RAN ]; ls node_modules/canary; mkdir dist; yarn more"
    ran = site.run(files, steps=[{"name": "look", "shell": f"{look}; ls -A"}])
    assert ran.verdict is Verdict.PASSED, ran.message
    lines = set(ran.lines("look"))
    assert lines.isdisjoint({"PRE", "POST", "PREPARE", "RAN", "EVIL", ".yarnrc.yml", ".pnp.cjs"})
    assert {"ran.js", "evil.cjs", "dist"} <= lines  # the control
    assert any(".yarnrc.yml has no say" in note for note in ran.notes)


@pytest.mark.case("ins-02-lockfile-mismatch")
def test_a_lockfile_that_does_not_match_rejects_the_project(site, canary):
    files = project(site, canary)
    files["package.json"] = manifest(SCRIPTS, dependencies={"canary": "2.0.0"})
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.LOCKFILE_OUTDATED)
    assert "does not match 'package.json' in 'canary'" in ran.message


def test_what_yarn_would_have_to_resolve_is_not_resolved(site, canary):
    files = project(site, canary)
    fields = {"dependencies": {"canary": "1.0.0"}, "resolutions": {"canary": "3.0.0"}}
    files["package.json"] = manifest(SCRIPTS, **fields)
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.LOCKFILE_OUTDATED)


def test_bytes_that_are_not_those_of_the_lockfile_do_not_come_in(site, canary):
    files = project(site, canary)
    checksum = files["yarn.lock"].partition("checksum: 10c0/")[2][:128]
    files["yarn.lock"] = files["yarn.lock"].replace(checksum, "0" * 128)
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.INTEGRITY_MISMATCH)


def test_a_tarball_that_is_not_what_the_registry_says_does_not_come_in(site):
    package = publish(site, "changed", [("package/index.js", "")])
    files = project(site, package)
    told = {"tarball": "", "integrity": site.publish("another").integrity}
    version = {"name": "changed", "version": "1.0.0", "dist": told}
    site.registry.describe("changed", {"name": "changed", "versions": {"1.0.0": version}})
    ran = site.run(files)
    assert ran.why is ReasonCode.INTEGRITY_MISMATCH


@pytest.mark.case("ins-01-missing-lockfile")
def test_dependencies_without_a_lockfile_are_not_resolved_in_silence(site, canary):
    files = project(site, canary)
    del files["yarn.lock"]
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.LOCKFILE_MISSING)


def test_a_workspace_is_linked_and_has_its_own_dependencies(site, canary):
    publish(site, "canary", [("package/index.js", "module.exports = 2;")], "2.0.0")
    x = {"name": "x", "version": "1.0.0", "dependencies": {"canary": "2.0.0"}}
    files = {
        "package.json": manifest(
            {"all": "yarn workspaces foreach -A run say"},
            dependencies={"canary": "1.0.0", "x": "workspace:*"},
            workspaces=["packages/*"],
        ),
        "packages/x/package.json": json.dumps({**x, "scripts": {"say": "echo from x"}}),
        "packages/x/index.js": "module.exports = require('canary') + 1;",
    }
    files |= {"yarn.lock": lock(site, files), ".yarnrc.yml": SETTINGS}
    line = "yarn run all; node -p \"require('x') + ' ' + require('canary')\""
    ran = site.run(files, steps=[{"name": "a", "shell": line}])
    assert ran.verdict is Verdict.PASSED, ran.message
    assert ran.lines("a")[-1] == "3 here"
    assert any("from x" in each for each in ran.lines("a"))


def test_a_package_for_another_platform_is_not_fetched(site, canary):
    publish(site, "elsewhere", [("package/index.js", "")], os=["darwin"])
    files = project(site, canary, optionalDependencies={"elsewhere": "1.0.0"})
    assert "conditions: os=darwin" in files["yarn.lock"]
    seen_count = len(site.registry.seen)
    ran = site.run(files, without=["build"])
    assert ran.verdict is Verdict.PASSED, ran.message
    assert not any("elsewhere" in path for path in site.registry.paths()[seen_count:])
