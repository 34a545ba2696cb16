"""A lockfile is made anew only where that was asked for, and only of what the policy admits."""

import time

import pytest

from cloche.model.job import ReasonCode, StepStatus, Verdict
from job_site import GOOD_TEST, lockfile, manifest, open_site
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

OLD, YOUNG = 90 * 86_400, 3_600  # seconds ago


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def packages(site):
    """`grown` has an old and a young version and needs `below`."""
    below = publish(site, "below", {"1.0.0": OLD})
    return {**below, **publish(site, "grown", {"1.0.0": OLD, "1.1.0": YOUNG}, {"below": "^1.0.0"})}


def publish(site, name, ages, dependencies=None):
    found, versions, times = {}, {}, {}
    for version, age_s in ages.items():
        text = f"module.exports = '{name} {version}';"
        fields = {"dependencies": dependencies or {}}
        package = site.publish(name, [("package/index.js", text)], version, **fields)
        dist = {"integrity": package.integrity, "tarball": "http://127.0.0.1:9/evil.tgz"}
        versions[version] = {"name": name, "version": version, **fields, "dist": dist}
        at = time.gmtime(time.time() - age_s)
        times[version] = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", at)
        found[f"{name}@{version}"] = package
    whole = {"name": name, "dist-tags": {"latest": version}, "versions": versions, "time": times}
    site.registry.describe(name, whole)
    return found


def project(**dependencies):
    line = "node -p \"require('grown') + ', ' + require('below')\""
    return {
        "package.json": manifest({"test": "node --test", "postinstall": "touch RAN"},
                                 dependencies=dependencies),
        "a.test.js": GOOD_TEST,
        ".npmrc": "registry=http://127.0.0.1:9/",
    }, {"show": line}  # fmt: skip


def run(site, files, lines, **fields):
    return site.steps(lines, files, lockfile="resolve", **fields)


@pytest.mark.case("ins-01-missing-lockfile")
def test_versions_are_resolved_told_and_delivered_and_the_install_is_frozen_from_them(
    site, packages
):
    files, lines = project(grown="^1.0.0", below="*")
    ran = run(site, files, lines)
    assert ran.verdict is Verdict.PASSED, ran.message
    assert [step.name for step in ran.result.steps] == ["resolve", "install", "show"]
    assert ran.lines("show") == ["grown 1.0.0, below 1.0.0"]
    assert ran.paths == ["pnpm-lock.yaml"]
    made = ran.delivered("pnpm-lock.yaml").decode()
    assert packages["grown@1.0.0"].integrity in made
    assert "evil" not in made
    assert any("1 versions are younger than 24 hours" in line for line in ran.lines("resolve"))
    frozen = site.steps(lines, {**files, "pnpm-lock.yaml": made})
    assert (frozen.verdict, frozen.step("install").cached) == (Verdict.PASSED, True)


def test_a_policy_without_an_age_takes_the_youngest(site, packages):
    files, lines = project(grown="^1.0.0", below="*")
    ran = run(site, files, lines, resolve={"minimum_age_hours": 0})
    assert ran.lines("show") == ["grown 1.1.0, below 1.0.0"]


def test_only_allowed_names_may_be_asked_for_and_what_the_lockfile_had(site, packages):
    files, lines = project(grown="^1.0.0", below="*")
    ran = run(site, files, lines, resolve={"allow": ["grown"]})
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.DEPENDENCY_REFUSED)
    assert "may not ask for below" in ran.message
    assert ran.result.denied[0].what == "GET /below"
    assert [step.status for step in ran.result.steps][1:] == [StepStatus.SKIPPED] * 2
    assert ran.paths == []
    old = lockfile([packages["below@1.0.0"]])
    assert run(
        site, {**files, "pnpm-lock.yaml": old}, lines, resolve={"allow": ["grown"]}
    ).verdict is Verdict.PASSED  # fmt: skip


def test_a_dependency_that_is_nowhere_fails_the_resolution(site, packages):
    files, lines = project(nowhere="1.0.0")
    ran = run(site, files, lines)
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.PACKAGE_UNAVAILABLE)
    assert ran.result.failed_step == "resolve"


def test_a_version_that_is_too_young_is_not_there(site, packages):
    files, lines = project(grown="1.1.0")
    ran = run(site, files, lines)
    assert (ran.verdict, ran.result.failed_step) == (Verdict.FAILED, "resolve")


@pytest.mark.case("ins-03-git-dependency")
@pytest.mark.parametrize("source", ["github:a/b#0", "git+ssh://git@127.0.0.1/a.git", "file:../x"])
def test_what_is_no_package_of_the_registry_is_not_resolved(site, packages, source):
    files, lines = project(x=source)
    ran = run(site, files, lines)
    assert ran.verdict in (Verdict.FAILED, Verdict.REJECTED)
    assert ran.result.failed_step in ("resolve", None)


def test_a_resolution_of_nothing_says_so(site):
    ran = run(site, {"package.json": manifest({})}, {"a": "true"})
    assert (ran.verdict, ran.why) in (
        (Verdict.FAILED, ReasonCode.LOCKFILE_MISSING),
        (Verdict.PASSED, None),
    )


def test_a_project_without_a_manifest_is_rejected(site):
    ran = site.run({"a": "b"}, steps=[{"name": "a", "shell": "true"}], lockfile="resolve")
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.MANIFEST_MISSING)
