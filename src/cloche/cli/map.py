"""`cloche map`: many runs, one JSON line each, with results in the order of the lines."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cloche.cli import options
from cloche.cli.lines import LineReader
from cloche.cli.map_output import Continued, check_same, open_output
from cloche.cli.map_request import LINE_LIMIT_BYTES, Defaults
from cloche.cli.map_runs import Runs
from cloche.cli.map_view import Tally, show_progress
from cloche.cli.request import check_language, create_sandbox, read_context, read_fields
from cloche.cli.results import EXIT_BROKEN_PIPE, EXIT_FAILED, refuse_output
from cloche.errors import InvalidRequestError
from cloche.linux import interrupts
from cloche.model.abort import AbortController
from cloche.model.policy import MAX_TIMEOUT_MS

if TYPE_CHECKING:
    from cloche.cli.map_view import Progress

_EXIT_INTERRUPTED: Final = 130
_CONCURRENCY_LIMIT_COUNT: Final = 1024


@click.command(
    cls=options.SectionCommand,
    epilog="Exit codes: 0 every line has its result, also a failed one; 1 with --fail-on-error, one"
    " was not ok; 2 the request is wrong; 69 this host cannot; 70 Cloche's own failure; 130"
    " interrupted; 141 nobody reads the output any more.",
)
@click.argument("file", metavar="FILE.jsonl")
@options.option(
    options.OUTCOME,
    "--out",
    metavar="OUT.jsonl",
    help="Write the results there. Default: standard output.",
)
@options.option(
    options.OUTCOME,
    "--resume",
    is_flag=True,
    help="Continue --out after its last whole line, where there is one.",
)
@options.option(
    options.OUTCOME,
    "--fail-on-error",
    is_flag=True,
    help="Exit with 1 when a result is not ok.",
)
@options.option(
    options.OUTCOME, "--collect", multiple=True, metavar="GLOB", help="Bring these files back."
)
@options.option(
    options.LIMITS,
    "--concurrency",
    type=click.IntRange(1, _CONCURRENCY_LIMIT_COUNT),
    metavar="N",
    help="Runs at a time. Default: two per CPU, one in workers; more than two per CPU wait.",
)
@options.limit_options
@options.language_options
@options.option(
    options.CODE,
    "--mode",
    type=click.Choice(["snippet", "program"]),
    help="Default: program for a line with file, snippet for one with code.",
)
@options.input_options
@options.reach_options
@options.sandbox_options
def map(
    file: str,
    out: str | None,
    resume: bool,
    fail_on_error: bool,
    concurrency: int | None,
    **given: Any,
) -> int:
    """Runs each line of FILE.jsonl (- for standard input), several at a time.

    A line is a JSON object with code, or with file (a path below the folder of FILE.jsonl), and
    with what differs for it: context, id and the fields of a run, such as timeout_ms, stdin or
    language. Options are the defaults of all lines.

    The results are JSON lines in the same order: index, id, and what `cloche run --json` tells. A
    line that cannot be run has a result, too.
    """
    if resume and out is None:
        raise InvalidRequestError("--resume: say what to continue, with --out")
    is_worker = given["sandbox"] == "worker"
    fields = read_fields(given)
    language = None if given["language"] is None else check_language(given["language"])
    defaults = Defaults(
        folder=Path(file).parent if file != "-" else Path(),
        language=language,
        mode=fields.pop("mode", None),
        context=read_context(given["context"]) or {},
        has_programs=not is_worker,
    )
    concurrency = concurrency or (1 if is_worker else 2) * (os.cpu_count() or 1)
    if is_worker:
        fields["pool_size"] = concurrency
    # Runs wait in this command alone: the sandbox never refuses one for want of a slot.
    fields |= {"max_pending": concurrency, "queue_timeout_ms": MAX_TIMEOUT_MS}
    if language is not None:
        fields["language"] = language
    with _open_input(file) as source, open_output(out, resume=resume) as output:
        tally = Tally()
        controller = AbortController()
        is_shown = out is not None or not sys.stdout.isatty()
        try:
            with (
                interrupts.on_interrupt(controller.abort),
                show_progress(tally, source, is_shown=is_shown) as progress,
            ):
                asyncio.run(
                    _run(
                        given["sandbox"],
                        fields,
                        Runs(defaults, concurrency, controller.signal),
                        source,
                        output,
                        resume=resume,
                        tally=tally,
                        progress=progress,
                    )
                )
        except BrokenPipeError:
            return EXIT_BROKEN_PIPE
        except OSError as error:
            raise refuse_output(error) from error
    click.echo(f"cloche: {tally.describe(is_interrupted=controller.signal.aborted)}", err=True)
    if controller.signal.aborted:
        return _EXIT_INTERRUPTED
    return EXIT_FAILED if fail_on_error and tally.failed_count else 0


async def _run(
    sandbox: str,
    fields: dict[str, Any],
    runs: Runs,
    source: FileIO,
    output: FileIO,
    *,
    resume: bool,
    tally: Tally,
    progress: Progress,
) -> None:
    """Continues where the output ends, and runs what is left."""
    lines = LineReader(source, LINE_LIMIT_BYTES)
    if resume:
        continued = Continued(output)
        while (result := await continued.next()) is not None:
            line = await runs.skip(lines)
            if line is None:
                raise InvalidRequestError("--resume: the output has more lines than the input")
            if runs.signal.aborted:
                return
            check_same(result, line.identifier)
            tally.add(result.get("ok") is True, result.get("error_code"), is_old=True)
            progress(line.size_bytes)
        continued.cut()
    tally.started_at = time.monotonic()
    made = create_sandbox(sandbox, fields)
    try:
        await runs.run(made, lines, output, tally, progress)
    finally:
        await made.dispose()


def _open_input(file: str) -> FileIO:
    try:
        if file == "-":
            return FileIO(sys.stdin.fileno(), "rb", closefd=False)
        return FileIO(file, "rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRequestError(f"{file}: {reason}") from error
