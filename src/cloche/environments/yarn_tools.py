"""What the boxes of Yarn's projects have beside Node: a pinned Yarn, and one plugin for it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from cloche.model.package import Package

if TYPE_CHECKING:
    from pathlib import Path

# Source: the integrity as its registry states it, `npm view NAME@VERSION dist`. It is JavaScript,
# and brings what it needs.
YARN_PACKAGE: Final = Package(
    "@yarnpkg/cli-dist",
    "4.18.1",
    "sha512-EH+A4TxAtBWXKE0DGQxW9Bo9crXHLJ73mfxjTQJuv8XonNWWTpei8BQ5JjczHJNU9GROTycwMFn8iOvRIZXUcA==",
)
_YARN_IN_BOX: Final = "/usr/lib/node_modules/yarn"
YARN_PLUGIN_IN_BOX: Final = "/usr/lib/yarn-plugin.cjs"
"""For `YARN_PLUGINS`, wherever Yarn is started."""

# Yarn patches three packages, each version of it otherwise, so that they work with Plug'n'Play; a
# lockfile with these patches holds for that one Yarn. Without them it holds for each.
_PLUGIN: Final = """\
module.exports = {
  name: "plugin-cloche",
  factory: (require) => {
    const { structUtils } = require("@yarnpkg/core");
    const reduceDependency = async (dependency) => {
      if (!/^patch:.*#optional!builtin</.test(dependency.range)) return dependency;
      return structUtils.parseDescriptor(structUtils.parseRange(dependency.range).source);
    };
    return { hooks: { reduceDependency } };
  },
};
"""


def yarn_folder(cache_folder: Path) -> Path:
    """Where the pinned Yarn is kept."""
    return cache_folder / "toolchains" / f"yarn-{YARN_PACKAGE.version}"


def describe_yarn() -> dict[str, str]:
    """For keys and records: names and versions, no path."""
    return {
        "yarn": YARN_PACKAGE.version,
        "yarn_integrity": YARN_PACKAGE.integrity,
        "yarn_plugin_sha256": hashlib.sha256(_PLUGIN.encode()).hexdigest(),
    }


def yarn_entries(folder: Path) -> list[tuple[str, str, str]]:
    """What it adds to a box's root.

    Args:
        folder: Yarn, as its package has it, on the host.
    """
    return [
        ("bind", _YARN_IN_BOX, str(folder)),
        ("link", "/usr/bin/yarn", f"{_YARN_IN_BOX}/bin/yarn.js"),
        ("text", YARN_PLUGIN_IN_BOX, _PLUGIN),
    ]
