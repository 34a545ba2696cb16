"""What the box that installs is given: manifests of Cloche's making, little of a project's own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cloche.jobs.project.inputs import INSTALL_FLAGS, RUN_ENVIRONMENT, Inputs, prepare_install
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "data" / "lockfiles"

MANIFEST: dict[str, Any] = {
    "name": "gen",
    "version": "1.0.0",
    "dependencies": {"a": "1.0.0"},
    "scripts": {"test": "node --test"},
}
LOCKFILE = {
    "lockfileVersion": "9.0",
    "settings": {"autoInstallPeers": True, "excludeLinksFromLockfile": False},
    "importers": {".": {"dependencies": {"a": {"specifier": "1.0.0", "version": "1.0.0"}}}},
    "packages": {"a@1.0.0": {"resolution": {"integrity": "sha512-" + "A" * 86 + "=="}}},
    "snapshots": {"a@1.0.0": {}},
}
PATCH = b"--- a/index.js\n+++ b/index.js\n"
REFUSED, BROKEN = ReasonCode.DEPENDENCY_REFUSED, ReasonCode.MANIFEST_INVALID


def project(
    manifest: Mapping[str, Any] = MANIFEST, lockfile: Mapping[str, Any] = LOCKFILE, **files: Any
) -> dict[str, bytes]:
    """The files of a project; texts and data are encoded, None leaves a file out."""
    given = {"package.json": manifest, "pnpm-lock.yaml": lockfile, **files.pop("files", {})}
    return {
        path: content if isinstance(content, bytes) else
        (content if isinstance(content, str) else json.dumps(content)).encode()
        for path, content in given.items()
        if content is not None
    }  # fmt: skip


def lay(files: Mapping[str, bytes]) -> Inputs:
    inputs = prepare_install(files)[1]
    assert inputs is not None
    return inputs


def settings_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    settings = json.loads(lay(files).files["pnpm-workspace.yaml"])
    assert isinstance(settings, dict)
    return settings


def refusal_of(files: Mapping[str, bytes]) -> tuple[ReasonCode, str]:
    with pytest.raises(JobRefusedError) as caught:
        prepare_install(files)
    reason = caught.value.reason
    assert reason.message.isprintable() and len(reason.message) < 1500
    return reason.code, reason.message


# Manifests


def test_a_project_becomes_three_files() -> None:
    inputs = lay(project())
    assert list(inputs.files) == ["package.json", "pnpm-lock.yaml", "pnpm-workspace.yaml"]
    assert json.loads(inputs.files["package.json"]) == {
        "name": "gen",
        "version": "1.0.0",
        "dependencies": {"a": "1.0.0"},
    }
    assert json.loads(inputs.files["pnpm-lock.yaml"]) == LOCKFILE
    assert inputs.ignored == ()


def test_what_does_not_bear_on_the_tree_does_not_change_the_files() -> None:
    changed = {
        **{name: MANIFEST[name] for name in reversed(MANIFEST)},
        "scripts": {"test": "vitest", "preinstall": "curl evil.test"},
        "packageManager": "pnpm@http://evil.test/pnpm.tgz",
        "devEngines": {"runtime": {"name": "node", "version": "12", "onFail": "download"}},
        "engines": {"node": "12"},
        "config": {"registry": "http://evil.test"},
        "os": ["win32"],
        "workspaces": ["x"],
        "pnpm": {"onlyBuiltDependencies": ["a"], "overrides": {"a": "2.0.0"}},
        "publishConfig": {"registry": "http://evil.test"},
        "resolutions": {"a": "2.0.0"},
    }
    assert lay(project(changed)).files == lay(project()).files


def test_nothing_of_the_bundle_but_manifests_and_patches_is_laid() -> None:
    others = dict.fromkeys(
        ".npmrc .npmrc2 .pnpmfile.cjs .pnpmfile.mjs .env package.json5 package.yaml Cargo.toml"
        " pyproject.toml requirements.txt pnpm-lock.main.yaml sub/.npmrc src/index.js"
        " .config/pnpm/rc".split(),
        "x",
    )
    assert lay(project(files=others)).files == lay(project()).files


def test_every_field_that_shapes_the_tree_is_kept() -> None:
    kept = {
        "name": "gen",
        "version": "1.0.0",
        "dependencies": {"a": "1.0.0"},
        "devDependencies": {"b": "^1"},
        "optionalDependencies": {"c": "npm:a@1.0.0"},
        "peerDependencies": {"d": "*"},
        "peerDependenciesMeta": {"d": {"optional": True}},
        "dependenciesMeta": {"a": {"injected": False}},
        "bin": {"gen": "./bin/gen.js"},
        "publishConfig": {"directory": "dist", "linkDirectory": False},
    }
    assert json.loads(lay(project({**kept, "scripts": {}})).files["package.json"]) == kept


def test_each_package_json_of_a_workspace_is_laid() -> None:
    workspace = (FIXTURES / "workspace.yaml").read_text()
    files = project(
        {"name": "root"},
        files={
            "pnpm-lock.yaml": workspace,
            "packages/a/package.json": {"name": "@demo/a", "bin": "cli.js", "scripts": {"x": "y"}},
            "packages/b/package.json": {"name": "@demo/b"},
            # The lockfile does not know it: only pnpm can tell that this is a fault.
            "packages/new/package.json": {"name": "new", "dependencies": {"z": "1"}},
            "packages/a/cli.js": "#!/usr/bin/env node\n",
            "pnpm-workspace.yaml": "packages: [packages/*]\n",
        },
    )
    laid = lay(files).files
    assert set(laid) == {
        "package.json",
        "packages/a/package.json",
        "packages/b/package.json",
        "packages/new/package.json",
        "pnpm-lock.yaml",
        "pnpm-workspace.yaml",
    }
    assert json.loads(laid["packages/a/package.json"]) == {"name": "@demo/a", "bin": "cli.js"}


def test_a_broken_package_json_that_is_no_project_is_left_out_and_told() -> None:
    inputs = lay(project(files={"test/fixtures/package.json": "{broken"}))
    assert "test/fixtures/package.json" not in inputs.files
    assert any("test/fixtures/package.json" in line for line in inputs.ignored)


def test_a_project_of_the_lockfile_without_package_json_is_refused() -> None:
    lockfile = {**LOCKFILE, "importers": {".": {}, "packages/x": {}}}
    code, message = refusal_of(project(lockfile=lockfile))
    assert code is ReasonCode.MANIFEST_MISSING and message.startswith("packages/x/package.json ")
    code, message = refusal_of(project(files={"package.json": None, "package.yaml": "name: x"}))
    assert code is ReasonCode.MANIFEST_MISSING and "package.yaml is not read" in message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": 5}, "`name` must be a text"),
        ({"version": None}, "`version` must be a text"),
        ({"dependencies": ["a"]}, "`dependencies` must be an object"),
        ({"devDependencies": {"a": 1}}, "`devDependencies` must be an object"),
        ({"peerDependenciesMeta": []}, "`peerDependenciesMeta` must be an object"),
        ({"bin": "../../usr/bin/x"}, "`bin` must be a path in the project"),
        ({"bin": {"x": "/etc/passwd"}}, "`bin` must be a path in the project"),
        ({"bin": ["x"]}, "`bin` must be a path in the project"),
        ({"publishConfig": {"directory": "../x"}}, "`publishConfig` must be an object"),
    ],
)
def test_a_field_of_the_wrong_shape_is_refused(fields: dict[str, Any], words: str) -> None:
    code, message = refusal_of(project({**MANIFEST, **fields}))
    assert code is BROKEN and message.startswith("package.json: ") and words in message


def test_a_package_json_that_is_no_json_is_refused_with_its_place() -> None:
    code, message = refusal_of(project(files={"package.json": '{\n  "name": oops\n}'}))
    assert code is BROKEN and "line 2, column 11" in message


@pytest.mark.parametrize(
    ("path", "target"),
    [("package.json", "../x"), ("package.json", "/etc"), ("sub/package.json", "../../x")],
)
def test_a_link_that_the_lockfile_may_be_silent_about_is_refused_too(
    path: str, target: str
) -> None:
    lockfile = {**LOCKFILE, "importers": {".": {}, "sub": {}}}
    manifest = {"name": "x", "dependencies": {"outside": f"link:{target}"}}
    files = {"sub/package.json": {}, path: manifest}
    code, message = refusal_of(project(lockfile=lockfile, files=files))
    assert code is REFUSED and "'outside' is a link out of the project" in message
    manifest["dependencies"] = {"inside": "link:./x"}
    lay(project(lockfile=lockfile, files=files))


# Settings


def test_a_project_without_settings_gets_those_that_its_lockfile_records() -> None:
    assert settings_of(project()) == LOCKFILE["settings"]
    recorded = {"autoInstallPeers": False, "dedupePeers": True, "peersSuffixMaxLength": 500}
    assert settings_of(project(lockfile={**LOCKFILE, "settings": recorded})) == recorded


def test_what_the_project_states_has_precedence_over_what_its_lockfile_records() -> None:
    files = project(files={"pnpm-workspace.yaml": "autoInstallPeers: false\n"})
    assert settings_of(files)["autoInstallPeers"] is False


def test_a_setting_that_the_lockfile_records_but_nobody_knows_goes_no_further() -> None:
    recorded = {"storeDir": "/etc", "hoistPattern": "x", "registry": "http://evil.test"}
    assert settings_of(project(lockfile={**LOCKFILE, "settings": recorded})) == {}


def test_settings_that_shape_the_tree_are_given_to_pnpm() -> None:
    stated = {
        "packages": ["packages/*", "!**/test/**"],
        "catalog": {"react": "^19.0.0"},
        "catalogs": {"old": {"react": "^18.0.0"}},
        "overrides": {"a@1": "1.0.0", "b": "-"},
        "packageExtensions": {"a@1": {"dependencies": {"b": "1"}}},
        "peerDependencyRules": {"ignoreMissing": ["react"]},
        "ignoredOptionalDependencies": ["fsevents"],
        "nodeLinker": "hoisted",
        "hoistPattern": ["*"],
        "publicHoistPattern": ["*eslint*"],
        "shamefullyHoist": True,
        "linkWorkspacePackages": "deep",
        "virtualStoreDirMaxLength": 60,
    }
    inputs = lay(project(files={"pnpm-workspace.yaml": stated}))
    assert json.loads(inputs.files["pnpm-workspace.yaml"]) == {**LOCKFILE["settings"], **stated}
    assert inputs.ignored == ()


@pytest.mark.parametrize(
    "name",
    "registry registries namedRegistries pnpmfile globalPnpmfile storeDir modulesDir cacheDir"
    " virtualStoreDir globalVirtualStoreDir enableGlobalVirtualStore lockfileDir lockfile include"
    " bootConfig scriptShell shellEmulator nodeOptions nodeVersion useNodeVersion"
    " nodeDownloadMirrors userAgent httpProxy httpsProxy noProxy proxy ca cafile cert key strictSsl"
    " pnprServer remoteCache remoteSideEffectsCache extraBinPaths enablePrePostScripts gitChecks"
    " managePackageManagerVersions pmOnFail runtimeOnFail verifyDepsBeforeRun ignoreScripts"
    " minimumReleaseAge trustPolicy supportedArchitectures python cargo skills permissions symlink"
    " packageConfigs updateConfig envFile unsafePerm <<".split(),
)
def test_a_setting_about_anything_else_has_no_effect_and_is_told(name: str) -> None:
    inputs = lay(project(files={"pnpm-workspace.yaml": {name: "http://evil.test"}}))
    assert json.loads(inputs.files["pnpm-workspace.yaml"]) == LOCKFILE["settings"]
    assert any(repr(name) in line for line in inputs.ignored)


@pytest.mark.parametrize("name", ["allowBuilds", "onlyBuiltDependencies", "strictDepBuilds"])
def test_no_setting_makes_build_scripts_run(name: str) -> None:
    inputs = lay(project(files={"pnpm-workspace.yaml": {name: {"esbuild": True}}}))
    assert json.loads(inputs.files["pnpm-workspace.yaml"]) == LOCKFILE["settings"]
    (line,) = inputs.ignored
    assert "build scripts of packages are not run" in line and name in line
    assert "--ignore-scripts" in inputs.flags


@pytest.mark.parametrize("linker", ["pnp", "loaded", {"type": "loaded"}, 5])
def test_a_linker_that_leaves_no_plain_folders_is_not_used(linker: Any) -> None:
    inputs = lay(project(files={"pnpm-workspace.yaml": {"nodeLinker": linker}}))
    assert "nodeLinker" not in json.loads(inputs.files["pnpm-workspace.yaml"])
    assert any("nodeLinker: isolated" in line for line in inputs.ignored)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ("- x\n", "must hold names and values"),
        ("a: [\n", "line"),
        ("hoist: &x true\nshamefullyHoist: *x\n", "anchors"),
        ("hoist: yes\n", "`hoist` must be true or false"),
        ("packages: packages/*\n", "`packages` must be a list"),
        ("packages: [../*]\n", "does not lie in the project"),
        ("packages: ['!../*']\n", "does not lie in the project"),
        ("catalog: {a: 1}\n", "`catalog` must be names and texts"),
        ("overrides: {a: {b: c}}\n", "`overrides` must be names and texts"),
        ("peersSuffixMaxLength: true\n", "must be a whole number"),
        ("packageExtensions: {a: b}\n", "names, each with a table"),
    ],
)
def test_a_workspace_file_of_the_wrong_shape_is_refused(stated: str, words: str) -> None:
    code, message = refusal_of(project(files={"pnpm-workspace.yaml": stated}))
    assert code is BROKEN and message.startswith("pnpm-workspace.yaml: ") and words in message


def test_an_empty_setting_is_none() -> None:
    files = project(files={"pnpm-workspace.yaml": "packages:\noverrides:\n"})
    assert settings_of(files) == LOCKFILE["settings"]


def test_config_dependencies_are_refused_by_name() -> None:
    stated = {"configDependencies": {"../../x": "1.0.0+sha512-AAAA"}}
    code, message = refusal_of(project(files={"pnpm-workspace.yaml": stated}))
    assert code is REFUSED and "configDependencies" in message and "'../../x'" in message


def test_a_lockfile_for_each_project_is_refused() -> None:
    files = project(files={"pnpm-workspace.yaml": "sharedWorkspaceLockfile: false\n"})
    code, message = refusal_of(files)
    assert code is ReasonCode.LOCKFILE_INVALID and "sharedWorkspaceLockfile" in message


def test_an_override_that_links_out_of_the_project_is_refused() -> None:
    files = project(files={"pnpm-workspace.yaml": {"overrides": {"a": "link:../a"}}})
    assert refusal_of(files)[0] is REFUSED


def test_settings_in_package_json_hold_when_the_lockfile_was_made_with_them() -> None:
    manifest = {**MANIFEST, "pnpm": {"overrides": {"is-number": "7.0.0"}, "registry": "x"}}
    made_with = {**LOCKFILE, "overrides": {"is-number": "7.0.0"}}
    assert settings_of(project(manifest, made_with))["overrides"] == {"is-number": "7.0.0"}
    assert "registry" not in settings_of(project(manifest, made_with))
    # pnpm 11 and later do not read them.
    assert "overrides" not in settings_of(project(manifest, LOCKFILE))
    files = project(manifest, made_with, files={"pnpm-workspace.yaml": {"overrides": {"b": "1"}}})
    assert settings_of(files)["overrides"] == {"b": "1"}


# Patches


def with_patch(path: str, **files: Any) -> dict[str, bytes]:
    settings = {"patchedDependencies": {"a@1.0.0": path}}
    return project(files={"pnpm-workspace.yaml": settings, **files})


@pytest.mark.parametrize("path", ["patches/a.patch", "./patches/a.patch", "patches/x/../a.patch"])
def test_a_patch_is_laid_as_it_is(path: str) -> None:
    assert lay(with_patch(path, **{"patches/a.patch": PATCH})).files["patches/a.patch"] == PATCH


def test_a_patch_of_a_setting_in_package_json_is_laid_too() -> None:
    manifest = {**MANIFEST, "pnpm": {"patchedDependencies": {"a@1.0.0": "p.patch"}}}
    made_with = {
        **LOCKFILE,
        "patchedDependencies": {"a@1.0.0": {"hash": "x", "path": "p.patch"}},
    }
    assert "p.patch" in lay(project(manifest, made_with, files={"p.patch": PATCH})).files


def test_a_patch_that_is_not_there_is_refused() -> None:
    code, message = refusal_of(with_patch("patches/a.patch"))
    assert code is BROKEN and "'patches/a.patch'" in message


@pytest.mark.parametrize(
    "path",
    ["../a.patch", "/etc/a.patch", "package.json", ".npmrc", ".pnpmfile.cjs", "pnpm-lock.yaml"],
)
def test_a_patch_cannot_smuggle_another_file_into_the_box(path: str) -> None:
    code, message = refusal_of(with_patch(path, **{".npmrc": "x", ".pnpmfile.cjs": "x"}))
    assert code is BROKEN and "*.patch" in message


# What is told


def test_what_has_no_say_is_told() -> None:
    manifest = {
        **MANIFEST,
        "packageManager": "yarn@1.22.22",
        "devEngines": {"packageManager": {"name": "pnpm", "version": "6.0.0"}},
        "scripts": {"preinstall": "x", "prepare": "x", "test": "x"},
    }
    others = dict.fromkeys(("sub/.npmrc", ".pnpmfile.cjs", "package-lock.json", "yarn.lock"), "")
    lines = "\n".join(lay(project(manifest, files=others)).ignored)
    assert "packageManager: not 'yarn@1.22.22' but Cloche's own pnpm" in lines
    assert "devEngines" in lines
    assert "runs no scripts (preinstall, prepare)" in lines
    assert ".npmrc has no say" in lines
    assert "pnpmfile are not run" in lines
    assert "package-lock.json; yarn.lock" in lines


def test_a_lockfile_made_with_a_pnpmfile_is_told_of_even_without_the_file() -> None:
    inputs = lay(project(lockfile={**LOCKFILE, "pnpmfileChecksum": "sha256-x"}))
    assert any("pnpmfile" in line for line in inputs.ignored)


def test_what_is_told_is_short_and_printable_however_odd_the_project() -> None:
    manifest = {**MANIFEST, "packageManager": "\x1b[31m" + "x" * 10_000}
    odd = {f"\x1b{n}": n for n in range(1000)}
    inputs = lay(project(manifest, files={"pnpm-workspace.yaml": odd}))
    assert len(inputs.ignored) == 2
    assert all(line.isprintable() and len(line) < 1000 for line in inputs.ignored)


# No lockfile


@pytest.mark.case("ins-01-missing-lockfile")
@pytest.mark.parametrize(
    "group", ["dependencies", "devDependencies", "optionalDependencies", "peerDependencies"]
)
def test_dependencies_without_a_lockfile_are_refused(group: str) -> None:
    manifest = {"name": "gen", group: {"canary-pkg": "1.0.0"}}
    code, message = refusal_of(project(manifest, files={"pnpm-lock.yaml": None}))
    assert code is ReasonCode.LOCKFILE_MISSING
    assert "no pnpm-lock.yaml" in message and "pnpm install --lockfile-only" in message


@pytest.mark.parametrize("name", ["package-lock.json", "yarn.lock", "bun.lock"])
def test_the_lockfile_of_another_package_manager_is_not_read_and_that_is_said(name: str) -> None:
    message = refusal_of(project(files={"pnpm-lock.yaml": None, name: "x"}))[1]
    assert name in message and "`pnpm import` converts it" in message


def test_dependencies_of_a_project_of_a_workspace_count() -> None:
    files = {
        "pnpm-lock.yaml": None,
        "pnpm-workspace.yaml": "packages: [packages/*]",
        "packages/a/package.json": MANIFEST,
        "broken/package.json": "{",
    }
    code, message = refusal_of(project({"name": "root"}, files=files))
    assert code is ReasonCode.LOCKFILE_MISSING and message.startswith("packages/a/package.json ")
    files.pop("pnpm-workspace.yaml")
    assert prepare_install(project({"name": "root"}, files=files)) == (None, None)


@pytest.mark.parametrize(
    "files", [{}, {"main.py": b""}, {"package.json": b'{"scripts": {"test": "node --test"}}'}]
)
def test_a_project_without_dependencies_needs_no_install(files: dict[str, bytes]) -> None:
    assert prepare_install(files) == (None, None)


# pnpm's flags


def test_the_install_is_frozen_and_runs_no_code_and_asks_no_questions() -> None:
    assert {
        "--frozen-lockfile",
        "--ignore-scripts",
        "--ignore-pnpmfile",
        "--trust-lockfile",
        "--config.update-notifier=false",
    } <= set(INSTALL_FLAGS)


def test_scripts_run_with_the_pnpm_and_node_that_are_there() -> None:
    assert RUN_ENVIRONMENT["pnpm_config_pm_on_fail"] == "ignore"
    assert RUN_ENVIRONMENT["pnpm_config_runtime_on_fail"] == "ignore"
    assert RUN_ENVIRONMENT["pnpm_config_verify_deps_before_run"] == "false"
