"""`cloche job`: a project, step by step in boxes, to artifacts."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cloche.cli.job_record import abort, artifacts, logs
from cloche.cli.job_view import JsonView, PlainView, Printer, drop_output
from cloche.cli.job_words import describe_project, show_line
from cloche.errors import InvalidRequestError, UnavailableError
from cloche.linux import interrupts
from cloche.model.abort import AbortController
from cloche.model.events import StateEvent
from cloche.model.job import LockfileRule, Verdict
from cloche.model.job_fields import make_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloche.cli.job_view import View
    from cloche.model.job import JobResult, JobSpec

# Source: pytest gives 5 where no test ran, timeout(1) gives 124; 128 + signal is the shell's way
# to say killed or interrupted; the others are those of every command (`docs/errors.md`).
EXIT_CODE_OF: Final = {
    Verdict.PASSED: 0,
    Verdict.FAILED: 1,
    Verdict.REJECTED: 2,
    Verdict.NO_TESTS: 5,
    Verdict.INFRA_FAILED: 70,
    Verdict.TIMED_OUT: 124,
    Verdict.ABORTED: 130,
    Verdict.MEMORY_EXCEEDED: 137,
}
_EXIT_BROKEN_PIPE = 141
_PROJECT_SPECS = ("cloche.yaml", "cloche.yml")
_SPEC_READ_LIMIT_BYTES = 2_000_000
_LIMIT_OF_OPTION = {
    "timeout_ms": "timeout_ms",
    "memory_limit_mb": "memory_mb",
    "scratch_limit_mb": "scratch_mb",
    "pids_limit": "pids_count",
}

_PROJECT_OPTIONS: Final = (
    click.argument("directory", required=False, metavar="[PROJECT]"),
    click.option(
        "-f", "--spec", "spec_file", metavar="FILE",
        help="A spec in YAML or JSON. Its `bundle` is relative to it; by default its own folder.",
    ),
    click.option(
        "--template", metavar="PATH",
        help="A folder or archive that the project is laid over.",
    ),
    click.option(
        "--lockfile", type=click.Choice([rule.value for rule in LockfileRule]),
        help="Whose lockfile is installed where both have one. Default: template.",
    ),
    click.option(
        "--step", "steps", multiple=True, metavar="NAME=LINE",
        help="A step, as a line for bash. The first one replaces all other steps.",
    ),
    click.option("--without", multiple=True, metavar="NAME", help="Leave a step out."),
    click.option(
        "--artifact", "artifacts", multiple=True, metavar="GLOB",
        help="Deliver these files. Default: dist/** where the project has a build.",
    ),
    click.option("--timeout-ms", type=int, metavar="N", help="Of the whole job. Default: 900000."),
    click.option("--step-timeout-ms", type=int, metavar="N", help="Of each step that is given."),
    click.option("--memory-limit-mb", type=int, metavar="N", help="Of each step. Default: 2048."),
    click.option("--scratch-limit-mb", type=int, metavar="N", help="Of each step. Default: 2048."),
    click.option("--pids-limit", type=int, metavar="N", help="Of each step. Default: 512."),
    click.option("--trust-domain", metavar="NAME", help="Shares no layers with others."),
)  # fmt: skip


@click.group()
def job() -> None:
    """Installs, tests and builds a project in boxes, and copies out what it made."""


for _command in (logs, artifacts, abort):
    job.add_command(_command)


def _project_options(command: Callable[..., int]) -> Callable[..., int]:
    """What says which project, and how it is run."""
    for option in reversed(_PROJECT_OPTIONS):
        command = option(command)
    return command


@job.command(
    epilog="Exit codes: 0 passed; 1 a step failed; 2 the project or the request was rejected; 5 no"
    " test ran; 69 this host cannot; 70 Cloche's own failure, or the registry's; 124 a time limit;"
    " 130 aborted; 137 the memory limit; 141 nobody reads the output any more."
)
@_project_options
@click.option("--out", metavar="DIR", help="A new or empty folder: artifacts, log and records.")
@click.option("--plain", is_flag=True, help="Lines as they come, also on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Each event and the result as JSON lines.")
def run(directory: str | None, out: str | None, plain: bool, as_json: bool, **given: Any) -> int:
    """Runs PROJECT (a folder, an archive or a diff): install, test, build.

    Without PROJECT it is the folder of the spec, or the current one. A cloche.yaml in the project
    has no say unless it is given with -f: the project is what is not trusted.
    """
    fields = _read_fields(given["spec_file"], directory)
    _add_options(fields, given)
    spec = make_spec(fields)
    view = _choose_view(out, plain=plain, as_json=as_json)
    note = None if given["spec_file"] else _note_spec_in(spec.bundle)
    try:
        result = _run(spec, out, view, note)
    except BrokenPipeError:
        drop_output(sys.stdout)
        return _EXIT_BROKEN_PIPE
    except OSError as error:
        drop_output(sys.stdout)
        raise UnavailableError(
            f"the job's events could not be written: {error.strerror}",
            fact="output",
            fix="free some space, or write somewhere else",
        ) from error
    return EXIT_CODE_OF[result.verdict]


@job.command(epilog="Exit codes: 0 it can be run; 2 the project or the request is rejected.")
@_project_options
def validate(directory: str | None, **given: Any) -> int:
    """Checks PROJECT and its spec as `run` does before anything starts, and says what it would do.

    Nothing is fetched, and no code of the project runs.
    """
    from cloche.jobs.project.reading import read_project
    from cloche.jobs.refusal import JobRefusedError

    fields = _read_fields(given["spec_file"], directory)
    _add_options(fields, given)
    try:
        project = read_project(make_spec(fields))
    except JobRefusedError as refusal:
        click.echo(f"rejected: {show_line(refusal.reason.message)} [{refusal.reason.code}]")
        return EXIT_CODE_OF[Verdict.REJECTED]
    for line in describe_project(project):
        click.echo(line)
    return 0


def _run(spec: JobSpec, out: str | None, view: View, note: str | None) -> JobResult:
    """Runs; the first Ctrl-C ends the job, the second one ends Cloche at once.

    Raises:
        OSError: the view could not write; the job was aborted.
    """
    from cloche.jobs import entry

    controller = AbortController()
    printer = Printer(view, controller.abort)

    def interrupt() -> None:
        printer.say_aborting()
        controller.abort()

    result = None
    with interrupts.on_interrupt(interrupt):
        try:
            with printer:
                if note is not None:
                    printer.tell(StateEvent(time.time(), "note", message=note))
                result = asyncio.run(
                    entry.run_job(
                        spec,
                        out=None if out is None else Path(out),
                        on_event=printer.tell,
                        signal=controller.signal,
                    )
                )
        finally:
            if printer.error is None:
                view.close(result)
    if printer.error is not None:
        raise printer.error
    return result


def _choose_view(out: str | None, *, plain: bool, as_json: bool) -> View:
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    if as_json:
        return JsonView(sys.stdout)
    if plain or not sys.stdout.isatty() or os.environ.get("TERM") in (None, "", "dumb"):
        return PlainView(sys.stdout, out)
    from cloche.cli.job_live import LiveView

    return LiveView(sys.stdout, out)


def _read_fields(spec_file: str | None, directory: str | None) -> dict[str, Any]:
    """The fields of the spec's file, with the folder that is meant as `bundle`."""
    fields: dict[str, Any] = {}
    if spec_file is not None:
        from cloche.jobs.project.spec import read_spec_file

        fields = read_spec_file(_read_bytes(spec_file), spec_file)
        fields.setdefault("bundle", ".")
        for name in ("bundle", "template"):
            path = fields.get(name)
            if isinstance(path, str) and path and "\n" not in path:
                fields[name] = str(Path(spec_file).parent / path)
    if directory is not None or spec_file is None:
        fields["bundle"] = directory or "."
    return fields


def _add_options(fields: dict[str, Any], given: dict[str, Any]) -> None:
    """Lets the options win over the file's fields."""
    if given["steps"]:
        fields["steps"] = [_split_step(item) for item in given["steps"]]
    if given["step_timeout_ms"] is not None:
        fields["step_timeout_ms"] = given["step_timeout_ms"]
        steps = fields.get("steps")
        for step in steps if isinstance(steps, list) else ():
            if isinstance(step, dict):
                step["timeout_ms"] = given["step_timeout_ms"]
    for name in ("without", "artifacts"):
        if given[name]:
            fields[name] = list(given[name])
    limits = {
        limit: given[option]
        for option, limit in _LIMIT_OF_OPTION.items()
        if given[option] is not None
    }
    if limits:
        below = fields.get("limits", {})
        fields["limits"] = {**below, **limits} if isinstance(below, dict) else below
    for name in ("trust_domain", "template", "lockfile"):
        if given[name] is not None:
            fields[name] = given[name]


def _split_step(item: str) -> dict[str, Any]:
    name, equals, line = item.partition("=")
    if not equals or not name:
        raise InvalidRequestError(f"--step: {item!r} is not of the form NAME=LINE")
    return {"name": name, "shell": line}


def _read_bytes(path: str) -> bytes:
    try:
        with Path(path).open("rb") as reader:
            return reader.read(_SPEC_READ_LIMIT_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRequestError(f"{path}: {reason}") from error


def _note_spec_in(bundle: Any) -> str | None:
    if isinstance(bundle, str):
        for name in _PROJECT_SPECS:
            if os.path.isfile(os.path.join(bundle, name)):  # noqa: PTH113, PTH118 (no error)
                return f"the project's {name} has no say; give it with -f where you trust it"
    return None
