"""`registry: open` lets a step have any package of the registry, and nothing else of any host."""

import pytest

from cloche.model.job import ReasonCode, Verdict
from job_site import manifest, open_site
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

FILES = {"package.json": manifest({})}
USE = "node -p \"require('/tmp/x/node_modules/extra')\""
INSTALLS = {
    "npm": f"mkdir /tmp/x; cd /tmp/x; npm install --no-audit --no-fund extra@1; {USE}",
    "pnpm": f"mkdir /tmp/x; cd /tmp/x; echo '{{}}' > package.json; pnpm add extra@1; {USE}",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        text = "module.exports = 'extra';"
        package = site.publish("extra", [("package/index.js", text)])
        dist = {"integrity": package.integrity, "tarball": "http://127.0.0.1:9/x.tgz"}
        entry = {"name": "extra", "version": "1.0.0", "dist": dist}
        tags = {"latest": "1.0.0"}
        site.registry.describe(
            "extra", {"name": "extra", "dist-tags": tags, "versions": {"1.0.0": entry}}
        )
        yield site


@pytest.mark.parametrize("manager", INSTALLS)
def test_a_step_has_what_it_asks_for_and_the_record_says_what(site, manager):
    ran = site.step(INSTALLS[manager], FILES, registry="open")
    assert ran.verdict is Verdict.PASSED, ran.lines("attack")
    assert ran.lines("attack")[-1] == "extra"
    (entry,) = [each for each in ran.result.audit["egress"] if "package" in each]
    assert entry["package"] == "extra@1.0.0"
    assert entry["integrity"].startswith("sha512-")


@pytest.mark.parametrize("manager", INSTALLS)
def test_without_it_a_step_has_nothing(site, manager):
    once = "export npm_config_fetch_retries=0 pnpm_config_fetch_retries=0"
    ran = site.step(f"{once}; {INSTALLS[manager]}", FILES, limits={"timeout_ms": 20_000})
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.EXIT_CODE)


def test_what_is_no_package_is_refused_and_told(site):
    get = "require('http').get('http://127.0.0.1:4873'+process.argv[1],a=>{console.log(a.statusCode);a.resume()})"
    paths = ("/extra", "/-/all", "/-/npm/v1/security/advisories", "/extra/-/other-1.0.0.tgz",
             "/none", "/extra/-/extra-9.9.9.tgz")  # fmt: skip
    line = "; ".join(f'node -e "{get}" {path}' for path in paths)
    ran = site.step(line, FILES, registry="open")
    assert ran.lines("attack") == ["200", "404", "404", "404", "502", "502"]
    assert [each.what for each in ran.result.denied] == [f"GET {path}" for path in paths[1:4]]
