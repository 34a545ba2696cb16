"""Which folders are those of packages whose build scripts are allowed, and what runs these."""

import json

import pytest

from cloche.jobs.build_work import SHELL, find_folders, is_own, work_of
from cloche.jobs.installers.base import Installation
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode


def install(tool, **files):
    lockfile = {"npm": "package-lock.json", "pnpm": "pnpm-lock.yaml"}.get(tool, "yarn.lock")
    laid = {name: json.dumps(content).encode() for name, content in files.items()}
    return Installation(
        tool=tool,
        lockfile=lockfile,
        origin="npm",
        items={},
        names=frozenset(),
        packages_count=0,
        files={"pnpm-workspace.yaml": b"{}", **laid},
        commands=(),
        folders=("node_modules",),
    )


def lay(tree, folder, scripts=None, **files):
    place = tree / folder
    place.mkdir(parents=True)
    manifest = {"scripts": {"postinstall": "x"} if scripts is None else scripts}
    (place / "package.json").write_text(json.dumps(manifest))
    for name, text in files.items():
        (place / name.replace("_", ".")).write_text(text)


def of_npm(tree, entries, *allowed):
    installation = install("npm", **{"package-lock.json": {"packages": entries}})
    return dict(find_folders(installation, tree, frozenset(allowed)))


def of_pnpm(tree, *allowed, **settings):
    installation = install("pnpm", **{"pnpm-workspace.yaml": settings})
    return dict(find_folders(installation, tree, frozenset(allowed)))


def test_npm_names_come_from_the_lockfile_wherever_a_package_lies(tmp_path):
    entries = {
        "": {},
        "node_modules/a": {},
        "node_modules/@s/b": {},
        "node_modules/c/node_modules/a": {},
        "node_modules/also": {"name": "a"},
        "packages/x/node_modules/a": {},
    }
    for path in list(entries)[1:]:
        lay(tmp_path, path)
    found = of_npm(tmp_path, entries, "a", "also")
    assert found == dict.fromkeys(sorted(set(entries) - {"", "node_modules/@s/b"}), "a")
    assert of_npm(tmp_path, entries, "@s/b") == {"node_modules/@s/b": "@s/b"}


def test_what_only_has_the_name_of_an_allowed_package_is_not_found(tmp_path):
    entries = {
        "node_modules/a": {"name": "stranger"},
        "node_modules/b/node_modules/a": {"inBundle": True},
        "node_modules/c/node_modules/a": {"link": True, "resolved": "packages/a"},
        "packages/a": {"name": "a"},
    }
    for path in entries:
        lay(tmp_path, path)
    assert of_npm(tmp_path, entries, "a") == {}


def test_pnpm_names_come_from_its_virtual_store(tmp_path):
    store = "node_modules/.pnpm"
    for path in (
        f"{store}/a@1.0.0/node_modules/a",
        f"{store}/a@2.0.0_@s+b@1.0.0/node_modules/a",
        f"{store}/@s+b@1.0.0/node_modules/@s/b",
        f"{store}/stranger@1.0.0/node_modules/a",
        f"{store}/stranger@1.0.0/node_modules/stranger/node_modules/a",
        f"{store}/a-more@1.0.0/node_modules/a-more",
        "node_modules/a",
    ):
        lay(tmp_path, path)
    assert of_pnpm(tmp_path, "a") == {
        f"{store}/a@1.0.0/node_modules/a": "a",
        f"{store}/a@2.0.0_@s+b@1.0.0/node_modules/a": "a",
    }
    assert of_pnpm(tmp_path, "@s/b") == {f"{store}/@s+b@1.0.0/node_modules/@s/b": "@s/b"}
    assert of_pnpm(tmp_path, "other") == {}


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path):
    lay(tmp_path, "real")
    place = tmp_path / "node_modules/.pnpm/a@1.0.0/node_modules"
    place.mkdir(parents=True)
    (place / "a").symlink_to(tmp_path / "real")
    assert of_pnpm(tmp_path, "a") == {}


def test_where_nothing_is_installed_nothing_is_found(tmp_path):
    assert of_pnpm(tmp_path, "a") == of_npm(tmp_path, {"node_modules/a": {}}, "a") == {}


@pytest.mark.parametrize(
    ("scripts", "files", "expected"),
    [
        ({"install": "x"}, {}, True),
        ({"preinstall": "x"}, {}, True),
        ({}, {"binding_gyp": "{}"}, True),
        ({"install": ""}, {}, False),
        ({"test": "x", "prepare": "x"}, {}, False),
        (7, {}, False),
    ],
)
def test_only_packages_with_scripts_of_an_install_are_found(tmp_path, scripts, files, expected):
    lay(tmp_path, "node_modules/a", scripts, **files)
    assert bool(of_npm(tmp_path, {"node_modules/a": {}}, "a")) is expected


@pytest.mark.parametrize("text", ["", "{", "7", "[" * 100_000, "{}"])
def test_a_manifest_that_is_none_has_no_scripts(tmp_path, text):
    lay(tmp_path, "node_modules/a")
    (tmp_path / "node_modules/a/package.json").write_text(text)
    assert of_npm(tmp_path, {"node_modules/a": {}}, "a") == {}


def test_where_it_is_not_known_whose_a_folder_is_nothing_is_run(tmp_path):
    for find in (
        lambda: of_pnpm(tmp_path, "a", nodeLinker="hoisted"),
        lambda: find_folders(install("yarn"), tmp_path, frozenset({"a"})),
    ):
        with pytest.raises(JobRefusedError) as caught:
            find()
        assert caught.value.reason.code is ReasonCode.BUILD_SCRIPT_FAILED
    assert of_pnpm(tmp_path, nodeLinker="hoisted") == {}


def test_a_file_is_its_packages_own_unless_another_package_lies_between():
    folders = {"node_modules/a": "a", "node_modules/a/node_modules/b": "b"}
    assert is_own("node_modules/a/lib/x", folders)
    assert is_own("node_modules/a/node_modules/b/x", folders)
    assert not is_own("node_modules/a/node_modules/c/x", folders)
    assert not is_own("node_modules/ab/x", folders)


def test_pnpm_is_told_to_build_exactly_what_is_allowed():
    installation = install("pnpm", **{"pnpm-workspace.yaml": {"hoist": True}})
    work = work_of(installation, {"x": "a", "y": "a", "z": "@s/b"})
    settings = json.loads(work.files["pnpm-workspace.yaml"])
    assert settings == {"hoist": True, "allowBuilds": {"@s/b": True, "a": True}}
    assert work.argv[-3:] == ("--", "@s/b", "a")
    assert work.linking is not None and "--ignore-scripts" in work.linking
    assert work.env["pnpm_config_script_shell"] == f"/workspace/{SHELL}"
    assert SHELL in work.files
