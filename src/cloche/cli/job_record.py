"""`cloche job logs | artifacts | abort`: what a job has left in its folder, or is leaving there."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cloche.cli.job_view import drop_output
from cloche.cli.job_words import show_count, show_line, show_size
from cloche.errors import InternalError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTERVAL_S: Final = 0.1
_ABORT_LIMIT_S: Final = 30.0
_LINE_LIMIT_BYTES: Final = 1024 * 1024
_EXIT_BROKEN_PIPE: Final = 141


@click.command()
@click.argument("directory", metavar="DIR")
@click.option("--step", metavar="NAME", help="Of this step alone.")
@click.option("--from", "offset", type=click.IntRange(min=0), default=0, metavar="N",
              help="From this offset of the log on, as in --json and in the record.")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--json", "as_json", is_flag=True, help="The lines as JSON, as they are kept.")
def logs(directory: str, step: str | None, offset: int, follow: bool, as_json: bool) -> int:
    """Prints the log of the job whose --out was DIR; also while it runs."""
    try:
        for line in _read_log(Path(directory), follow=follow):
            entry = json.loads(line)
            if (step is not None and entry["step"] != step) or 0 <= entry["offset"] < offset:
                continue
            click.echo(line if as_json else f"[{entry['step']}] {show_line(entry['text'])}")
    except BrokenPipeError:
        drop_output(sys.stdout)
        return _EXIT_BROKEN_PIPE
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InvalidRequestError(
            f"{directory}/log.ndjson is no log of a job; name its --out", retry_safe=True
        ) from error
    return 0


def _read_log(out: Path, *, follow: bool) -> Iterator[str]:
    from cloche.jobs.running import is_running

    try:
        reader = (out / "log.ndjson").open("rb")
    except OSError as error:
        raise InvalidRequestError(
            f"{out}: no log of a job ({error.strerror}); name its --out", retry_safe=True
        ) from error
    with reader:
        rest = b""
        while True:
            goes_on = follow and is_running(out)
            while line := reader.readline(_LINE_LIMIT_BYTES):
                rest += line
                if rest.endswith(b"\n"):
                    yield rest[:-1].decode()
                    rest = b""
            if not goes_on:
                return
            sys.stdout.flush()
            time.sleep(_INTERVAL_S)


@click.command()
@click.argument("directory", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="The manifest as JSON.")
def artifacts(directory: str, as_json: bool) -> None:
    """Lists what the job whose --out was DIR has delivered, and what it left."""
    path = Path(directory) / "manifest.json"
    manifest = _read_json(path)
    if as_json:
        click.echo(json.dumps(manifest, indent=2))
        return
    try:
        lines = list(_show_manifest(manifest))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidRequestError(
            f"{path} is no manifest of a job; name its --out", retry_safe=True
        ) from error
    for line in lines:
        click.echo(line)


def _show_manifest(manifest: dict[str, Any]) -> Iterator[str]:
    for each in manifest["artifacts"]:
        yield f"{show_size(each['size_bytes']):>8}  {show_line(each['path'])}"
    for path, why in manifest["skipped"].items():
        yield f" skipped  {show_line(path)}: {show_line(why)}"
    total = show_size(sum(each["size_bytes"] for each in manifest["artifacts"]))
    yield f"{show_count(len(manifest['artifacts']), 'artifact')}, {total}"


@click.command()
@click.argument("directory", metavar="DIR")
def abort(directory: str) -> None:
    """Ends the job that runs with --out DIR, and waits until nothing of it lives."""
    from cloche.jobs.running import ask_abort, is_running

    out = Path(directory)
    ask_abort(out)
    deadline = time.monotonic() + _ABORT_LIMIT_S
    while is_running(out):
        if time.monotonic() > deadline:
            raise InternalError(f"the job did not end within {_ABORT_LIMIT_S:.0f} s")
        time.sleep(_INTERVAL_S)
    click.echo(f"{_read_json(out / 'audit.json')['verdict']}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "not JSON"
        raise InvalidRequestError(
            f"{path}: {why}; name the --out of a job that has ended", retry_safe=True
        ) from error
    return document
