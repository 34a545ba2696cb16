"""A stranger's lockfile: what is taken of it, what is refused by name, and what pnpm gets."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloche.jobs.project.entries import locate
from cloche.jobs.project.lockfile import (
    LOCKFILE_BYTES_LIMIT,
    Lockfile,
    Platform,
    encode,
    read_lockfile,
)
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "data" / "lockfiles"
LINUX = Platform("linux", "x64", "glibc")
HASH = "sha512-" + base64.b64encode(bytes(range(64))).decode()
SHA1 = "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk="
INVALID, REFUSED = ReasonCode.LOCKFILE_INVALID, ReasonCode.DEPENDENCY_REFUSED


def read(data: bytes | str | dict[str, Any], platform: Platform = LINUX) -> Lockfile:
    if isinstance(data, dict):
        data = encode(data)
    return read_lockfile(data.encode() if isinstance(data, str) else data, platform=platform)


def read_fixture(name: str, platform: Platform = LINUX) -> Lockfile:
    return read((FIXTURES / f"{name}.yaml").read_bytes(), platform)


def refusal_of(data: bytes | str | dict[str, Any]) -> tuple[ReasonCode, str]:
    with pytest.raises(JobRefusedError) as caught:
        read(data)
    reason = caught.value.reason
    assert reason.message.startswith("pnpm-lock.yaml: ") and reason.message.isprintable()
    assert len(reason.message) < 1500
    return reason.code, reason.message


def one_package(
    name: str = "a", version: str = "1.0.0", *, resolution: Any = None, **fields: Any
) -> dict[str, Any]:
    """A lockfile of one package, as pnpm would write it."""
    key = f"{name}@{version}"
    return {
        "lockfileVersion": "9.0",
        "importers": {".": {"dependencies": {name: {"specifier": "*", "version": version}}}},
        "packages": {key: {"resolution": resolution or {"integrity": HASH}, **fields}},
        "snapshots": {key: {}},
    }


def wanted(lockfile: Lockfile) -> set[str]:
    return {str(package) for package in lockfile.packages if package.wanted}


# What is taken


def test_the_packages_and_projects_of_a_workspace_are_read() -> None:
    lockfile = read_fixture("workspace")
    assert lockfile.importers == (".", "packages/a", "packages/b")
    assert len(lockfile.packages) == 12
    left_pad = next(each for each in lockfile.packages if each.name == "left-pad")
    assert left_pad.version == "1.3.0"
    assert left_pad.integrity.startswith("sha512-XI5MPzVNApjAyhQzphX8BkmKsKUxD4LdyK24iZeQGin")
    assert lockfile.settings == {"autoInstallPeers": True, "excludeLinksFromLockfile": False}
    assert "overrides" in lockfile.sections
    assert not lockfile.uses_pnpmfile


def test_a_package_under_another_name_is_read_by_its_own() -> None:
    names = {package.name for package in read_fixture("platforms").packages}
    assert {"b", "@s/x"} <= names
    assert not names & {"foo", "@q/bar"}


def test_one_package_with_several_sets_of_peers_is_one_package() -> None:
    document = one_package()
    document["snapshots"] = {"a@1.0.0(b@1.0.0)": {}, "a@1.0.0(b@2.0.0(c@1.0.0))": {}}
    document["importers"] = {
        folder: {"dependencies": {"a": {"specifier": "*", "version": version}}}
        for folder, version in (
            ("x", "1.0.0(b@1.0.0)"),
            ("y", "1.0.0(b@2.0.0(c@1.0.0))"),
        )
    }
    assert [str(package) for package in read(document).packages] == ["a@1.0.0"]


@pytest.mark.parametrize("name", ["workspace_of_pnpm_10", "overrides_of_pnpm_9", "peers"])
def test_lockfiles_of_other_versions_of_pnpm_are_read(name: str) -> None:
    assert read_fixture(name).packages


def test_a_lockfile_made_with_a_pnpmfile_says_so() -> None:
    assert read({**one_package(), "pnpmfileChecksum": "sha256-x"}).uses_pnpmfile


def test_a_project_without_dependencies_has_no_packages() -> None:
    assert read({"lockfileVersion": "9.0", "importers": {".": {}}}).packages == ()


def test_what_package_manager_asks_for_is_no_dependency_of_the_project() -> None:
    lockfile = read_fixture("pinned_pnpm")
    assert [package.name for package in lockfile.packages] == ["a", "b"]
    assert b"packageManagerDependencies" not in lockfile.text


def test_a_byte_order_mark_and_the_line_ends_of_windows_change_nothing() -> None:
    data = (FIXTURES / "pinned_pnpm.yaml").read_bytes()
    assert read(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")) == read(data)


# What a platform installs


def test_the_example_wants_what_pnpm_fetches_for_it() -> None:
    lockfile = read((ROOT / "examples/vite-react/pnpm-lock.yaml").read_bytes())
    assert len(lockfile.packages) == 119
    assert len(wanted(lockfile)) == 68  # counted at a registry that pnpm 12.21 installed from


@pytest.mark.parametrize(
    ("platform", "variant"),
    [
        (LINUX, {"@s/x-linux-x64@1.0.0"}),
        (Platform("linux", "x64", "musl"), {"@s/x-musl@1.0.0"}),
        (Platform("linux", "arm64", "glibc"), set()),
        (Platform("darwin", "arm64", "unknown"), {"@s/x-darwin@1.0.0"}),
        (Platform("darwin", "ia32", "unknown"), set()),
    ],
)
def test_of_the_variants_for_platforms_the_fitting_one_is_wanted(
    platform: Platform, variant: set[str]
) -> None:
    lockfile = read_fixture("platforms", platform)
    assert wanted(lockfile) == {"@s/x@1.0.0", "a@1.0.0", "b@1.0.0"} | variant
    assert len(lockfile.packages) == 6


@pytest.mark.parametrize(
    ("systems", "fits"),
    [
        (["linux"], True), (["darwin", "linux"], True), (["darwin"], False), (["!win32"], True),
        (["!linux"], False), (["!win32", "!darwin"], True), (["linux", "!linux"], False),
        (["any"], True), ([], True), ("linux", True), ("darwin", False),
    ],
)  # fmt: skip
def test_a_list_of_systems_is_read_as_npm_does(systems: Any, fits: bool) -> None:
    document = one_package(os=systems)
    document["snapshots"]["a@1.0.0"] = {"optional": True}
    assert (wanted(read(document)) == {"a@1.0.0"}) is fits


def test_what_does_not_fit_but_is_needed_is_wanted_all_the_same() -> None:
    assert wanted(read(one_package(os=["darwin"]))) == {"a@1.0.0"}


def test_what_only_a_left_out_package_needs_is_not_wanted() -> None:
    document = one_package(os=["darwin"])
    document["packages"]["below@1.0.0"] = {"resolution": {"integrity": HASH}}
    document["snapshots"] = {
        "a@1.0.0": {"optional": True, "dependencies": {"below": "1.0.0"}},
        "below@1.0.0": {"optional": True},
    }
    assert wanted(read(document)) == set()
    document["packages"]["a@1.0.0"].pop("os")
    assert wanted(read(document)) == {"a@1.0.0", "below@1.0.0"}


def test_a_package_that_nothing_needs_is_not_wanted() -> None:
    document = one_package()
    document["packages"]["stray@1.0.0"] = {"resolution": {"integrity": HASH}}
    document["snapshots"]["stray@1.0.0"] = {}
    assert wanted(read(document)) == {"a@1.0.0"}


def test_a_circle_of_dependencies_ends() -> None:
    document = one_package()
    document["snapshots"]["a@1.0.0"] = {"dependencies": {"a": "1.0.0"}}
    assert wanted(read(document)) == {"a@1.0.0"}


# What is refused by name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("git", ["'g@git+https://git.test/", "is a git repository"]),
        ("git_archive", ["'g@https://codeload.test/", "is an archive of a git host"]),
        ("file_folder", ["'outside@file:../../outside'", "is a folder", "`file:`"]),
        ("file_tarball", ["'outside@file:../../outside.tgz'", "is a tarball in a folder"]),
        ("injected", ["'y@file:packages/y/dist'", "injected workspace package"]),
        ("link_out", ["'outside'", "is a link out of the project", "'link:../../outside'"]),
        ("tarball_url", ["'b@https://elsewhere.test/", "names a tarball by URL"]),
        ("tarball_of_registry", ["'a@1.0.0'", "'b@1.1.0'", "lockfileIncludeTarballUrl"]),
        ("named_registry", ["'b@work:1.0.0'", "comes from another source ('work:')"]),
        ("jsr", ["'@jsr/luca__flag@1.0.1'", "jsr registry"]),
        ("runtime", ["'node@runtime:24.4.1'", "is a runtime"]),
        ("config_dependencies", ["configDependencies", "'b'"]),
    ],
)
def test_a_dependency_from_elsewhere_is_refused_by_name_and_rule(
    name: str, words: list[str]
) -> None:
    code, message = refusal_of((FIXTURES / f"{name}.yaml").read_bytes())
    assert code is REFUSED
    for word in words:
        assert word in message


@pytest.mark.case("ins-03-git-dependency")
def test_an_archive_of_a_git_host_without_a_hash_is_refused() -> None:
    url = "https://codeload.test/example-org/example-repo/tar.gz/" + "0" * 40
    document = one_package("g", url, resolution={"tarball": url})
    document["packages"][f"g@{url}"]["version"] = "1.0.0"
    code, message = refusal_of(document)
    assert code is REFUSED
    assert "'g@https://codeload.test/" in message and "git host" in message


@pytest.mark.case("ins-04-foreign-tarball")
def test_a_tarball_of_another_host_is_refused_however_right_its_hash() -> None:
    resolution = {"integrity": HASH, "tarball": "https://evil.test/canary-pkg-1.0.0.tgz"}
    code, message = refusal_of(one_package("canary-pkg", resolution=resolution))
    assert code is REFUSED
    assert "'canary-pkg@1.0.0' names a tarball by URL" in message
    read(one_package("canary-pkg"))  # the same without the URL


@pytest.mark.parametrize(
    ("resolution", "words"),
    [
        ({"integrity": HASH, "type": "git"}, "git repository"),
        ({"integrity": HASH, "repo": "x", "commit": "y"}, "git repository"),
        ({"integrity": HASH, "directory": "x"}, "is a folder"),
        ({"integrity": HASH, "tarball": ""}, "by URL"),
        ({"integrity": HASH, "tarball": None}, "unknown kind ('tarball')"),
        ({"integrity": HASH, "gitHosted": False}, "git host"),
        ({"integrity": HASH, "type": "custom:x"}, "unknown kind ('type')"),
        ({"integrity": HASH, "revision": 1}, "unknown kind ('revision')"),
        ({"integrity": HASH, "path": "x"}, "unknown kind ('path')"),
        ({"type": "variations", "variants": []}, "is a runtime"),
        ({"type": "binary", "url": "x"}, "is a runtime"),
        ({"integrity": ""}, "has no integrity"),
        ({"x": 1}, "unknown kind ('x')"),
    ],
)
def test_a_resolution_is_one_hash_and_nothing_else(resolution: Any, words: str) -> None:
    code, message = refusal_of(one_package(resolution=resolution))
    assert code is REFUSED
    assert "'a@1.0.0'" in message and words in message


@pytest.mark.parametrize(
    "integrity",
    [
        SHA1, f"{HASH} {HASH}", f"{SHA1} {HASH}", HASH[:-4], HASH + "?x", " " + HASH, "sha512-",
        HASH.replace("sha512", "SHA512"), HASH.replace("sha512", "sha384"), 5, True, [HASH],
    ],
)  # fmt: skip
def test_an_integrity_that_is_not_exactly_one_sha512_is_refused(integrity: Any) -> None:
    code, message = refusal_of(one_package(resolution={"integrity": integrity}))
    assert code is REFUSED
    assert "a@1.0.0" in message and "sha512" in message


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("../a", "1.0.0"), ("@s/../a", "1.0.0"), ("a", "../1.0.0"), ("a", "latest"), ("a", "1.0"),
        ("a%2fb", "1.0.0"), (".a", "1.0.0"), ("a", "npm:1.0.0"), ("a", "workspace:1.0.0"),
        ("a", "link:x"), ("a\u202e", "1.0.0"),
    ],
)  # fmt: skip
def test_a_key_that_is_no_name_and_exact_version_is_refused(name: str, version: str) -> None:
    assert refusal_of(one_package(name, version))[0] is REFUSED


def test_a_version_that_merely_speaks_of_git_is_taken() -> None:
    assert read(one_package("a", "1.0.0-git.1")).packages


def test_of_many_refused_dependencies_the_first_are_named_and_the_rest_counted() -> None:
    document = one_package()
    document["packages"] = {
        f"p{n:03}@1.0.0": {"resolution": {"integrity": SHA1}} for n in range(1000)
    }
    message = refusal_of(document)[1]
    assert "'p000@1.0.0'" in message and "'p004@1.0.0'" in message and "'p005@1.0.0'" not in message
    assert "and 995 more" in message


@pytest.mark.parametrize(
    ("folder", "target"),
    [
        (".", "../x"), ("a", "../../x"), ("a/b", "../../../x"), (".", "/etc"), (".", "~/x"),
        (".", "x/../../y"), (".", "C:/x"), (".", "..\\x"), (".", "x\n"), (".", ".."),
    ],
)  # fmt: skip
def test_a_link_out_of_the_project_is_refused(folder: str, target: str) -> None:
    document = one_package()
    document["importers"][folder] = {
        "dependencies": {"x": {"specifier": "*", "version": f"link:{target}"}}
    }
    code, message = refusal_of(document)
    assert code is REFUSED and "'x' is a link out of the project" in message


@pytest.mark.parametrize(
    ("folder", "target"), [(".", "a"), ("a", "../b"), ("a/b", "../.."), (".", "")]
)
def test_a_link_within_the_project_is_taken(folder: str, target: str) -> None:
    document = one_package()
    document["importers"][folder] = {
        "dependencies": {"x": {"specifier": "*", "version": f"link:{target}"}}
    }
    assert folder in read(document).importers


def test_a_link_that_a_package_has_counts_from_the_lockfile() -> None:
    document = one_package()
    document["snapshots"]["a@1.0.0"] = {"dependencies": {"x": "link:../x"}}
    assert refusal_of(document)[0] is REFUSED
    document["snapshots"]["a@1.0.0"] = {"dependencies": {"x": "link:x"}}
    assert read(document).packages


@pytest.mark.parametrize(
    "folder", ["..", "../x", "/x", "x/../../y", "x/..", "./x", "x/", "", "x//y", "~", "x\\y", "x\n"]
)
def test_a_project_that_does_not_lie_below_the_lockfile_is_refused(folder: str) -> None:
    document = one_package()
    document["importers"][folder] = {}
    assert refusal_of(document)[0] is INVALID


@pytest.mark.parametrize(
    "alias", ["../x", "@s/../x", "x/y", "@s", "@/x", "node_modules", ".bin", "", "x\\y", "x\n"]
)
def test_a_dependency_is_called_what_a_folder_of_node_modules_can_be(alias: str) -> None:
    document = one_package()
    document["importers"]["."]["dependencies"][alias] = {"specifier": "*", "version": "a@1.0.0"}
    code, message = refusal_of(document)
    assert code is INVALID and "is no name of a dependency" in message


# What is no lockfile


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("just text", "must hold names and values"),
        ("- a\n- b\n", "must hold names and values"),
        ("lockfileVersion: '9.0'\nimporters: [\n", "line"),
        ("a: 1\na: 2\n", "'a' is there twice"),
        ("a: &x 1\nb: *x\n", "anchors and aliases"),
        ("a: !!python/object:os.system 1\n", "tags"),
        ("a: \x00\n", "character"),
        ("{}", "lockfileVersion is missing"),
        ("lockfileVersion: '6.0'\n", "lockfileVersion is '6.0', and '9.0' is what is read"),
        ("lockfileVersion: 5.4\n", "lockfileVersion is '5.4'"),
        ("lockfileVersion: '9.0'\nimporters: 5\n", "importers must hold names and values"),
        ("lockfileVersion: '9.0'\npackages: {a@1.0.0: 5}\n", "'a@1.0.0' must hold"),
        ("lockfileVersion: '9.0'\npackages: {a@1.0.0: {}}\n", "the resolution of 'a@1.0.0'"),
        ("lockfileVersion: '9.0'\nsettings: {x: [1]}\n", "'x' must be one value"),
    ],
)
def test_what_is_no_lockfile_is_refused_and_says_why(data: str, words: str) -> None:
    code, message = refusal_of(data)
    assert code is INVALID and words in message
    assert "pnpm install --lockfile-only" in message


def test_bytes_that_are_no_text_are_refused() -> None:
    assert refusal_of(b"\xff\xfe\x00")[0] is INVALID


@pytest.mark.parametrize(
    ("name", "words"),
    [("format_13", "`lockfile.format`"), ("hashes_of_tars", "`lockfile.integrityTarget`")],
)
def test_a_lockfile_in_another_form_names_the_setting_behind_it(name: str, words: str) -> None:
    code, message = refusal_of((FIXTURES / f"{name}.yaml").read_bytes())
    assert code is INVALID and words in message


@pytest.mark.parametrize(
    "place",
    [(), ("importers", "."), ("packages", "a@1.0.0"), ("snapshots", "a@1.0.0")],
    ids=lambda place: "/".join(place) or "top",
)
def test_a_field_that_is_not_known_is_refused(place: tuple[str, ...]) -> None:
    document = one_package()
    fields = document
    for name in place:
        fields = fields[name]
    fields["surprise"] = {}
    code, message = refusal_of(document)
    assert code is INVALID and "'surprise'" in message


@pytest.mark.parametrize("field", ["name", "version", "id"])
def test_a_package_of_the_registry_has_no_second_name(field: str) -> None:
    document = one_package()
    document["packages"]["a@1.0.0"][field] = "evil"
    code, message = refusal_of(document)
    assert code is INVALID and repr(field) in message


def test_a_reference_that_leads_nowhere_is_refused() -> None:
    document = one_package()
    document["importers"]["."]["dependencies"]["b"] = {"specifier": "*", "version": "2.0.0"}
    assert "'b' '2.0.0' is not among its snapshots" in refusal_of(document)[1]
    document = one_package()
    document["snapshots"]["b@1.0.0"] = {}
    assert "'b@1.0.0' is not among its packages" in refusal_of(document)[1]
    document = one_package()
    document["importers"]["."]["dependencies"]["a"] = {"specifier": "*", "version": 1}
    assert "version of 'a' must be a text" in refusal_of(document)[1]


@pytest.mark.parametrize(
    "data",
    [
        b"---\n" * 200_000,
        b"---\na: 1\n" * 100_000,
        b"a:\n" + b"- " * 100_000,
        b"[" * 1_000_000,
        b"{" * 1_000_000,
        b"a: [" + b"1," * 2_000_000 + b"]",
        b"\n" * 2_000_000,
        b"#" * (LOCKFILE_BYTES_LIMIT + 1),
        b"a: '" + b"x" * LOCKFILE_BYTES_LIMIT,
    ],
    ids=lambda data: repr(data[:8]),
)
@pytest.mark.timeout(20)
def test_a_lockfile_made_to_exhaust_its_reader_is_refused_in_time(data: bytes) -> None:
    assert refusal_of(data)[0] is INVALID


def test_three_documents_are_one_too_many() -> None:
    whole = json.dumps(one_package())
    assert read(f"{whole}\n---\n{whole}").packages
    assert "more than two documents" in refusal_of(f"{whole}\n---\n{whole}\n---\n{whole}")[1]


def test_an_error_in_the_second_document_is_told_with_its_line_in_the_file() -> None:
    message = refusal_of(f"{json.dumps(one_package())}\n---\n\na: [\n")[1]
    assert "line 4" in message or "line 5" in message


# What pnpm gets


def test_pnpm_gets_the_data_that_was_checked() -> None:
    data = (FIXTURES / "workspace.yaml").read_bytes()
    assert yaml.safe_load(read(data).text) == yaml.safe_load(data)
    assert read(read(data).text) == read(data)


def test_pnpm_gets_one_document_of_a_file_that_it_would_read_otherwise() -> None:
    # pnpm takes a lone document behind `---` for that of packageManager, and sees no dependency.
    document = read("---\n" + json.dumps(one_package())).text
    assert document.startswith(b"{") and b"---" not in document
    assert yaml.safe_load(document)["packages"].keys() == {"a@1.0.0"}


def test_conflict_markers_that_pnpm_would_resolve_by_itself_are_refused() -> None:
    ours, theirs = json.dumps(one_package()), json.dumps(one_package("evil"))
    text = f"<<<<<<< ours\n{ours}\n=======\n{theirs}\n>>>>>>> theirs\n"
    assert refusal_of(text)[0] is INVALID


def test_the_order_and_the_form_of_the_file_do_not_change_what_pnpm_gets() -> None:
    data = (FIXTURES / "workspace.yaml").read_bytes()
    document = yaml.safe_load(data)
    shuffled = dict(reversed(list(document.items())))
    assert read(json.dumps(shuffled, indent=3)).text == read(data).text


def test_what_pnpm_gets_is_yaml_whatever_characters_a_notice_holds() -> None:
    notice = (
        "emoji \U0001f600, quotes \"', \\, DEL \x7f, C1 \x9b, NEL \x85, LS \u2028, BOM \ufeff, \t"
    )
    text = read(one_package(deprecated=notice)).text
    assert yaml.safe_load(text)["packages"]["a@1.0.0"]["deprecated"] == notice
    assert encode({"b": 1, "a": "\x7f"}) == b'{"a":"\\u007f","b":1}'


@pytest.mark.parametrize(
    ("folder", "path", "found"),
    [
        (".", "a", "a"), ("a/b", "../c", "a/c"), ("a", ".", "a"), (".", "./a//b/", "a/b"),
        ("a", "..", "."), ("a", "../..", None), (".", "/a", None), (".", "~a", None),
        (".", "a:b", None), (".", "a\\b", None), (".", "a\x1bb", None),
    ],
)  # fmt: skip
def test_a_path_is_located_in_the_project_or_nowhere(
    folder: str, path: str, found: str | None
) -> None:
    assert locate(folder, path) == found
