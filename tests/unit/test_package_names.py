"""What an untrusted lockfile may call a package."""

import base64

import pytest

from cloche.model.package import Package, check_package

HASH = "sha512-" + base64.b64encode(bytes(range(64))).decode()


@pytest.mark.parametrize(
    "name", ["left-pad", "@scope/name", "JSONStream", "@-x/_y", "lodash.get", "a~b", "1", "-"]
)
def test_a_name_that_registries_have_is_taken(name: str) -> None:
    check_package(name, "1.0.0", HASH)


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", ".a", "_a", "a/b", "/a", "a/", "@s", "@s/", "@/a", "@s/..", "@s/.a", "@../a",
        "@s/a/b", "a b", "a\n", "a\0", "a%2fb", "a?b", "a#b", "a\\b", "a:b", "é", "node_modules",
        "favicon.ico", "a" * 215,
    ],
)  # fmt: skip
def test_a_name_that_could_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a package") as caught:
        check_package(name, "1.0.0", HASH)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "version",
    ["0.0.0", "1.2.3", "1.0.0-beta.1", "1.0.0--", "1.0.0+build.5", "1.0.0-a+b", "10.20.30"],
)
def test_an_exact_version_is_taken(version: str) -> None:
    check_package("a", version, HASH)


@pytest.mark.parametrize(
    "version",
    [
        "", "1", "1.0", "1.0.0.0", "01.0.0", "1.0.00", "1.0.x", "^1.0.0", "latest", "1.0.0-",
        "1.0.0+",
        "1.0.0-a..b", "1.0.0/..", "1.0.0-a/b", "1.0.0-%2e", "1.0.0\n", "1.0.0-a+b+c", "1.0.٣",
        "1.0.0-" + "a" * 300,
    ],
)  # fmt: skip
def test_what_is_no_exact_version_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="is no exact version"):
        check_package("a", version, HASH)


@pytest.mark.parametrize(
    "integrity",
    [
        "", "sha512-", "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=", HASH.replace("sha512", "sha384"),
        f"{HASH} {HASH}", f"{HASH}?x", HASH[:-1], HASH.replace("=", ""), f" {HASH}", f"{HASH}\n",
        "sha512-" + base64.b64encode(b"short").decode(), "sha512-é", HASH[:-3] + "x==",
    ],
)  # fmt: skip
def test_an_integrity_that_is_not_one_sha512_in_one_spelling_is_refused(integrity: str) -> None:
    with pytest.raises(ValueError, match="is not one sha512"):
        check_package("a", "1.0.0", integrity)


def test_a_package_knows_its_hash_and_its_place_in_a_registry() -> None:
    package = Package("@scope/name", "1.0.0-rc.1", HASH)
    assert package.sha512 == bytes(range(64))
    assert package.tarball_path == "@scope/name/-/name-1.0.0-rc.1.tgz"
    assert Package("a", "1.0.0", HASH).tarball_path == "a/-/a-1.0.0.tgz"
    assert str(package) == "@scope/name@1.0.0-rc.1"


def test_the_build_part_of_a_version_is_in_no_path_as_registries_drop_it() -> None:
    assert Package("a", "1.0.0+build", HASH).tarball_path == "a/-/a-1.0.0.tgz"
