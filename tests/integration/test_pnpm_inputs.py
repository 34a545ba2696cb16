"""The pinned pnpm itself: it takes the files that are laid, and minds the flags and variables.

Without a registry: the projects consist of each other, and the registry's port is closed.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cloche.environments.runtimes import require_runtime
from cloche.environments.toolchain import pnpm_path
from cloche.jobs.project.inputs import RUN_ENVIRONMENT, prepare_install
from cloche.jobs.project.lockfile import encode
from cloche.settings import read_settings
from needs import needs

pytestmark = needs("runtime-node")

LINKS = {
    ".": {"devDependencies": {"@demo/a": {"specifier": "workspace:*", "version": "link:pkg/a"}}},
    "pkg/a": {"dependencies": {"@demo/b": {"specifier": "workspace:^", "version": "link:../b"}}},
    "pkg/b": {},
}
# Made with settings that are stated nowhere else, and with a hook.
LOCKFILE = {
    "lockfileVersion": "9.0",
    "settings": {"autoInstallPeers": False, "excludeLinksFromLockfile": False, "dedupePeers": True},
    "pnpmfileChecksum": "sha256-x",
    "importers": LINKS,
}
EVIL = "require('fs').writeFileSync(__dirname + '/ran-a-hook', '')\n"
PROJECT: dict[str, Any] = {
    "package.json": {
        "name": "root",
        "packageManager": "pnpm@6.0.0",
        "devEngines": {
            "packageManager": {"name": "yarn", "version": "1.0.0", "onFail": "download"},
            "runtime": {"name": "node", "version": "12.0.0", "onFail": "download"},
        },
        "engines": {"node": "12"},
        "scripts": {
            "preinstall": "touch ran-a-script",
            "pnpm:devPreinstall": "touch ran-a-script",
            "test": "demo-a; pnpm run other",
            "other": "node -p 1+1",
        },
        "devDependencies": {"@demo/a": "workspace:*"},
    },
    "pkg/a/package.json": {
        "name": "@demo/a",
        "version": "1.0.0",
        "bin": {"demo-a": "cli.js"},
        "dependencies": {"@demo/b": "workspace:^"},
        "scripts": {"prepare": "touch ../../ran-a-script"},
    },
    "pkg/a/cli.js": "#!/usr/bin/env node\nconsole.log('a, the command')\n",
    "pkg/b/package.json": {"name": "@demo/b", "version": "1.0.0"},
    "pnpm-workspace.yaml": {
        "packages": ["pkg/*"],
        "pnpmfile": "./evil.cjs",
        "verifyDepsBeforeRun": "install",
        "pmOnFail": "download",
        "runtimeOnFail": "download",
        "scriptShell": "./evil-shell",
        "storeDir": "./evil-store",
    },
    ".npmrc": "script-shell=./evil-shell\nregistry=http://evil.test/\n",
    ".pnpmfile.cjs": EVIL,
    "evil.cjs": EVIL,
    "evil-shell": "#!/bin/sh\ntouch ran-a-shell\n",
    "pnpm-lock.yaml": LOCKFILE,
}


def encoded(project: Mapping[str, Any]) -> dict[str, bytes]:
    return {
        path: content.encode() if isinstance(content, str) else encode(content)
        for path, content in project.items()
    }


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755)


def pnpm(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    program = pnpm_path(read_settings().cache_folder)
    if not program.is_file():
        pytest.skip("the pinned pnpm is not in the cache; the first job fetches it")
    tools = folder.parent / "tools"
    if not tools.is_dir():
        tools.mkdir()
        (tools / "pnpm").symlink_to(program)
        (tools / "node").symlink_to(require_runtime("node").host_path)
    done = subprocess.run(
        [tools / "pnpm", *arguments],
        cwd=folder,
        env={
            "PATH": f"{tools}:{os.defpath}",
            "HOME": str(folder.parent / "home"),
            "CI": "true",
            **variables,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )
    return done.returncode, done.stdout


def install(folder: Path, project: Mapping[str, Any]) -> tuple[int, str]:
    inputs = prepare_install(encoded(project))[1]
    assert inputs is not None
    write(folder, inputs.files)
    return pnpm(folder, "install", "--registry=http://127.0.0.1:9/", *inputs.flags)


def traces(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("ran-a-*"))


def test_pnpm_installs_from_what_is_laid_and_runs_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    code, output = install(folder, PROJECT)
    assert code == 0, output
    assert (folder / "node_modules/@demo/a").resolve() == folder / "pkg/a"
    assert (folder / "pkg/a/node_modules/@demo/b").resolve() == folder / "pkg/b"
    assert (folder / "node_modules/.bin/demo-a").is_file()
    assert traces(folder) == []
    assert not (folder / "evil-store").exists()


def test_the_projects_own_files_would_have_run(tmp_path: Path) -> None:
    """The control: the same install from the bundle itself."""
    folder = tmp_path / "workspace"
    write(folder, encoded(PROJECT))
    pnpm(folder, "install", "--pm-on-fail=ignore", "--no-frozen-lockfile")
    assert "ran-a-hook" in traces(folder)


def test_a_manifest_that_the_lockfile_does_not_know_fails_the_install(tmp_path: Path) -> None:
    manifest = {**PROJECT["pkg/b/package.json"], "dependencies": {"@demo/a": "workspace:*"}}
    code, output = install(tmp_path / "known", {**PROJECT, "pkg/b/package.json": manifest})
    assert code == 1 and "ERR_PNPM_OUTDATED_LOCKFILE" in output
    code, output = install(tmp_path / "new", {**PROJECT, "pkg/c/package.json": manifest})
    assert code == 1 and 'importers["pkg/c"]' in output


def test_pnpm_reads_the_characters_that_yaml_does_not_print(tmp_path: Path) -> None:
    odd = {"ignoredOptionalDependencies": ["\x7f \x85 \x9b \u2028 \ufeff \U0001f600"]}
    project = {"package.json": {}, "pnpm-lock.yaml": {**LOCKFILE, "importers": {".": {}}, **odd}}
    code, output = install(tmp_path / "same", {**project, "pnpm-workspace.yaml": odd})
    assert code == 0, output
    code, output = install(tmp_path / "other", project)
    assert code == 1 and "ERR_PNPM_LOCKFILE_CONFIG_MISMATCH" in output


def test_scripts_run_with_what_is_there_and_without_an_install(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    assert install(folder, PROJECT)[0] == 0
    write(folder, encoded(PROJECT))
    code, output = pnpm(folder, "run", "test", **RUN_ENVIRONMENT)
    assert code == 0, output
    assert "a, the command" in output and "\n2\n" in output
    assert traces(folder) == []


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("pnpm_config_pm_on_fail", "yarn"),
        ("pnpm_config_ignore_pnpmfile", "ran-a-hook"),
        ("pnpm_config_script_shell", "ran-a-shell"),
        ("pnpm_config_verify_deps_before_run", "ran-a-script"),
    ],
)
def test_each_variable_is_needed(tmp_path: Path, name: str, sign: str) -> None:
    folder = tmp_path / "workspace"
    assert install(folder, PROJECT)[0] == 0
    write(folder, encoded(PROJECT))
    variables = {key: value for key, value in RUN_ENVIRONMENT.items() if key != name}
    output = pnpm(folder, "run", "test", **variables)[1]
    assert sign in output or sign in traces(folder)
