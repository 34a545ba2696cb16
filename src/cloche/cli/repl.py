"""`cloche repl`: a snippet at a time, each a run of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cloche.cli import options
from cloche.cli.job_view import drop_output
from cloche.cli.job_words import show_duration
from cloche.cli.repl_input import is_whole
from cloche.cli.repl_session import LeaveError, Session
from cloche.cli.request import EXTENSION_OF, check_language, read_context, read_fields
from cloche.cli.results import (
    EXIT_BROKEN_PIPE,
    EXIT_FAILED,
    Printer,
    refuse_output,
    show_error,
    show_notes,
    value_to_text,
)
from cloche.errors import ClocheError
from cloche.model.abort import AbortController

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloche.sync import SyncSandbox

BANNER: Final = """\
Each snippet is a run of its own and sees nothing of the ones before.
:let NAME = _ keeps the last value for the next runs; :help tells the rest."""
_HISTORY_LIMIT_COUNT: Final = 1000
_VALUE_WIDTH: Final = 80


@click.command(
    cls=options.SectionCommand,
    epilog="Exit codes: 0 it ended; 1 a run of a piped session failed; 2 the request is wrong; 69"
    " this host cannot; 70 Cloche's own failure; 130 interrupted; 141 nobody reads the output any"
    " more.",
)
@options.language_options
@options.input_options
@options.reach_options
@options.limit_options
@options.sandbox_options
def repl(**given: Any) -> int:
    """Reads a snippet at a time and runs each on its own.

    Runs never see each other: :let and :context keep values for later ones. Snippets can come
    through a pipe, too. :help lists the commands.
    """
    language = check_language(given["language"] or "javascript")
    fields = read_fields(given)
    context = read_context(given["context"]) or {}
    session = Session(given["sandbox"], language, fields.pop("runtime", None), context)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    shell = _Shell(session, fields, is_terminal=is_terminal)
    try:
        with shell:
            shell.talk()
    except BrokenPipeError:
        drop_output(sys.stdout)
        return EXIT_BROKEN_PIPE
    except OSError as error:
        drop_output(sys.stdout)
        raise refuse_output(error) from error
    if shell.printer.broken:
        return EXIT_BROKEN_PIPE
    return EXIT_FAILED if shell.has_failed and not is_terminal else 0


class _Shell:
    """Reads, runs, prints. Use it with `with`.

    Attributes:
        has_failed: A run or a command was not ok.
    """

    def __init__(self, session: Session, fields: dict[str, Any], *, is_terminal: bool) -> None:
        self.printer = Printer()
        self.has_failed = False
        self._session = session
        self._fields = fields
        self._is_terminal = is_terminal
        self._sandbox_kind = session.sandbox
        self._remember: Callable[[str], None] = lambda _: None

    def __enter__(self) -> _Shell:
        self._sandbox = self._start_sandbox(self._session.sandbox)
        return self

    def __exit__(self, *_: object) -> None:
        self._sandbox.dispose()

    def talk(self) -> None:
        """Until the input ends, `:quit`, or nobody reads the output any more.

        Raises:
            KeyboardInterrupt: Ctrl-C, when there is no terminal.
            OSError: the output cannot be written.
        """
        if self._is_terminal:
            self._remember = _open_history()
            click.echo(
                f"cloche repl, {self._session.language} in a {self._session.sandbox} sandbox"
            )
            click.echo(click.style(BANNER, dim=True))
        while not self.printer.broken:
            is_reading = True
            try:
                snippet = self._read_snippet()
                if snippet is None:
                    break
                is_reading = False
                self._take(snippet)
            except LeaveError:
                break
            except ClocheError as error:
                self.has_failed = True
                click.echo(f"cloche: {error.message} [{error.code}]", err=True)
            except KeyboardInterrupt:
                if not self._is_terminal:
                    raise
                click.echo("" if is_reading else click.style("\ninterrupted", dim=True))

    def _take(self, snippet: str) -> None:
        if not snippet.startswith(":"):
            self._run(snippet)
            return
        told = self._session.obey(snippet)
        if self._session.sandbox != self._sandbox_kind:
            self._change_sandbox()
        if told:
            click.echo(value_to_visible(told, is_terminal=self._is_terminal))

    def _run(self, code: str) -> None:
        session = self._session
        controller = AbortController()
        self.printer.on_broken = controller.abort
        self.printer.at_line_start = True
        result = self._sandbox.run(
            code,
            session.context or None,
            on_output=self.printer.write,
            signal=controller.signal,
            **session.run_fields,
        )
        if self.printer.broken:
            return
        session.keep(result)
        if self._is_terminal and not self.printer.at_line_start:
            click.echo()
        show_notes(result)
        if not result.ok:
            self.has_failed = True
            show_error(result, code, f"snippet.{EXTENSION_OF[session.language]}")
        elif result.value is not None:
            # One line each through a pipe, where programs read them.
            width = _VALUE_WIDTH if self._is_terminal else sys.maxsize
            click.echo(value_to_text(result.value, is_terminal=self._is_terminal, width=width))
        if self._is_terminal:
            click.echo(click.style(show_duration(result.duration_ms), dim=True))

    def _change_sandbox(self) -> None:
        """Starts the kind that is wanted; keeps the old one when that fails."""
        try:
            started = self._start_sandbox(self._session.sandbox)
        except BaseException:
            self._session.sandbox = self._sandbox_kind
            raise
        self._sandbox.dispose()
        self._sandbox, self._sandbox_kind = started, self._session.sandbox

    def _start_sandbox(self, kind: str) -> SyncSandbox:
        from cloche import sync  # the help of the command does not need it

        create = sync.create_worker_sandbox if kind == "worker" else sync.create_process_sandbox
        return create(**self._fields, **self._session.run_fields).__enter__()

    def _read_snippet(self) -> str | None:
        """A snippet or a command; None at the end of the input."""
        lines: list[str] = []
        is_pasted = False
        while True:
            try:
                line = self._read_line(is_first=not lines and not is_pasted)
            except EOFError:
                if self._is_terminal:
                    click.echo()
                    return None
                return "\n".join(lines) if any(line.strip() for line in lines) else None
            if is_pasted and line.strip() == ":}":
                break
            if not is_pasted and not lines:
                if not line.strip():
                    continue
                if line.strip() == ":{":
                    is_pasted = True
                    continue
                if line.lstrip().startswith(":"):
                    self._remember(line)
                    return line.strip()
            lines += line.split("\n")
            if not is_pasted and is_whole(lines, self._session.language):
                break
        snippet = "\n".join(lines).rstrip("\n")
        self._remember(snippet)
        return snippet

    def _read_line(self, *, is_first: bool) -> str:
        if self._is_terminal:
            name = EXTENSION_OF[self._session.language]
            return input(f"{name}> " if is_first else f"{'.' * len(name)}. ")
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n").removesuffix("\r")


def value_to_visible(text: str, *, is_terminal: bool) -> str:
    """A command's answer, which may hold the guest's text."""
    from cloche.cli.terminal import make_visible

    return make_visible(text) if is_terminal else text


def _open_history() -> Callable[[str], None]:
    """Lets arrow keys bring back earlier snippets; returns what takes the next one."""
    import readline

    from cloche.settings import read_settings

    readline.set_auto_history(False)
    readline.parse_and_bind("tab: self-insert")
    path: Path | None = None
    with contextlib.suppress(OSError, ClocheError):
        path = read_settings().cache_folder / "repl-history"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Others must not read what was typed.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        readline.read_history_file(path)
        readline.set_history_length(_HISTORY_LIMIT_COUNT)

    def remember(snippet: str) -> None:
        readline.add_history(snippet)
        if path is not None and "\n" not in snippet:  # the file holds a line each
            with contextlib.suppress(OSError):
                readline.append_history_file(1, path)

    return remember
