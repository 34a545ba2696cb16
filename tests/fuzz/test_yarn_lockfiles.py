"""Whatever stands in a lockfile of Yarn's, it is read or refused; what is read holds."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.jobs.installers import yarn
from cloche.jobs.named_packages import check_name
from cloche.jobs.project.entries import locate
from cloche.jobs.project.graph import Platform
from cloche.jobs.project.yarn_lockfile import YarnLockfile, read_yarn_lockfile
from cloche.jobs.refusal import JobRefusedError

LINUX = Platform("linux", "x64", "glibc")
SUM = "0" * 128
HEAD = {"version": "10", "cacheKey": "10c0"}
ROOT = {
    "version": "0.0.0-use.local",
    "resolution": "t@workspace:.",
    "dependencies": {"a": "npm:^1"},
}
WHOLE: dict[str, dict[str, Any]] = {
    "__metadata": HEAD,
    "t@workspace:.": ROOT,
    "b@workspace:b": {"version": "0.0.0-use.local", "resolution": "b@workspace:b"},
    "a@npm:^1": {"version": "1.0.0", "resolution": "a@npm:1.0.0", "checksum": f"10c0/{SUM}"},
    "@s/b@npm:2, c@npm:@s/b@2": {
        "version": "2.0.0",
        "resolution": "@s/b@npm:2.0.0",
        "conditions": "os=linux & (cpu=x64 | cpu=arm64)",
        "dependencies": {"a": "npm:^1"},
        "dependenciesMeta": {"a": {"optional": "true"}},
        "bin": {"b": "./b.js"},
    },
    "a@patch:a@npm%3A^1#optional!builtin<compat/a>": {
        "version": "1.0.0",
        "resolution": "a@patch:a@npm%3A1.0.0#optional!builtin<compat/a>::version=1.0.0&hash=d",
    },
}

shrapnel = st.lists(
    st.sampled_from(
        [b"__metadata:\n  version: 10\n  cacheKey: 10c0\n", b'"a@npm:^1":\n', b"? ", b": ", b"- ",
         b"  version: 1.0.0\n", b'  resolution: "a@npm:1.0.0"\n', b"  checksum: 10c0/", b":\n",
         b'  resolution: "t@workspace:."\n', b"  conditions: os=linux & (cpu=x64\n", b"[", b"]",
         b"{", b"}", b",", b"&x ", b"*x", b"!!str ", b"|\n", b">\n", b"#", b"---\n", b"'", b'"',
         b"\n", b"  ", b"\t", b"\r", b"\0", b"\x85", b"\xe2\x80\xa8", b"\xff", b"\\ud800",
         b"\\u0007", b"<<<<<<< x\n", b"=======\n", b"# yarn lockfile v1\n", b"9" * 5000]
    ),
    max_size=30,
).map(b"".join)  # fmt: skip
texts = st.text(max_size=5)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["a", "@s/b", "..", "@s/..", "a/b", "@", "", "é", "node_modules"]) | texts
references = st.sampled_from(
    ["npm:1.0.0", "npm:^1", "npm:b@^1", "npm:1.0.0::__archiveUrl=https%3A%2F%2Fevil.test",
     "workspace:.", "workspace:b", "workspace:../..", "workspace:/etc", "workspace:b/../..",
     "patch:a@npm%3A1.0.0#optional!builtin<compat/a>::version=1.0.0&hash=d",
     "patch:a@npm%3A1.0.0#~/x.patch", "patch:%ff%%#~builtin<compat/a>", "file:../x", "link:/etc",
     "portal:..", "https://evil.test/a.tgz", "git@evil.test:a.git#commit=1", "exec:./x.js", ":"]
) | texts  # fmt: skip
locators = st.builds("{}@{}".format, names, references)
oddities = (
    st.sampled_from(
        ["1.0.0", "2.0.0", "../1.0.0", SUM, f"10/{SUM}", f"//{SUM}", "os=linux & (cpu=x64 | !x)",
         "os=win32", "&|()", "10", "8", "10c0", "\x7f", "\u2028", "x" * 10_000]
    )
    | names
    | locators
    | st.dictionaries(names, references, max_size=3)
    | trees
)  # fmt: skip
FIELDS = sorted({field for entry in WHOLE.values() for field in entry} | {"languageName", "x"})


@st.composite
def altered(draw: st.DrawFn) -> bytes:
    """A good lockfile with some fields and keys set to something else."""
    whole = {key: dict(entry) for key, entry in WHOLE.items()}
    for _ in range(draw(st.integers(0, 2))):
        entry = whole[draw(st.sampled_from(sorted(WHOLE)))]
        entry[draw(st.sampled_from(FIELDS))] = draw(oddities)
    for _ in range(draw(st.integers(0, 1))):
        key = draw(st.sampled_from(sorted(whole)))
        whole[", ".join(draw(st.lists(locators | names, min_size=1, max_size=2)))] = whole.pop(key)
    return json.dumps(whole).encode()


def encode(data: Any) -> bytes:
    return json.dumps(data).encode()


def check(lockfile: YarnLockfile) -> None:
    for package in lockfile.packages:
        check_name(package.name, package.version)
    assert len(set(lockfile.packages)) == len(lockfile.packages)
    assert {package for package in lockfile.packages if package.wanted} >= {*lockfile.unchecked}
    for folder in lockfile.projects:
        assert folder == "" or locate(".", folder) == folder
    for foreign in (b"evil.test", b"@patch:", b"builtin<"):
        assert all(foreign not in line for line in _resolutions(lockfile.text))
    again = read_yarn_lockfile(lockfile.text, platform=LINUX)
    assert again.text == lockfile.text and again.packages == lockfile.packages


def _resolutions(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if line.startswith(b"  resolution: ")]


@given(altered() | shrapnel | trees.map(encode) | st.binary())
def test_any_bytes_are_a_lockfile_of_yarn_that_holds_or_a_refusal(data: bytes) -> None:
    try:
        lockfile = read_yarn_lockfile(data, platform=LINUX)
    except JobRefusedError as refusal:
        assert refusal.reason.message.isprintable() and len(refusal.reason.message) < 2000
        return
    check(lockfile)


fields = st.sampled_from(
    ["name", "peerDependencies", "workspaces", "resolutions", "packageManager", "devDependencies"]
)
manifests = st.dictionaries(fields, trees, max_size=2).map(
    lambda more: encode({"dependencies": {"a": "^1"}, **more})
)


@given(
    st.fixed_dictionaries(
        {
            "package.json": manifests | shrapnel,
            "yarn.lock": altered() | st.just(encode(WHOLE)),
            "b/package.json": st.just(b"{}") | shrapnel,
            ".yarnrc.yml": st.just(b"nodeLinker: node-modules\n") | shrapnel | trees.map(encode),
        },
        optional={"c/package.json": st.just(b"{}") | shrapnel},
    )
)
def test_any_project_of_yarn_is_laid_out_or_refused(files: dict[str, bytes]) -> None:
    try:
        installation = yarn.read(files)
    except JobRefusedError as refusal:
        assert refusal.reason.message.isprintable() and len(refusal.reason.message) < 2000
        return
    if installation is None:  # it is none of Yarn's
        assert b"__metadata" not in files["yarn.lock"]
        return
    for path in installation.files:
        assert path in {f"{folder}package.json" for folder in ("", "b/", "c/")} | {
            "yarn.lock",
            ".yarnrc.yml",
        }
    assert all(line.isprintable() for line in installation.ignored)


LEAD = json.dumps({"__metadata": HEAD, "t@workspace:.": ROOT}).encode()[:-1]
ENTRY = LEAD + b', "a@npm:1": {"version": "1.0.0", "resolution": '


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b"__metadata:\n" + b"{a: " * 200_000,
        b"__metadata: &a [" + b"*a," * 200_000,
        b"__metadata: " + b"a" * 10_000_000,
        b'__metadata: "' + b"\\\n" * 5_000_000,
        b"__metadata: 1\n" + b"#\n" * 5_000_000,
        ENTRY + b'"a@patch:' + b"%" * 10_000_000 + b'#~builtin<compat/a>"}}',
        LEAD + b', "x": ' + b'{"x": ' * 30 + b"[" + b"1," * 500_000,
    ],
    ids=["lists", "mappings", "aliases", "long", "folded", "comments", "escapes", "values"],
)
def test_a_lockfile_of_yarn_made_to_take_long_is_refused_soon(data: bytes) -> None:
    begun_s = time.process_time()
    with pytest.raises(JobRefusedError):
        read_yarn_lockfile(data, platform=LINUX)
    assert time.process_time() - begun_s < 5
