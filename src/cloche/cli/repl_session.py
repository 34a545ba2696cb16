"""What a session of `cloche repl` keeps from run to run, and its commands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from cloche.cli.request import check_language, read_json
from cloche.errors import InvalidRequestError

if TYPE_CHECKING:
    from cloche.model.snippet import SandboxResult

HELP: Final = """\
A snippet runs when it is whole; inside brackets, strings and indented blocks
it goes on. A blank line ends a block of Python, two blank lines end anything.
Each run is a run of its own: what should last goes into the context, whose
names every later run sees as globals.

:let NAME = JSON    keep a value;  :let NAME = _  keeps the last one
:context [JSON]     show the context, or replace all of it; :context {} empties it
:lang [LANG]        show or change the language: javascript, typescript, python
:sandbox [KIND]     show or change the sandbox: process, worker
:isolation          what held the last run, and by what
:{ and :}           lines between these are one snippet
:help  :quit        Ctrl-C ends the run, Ctrl-D leaves"""

_SANDBOXES = ("process", "worker")


class LeaveError(Exception):
    """The session is to end."""


class Session:
    """State and commands; runs nothing itself.

    Attributes:
        sandbox: The kind of sandbox that the next run wants.
        language: Of the next run.
        context: Of the next run.
        runtime: None where the language decides.
    """

    def __init__(
        self, sandbox: str, language: str, runtime: str | None, context: dict[str, Any]
    ) -> None:
        """A session in which nothing has run yet."""
        self.sandbox = sandbox
        self.language = language
        self.runtime = runtime
        self.context = context
        self._last: SandboxResult | None = None
        self._value: Any = None
        self._commands = {
            "context": self._set_context,
            "help": self._help,
            "isolation": self._show_isolation,
            "lang": self._set_language,
            "let": self._let,
            "quit": self._leave,
            "sandbox": self._set_sandbox,
        }

    @property
    def run_fields(self) -> dict[str, Any]:
        """The fields of the next run beside its context."""
        return {"language": self.language, "runtime": self.runtime}

    def keep(self, result: SandboxResult) -> None:
        """Takes the result of a run; its value, where it has one, is `_` from now on."""
        self._last = result
        if result.ok and result.value is not None:
            self._value = result.value

    def obey(self, line: str) -> str:
        """Does a command, such as `:lang py`; returns what there is to say.

        Raises:
            InvalidRequestError: it is unknown, or its argument is wrong.
            LeaveError: it was `:quit`.
        """
        name, _, argument = line.removeprefix(":").partition(" ")
        known = [each for each in self._commands if each == name]
        if not known and name:
            known = [each for each in self._commands if each.startswith(name)]
        if len(known) != 1:
            raise InvalidRequestError(f":{name} is no command; :help lists them")
        return self._commands[known[0]](argument.strip())

    def _help(self, _: str) -> str:
        return HELP

    def _leave(self, _: str) -> str:
        raise LeaveError

    def _set_language(self, given: str) -> str:
        if given:
            self.language = check_language(given)
            self.runtime = None
        return self.language

    def _set_sandbox(self, given: str) -> str:
        if given and given not in _SANDBOXES:
            raise InvalidRequestError(f"sandbox: {given!r} is unknown; known: process, worker")
        self.sandbox = given or self.sandbox
        return self.sandbox

    def _set_context(self, given: str) -> str:
        if given:
            context = read_json(given, ":context")
            if not isinstance(context, dict):
                raise InvalidRequestError(":context: must be a JSON object, its keys the names")
            self._check(context)
            self.context = context
        return json.dumps(self.context, ensure_ascii=False)

    def _let(self, given: str) -> str:
        name, equals, text = (part.strip() for part in given.partition("="))
        if not name or not equals or not text:
            raise InvalidRequestError(":let: is of the form :let NAME = JSON, or :let NAME = _")
        if text == "_" and self._value is None:
            raise InvalidRequestError(":let: there is no last value yet")
        value = self._value if text == "_" else read_json(text, ":let")
        self._check({name: value})
        self.context = {**self.context, name: value}
        return ""

    def _check(self, context: dict[str, Any]) -> None:
        from cloche.snippets.context import check_context

        check_context(context, self.language)

    def _show_isolation(self, _: str) -> str:
        if self._last is None:
            raise InvalidRequestError(":isolation: nothing has run yet")
        isolation = self._last.isolation
        if not isolation.controls:
            return "the last run did not start"
        rows = [
            (name, control.mechanism, str(control.strength), control.evidence)
            for name, control in isolation.controls.items()
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]
            )
            for row in rows
        ]
        return "\n".join(["backend: " + isolation.backend, *lines])
