"""npm's lockfile is read strictly: what is no package of the registry with a sha512 is refused."""

import json

import pytest

from cloche.jobs.installers import choice, npm
from cloche.jobs.project.graph import Platform
from cloche.jobs.project.npm_lockfile import read_npm_lockfile
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode

HASH = f"sha512-{'A' * 86}=="
MIRROR = "http://127.0.0.1:4873"
LINUX = Platform("linux", "x64", "glibc")
A = {
    "version": "1.0.0",
    "resolved": "https://registry.test/a/-/a-1.0.0.tgz",
    "integrity": HASH,
    "license": "MIT",
}
SCOPED = {
    "version": "2.0.0-beta.1",
    "resolved": "https://registry.test/@s/b/-/b-2.0.0-beta.1.tgz",
    "integrity": HASH,
}


def lockfile(entries=None, **fields):
    packages = {"": {"name": "t", "dependencies": {"a": "1.0.0"}}, **(entries or {})}
    whole = {"name": "t", "lockfileVersion": 3, "requires": True, "packages": packages}
    return json.dumps({**whole, **fields}).encode()


def read(entries=None, **fields):
    data = lockfile(entries, **fields)
    return read_npm_lockfile(data, "package-lock.json", platform=LINUX, mirror=MIRROR)


def refusal(entries=None, code=ReasonCode.DEPENDENCY_REFUSED, **fields):
    with pytest.raises(JobRefusedError) as caught:
        read(entries, **fields)
    assert caught.value.reason.code is code
    assert caught.value.reason.message.startswith("package-lock.json: ")
    return caught.value.reason.message


@pytest.mark.parametrize("version", [2, 3])
def test_packages_are_read_wherever_they_lie(version):
    found = read(
        {
            "node_modules/a": A,
            "node_modules/@s/b": SCOPED,
            "node_modules/@s/b/node_modules/a": {
                **A,
                "version": "1.1.0",
                "resolved": "https://registry.test/a/-/a-1.1.0.tgz",
            },
            "packages/x/node_modules/a": A,
            "packages/x": {"name": "x", "version": "1.0.0"},
            "node_modules/x": {"resolved": "packages/x", "link": True},
        },
        lockfileVersion=version,
    )
    assert [str(each) for each in found.packages] == ["@s/b@2.0.0-beta.1", "a@1.0.0", "a@1.1.0"]
    assert found.workspaces == ("packages/x",)


def test_npm_gets_the_mirrors_addresses_and_no_field_that_it_does_not_need():
    text = json.loads(read({"node_modules/a": {**A, "extra": "x", "bin": {"a": "a.js"}}}).text)
    assert text["packages"]["node_modules/a"] == {
        "version": "1.0.0",
        "resolved": f"{MIRROR}/a/-/a-1.0.0.tgz",
        "integrity": HASH,
        "bin": {"a": "a.js"},
    }


def test_an_address_may_be_missing_and_a_name_may_stand_for_another():
    left_out = {key: value for key, value in A.items() if key != "resolved"}
    found = read({"node_modules/a": left_out, "node_modules/other": {**A, "name": "a"}})
    assert [str(each) for each in found.packages] == ["a@1.0.0"]


def test_a_bundled_package_has_no_tarball_of_its_own():
    bundled = {"version": "9.9.9", "inBundle": True}
    found = read({"node_modules/a": A, "node_modules/a/node_modules/in": bundled})
    assert [str(each) for each in found.packages] == ["a@1.0.0"]


def test_an_optional_package_of_another_platform_is_not_fetched_ahead():
    other = {**A, "optional": True, "os": ["darwin"]}
    assert [each.wanted for each in read({"node_modules/a": other}).packages] == [False]
    assert [each.wanted for each in read({"node_modules/a": A}).packages] == [True]


@pytest.mark.case("ins-03-git-dependency", "ins-04-foreign-tarball")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"resolved": "git+ssh://git@host.test/a.git#abc"}, "is a git repository"),
        ({"resolved": "file:../a.tgz"}, "of its own (`file:`)"),
        ({"resolved": "file:packages/a"}, "of its own (`file:`)"),
        ({"resolved": "ftp://registry.test/a/-/a-1.0.0.tgz"}, "from another source"),
        ({"resolved": "https://evil.test/a/-/a-1.0.0.tgz"}, "another host than the others"),
        ({"resolved": "https://registry.test/b/-/b-1.0.0.tgz"}, "no registry gives"),
        ({"resolved": "https://registry.test/a/-/a-1.0.1.tgz"}, "no registry gives"),
        ({"resolved": "https://registry.test/a/-/a-1.0.0.tgz?x=1"}, "no registry gives"),
        ({"resolved": 7}, "no text"),
        ({"integrity": None}, "has no integrity"),
        ({"integrity": "sha1-AAAA"}, "is refused"),
        ({"integrity": f"{HASH} {HASH}"}, "is refused"),
        ({"version": "latest"}, "is refused"),
        ({"version": None}, "is refused"),
        ({"name": "../a"}, "is refused"),
    ],
)
def test_what_is_no_package_of_the_registry_is_refused_by_name(change, told):
    good = {"node_modules/b1": {**A, "name": "a"}, "node_modules/b2": {**A, "name": "a"}}
    assert len(read({**good, "node_modules/a": A}).packages) == 1  # the control
    message = refusal({**good, "node_modules/a": {**A, **change}})
    assert told in message
    assert "'node_modules/a'" in message


@pytest.mark.parametrize("target", ["../outside", "/etc", "packages/none", "node_modules/a", 7])
def test_a_link_that_leads_to_no_project_is_refused(target):
    entries = {"node_modules/a": A, "node_modules/x": {"link": True, "resolved": target}}
    assert "is a link to" in refusal(entries)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"lockfileVersion": 1}, "lockfileVersion"),
        ({"lockfileVersion": 4}, "lockfileVersion"),
        ({"lockfileVersion": "3"}, "lockfileVersion"),
        ({"packages": None}, "no `packages`"),
        ({"packages": {}}, "no `packages`"),
        ({"packages": {"": {}, "node_modules/a": 7}}, "is no object"),
        ({"packages": {"": {}, "../node_modules/a": A}}, "does not lie below"),
        ({"packages": {"": {}, "/node_modules/a": A}}, "does not lie below"),
        ({"packages": {"": {}, "a/../node_modules/a": A}}, "does not lie below"),
    ],
)
def test_a_lockfile_of_another_shape_is_refused(fields, told):
    assert told in refusal(None, ReasonCode.LOCKFILE_INVALID, **fields)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"a":1,"a":2}', b"[" * 10_000])
def test_what_is_no_strict_json_is_refused(data):
    with pytest.raises(JobRefusedError) as caught:
        read_npm_lockfile(data, "package-lock.json", platform=LINUX, mirror=MIRROR)
    assert caught.value.reason.code is ReasonCode.LOCKFILE_INVALID


def test_npm_gets_manifests_without_scripts_and_nothing_else_of_the_project():
    manifest = {
        "name": "t",
        "version": "1.0.0",
        "scripts": {"postinstall": "evil"},
        "dependencies": {"a": "1.0.0"},
        "optionalDependencies": {},
        "workspaces": ["packages/*"],
        "packageManager": "npm@1.0.0",
    }
    entries = {"packages/x": {"name": "x"}, "node_modules/a": A}
    installation = npm.read(
        {
            "package.json": json.dumps(manifest).encode(),
            "packages/x/package.json": b'{"name": "x", "scripts": {"install": "evil"}}',
            "package-lock.json": lockfile(entries),
            ".npmrc": b"registry=http://evil.test",
            "index.js": b"",
        }
    )
    assert installation is not None
    assert set(installation.files) == {
        *("package.json", "packages/x/package.json", "package-lock.json"),
    }
    assert b"evil" not in b"".join(installation.files.values())
    assert installation.folders == ("node_modules", "packages/x/node_modules")
    assert "npmrc has no say" in " ".join(installation.ignored)


def test_a_workspace_without_a_manifest_refuses_the_project():
    top = b'{"dependencies": {"a": "1.0.0"}}'
    files = {"package.json": top, "package-lock.json": lockfile({"packages/x": {"name": "x"}})}
    with pytest.raises(JobRefusedError, match="packages/x/package") as caught:
        npm.read(files)
    assert caught.value.reason.code is ReasonCode.MANIFEST_MISSING


def test_of_several_lockfiles_the_first_known_one_counts():
    files = {"package.json": b'{"dependencies": {"a": "1.0.0"}}', "package-lock.json": lockfile()}
    found = choice.read_installation(files)
    assert found is not None and found.tool == "npm"
    shrinkwrapped = choice.read_installation({**files, "npm-shrinkwrap.json": lockfile()})
    assert shrinkwrapped is not None and shrinkwrapped.lockfile == "npm-shrinkwrap.json"
    pnpms = b"lockfileVersion: '9.0'\nimporters: {.: {}}\n"
    both = choice.read_installation({**files, "pnpm-lock.yaml": pnpms})
    assert both is not None and both.tool == "pnpm"


@pytest.mark.parametrize(
    ("manifest", "group"),
    [
        ({}, "dependencies"),
        ({"dependencies": {"a": "2.0.0"}}, "dependencies"),
        ({"dependencies": {"a": "1.0.0", "b": "1.0.0"}}, "dependencies"),
        ({"dependencies": {"a": "1.0.0"}, "devDependencies": {"b": "1"}}, "devDependencies"),
        ({"dependencies": {"a": "1.0.0"}}, None),
        ({"dependencies": {"a": "1.0.0"}, "peerDependencies": {}}, None),
    ],
)
def test_a_manifest_that_says_something_else_than_the_lockfile_is_found(manifest, group):
    assert read().find_mismatch("", manifest) == group


def test_an_optional_dependency_counts_once():
    both = {"dependencies": {"a": "1.0.0", "o": "1"}, "optionalDependencies": {"o": "1"}}
    packages = {"": {"dependencies": {"a": "1.0.0"}, "optionalDependencies": {"o": "1"}}}
    assert read(packages=packages).find_mismatch("", both) is None
