"""What a registry says of a package, reduced to what a policy lets be chosen."""

import json
from datetime import UTC, datetime

import pytest

from cloche.egress.metadata import Metadata, MetadataItems, reduce_metadata

HASH = f"sha512-{'A' * 86}=="
MIRROR = "http://127.0.0.1:4873"
NEWEST = datetime(2026, 6, 1, tzinfo=UTC)


def entry(version, **fields):
    dist = {"integrity": HASH, "tarball": "https://evil.test/x.tgz"}
    return {"name": "p", "version": version, "dist": dist, **fields}


def document(versions, tags=None, times=None, **fields):
    whole = {
        "name": "p",
        "dist-tags": {"latest": list(versions)[-1]} if tags is None else tags,
        "versions": versions,
        "time": times or {},
    }
    return json.dumps({**whole, **fields}).encode()


def reduced(data, newest=None):
    found, left_out_count = reduce_metadata(data, "p", newest=newest, mirror=MIRROR)
    return json.loads(found), left_out_count


def test_a_version_says_what_a_lockfile_needs_and_that_the_mirror_has_it():
    data = document({"1.0.0": entry("1.0.0", dependencies={"a": "^1"}, scripts={"x": "y"})})
    found, _ = reduced(data)
    assert found["versions"]["1.0.0"] == {
        "name": "p",
        "version": "1.0.0",
        "dependencies": {"a": "^1"},
        "dist": {"integrity": HASH, "tarball": f"{MIRROR}/p/-/p-1.0.0.tgz"},
    }
    assert "time" not in found


def test_versions_that_are_too_young_or_of_no_known_age_are_left_out():
    versions = {each: entry(each) for each in ("1.0.0", "1.1.0", "1.2.0", "1.3.0")}
    times = {
        "1.0.0": "2026-05-01T00:00:00.000Z",
        "1.1.0": "2026-06-01T00:00:00.000Z",
        "1.2.0": "2026-06-01T00:00:01.000Z",
    }
    found, left_out_count = reduced(document(versions, times=times), NEWEST)
    assert list(found["versions"]) == ["1.0.0", "1.1.0"]
    assert left_out_count == 2
    assert found["dist-tags"] == {"latest": "1.1.0"}
    everything, none = reduced(document(versions, times=times))
    assert (len(everything["versions"]), none) == (4, 0)


@pytest.mark.parametrize("published", [None, 7, "yesterday", "", [], "2026-05-01T00:00:00.000Zx"])
def test_a_time_that_is_none_is_not_known(published):
    found, left_out_count = reduced(
        document({"1.0.0": entry("1.0.0")}, times={"1.0.0": published}), NEWEST
    )
    assert (found["versions"], left_out_count) == ({}, 1)


def test_a_tag_leads_to_a_version_that_is_there():
    versions = {each: entry(each) for each in ("2.0.0-rc.1", "1.9.0", "1.10.0", "9.0.0")}
    times = dict.fromkeys(("2.0.0-rc.1", "1.9.0", "1.10.0"), "2026-01-01T00:00:00Z")
    tags = {"latest": "9.0.0", "next": "2.0.0-rc.1", "old": "1.9.0", "gone": "0.1.0"}
    found, _ = reduced(document(versions, tags, times), NEWEST)
    assert found["dist-tags"] == {"latest": "1.10.0", "next": "2.0.0-rc.1", "old": "1.9.0"}


def test_a_version_without_a_sha512_cannot_be_chosen():
    broken = [
        {**entry("1.0.0"), "dist": {"shasum": "x"}},
        {**entry("1.0.0"), "dist": {"integrity": "sha1-AAAA"}},
        {**entry("1.0.0"), "dist": None},
        "text",
        None,
    ]
    for each in broken:
        found, left_out_count = reduced(document({"0.9.0": entry("0.9.0"), "1.0.0": each}))
        assert (list(found["versions"]), left_out_count) == (["0.9.0"], 0)
    found, _ = reduced(document({"latest": entry("latest"), "1.0": entry("1.0")}))
    assert found["versions"] == {}


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"7", b"null", b"{}", b'{"versions": []}', b"[" * 10**5, b"\xff"]
)
def test_what_is_no_metadata_is_none(data):
    with pytest.raises(ValueError, match="is no metadata"):
        reduced(data)


@pytest.mark.parametrize("fields", [{"time": []}, {"time": None}, {"dist-tags": {"latest": []}}])
def test_a_document_with_a_part_of_another_shape_is_none(fields):
    times = {"1.0.0": "2026-05-01T00:00:00Z"}
    with pytest.raises(ValueError, match="is no metadata"):
        reduced(document({"1.0.0": entry("1.0.0")}, **{"times": times, **fields}), NEWEST)


def test_a_version_is_what_it_is_listed_as_and_no_other():
    found, _ = reduced(document({"1.0.0": entry("../2.0.0")}))
    told = found["versions"]["1.0.0"]
    assert (told["version"], told["dist"]["tarball"]) == ("1.0.0", f"{MIRROR}/p/-/p-1.0.0.tgz")


def test_only_packages_may_be_asked_for_and_only_those_that_are_allowed():
    anything = MetadataItems(None)
    assert anything.get("/left-pad") == Metadata("left-pad")
    assert anything.get("/@s%2Fb") == anything.get("/@s%2fb") == anything.get("/%40s/b")
    for path in ("/", "/../x", "/a/b", "left-pad", "/-/all", "/a?x=1", "/@s", "/a%20b", "//a"):
        assert anything.get(path) is None, path
    some = MetadataItems(frozenset({"a", "@s/b"}))
    assert some.get("/a") and some.get("/@s%2fb")
    assert some.get("/b") is None
    assert list(some.values()) == []
