"""The install of a project: what it is told, what it may ask for in vain, what it is kept for."""

import json
import random
import socket
import threading
from contextlib import suppress

import pytest

from cloche.egress import registry as upstream
from cloche.environments.toolchain import PNPM_VERSION
from cloche.model.events import StepEvent
from cloche.model.job import ReasonCode, StepStatus, Verdict
from job_site import GOOD_TEST, SCRIPTS, lockfile, manifest, open_site, project
from needs import BOX, JOB, needs
from registry_server import make_tarball, status

pytestmark = needs(*BOX, *JOB)

TOKEN = "token-90be-of-the-host"
USES = "require('node:test')('uses', () => require('canary-pkg'));\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def canary_pkg(site):
    """The dependency of most projects here; its layer is made once."""
    return site.publish("canary-pkg", [("package/index.js", "module.exports = 'original'\n")])


@pytest.fixture
def canary():
    """A listener of the host: (port, the connections so far)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        met = []

        def accept():
            with suppress(OSError):
                while True:
                    connection, sender = listener.accept()
                    met.append(sender)
                    connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), 5).close()  # the control: it does count
        yield port, met
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(met) == 1


def entry_of(key: str, resolution: dict, version: str) -> str:
    """A lockfile with one dependency, `g`, from somewhere."""
    return lockfile(
        (),
        importers={".": {"dependencies": {"g": {"specifier": version, "version": version}}}},
        packages={key: {"resolution": resolution}},
        snapshots={key: {}},
    )


# What comes before any install


@pytest.mark.case("ins-01-missing-lockfile")
@pytest.mark.parametrize("other", [None, "yarn.lock", "bun.lock"])
def test_dependencies_without_a_lockfile_are_rejected_with_what_to_run(site, canary_pkg, other):
    files = {**project(canary_pkg), **({} if other is None else {other: "{}"})}
    del files["pnpm-lock.yaml"]
    seen_count = len(site.registry.seen)
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.LOCKFILE_MISSING)
    assert "--lockfile-only" in ran.message
    assert other is None or other in ran.message
    assert (ran.result.steps, len(site.registry.seen)) == ((), seen_count)


GIT = "https://git.test/owner/name/tar.gz/0000000000000000000000000000000000000000"
SHA512 = "sha512-" + "A" * 86 + "=="


@pytest.mark.case("ins-03-git-dependency", "ins-04-foreign-tarball")
@pytest.mark.parametrize(
    ("key", "resolution", "version"),
    [
        (f"g@{GIT}", {"tarball": GIT}, GIT),
        (f"g@{GIT}", {"tarball": GIT, "integrity": SHA512}, GIT),
        ("g@git+ssh://git@git.test/owner/name.git#0", {"type": "git", "repo": "x", "commit": "0"},
         "git+ssh://git@git.test/owner/name.git#0"),
        ("g@file:g", {"directory": "g", "type": "directory"}, "file:g"),
        ("g@file:g.tgz", {"tarball": "file:g.tgz", "integrity": SHA512}, "file:g.tgz"),
        ("g@1.0.0", {"integrity": SHA512, "tarball": "http://127.0.0.1:@PORT@/g.tgz"}, "1.0.0"),
        ("g@1.0.0", {"integrity": "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk="}, "1.0.0"),
        ("g@1.0.0", {"integrity": ""}, "1.0.0"),
        ("g@1.0.0", {}, "1.0.0"),
    ],
    ids=["git-archive", "git-archive-hashed", "git", "folder", "archive-in-a-folder",
         "foreign-archive", "sha1", "empty-hash", "no-hash"],
)  # fmt: skip
def test_what_the_registry_does_not_vouch_for_is_refused_by_name(
    site, canary, key, resolution, version
):
    resolution = json.loads(json.dumps(resolution).replace("@PORT@", str(canary[0])))
    files = {
        "package.json": manifest(SCRIPTS, dependencies={"g": version}),
        "pnpm-lock.yaml": entry_of(key, resolution, version),
        "g/package.json": manifest({"prepare": "echo RAN"}, name="g"),
    }
    ran = site.run(files)
    assert ran.verdict is Verdict.REJECTED
    assert ran.why in (ReasonCode.DEPENDENCY_REFUSED, ReasonCode.LOCKFILE_INVALID)
    assert key[:20] in ran.message
    assert ran.result.steps == ()


@pytest.mark.case("ins-03-git-dependency")
@pytest.mark.parametrize(
    "specifier", ["github:owner/name", "git+ssh://git@git.test/x.git", "https://git.test/x.tgz"]
)
def test_a_manifest_cannot_ask_for_what_the_lockfile_does_not_have(site, canary_pkg, specifier):
    files = project(canary_pkg)
    files["package.json"] = manifest(SCRIPTS, dependencies={"canary-pkg": specifier})
    ran = site.run(files)
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.LOCKFILE_OUTDATED)
    assert ran.result.denied == ()


# A lockfile that does not match


@pytest.mark.case("ins-02-lockfile-mismatch")
def test_a_lockfile_that_does_not_match_fails_the_install_in_pnpm_s_own_words(site, canary_pkg):
    newer = site.publish("canary-pkg", version="2.0.0")
    files = {**project(newer), "pnpm-lock.yaml": lockfile([canary_pkg])}
    ran = site.run(files, artifacts=["pnpm-lock.yaml"])
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.LOCKFILE_OUTDATED)
    assert ran.result.failed_step == "install"
    assert "--lockfile-only" in ran.message
    assert "ERR_PNPM_OUTDATED_LOCKFILE" in "\n".join(ran.lines("install"))
    assert [step.status for step in ran.result.steps[1:]] == [StepStatus.SKIPPED] * 2
    # The step that starts from the same files finds the lockfile as it was.
    look = site.run({**files, "package.json": manifest(dependencies={"canary-pkg": "1.0.0"})},
                    steps=[{"name": "look", "shell": "cat pnpm-lock.yaml"}])  # fmt: skip
    assert "\n".join(look.lines("look")) == files["pnpm-lock.yaml"]


# What a project asks for in vain


TAKEN = {"sh": "#!/bin/sh\necho TAKEN\n", "taken.js": "console.log('TAKEN');\n"}


@pytest.mark.case("ins-09-npmrc-redirect")
def test_an_npmrc_redirects_nothing_and_reads_no_variable(site, canary_pkg, canary, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", TOKEN)
    here = f"http://127.0.0.1:{canary[0]}/"
    npmrc = f"""
registry={here}${{HOST_SECRET}}/
@scope:registry={here}
//127.0.0.1:{canary[0]}/:_authToken=${{HOST_SECRET}}
https-proxy={here}
proxy={here}
userconfig=./.npmrc2
globalconfig=./.npmrc2
store-dir=../../store
ignore-scripts=false
"""
    files = {**project(canary_pkg), ".npmrc": npmrc, ".npmrc2": f"registry={here}\n"}
    seen_count = len(site.registry.seen)
    ran = site.run(files, trust_domain="npmrc")  # a layer of its own, made now
    assert ran.step("install").status is StepStatus.PASSED
    assert [note for note in ran.notes if ".npmrc" in note]
    assert TOKEN.encode() not in ran.everything()
    for each in site.registry.seen[seen_count:]:
        assert (each.method, TOKEN in each.path) == ("GET", False)


@pytest.mark.parametrize(
    "settings",
    [
        {".npmrc": "script-shell=./sh\nshell-emulator=true\nnode-options=--require ./taken.js\n"},
        {".npmrc": "registry=http://registry.test/${NOT_SET}/\n"},
        {"pnpm-workspace.yaml": "scriptShell: ./sh\nshellEmulator: true\n"},
        {"pnpm-workspace.yaml": "nodeOptions: --require ./taken.js\n"},
    ],
    ids=["npmrc", "npmrc-registry", "script-shell", "node-options"],
)
def test_settings_that_are_said_to_have_no_say_have_none_in_the_steps_either(
    site, canary_pkg, settings
):
    ran = site.run({**project(canary_pkg), **TAKEN, **settings})
    (note,) = [note for note in ran.notes if "no say" in note or "without effect" in note]
    assert next(iter(settings)) in note
    assert "TAKEN" not in "".join(ran.lines("test"))
    assert ran.verdict is Verdict.PASSED, ran.lines("test")


HOOKS = {
    ".pnpmfile.cjs": "require('fs').writeFileSync('/workspace/ran-hook.txt', '1');"
    " console.log('RAN'); module.exports = { hooks: { readPackage: it => it } };\n",
    ".pnpmfile.mjs": "import fs from 'node:fs'; fs.writeFileSync('/workspace/ran-mjs.txt', '1');"
    " console.log('RAN'); export const hooks = {};\n",
    "other.cjs": "require('fs').writeFileSync('/workspace/ran-other.txt', '1');\n",
}


@pytest.mark.case("ins-10-pnpmfile")
def test_no_hook_of_a_pnpmfile_runs_at_install_or_in_a_step(site, canary_pkg):
    look = {"build": "mkdir dist; ls /workspace > dist/a.txt"}
    files = {
        **project(canary_pkg, scripts=look), **HOOKS,
        "pnpm-workspace.yaml": "pnpmfile: ./other.cjs\nglobalPnpmfile: ./other.cjs\n",
    }  # fmt: skip
    ran = site.run(files, trust_domain="hooks")
    assert ran.verdict is Verdict.PASSED
    assert b"ran-" not in ran.delivered("dist/a.txt")
    assert "RAN" not in "".join(ran.lines("install") + ran.lines("test"))
    assert [note for note in ran.notes if "pnpmfile" in note]


@pytest.mark.case("ins-10-pnpmfile")
def test_config_dependencies_are_refused_by_name(site, canary_pkg):
    asked = {"pnpm-workspace.yaml": "configDependencies:\n  '../../x': 1.0.0+sha512-AAAA\n"}
    ran = site.run({**project(canary_pkg), **asked})
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.DEPENDENCY_REFUSED)
    assert "../../x" in ran.message


ENGINES = {
    "packageManager": {"name": "pnpm", "version": "6.0.0", "onFail": "download"},
    "runtime": {"name": "node", "version": "12.0.0", "onFail": "download"},
}


@pytest.mark.case("ins-11-package-manager-field")
@pytest.mark.parametrize("asked", ["pnpm@6.0.0", "yarn@1.22.22", "", "pnpm@http://@CANARY@/p.tgz"])
def test_no_other_package_manager_or_runtime_is_fetched_or_run(site, canary_pkg, canary, asked):
    asked = asked.replace("@CANARY@", f"127.0.0.1:{canary[0]}")
    files = project(
        canary_pkg,
        scripts={"build": "mkdir dist; pnpm --version > dist/pnpm; node --version > dist/node"},
        packageManager=asked,
        devEngines=ENGINES,
        engines={"node": "12", "pnpm": "6"},
    )
    seen_count = len(site.registry.seen)
    ran = site.run(files)
    assert ran.verdict is Verdict.PASSED
    assert ran.delivered("dist/pnpm").decode().strip() == PNPM_VERSION
    assert not ran.delivered("dist/node").startswith(b"v12.")
    assert {each.path for each in site.registry.seen[seen_count:]} <= {
        "/canary-pkg/-/canary-pkg-1.0.0.tgz"
    }
    assert ran.result.audit["toolchain"]["pnpm"] == PNPM_VERSION
    assert [note for note in ran.notes if "packageManager" in note]


def test_a_spec_that_lies_in_the_project_has_no_say(site, canary_pkg):
    spec = "steps: [{name: test, shell: 'true', expects_tests: false}]\nartifacts: ['**']\n"
    ran = site.run({**project(canary_pkg), "cloche.yaml": spec, "a.test.js": USES})
    assert [step.name for step in ran.result.steps] == ["install", "test", "build"]
    assert ran.paths == ["dist/a.txt"]


# What the registry gives


@pytest.mark.parametrize("answers", [[404], [403], [401]])
def test_a_package_that_is_not_to_be_had_fails_the_job_by_name(site, answers):
    package = site.publish(f"withheld-{answers[0]}")
    site.registry.script(package, *[status(code) for code in answers])
    ran = site.run(project(package))
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.PACKAGE_UNAVAILABLE)
    assert str(package) in ran.message


def test_bytes_other_than_the_lockfile_promises_never_reach_a_box(site):
    package = site.publish("swapped", [("package/index.js", "module.exports = 1")])
    site.registry.serve(
        f"/{package.tarball_path}", make_tarball("swapped", "1.0.0", {"x": "POISON"})
    )
    ran = site.run(project(package))
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.INTEGRITY_MISMATCH)
    assert str(package) in ran.message
    held = [path.read_bytes() for path in site.cache_folder.rglob("*.tgz")]
    assert b"POISON" not in b"".join(held)


def test_a_registry_that_fails_is_no_fault_of_the_project(site, monkeypatch):
    monkeypatch.setattr(upstream, "RETRY_DELAYS_S", (0.001, 0.002))
    package = site.publish("failing")
    site.registry.script(package, *[status(503)] * 9)
    ran = site.run(project(package))
    assert (ran.verdict, ran.why) == (Verdict.INFRA_FAILED, ReasonCode.REGISTRY_FAILED)
    assert ran.result.retry_safe is True


def test_no_layer_is_kept_that_lacks_an_optional_package(site, monkeypatch):
    """pnpm itself goes on without it, and ends well."""
    monkeypatch.setattr(upstream, "RETRY_DELAYS_S", (0.001, 0.002))
    package = site.publish("perhaps")
    wanted = {package.name: {"specifier": package.version, "version": package.version}}
    files = {
        **project(),
        "package.json": manifest(SCRIPTS, optionalDependencies={package.name: package.version}),
        "pnpm-lock.yaml": lockfile(
            [package],
            importers={".": {"optionalDependencies": wanted}},
            snapshots={str(package): {"optional": True}},
        ),
    }
    site.registry.script(package, *[status(503)] * 9)
    before = site.trees()
    ran = site.run(files)
    assert ran.step("install").exit_code == 0
    assert (ran.verdict, ran.why) == (Verdict.INFRA_FAILED, ReasonCode.REGISTRY_FAILED)
    assert site.trees() == before
    # The control: once the registry is back, the same job passes, and has it.
    site.registry.script(package)
    ran = site.run(files)
    assert ran.verdict is Verdict.PASSED, ran.message
    (tree,) = set(site.trees()) - set(before)
    assert (tree / "node_modules" / package.name).exists()


def test_an_install_that_fetches_too_much_is_ended_and_told_in_the_denials(site):
    noise = random.Random(7).randbytes(2 * 1024 * 1024)
    package = site.publish("large", [("package/noise", noise)])
    ran = site.run(project(package), limits={"egress_mb": 1})
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.EGRESS_LIMIT)
    (denial,) = ran.result.denied
    assert (denial.step, denial.what) == ("install", "GET /large/-/large-1.0.0.tgz")
    assert ran.result.audit["denied"][0]["why"] == denial.why


def test_no_more_is_fetched_ahead_than_the_job_may_fetch(site):
    """The lockfile is a stranger's: what it names must not fill this host's disk."""
    noise = random.Random(8)
    packages = [
        site.publish(f"part-{number}", [("package/noise", noise.randbytes(512 * 1024))])
        for number in range(80)
    ]
    seen_count = len(site.registry.seen)
    ran = site.run(project(*packages), limits={"egress_mb": 2})
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.EGRESS_LIMIT)
    assert len(site.registry.seen) - seen_count < 40  # of 1 MiB for two, some at a time


def test_a_job_whose_time_is_over_while_it_installs_is_told_so(site):
    """It is the job's limit: an install has none of its own."""
    package = site.publish("slow")
    released = threading.Event()
    site.registry.script(package, lambda handler: released.wait(20))
    try:
        ran = site.run(project(package), limits={"timeout_ms": 700})
    finally:
        released.set()
    assert (ran.verdict, ran.why) == (Verdict.TIMED_OUT, ReasonCode.JOB_TIMEOUT)
    assert (ran.result.failed_step, "700 ms" in ran.message) == ("install", True)


# What is kept


def test_a_layer_is_made_once_and_what_bears_on_it_makes_another(site, canary_pkg):
    first = site.run({**project(canary_pkg), "a.test.js": USES}, trust_domain="kept")
    assert (first.verdict, first.step("install").cached) == (Verdict.PASSED, False)
    files = {**project(canary_pkg, scripts={"lint": "true"}), "a.test.js": USES, "src/new": "x"}
    seen_count = len(site.registry.seen)
    again = site.run(files, trust_domain="kept")
    assert (again.verdict, again.step("install").cached) == (Verdict.PASSED, True)
    assert len(site.registry.seen) == seen_count
    progress = [each for each in again.events if isinstance(each, StepEvent)]
    assert "progress" not in [each.state for each in progress]
    other = site.publish("another")
    assert site.run(project(canary_pkg, other), trust_domain="kept").step("install").cached is False


def test_a_project_without_dependencies_installs_nothing(site):
    ran = site.run({"package.json": manifest(SCRIPTS), "a.test.js": GOOD_TEST})
    assert [step.name for step in ran.result.steps] == ["test", "build"]
    assert ran.verdict is Verdict.PASSED
