"""`cloche cache`: what Cloche keeps to be faster the next time."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

import click

from cloche.cli.job_words import show_count, show_size

if TYPE_CHECKING:
    from cloche.environments.layers import LayerStore
    from cloche.settings import Settings
    from cloche.store.packages import PackageStore

_KEY_CHARS: Final = 12
_MIB: Final = 1024 * 1024


@click.group()
def cache() -> None:
    """Lists, prunes and verifies dependency layers and packages.

    All of it can be made again. CLOCHE_CACHE_DIR says where it lies, CLOCHE_CACHE_LIMIT_MB how
    large it may become.
    """


def _open() -> tuple[Settings, LayerStore, PackageStore]:
    from cloche.environments.layers import LayerStore
    from cloche.settings import read_settings
    from cloche.store.packages import PackageStore

    settings = read_settings()
    folder = settings.cache_folder
    return settings, LayerStore(folder), PackageStore(folder / "packages")


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_cache(as_json: bool) -> None:
    """Shows the layers, those that were used longest ago first, and what the packages take."""
    settings, layers, packages = _open()
    stored = layers.list()
    packages_bytes = packages.size_bytes()
    if as_json:
        document = {
            "folder": str(settings.cache_folder),
            "limit_bytes": settings.cache_limit_bytes,
            "layers": [
                {
                    "key": each.key,
                    "size_bytes": each.size_bytes,
                    "entries_count": each.entries_count,
                    "used_at": each.used_at,
                    "is_used": each.is_used,
                }
                for each in stored
            ],
            "packages_bytes": packages_bytes,
        }
        click.echo(json.dumps(document, indent=2))
        return
    for each in stored:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used_at))
        used = "in use" if each.is_used else at
        size = show_size(each.size_bytes)
        click.echo(f"{each.key[:_KEY_CHARS]}  {size:>8}  {each.entries_count:>8,}  {used}")
    layers_bytes = sum(each.size_bytes for each in stored)
    click.echo(
        f"{show_count(len(stored), 'layer')}, {show_size(layers_bytes)}; packages,"
        f" {show_size(packages_bytes)}; at most {show_size(settings.cache_limit_bytes)} of each,"
        f" in {settings.cache_folder}"
    )


@cache.command()
@click.option(
    "--limit-mb", type=click.IntRange(min=0), metavar="N",
    help="What may be left, of layers and of packages. Default: CLOCHE_CACHE_LIMIT_MB.",
)  # fmt: skip
def prune(limit_mb: int | None) -> None:
    """Removes what was used longest ago, and nothing that is in use."""
    settings, layers, packages = _open()
    limit_bytes = settings.cache_limit_bytes if limit_mb is None else limit_mb * _MIB
    for noun, (count, size_bytes) in (
        ("layer", layers.prune(limit_bytes)),
        ("package", packages.prune(limit_bytes)),
    ):
        click.echo(f"removed {show_count(count, noun)}, {show_size(size_bytes)}")


@cache.command()
def verify() -> int:
    """Reads every layer and compares it with what it was made of; removes those that differ.

    Packages need no command: each is checked against its hash whenever it is used. Exit code 1 when
    a layer was damaged.
    """
    _, layers, _ = _open()
    damaged_count = 0
    stored = layers.list()
    for each in stored:
        if layers.verify(each.key):
            continue
        damaged_count += 1
        removed = layers.remove(each.key)
        fate = "removed; it is made again when it is needed" if removed else "in use; not removed"
        click.echo(f"{each.key[:_KEY_CHARS]} is damaged: {fate}")
    click.echo(
        f"{show_count(len(stored) - damaged_count, 'layer')} as made, {damaged_count} damaged"
    )
    return 1 if damaged_count else 0
