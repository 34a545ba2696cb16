"""Whatever a lockfile of npm's or a registry's document says, it is reduced to what it may."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloche.egress.metadata import reduce_metadata
from cloche.jobs.project.entries import locate
from cloche.jobs.project.graph import Platform
from cloche.jobs.project.npm_lockfile import NpmLockfile, read_npm_lockfile
from cloche.jobs.refusal import JobRefusedError
from cloche.model.package import check_package

LINUX = Platform("linux", "x64", "glibc")
MIRROR = "http://127.0.0.1:4873"
NEWEST = datetime(2026, 6, 1, tzinfo=UTC)
HASH = f"sha512-{'A' * 86}=="
ADDRESS = "https://registry.test/a/-/a-1.0.0.tgz"

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
odd = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)


def often(*likely: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(likely) | st.sampled_from(likely) | odd


places = st.lists(
    st.sampled_from(["node_modules", "a", "@s", "..", ".", "", "C:", "\\", "\n", "b"]), max_size=5
).map("/".join) | st.sampled_from(["", "node_modules/a", "node_modules/@s/b", "packages/x"])
entries = st.fixed_dictionaries(
    {},
    optional={
        "name": often("a", "@s/b", "..", "a/../b"),
        "version": often("1.0.0", "../1.0.0", "latest"),
        "resolved": often(
            ADDRESS,
            ADDRESS,
            "packages/x",
            "https://evil.test/a/-/a-1.0.0.tgz",
            "file:../x",
            "git+ssh://git@evil.test/a.git",
            "https://registry.test@evil.test/a/-/a-1.0.0.tgz",
        ),
        "integrity": often(HASH, HASH, "sha1-AAAA", f"{HASH} {HASH}"),
        "link": often(True),
        "inBundle": often(True),
        "optional": often(True),
        "dependencies": often({"a": "1.0.0"}),
        "os": often(["linux"], ["!linux"]),
        "scripts": odd,
    },
)
lockfiles = st.fixed_dictionaries(
    {"lockfileVersion": st.sampled_from([3, 3, 2]) | plain},
    optional={
        "packages": st.dictionaries(places, entries | odd, max_size=4).map(
            lambda found: {"": {}, **found}
        )
        | odd,
        "dependencies": odd,
    },
)


def check(lockfile: NpmLockfile) -> None:
    for package in lockfile.packages:
        check_package(package.name, package.version, package.integrity)
    document = json.loads(lockfile.text)
    assert document.keys() == {"lockfileVersion", "requires", "packages"}
    for path, entry in document["packages"].items():
        assert not path or locate(".", path) == path
        if entry.get("inBundle") is not True and entry.get("link") is not True and path:
            assert entry.get("resolved", MIRROR).startswith(MIRROR) or path in lockfile.projects
        assert "scripts" not in entry
    for folder in lockfile.workspaces:
        assert locate(".", folder) == folder


@given(lockfiles)
@example({"lockfileVersion": 3, "packages": {"": {}, "node_modules/a": {"resolved": ADDRESS}}})
def test_any_lockfile_of_npm_holds_or_is_refused(document: dict[str, Any]) -> None:
    with suppress(JobRefusedError):
        data = json.dumps(document).encode()
        check(read_npm_lockfile(data, "package-lock.json", platform=LINUX, mirror=MIRROR))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_lockfile_of_npm_or_refused(data: bytes) -> None:
    for start in (b"", b'{"lockfileVersion": 3, "packages": {"": {}, '):
        with suppress(JobRefusedError):
            read_npm_lockfile(start + data, "x", platform=LINUX, mirror=MIRROR)


versions = st.dictionaries(
    often("1.0.0", "2.0.0-a.1", "../1.0.0", "latest").filter(lambda key: isinstance(key, str)),
    st.fixed_dictionaries(
        {"dist": often({"integrity": HASH}, {"integrity": HASH, "tarball": "https://evil.test/x"})},
        optional={
            "name": often("b"),
            "version": often("1.0.0", "../2.0.0"),
            "scripts": odd,
            "dependencies": odd,
        },
    )
    | odd,
    max_size=3,
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "versions": versions | odd,
        "time": st.dictionaries(
            st.sampled_from(["1.0.0", "2.0.0-a.1"]), often("2026-01-01", "2027-01-01T00:00:00Z")
        )
        | odd,
        "dist-tags": st.dictionaries(st.just("latest"), often("1.0.0")) | odd,
    },
)


@settings(max_examples=50)
@given(documents | odd, st.sampled_from([NEWEST, None]))
@example({"versions": {"1.0.0": {"dist": {"integrity": HASH}}}, "time": []}, NEWEST)
@example({"versions": {}, "dist-tags": {"latest": []}}, None)
def test_any_document_is_reduced_to_versions_of_the_mirror_or_is_none(
    document: Any, newest: datetime | None
) -> None:
    try:
        data, left_out_count = reduce_metadata(
            json.dumps(document).encode(), "a", newest=newest, mirror=MIRROR
        )
    except ValueError:
        return
    found = json.loads(data)
    assert left_out_count >= 0
    assert found.keys() == {"name", "dist-tags", "versions"}
    for version, entry in found["versions"].items():
        assert (entry["name"], entry["version"]) == ("a", version)
        assert entry["dist"]["tarball"].startswith(f"{MIRROR}/a/-/a-{version}.tgz")
        assert "scripts" not in entry
        assert newest is None or document["time"][version] < "2026-06-02"
    assert set(found["dist-tags"].values()) <= found["versions"].keys()


@given(st.binary(max_size=200))
@example(b"[" * 100_000)
def test_any_bytes_are_a_document_or_none(data: bytes) -> None:
    with suppress(ValueError):
        reduce_metadata(data, "a", newest=NEWEST, mirror=MIRROR)
