"""What the host's environment and settings files say: the only reader of either."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cloche.errors import UnavailableError
from cloche.settings.address import Address
from cloche.settings.npm import NpmSettings, read_npm
from cloche.settings.pip import PipSettings, read_pip
from cloche.settings.telemetry import read_telemetry
from cloche.settings.trust import find_certificates

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Address",
    "NpmSettings",
    "PipSettings",
    "Settings",
    "find_cache_folder",
    "find_certificates",
    "read_settings",
    "read_telemetry",
]


CACHE_LIMIT_BYTES = 10 * 1024**3


@dataclass(frozen=True, slots=True)
class Settings:
    """What this host is set to.

    Attributes:
        cache_folder: Where what can be made again is kept.
        npm: How to reach the registries of npm.
        pip: How to reach the indexes of pip.
        cache_limit_bytes: Of layers, and of packages: what was used longest ago goes first.
    """

    cache_folder: Path
    npm: NpmSettings
    pip: PipSettings = field(default_factory=PipSettings)
    cache_limit_bytes: int = CACHE_LIMIT_BYTES


def read_settings(
    environment: Mapping[str, str] | None = None, home: Path | None = None
) -> Settings:
    """Reads the settings of this host.

    Args:
        environment: In place of this process's own.
        home: In place of the user's home folder.

    Raises:
        UnavailableError: A setting cannot be used; names the setting, never its value.
    """
    environment = os.environ if environment is None else environment
    if home is None:
        home = _find_home(environment)
    return Settings(
        _find_cache_folder(environment, home),
        read_npm(environment, home),
        read_pip(environment, home),
        _read_cache_limit(environment),
    )


def _read_cache_limit(environment: Mapping[str, str]) -> int:
    text = environment.get("CLOCHE_CACHE_LIMIT_MB") or str(CACHE_LIMIT_BYTES // 1024**2)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UnavailableError(
            "CLOCHE_CACHE_LIMIT_MB is no whole number of MiB",
            fact="cache-folder",
            fix="set it to a number such as 10240, or unset it",
        )
    return int(text) * 1024**2


def find_cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where what can be made again is kept.

    Raises:
        UnavailableError: this user has no home folder.
    """
    environment = os.environ if environment is None else environment
    return _find_cache_folder(environment, _find_home(environment))


def _find_home(environment: Mapping[str, str]) -> Path:
    if environment.get("HOME"):
        return Path(environment["HOME"])
    try:
        return Path.home()
    except RuntimeError as error:
        raise UnavailableError(
            "this user has no home folder", fact="home-folder", fix="set HOME to a folder"
        ) from error


def _find_cache_folder(environment: Mapping[str, str], home: Path) -> Path:
    if environment.get("CLOCHE_CACHE_DIR"):
        return Path(environment["CLOCHE_CACHE_DIR"]).absolute()
    # A relative one is to be ignored. Source: XDG Base Directory Specification.
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else home / ".cache") / "cloche"
