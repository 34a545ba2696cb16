"""Results of runs as a command shows them: output as it comes, value, error, JSON, exit code."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from cloche.cli.job_view import drop_output
from cloche.cli.terminal import make_visible
from cloche.errors import SandboxErrorCode, UnavailableError

if TYPE_CHECKING:
    from cloche.model.snippet import SandboxResult, Stream

# Source: timeout(1) gives 124; 128 + signal is the shell's way to say killed or interrupted.
EXIT_FAILED: Final = 1
EXIT_BROKEN_PIPE: Final = 141
_EXIT_CODE_OF = {
    SandboxErrorCode.TIMEOUT: 124,
    SandboxErrorCode.MEMORY_EXCEEDED: 137,
    SandboxErrorCode.ABORTED: 130,
}


def exit_code_of(result: SandboxResult) -> int:
    """The exit code of a command that ran this."""
    if result.error_code is None:
        return 0
    return _EXIT_CODE_OF.get(result.error_code, EXIT_FAILED)


def refuse_output(error: OSError) -> UnavailableError:
    """The error of a result that could not be written, as by a full disk."""
    return UnavailableError(
        f"the result could not be written: {error.strerror}",
        fact="output",
        fix="free some space, or write somewhere else",
    )


class Printer:
    """Passes the code's output on as it comes; on a terminal, without control characters.

    Attributes:
        broken: Nobody reads the output any more.
        on_broken: Called when that is noticed.
        at_line_start: Nothing stands on the current line of standard output.
    """

    def __init__(self) -> None:
        """Takes standard output and standard error."""
        self.broken = False
        self.on_broken: Any = None
        self.at_line_start = True
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        for stream in self._streams.values():
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")

    def write(self, stream: Stream, text: str) -> None:
        """Writes a piece of output."""
        target = self._streams[stream]
        if self.broken:
            return
        self.at_line_start = text.endswith("\n")
        try:
            target.write(make_visible(text) if target.isatty() else text)
            target.flush()
        except OSError:
            self.broken = True
            drop_output(target)
            if self.on_broken is not None:
                self.on_broken()


def show_notes(result: SandboxResult) -> None:
    """Says which streams were cut in the result (they were shown whole), and what was refused."""
    for refused in result.denied:
        click.echo(f"cloche: not connected: {refused}", err=True)
    for stream in ("stdout", "stderr"):
        if getattr(result, f"{stream}_truncated"):
            click.echo(f"cloche: {stream} went past its limit; --json keeps both ends", err=True)


def show_error(result: SandboxResult, code: str, name: str) -> None:
    """Says what went wrong, with the line of the code."""
    from cloche.cli.excerpt import describe

    click.echo(describe(result, code, name), err=True)


def value_to_text(value: Any, *, is_terminal: bool, width: int = 0) -> str:
    """A value as JSON: indented when it is wider than `width` and holds other containers."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > width and (not width or _is_nested(value)):
        text = json.dumps(value, ensure_ascii=False, indent=2)
    return make_visible(text) if is_terminal else text


def _is_nested(value: Any) -> bool:
    children = value.values() if isinstance(value, dict) else value
    return isinstance(value, dict | list) and any(
        isinstance(each, dict | list) for each in children
    )


def result_to_json(result: SandboxResult) -> dict[str, Any]:
    """A result as JSON: its own fields; file contents are UTF-8 text or base64, and say which."""
    fields: dict[str, Any] = {
        field.name: getattr(result, field.name) for field in dataclasses.fields(result)
    }
    fields["output"] = [dataclasses.asdict(chunk) for chunk in result.output]
    fields["usage"] = dataclasses.asdict(result.usage)
    fields["runtime"] = dataclasses.asdict(result.runtime)
    fields["files"] = {path: _content_to_json(data) for path, data in result.files.items()}
    fields["isolation"] = {
        "backend": result.isolation.backend,
        "controls": {
            name: dataclasses.asdict(control) for name, control in result.isolation.controls.items()
        },
    }
    return fields


def _content_to_json(data: bytes) -> dict[str, str]:
    try:
        return {"encoding": "utf-8", "content": data.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "content": base64.b64encode(data).decode()}
