"""The command line's root: finds a command by name and loads only that one."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from cloche import __version__
from cloche.cli.telemetry import exporting
from cloche.errors import ClocheError, HostError, RequestError

# Source: sysexits.h (69 EX_UNAVAILABLE, 70 EX_SOFTWARE); 2 is click's own for usage.
EXIT_REQUEST, EXIT_HOST, EXIT_INTERNAL, EXIT_INTERRUPTED = 2, 69, 70, 130
_COMMANDS = {
    "artifacts": "Checks what a job has delivered against its manifest.",
    "cache": "Lists, prunes and verifies what is kept to be faster the next time.",
    "doctor": "Says what this host can enforce, and the command that mends what it cannot.",
    "job": "Installs, tests and builds a project in boxes, and copies out what it made.",
    "map": "Runs each line of a file of JSON lines, several at a time, to results in order.",
    "repl": "Reads a snippet at a time and runs each on its own.",
    "run": "Runs a snippet or a program in a fresh box.",
    "schema": "Prints the JSON Schema of a job's spec.",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"cloche.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cloche")
@click.pass_context
def cli(context: click.Context) -> None:
    """Runs code that nobody has read yet, safely."""
    if context.invoked_subcommand != "doctor":  # it must work where nothing else does
        context.with_resource(exporting())


def main() -> None:
    """Runs a command; turns errors into a message and the documented exit code."""
    try:
        status = cli.main(prog_name="cloche", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        status = EXIT_INTERRUPTED
    except ClocheError as error:
        status = exit_code_of(error)
        click.echo(f"cloche: {error.message} [{error.code}]", err=True)
    sys.exit(status or 0)


def exit_code_of(error: ClocheError) -> int:
    """The exit code of each family of errors."""
    if isinstance(error, RequestError):
        return EXIT_REQUEST
    return EXIT_HOST if isinstance(error, HostError) else EXIT_INTERNAL
