"""What was had of a registry with someone's credentials is for nobody who has others, or none."""

import os

import pytest

from cloche.model.job import ReasonCode, Verdict
from job_site import open_site, project
from needs import BOX, JOB, needs
from registry_server import status

pytestmark = needs(*BOX, *JOB)

ALICE, BOB, NOBODY = "token-of-alice", "token-of-bob", "token-of-nobody"
USE = [{"name": "use", "argv": ["node", "-p", "require('@acme/secret')"]}]


@pytest.fixture
def site(tmp_path):
    with open_site(tmp_path) as site:
        yield site


@pytest.fixture
def secret(site):
    """A package that the registry gives to two people alone."""
    package = site.publish("@acme/secret", [("package/index.js", "module.exports = 'private'")])
    data = site.registry.content(package)

    def answer(handler):
        known = handler.headers["Authorization"] in (f"Bearer {ALICE}", f"Bearer {BOB}")
        status(*((200, data) if known else (404,)))(handler)

    site.registry.script(package, *[answer] * 100)
    return package


@pytest.fixture
def run(site, monkeypatch):
    """Runs a job with a token for the registry, or for that at another place, or with none."""

    def run(token, *packages, steps=USE, at=None):
        file = site.new_folder() / "npmrc"
        lines = [f"@acme:registry={site.registry.url}"]
        if token is not None:
            lines.append(f"{at or site.registry.url.removeprefix('http:')}:_authToken={token}")
        file.write_text("\n".join(lines))
        monkeypatch.setenv("npm_config_userconfig", os.fspath(file))
        return site.run(project(*packages), steps=steps)

    return run


def asked_with(site, package):
    """The credentials of each request for a package's tarball."""
    path = site.registry.base + package.tarball_path
    return [each.headers.get("authorization") for each in site.registry.seen if each.path == path]


def package_files(site):
    return {path for path in (site.cache_folder / "packages").iterdir() if path.is_file()}


def test_two_people_share_neither_the_file_nor_the_layer_of_a_private_package(site, secret, run):
    first = run(ALICE, secret)
    assert (first.verdict, first.lines("use")) == (Verdict.PASSED, ["private"]), first.message
    files_of_alice, layers_of_alice = package_files(site), site.trees()
    assert (len(files_of_alice), len(layers_of_alice)) == (1, 1)
    other = run(BOB, secret)
    assert (other.verdict, other.step("install").cached) == (Verdict.PASSED, False), other.message
    assert asked_with(site, secret) == [f"Bearer {ALICE}", f"Bearer {BOB}"]
    assert (len(package_files(site)), len(site.trees())) == (2, 2)
    assert package_files(site) > files_of_alice
    for token in (ALICE, BOB):  # the control: who has the same shares it
        assert run(token, secret).step("install").cached
    assert len(asked_with(site, secret)) == 2


def test_the_same_credentials_share_the_file_in_another_layer(site, secret, run):
    run(ALICE, secret)
    another = run(ALICE, secret, site.publish("another"))
    assert (another.verdict, another.step("install").cached) == (Verdict.PASSED, False)
    assert asked_with(site, secret) == [f"Bearer {ALICE}"]
    apart = run(BOB, secret, site.publish("another"))  # the control: that layer is asked for too
    assert (apart.verdict, apart.step("install").cached) == (Verdict.PASSED, False)
    assert asked_with(site, secret) == [f"Bearer {ALICE}", f"Bearer {BOB}"]


@pytest.mark.parametrize("token", [NOBODY, None])
def test_who_may_not_have_a_package_does_not_get_it_from_the_cache(site, secret, run, token):
    assert run(ALICE, secret).verdict is Verdict.PASSED
    refused = run(token, secret)
    assert (refused.verdict, refused.why) == (Verdict.FAILED, ReasonCode.PACKAGE_UNAVAILABLE)
    assert refused.result.failed_step == "install"
    assert (len(package_files(site)), len(site.trees())) == (1, 1)
    assert run(ALICE, secret).step("install").cached  # the control: it is still there


def test_no_credentials_stand_in_the_cache_or_in_what_a_job_gives(site, secret, run):
    ran = run(ALICE, secret)
    assert ALICE.encode() not in ran.everything()
    files = [path for path in site.cache_folder.rglob("*") if path.is_file()]
    assert any(b"private" in path.read_bytes() for path in files)  # the control
    assert not any(ALICE.encode() in path.read_bytes() for path in files)


def test_a_token_for_another_registry_keeps_no_layer_apart(site, run):
    package, look = site.publish("public"), [{"name": "look", "argv": ["true"]}]
    places = [(None, None), (ALICE, "//registry.test/"), (ALICE, None)]  # the last: the control
    runs = [run(token, package, steps=look, at=place) for token, place in places]
    assert [each.step("install").cached for each in runs] == [False, True, False]
