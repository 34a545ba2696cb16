"""Whatever stands in a project's files, its install is read or refused; what is read holds."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cloche.jobs.project.entries import locate
from cloche.jobs.project.inputs import prepare_install
from cloche.jobs.project.lockfile import Lockfile, Platform, read_lockfile
from cloche.jobs.refusal import JobRefusedError
from cloche.model.package import check_package

FIXTURES = Path(__file__).parents[1] / "data" / "lockfiles"
LINUX = Platform("linux", "x64", "glibc")
REAL = sorted(path.read_bytes() for path in FIXTURES.glob("*.yaml"))
INTEGRITY = "sha512-" + "A" * 86 + "=="

yaml_shrapnel = st.lists(
    st.sampled_from(
        [b"a", b"'", b'"', b": ", b":", b"- ", b"? ", b"[", b"]", b"{", b"}", b",", b"&x", b"*x",
         b"!", b"!!str ", b"|\n", b">\n", b"#", b"%YAML 1.1\n", b"---\n", b"...\n", b"\n", b"  ",
         b"\t", b"\r", b"\0", b"\x85", b"\xe2\x80\xa8", b"\xff", b"~", b"null", b"0x1f", b"1e999",
         b".nan", b"2001-01-01", b"1:30", b"<<", b"=", b"\\", b"\\ud800", b"9" * 5000,
         b"lockfileVersion: '9.0'\n", b"importers:", b"packages:", b"<<<<<<< x\n", b"=======\n"]
    ),
    max_size=40,
).map(b"".join)  # fmt: skip

paths = st.lists(
    st.sampled_from(["..", ".", "a", "b", "", "~", "C:", "\\", "node_modules", "\n"]), max_size=4
).map("/".join)
names = st.sampled_from(["a", "@s/b", "..", "@s/..", "a/b", "a@1.0.0", "", "a(b@1.0.0)"]) | paths
versions = st.sampled_from(
    ["1.0.0", "2.0.0", "1.0.0(b@1.0.0)", "a@1.0.0", "@s/b@2.0.0", "link:x", "file:x", "latest",
     "npm:1.0.0", "runtime:1", "https://evil.test/a.tgz", "git+ssh://git@evil.test/a.git"]
) | paths.map("link:{}".format)  # fmt: skip
plain = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | names | versions
trees = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
resolutions = st.just({"integrity": INTEGRITY}) | st.dictionaries(
    st.sampled_from(["integrity", "tarball", "type", "directory", "commit", "x"]),
    st.just(INTEGRITY) | plain,
    max_size=2,
)
keys = st.builds("{}@{}".format, names, versions)
references = st.dictionaries(names, versions, max_size=3)
snapshots = st.fixed_dictionaries(
    {},
    optional={"dependencies": references, "optional": st.booleans(), "patched": plain},
)
importers = st.fixed_dictionaries(
    {},
    optional={
        "dependencies": st.dictionaries(
            names, st.fixed_dictionaries({"specifier": plain, "version": versions}), max_size=3
        ),
        "optionalDependencies": trees,
    },
)
documents = st.fixed_dictionaries(
    {"lockfileVersion": st.just("9.0")},
    optional={
        "importers": st.dictionaries(paths | st.just("."), importers, max_size=3),
        "packages": st.dictionaries(
            keys,
            st.fixed_dictionaries({"resolution": resolutions}, optional={"os": trees}),
            max_size=3,
        ),
        "snapshots": st.dictionaries(keys, snapshots, max_size=3),
        "settings": st.dictionaries(st.text(max_size=5), plain, max_size=2),
        "overrides": trees,
    },
)
whole = st.fixed_dictionaries(
    {
        "lockfileVersion": st.just("9.0"),
        "importers": st.just({"a": {}, ".": {"dependencies": {"a": {"version": "1.0.0"}}}}),
        "packages": st.just({"a@1.0.0": {"resolution": {"integrity": INTEGRITY}}}),
        "snapshots": st.just({"a@1.0.0": {}}),
    },
    optional={"settings": st.dictionaries(st.text(max_size=5), plain, max_size=2)},
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A real lockfile with some of it cut out, doubled or replaced."""
    data = draw(st.sampled_from(REAL))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 200)))
        piece = draw(st.sampled_from([b"", data[start:end] * 2]) | yaml_shrapnel)
        data = data[:start] + piece + data[end:]
    return data


def check(lockfile: Lockfile) -> None:
    for package in lockfile.packages:
        check_package(package.name, package.version, package.integrity)
    assert len({str(package) for package in lockfile.packages}) == len(lockfile.packages)
    for folder in lockfile.importers:
        assert locate(".", folder) == folder
    for link in ("tarball", "directory", "repo", "commit"):
        for entry in json.loads(lockfile.text).get("packages", {}).values():
            assert link not in entry["resolution"]
    assert read_lockfile(lockfile.text, platform=LINUX) == lockfile


@given(
    st.binary()
    | yaml_shrapnel
    | mutated()
    | (documents | whole | trees).map(lambda document: json.dumps(document).encode())
)
def test_any_bytes_are_a_lockfile_that_holds_or_a_refusal(data: bytes) -> None:
    try:
        lockfile = read_lockfile(data, platform=LINUX)
    except JobRefusedError as refusal:
        assert refusal.reason.message.isprintable() and len(refusal.reason.message) < 2000
        return
    check(lockfile)


fields = st.sampled_from(
    ["name", "version", "dependencies", "peerDependencies", "bin", "publishConfig", "scripts",
     "pnpm", "packageManager", "devEngines", "workspaces", "dependenciesMeta"]
)  # fmt: skip
settings = st.sampled_from(
    ["packages", "overrides", "patchedDependencies", "nodeLinker", "catalog", "registry",
     "configDependencies", "hoistPattern", "packageExtensions", "sharedWorkspaceLockfile"]
)  # fmt: skip


def encoded(data: Any) -> bytes:
    return json.dumps(data).encode()


@given(
    st.fixed_dictionaries(
        {
            "package.json": st.dictionaries(fields, trees, max_size=4).map(encoded) | yaml_shrapnel,
            "a/package.json": st.dictionaries(fields, trees, max_size=2).map(encoded)
            | yaml_shrapnel,
        },
        optional={
            "pnpm-lock.yaml": whole.map(encoded) | mutated(),
            "pnpm-workspace.yaml": st.dictionaries(settings, trees, max_size=3).map(encoded)
            | yaml_shrapnel,
            ".npmrc": st.just(b"registry=http://evil.test"),
            "a/b": st.just(b"x"),
        },
    )
)
def test_any_project_has_inputs_of_known_names_or_is_refused(files: dict[str, bytes]) -> None:
    try:
        lockfile, inputs = prepare_install(files)
    except JobRefusedError as refusal:
        assert refusal.reason.message.isprintable() and len(refusal.reason.message) < 2000
        return
    if lockfile is None or inputs is None:
        assert lockfile is inputs is None and "pnpm-lock.yaml" not in files
        return
    check(lockfile)
    for path, content in inputs.files.items():
        assert path.endswith(("package.json", "pnpm-lock.yaml", "pnpm-workspace.yaml"))
        assert isinstance(json.loads(content), dict)
    assert all(line.isprintable() for line in inputs.ignored)
