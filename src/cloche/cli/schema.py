"""`cloche schema`: what files for Cloche may hold, as JSON Schema."""

from __future__ import annotations

import json

import click


@click.group()
def schema() -> None:
    """Prints JSON Schemas, for editors and for programs that write specs."""


@schema.command()
def job() -> None:
    """Of a job's spec: cloche.yaml, or the same as JSON."""
    from cloche.model.job_schema import job_schema

    click.echo(json.dumps(job_schema(), indent=2))
