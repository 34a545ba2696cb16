"""pnpm: installs a pnpm-lock.yaml, frozen, with Cloche's own pnpm."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cloche.egress.mirror import tarball_paths
from cloche.jobs.installers.base import ADDRESS, Installation
from cloche.jobs.project.inputs import prepare_install
from cloche.jobs.project.lockfile import LOCKFILE
from cloche.model.job import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Mapping

# Beside the inputs, on the same file system: pnpm links packages from there instead of copying.
_STORE: Final = "/workspace/.cloche-store"
_FLAGS: Final = (
    f"--registry={ADDRESS}/",
    f"--store-dir={_STORE}",
    "--cache-dir=/tmp/cache",
    "--reporter=append-only",
    "--network-concurrency=32",  # half of the connections that a box may have
    "--config.fetch-retries=0",  # Cloche has retried already
    "--config.modules-cache-max-age=0",  # what an earlier tree has too much goes at once
)
# When it was, and in which order things were done: all that two installs of one lockfile differ in.
# Nothing that a step starts asks. Source: tried with pnpm 12.21, whose files these are, as JSON.
_FORGET: Final = r"""
const fs = require("node:fs");
const forget = {
  ".modules.yaml": (state) => {
    state.prunedAt = "";
    for (const name of ["ignoredBuilds", "pendingBuilds", "skipped"]) state[name]?.sort();
  },
  ".pnpm-workspace-state-v1.json": (state) => { state.lastValidatedTimestamp = 0; },
};
for (const [name, change] of Object.entries(forget)) {
  const path = `node_modules/${name}`;
  if (!fs.existsSync(path)) continue;
  const state = JSON.parse(fs.readFileSync(path, "utf8"));
  change(state);
  fs.writeFileSync(path, JSON.stringify(state, null, 2));
}
"""
# What an earlier tree has beside the packages: all links. pnpm removes packages that are no more,
# but not every link to them; made anew, they are those of an install from nothing.
_RENEW: Final = r"""
shopt -s dotglob nullglob
rm -rf node_modules/.pnpm/node_modules
for folder in "$@"; do
  for entry in "$folder"/*; do
    case $entry in
      node_modules/.pnpm | node_modules/.modules.yaml) ;;
      *) rm -rf "$entry" ;;
    esac
  done
done
"""
_OUTDATED: Final = Reason(
    ReasonCode.LOCKFILE_OUTDATED,
    "pnpm-lock.yaml does not match package.json (pnpm's own words are in the log); run"
    " `pnpm install --lockfile-only` and add the new pnpm-lock.yaml, or have it made anew"
    " (`lockfile: resolve`)",
)
# pnpm's codes for a lockfile that does not fit: its specifiers, its settings, its projects.
_REASONS: Final = MappingProxyType(
    dict.fromkeys(
        (
            "ERR_PNPM_OUTDATED_LOCKFILE",
            "ERR_PNPM_LOCKFILE_CONFIG_MISMATCH",
            "ERR_PNPM_PACKAGE_MANAGER_NO_IMPORTER",
        ),
        _OUTDATED,
    )
)


def read(files: Mapping[str, bytes]) -> Installation | None:
    """What a project of pnpm's wants installed; None where that is nothing.

    Raises:
        JobRefusedError: as `prepare_install`.
    """
    lockfile, inputs = prepare_install(files)
    if lockfile is None or inputs is None:
        return None
    folders = tuple(
        "node_modules" if importer == "." else f"{importer}/node_modules"
        for importer in lockfile.importers
    )
    return Installation(
        tool="pnpm",
        lockfile="pnpm-lock.yaml",
        origin="npm",
        items=tarball_paths(lockfile.packages),
        names=frozenset(package.name for package in lockfile.packages),
        packages_count=len(lockfile.packages),
        files=inputs.files,
        commands=(
            ("/usr/bin/pnpm", "install", *_FLAGS, *inputs.flags),
            ("/usr/bin/node", "-e", _FORGET),
        ),
        folders=folders,
        renewal=("/usr/bin/bash", "-ec", _RENEW, "renew", *folders),
        listing=frozenset(
            path
            for path in inputs.files
            if path == LOCKFILE or path.rpartition("/")[2] == "package.json"
        ),
        ignored=inputs.ignored,
        reasons=_REASONS,
    )
