"""`cloche artifacts`: what a job has delivered."""

from __future__ import annotations

from pathlib import Path

import click

from cloche.cli.job_words import show_count, show_line


@click.group()
def artifacts() -> None:
    """Checks what a job has delivered."""


@artifacts.command()
@click.argument("directory", metavar="DIR")
def verify(directory: str) -> int:
    """Compares DIR/artifacts (DIR: the --out of a job) with DIR/manifest.json.

    Exit code 0 when every file is there with its size and hash, and no other; 1 when not.
    """
    from cloche.jobs.artifacts import verify_artifacts

    count, faults = verify_artifacts(Path(directory))
    for fault in faults:
        click.echo(show_line(fault))
    if not faults:
        click.echo(f"{show_count(count, 'artifact')} as delivered")
    return 1 if faults else 0
