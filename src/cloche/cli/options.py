"""Options that the commands for snippets share; their help comes in sections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

CODE: Final = "The code and what it gets"
OUTCOME: Final = "What comes back"
REACH: Final = "What it can reach (nothing, by default)"
LIMITS: Final = "Limits"
SANDBOX: Final = "Sandbox"


class SectionOption(click.Option):
    """An option that says under which heading the help shows it."""

    def __init__(self, *args: Any, section: str = "Other", **attributes: Any) -> None:
        """Takes what `click.Option` takes."""
        super().__init__(*args, **attributes)
        self.section = section


class SectionCommand(click.Command):
    """A command whose help groups its options by section, in the order of their first ones."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                section = getattr(parameter, "section", "Other")
                sections.setdefault(section, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def option(section: str, *names: str, **attributes: Any) -> Callable[[_Command], _Command]:
    """`click.option` under a heading."""
    return click.option(*names, cls=SectionOption, section=section, **attributes)


def _number(section: str, name: str, told: str) -> Callable[[_Command], _Command]:
    return option(section, name, type=int, metavar="N", help=told)


def _options(*each: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Several options as one decorator; the help shows them in this order."""

    def decorate(command: _Command) -> _Command:
        for decorator in reversed(each):
            command = decorator(command)
        return command

    return decorate


language_options = _options(
    option(
        CODE,
        "-l",
        "--language",
        metavar="LANG",
        help="javascript, typescript or python (js, ts, py). Default: as a file's name says, else"
        " javascript.",
    ),
    option(
        CODE,
        "--runtime",
        metavar="R",
        help="bun, deno, node or python. Default: bun, or python for Python.",
    ),
)

input_options = _options(
    option(CODE, "--context", metavar="JSON|@FILE", help="Globals of a snippet: a JSON object."),
    option(CODE, "--env", multiple=True, metavar="K=V", help="A variable for the code."),
    option(
        CODE,
        "--file",
        "files",
        multiple=True,
        metavar="PATH=SRC",
        help="Lay the file SRC into the box as /workspace/PATH.",
    ),
)

reach_options = _options(
    option(REACH, "--allow-fs", is_flag=True, help="A private /workspace and /tmp to write into."),
    option(
        REACH,
        "--mount",
        "mounts",
        multiple=True,
        metavar="HOST=BOX",
        help="See the host folder HOST as /workspace/BOX, read-only.",
    ),
    option(REACH, "--allow-network", is_flag=True, help="Reach public addresses."),
    option(
        REACH,
        "--allow-host",
        "allow_hosts",
        multiple=True,
        metavar="H",
        help="Reach this host and no other.",
    ),
)

limit_options = _options(
    _number(LIMITS, "--timeout-ms", "Wall clock. Default: 5000."),
    _number(LIMITS, "--cpu-time-ms", "CPU time. Default: no limit."),
    _number(LIMITS, "--memory-limit-mb", "All that it holds, files too. Default: 128."),
    _number(LIMITS, "--pids-limit", "Processes and threads. Default: 64."),
    option(
        LIMITS,
        "--cpu-limit",
        type=float,
        metavar="X",
        help="CPUs, such as 0.5. Default: no limit, at a low weight.",
    ),
    _number(LIMITS, "--scratch-limit-mb", "Private files. Default: 64."),
    _number(LIMITS, "--output-limit-bytes", "Kept of each stream. Default: 1048576."),
    _number(LIMITS, "--value-limit-bytes", "Of the value, as JSON. Default: 1048576."),
)

sandbox_options = _options(
    option(
        SANDBOX,
        "--sandbox",
        type=click.Choice(["process", "worker"]),
        default="process",
        help="process: a fresh box for every run. worker: an engine in a confined process that is"
        " reused; faster, for snippets alone. Default: process.",
    ),
    option(
        SANDBOX,
        "--require",
        multiple=True,
        metavar="CONTROL=MECHANISM",
        help="Refuse to run unless this enforces it, such as memory=cgroup.",
    ),
)
