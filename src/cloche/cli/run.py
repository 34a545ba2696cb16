"""`cloche run`: a snippet or a program in a fresh box."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloche.cli import options
from cloche.cli.request import (
    EXTENSION_OF,
    choose_language,
    create_sandbox,
    decode_text,
    read_bytes,
    read_context,
    read_fields,
)
from cloche.cli.results import (
    EXIT_BROKEN_PIPE,
    Printer,
    exit_code_of,
    refuse_output,
    result_to_json,
    show_error,
    show_notes,
    value_to_text,
)
from cloche.errors import InvalidRequestError
from cloche.linux import interrupts
from cloche.model.abort import AbortController

if TYPE_CHECKING:
    from cloche.model.snippet import SandboxResult


@click.command(
    cls=options.SectionCommand,
    epilog="Exit codes: 0 it ended well; 1 the code failed; 2 the request is wrong; 69 this host"
    " cannot; 70 Cloche's own failure; 124 a time limit; 137 the memory limit; 130 interrupted.",
)
@click.argument("file", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@options.option(options.CODE, "-e", "code", metavar="CODE", help="Run this text instead of a file.")
@options.language_options
@options.option(
    options.CODE,
    "--mode",
    type=click.Choice(["snippet", "program"]),
    help="A snippet has a value; a program has arguments, stdin and an exit code. Default: program"
    " for a file, snippet for -e, for - and in a worker.",
)
@options.option(
    options.CODE, "--stdin", "stdin_source", metavar="FILE|-", help="What the code reads on stdin."
)
@options.input_options
@options.option(
    options.OUTCOME, "--collect", multiple=True, metavar="GLOB", help="Bring these files back."
)
@options.option(
    options.OUTCOME,
    "--out",
    type=click.Path(),
    metavar="DIR",
    help="A new folder for collected files.",
)
@options.option(
    options.OUTCOME,
    "--json",
    "as_json",
    is_flag=True,
    help="Print the whole result as one JSON object.",
)
@options.reach_options
@options.limit_options
@options.sandbox_options
def run(
    file: str | None,
    args: tuple[str, ...],
    code: str | None,
    out: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Runs a snippet or a program in a fresh box.

    FILE is a path, or - for the code on standard input; arguments of a program follow after --.
    """
    if code is not None and file is not None:
        args = (file, *args)  # with -e there is no FILE: what stands there is an argument
        file = None
    text, name = _read_code(file, code)
    language = choose_language(given["language"], file)
    is_program = file not in (None, "-") and given["sandbox"] == "process"
    mode = given["mode"] or ("program" if is_program else "snippet")
    if given["collect"] and not (as_json or out):
        raise InvalidRequestError("collect: say where the files go, with --out DIR or --json")
    if out is not None:
        _make_folder(out)
    fields = {**read_fields(given), "language": language, "mode": mode}
    if args:
        fields["args"] = args
    if given["stdin_source"] is not None:
        fields["stdin"] = _read_stdin(given["stdin_source"], file)
    context = read_context(given["context"])
    printer = None if as_json else Printer()
    result = _run(given["sandbox"], text, context, fields, printer)
    if printer is not None and printer.broken:
        return EXIT_BROKEN_PIPE
    try:
        if as_json:
            click.echo(json.dumps(result_to_json(result), ensure_ascii=False))
        else:
            _show(result, text, name or f"snippet.{EXTENSION_OF[language]}", mode)
        if out is not None:
            _write_files(Path(out), result)
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except OSError as error:
        raise refuse_output(error) from error
    return exit_code_of(result)


def _run(
    sandbox: str, code: str, context: Any, fields: dict[str, Any], printer: Printer | None
) -> SandboxResult:
    """Runs; the first Ctrl-C ends the run, the second one ends Cloche at once."""
    controller = AbortController()
    fields["signal"] = controller.signal
    if printer is not None:
        printer.on_broken = controller.abort
        fields["on_output"] = printer.write

    async def run_once() -> SandboxResult:
        # No warm boxes: they would wait for nobody.
        async with create_sandbox(sandbox, {**fields, "pool_size": 0}) as made:
            return await made.run(code, context)

    with interrupts.on_interrupt(controller.abort):
        return asyncio.run(run_once())


def _show(result: SandboxResult, code: str, name: str, mode: str) -> None:
    show_notes(result)
    if not result.ok:
        show_error(result, code, name)
    elif mode == "snippet" and result.value is not None:
        click.echo(value_to_text(result.value, is_terminal=sys.stdout.isatty()))


def _read_code(file: str | None, code: str | None) -> tuple[str, str | None]:
    """(text, name to show or None)."""
    if code is not None:
        return code, None
    if file is None:
        raise InvalidRequestError("nothing to run: give a FILE, - or -e CODE")
    return decode_text(read_bytes(file), file), None if file == "-" else file


def _read_stdin(source: str, file: str | None) -> bytes:
    if source == "-" and file == "-":
        raise InvalidRequestError("--stdin -: standard input holds the code already")
    return read_bytes(source)


def _make_folder(path: str) -> None:
    try:
        Path(path).mkdir(parents=True)
    except FileExistsError:
        raise InvalidRequestError(f"--out: {path} is there already; name a new folder") from None
    except OSError as error:
        raise InvalidRequestError(f"--out: {path}: {error.strerror}") from error


def _write_files(folder: Path, result: SandboxResult) -> None:
    """Writes collected files; their paths are plain relative parts (`linux.files.collect`)."""
    for path, content in result.files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as writer:
            writer.write(content)
