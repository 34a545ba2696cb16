"""Packages of a lockfile without their hashes: what the registry says of one is checked."""

import asyncio
import json
from pathlib import Path

import pytest

from cloche.egress.registry import PackageError
from cloche.jobs import named_packages
from cloche.jobs.named_packages import NamedPackage, NamedPackages, check_name
from cloche.jobs.project.graph import Platform
from cloche.jobs.project.yarn_lockfile import read_yarn_lockfile
from cloche.model.job import ReasonCode
from cloche.model.package import Package

HASH, OTHER_HASH = f"sha512-{'A' * 86}==", f"sha512-{'B' * 85}A=="
A = NamedPackage("a", "1.0.0")


class Told:
    """A registry that says this of each package, by name; an exception is raised."""

    def __init__(self, **documents):
        self.documents = documents
        self.asked = []
        self.fetched = []
        self.open = asyncio.Event()
        self.open.set()
        self.waiting_count = self.most_count = 0

    async def fetch_metadata(self, name, *, is_short=False):
        assert is_short
        self.asked.append(name)
        self.waiting_count += 1
        self.most_count = max(self.most_count, self.waiting_count)
        await self.open.wait()
        self.waiting_count -= 1
        found = self.documents[name]
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, bytes) else json.dumps(found).encode()

    async def fetch(self, package):
        self.fetched.append(package)
        return Path("/packages") / str(package)

    async def find_scope(self, names):
        return ",".join(names)


def document(**hashes):
    """What a registry says of a package, by version with `_` in place of `.`."""
    versions = {
        version.replace("_", ".").strip("v"): {"dist": {"integrity": integrity}}
        for version, integrity in hashes.items()
    }
    return {"versions": versions}


def fetch(registry, *items):
    async def work():
        source = NamedPackages(registry)
        return [await source.fetch(item) for item in items]

    return asyncio.run(work())


def failure(registry, item=A):
    with pytest.raises(PackageError) as caught:
        fetch(registry, item)
    assert caught.value.message.isprintable() and len(caught.value.message) < 300
    assert registry.fetched == []
    return caught.value


def test_a_package_is_fetched_by_the_hash_that_the_registry_states():
    registry = Told(a=document(v1_0_0=HASH, v2_0_0=OTHER_HASH))
    assert fetch(registry, A) == [Path("/packages/a@1.0.0")]
    assert registry.fetched == [Package("a", "1.0.0", HASH)]


def test_a_registry_is_asked_once_for_all_versions_of_a_package():
    registry = Told(a=document(v1_0_0=HASH, v2_0_0=OTHER_HASH))
    fetch(registry, A, NamedPackage("a", "2.0.0"), A)
    assert registry.asked == ["a"]
    assert [each.integrity for each in registry.fetched] == [HASH, OTHER_HASH, HASH]


def test_a_registry_that_failed_is_asked_again_by_the_next_one():
    failed = PackageError(ReasonCode.REGISTRY_FAILED, "a: no", retry_safe=True)
    registry = Told(a=failed)

    async def work():
        source = NamedPackages(registry)
        with pytest.raises(PackageError) as caught:
            await source.fetch(A)
        assert caught.value is failed
        registry.documents["a"] = document(v1_0_0=HASH)
        await source.fetch(A)

    asyncio.run(work())
    assert registry.asked == ["a", "a"]


def test_who_no_longer_waits_takes_nothing_from_the_others():
    registry = Told(a=document(v1_0_0=HASH))

    async def work():
        registry.open.clear()
        source = NamedPackages(registry)
        first, second = (asyncio.create_task(source.fetch(A)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        registry.open.set()
        return await asyncio.gather(first, second, return_exceptions=True)

    first, second = asyncio.run(work())
    assert isinstance(first, asyncio.CancelledError)
    assert second == Path("/packages/a@1.0.0")
    assert registry.asked == ["a"]


def test_a_failure_that_nobody_waits_for_is_no_warning():
    registry = Told(a=PackageError(ReasonCode.REGISTRY_FAILED, "a: no"))

    async def work():
        registry.open.clear()
        source = NamedPackages(registry)
        waiting = asyncio.create_task(source.fetch(A))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        registry.open.set()
        (asking,) = source._known.values()
        await asyncio.wait([asking])
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        source._known.clear()
        del asking
        return told

    assert asyncio.run(work()) == []


def test_only_so_many_packages_are_asked_for_at_a_time():
    names = [f"p{number}" for number in range(40)]
    registry = Told(**{name: document(v1_0_0=HASH) for name in names})

    async def work():
        registry.open.clear()
        source = NamedPackages(registry)
        waiting = [asyncio.create_task(source.fetch(NamedPackage(each, "1.0.0"))) for each in names]
        for _ in range(5):
            await asyncio.sleep(0)
        registry.open.set()
        await asyncio.gather(*waiting)

    asyncio.run(work())
    assert registry.most_count == named_packages._ASKED_COUNT < len(names)
    assert len(registry.fetched) == len(names)


@pytest.mark.parametrize(
    "integrity",
    ["", "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=", "sha512-", f"{HASH} {OTHER_HASH}", HASH.lower(),
     f"sha256-{'A' * 43}=", f"{HASH}\n", "../../etc/passwd"],
)  # fmt: skip
def test_a_package_without_one_sha512_is_not_fetched(integrity):
    error = failure(Told(a=document(v1_0_0=integrity)))
    assert error.code is ReasonCode.PACKAGE_UNAVAILABLE
    assert error.message == "a@1.0.0: the registry states no sha512 of it"


@pytest.mark.parametrize("integrity", [None, 1, [], {}, [HASH], {"sha512": HASH}, True])
def test_an_integrity_that_is_no_text_is_none(integrity):
    assert "states no sha512" in failure(Told(a=document(v1_0_0=integrity))).message


@pytest.mark.parametrize(
    "versions",
    [{}, {"2.0.0": {"dist": {"integrity": HASH}}}, {"1.0.0": None}, {"1.0.0": []}, {"1.0.0": {}},
     {"1.0.0": {"dist": "x"}}, {"1.0.0": {"integrity": HASH}}, {"v1.0.0": {"dist": {}}}],
)  # fmt: skip
def test_a_version_that_the_registry_does_not_have_is_told(versions):
    error = failure(Told(a={"versions": versions}))
    assert error.code is ReasonCode.PACKAGE_UNAVAILABLE
    assert error.message == "a@1.0.0: the registry has no such version"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[]", b"1", b'"x"', b"{}", b'{"versions": null}', b'{"versions": []}',
     b'{"versions": "x"}', b"[" * 100_000, b'{"versions":' * 100_000, b"\xff\xfe", b"<html>",
     b'{"versions": {"1.0.0": ' + b"9" * 5000 + b"}}"],
)  # fmt: skip
def test_what_is_no_metadata_is_the_registrys_failure(data):
    error = failure(Told(a=data))
    assert error.code is ReasonCode.REGISTRY_FAILED
    assert error.message == "a: what the registry gave is no metadata of a package"


def test_what_the_registry_says_of_name_and_place_has_no_say():
    entry = {
        "name": "evil",
        "version": "6.6.6",
        "dist": {"integrity": HASH, "tarball": "https://evil.test/evil-6.6.6.tgz"},
    }
    registry = Told(a={"name": "evil", "versions": {"1.0.0": entry}})
    fetch(registry, A)
    assert registry.fetched == [Package("a", "1.0.0", HASH)]
    assert registry.fetched[0].tarball_path == A.tarball_path == "a/-/a-1.0.0.tgz"


def test_a_package_under_another_name_is_asked_for_by_its_own():
    lockfile = {
        "__metadata": {"version": "10", "cacheKey": "10c0"},
        "t@workspace:.": {"version": "0", "resolution": "t@workspace:."},
        "alias@npm:@s/b@^1, @s/b@npm:1": {
            "version": "1.0.0",
            "resolution": "@s/b@npm:1.0.0",
            "checksum": f"10c0/{'0' * 128}",
        },
    }
    linux = Platform("linux", "x64", "glibc")
    (item,) = read_yarn_lockfile(json.dumps(lockfile).encode(), platform=linux).packages
    registry = Told(**{"@s/b": document(v1_0_0=HASH)})
    fetch(registry, item)
    assert (registry.asked, registry.fetched) == (["@s/b"], [Package("@s/b", "1.0.0", HASH)])


def test_what_a_package_bundles_is_not_asked_for():
    entry = {"dist": {"integrity": HASH}, "bundleDependencies": ["b"], "dependencies": {"b": "1"}}
    registry = Told(a={"versions": {"1.0.0": entry}})
    fetch(registry, A)
    assert (registry.asked, registry.fetched) == (["a"], [Package("a", "1.0.0", HASH)])


def test_other_entries_that_make_no_sense_do_not_stand_in_the_way():
    versions = {"1.0.0": {"dist": {"integrity": HASH}}, "../..": {"dist": {}}, "2.0.0": 5}
    assert fetch(Told(a={"versions": versions}), A)


@pytest.mark.parametrize(
    ("name", "version"),
    [("..", "1.0.0"), ("@s/..", "1.0.0"), ("a/b", "1.0.0"), ("a%2fb", "1.0.0"), ("a?b", "1.0.0"),
     ("a\n", "1.0.0"), ("", "1.0.0"), ("a" * 215, "1.0.0"), ("a", "latest"), ("a", "^1.0.0"),
     ("a", "1.0.0/../.."), ("a", "1.0.0\n"), ("a", ""), ("a", "1"), ("a@1.0.0", "1.0.0")],
)  # fmt: skip
def test_a_name_or_a_version_that_could_lead_elsewhere_is_refused(name, version):
    with pytest.raises(ValueError, match=r"is no name of a package|is no exact version") as caught:
        check_name(name, version)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["a", "@s/b", "JSONStream"])
def test_a_name_and_an_exact_version_are_taken(name):
    check_name(name, "1.0.0-rc.1+build")


def test_a_scoped_package_lies_below_its_scope_and_its_build_is_no_part_of_the_place():
    item = NamedPackage("@s/b", "2.0.0-rc.1+build")
    assert item.tarball_path == "@s/b/-/b-2.0.0-rc.1.tgz"
    assert str(item) == "@s/b@2.0.0-rc.1+build"


def test_the_credentials_are_those_of_the_registry():
    source = NamedPackages(Told())
    assert asyncio.run(source.find_scope(["a", "@s/b"])) == "a,@s/b"
