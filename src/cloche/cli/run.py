"""`cloche run`: a snippet or a program in a fresh box."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloche.cli.terminal import make_visible
from cloche.errors import InvalidRequestError, SandboxErrorCode, UnavailableError
from cloche.linux import interrupts
from cloche.model.abort import AbortController

if TYPE_CHECKING:
    from cloche.model.snippet import SandboxResult, Stream

_LANGUAGE_OF = {
    **dict.fromkeys((".js", ".mjs", ".cjs"), "javascript"),
    **dict.fromkeys((".ts", ".mts", ".cts"), "typescript"),
    ".py": "python",
}
_EXTENSION_OF = {"javascript": "js", "typescript": "ts", "python": "py"}
_ALIASES = {"js": "javascript", "ts": "typescript", "py": "python"}
_INPUT_LIMIT_BYTES = 64 * 1024 * 1024
# Source: timeout(1) gives 124; 128 + signal is the shell's way to say killed or interrupted.
_EXIT_CODE_OF = {
    SandboxErrorCode.TIMEOUT: 124,
    SandboxErrorCode.MEMORY_EXCEEDED: 137,
    SandboxErrorCode.ABORTED: 130,
}
_EXIT_FAILED, _EXIT_BROKEN_PIPE = 1, 141


@click.command(
    epilog="Exit codes: 0 it ended well; 1 the code failed; 2 the request is wrong; 69 this host"
    " cannot; 70 Cloche's own failure; 124 a time limit; 137 the memory limit; 130 interrupted."
)
@click.argument("file", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-e", "code", metavar="CODE", help="Run this text instead of a file.")
@click.option(
    "-l",
    "--language",
    metavar="LANG",
    help="javascript, typescript or python (js, ts,"
    " py); by default as the file's name says, else javascript.",
)
@click.option("--runtime", metavar="R", help="bun or python; by default as the language says.")
@click.option(
    "--mode",
    type=click.Choice(["snippet", "program"]),
    help="A snippet has a value; a"
    " program has arguments, stdin and an exit code. Default: program for a file, snippet"
    " for -e and -.",
)
@click.option("--context", metavar="JSON|@FILE", help="Globals of a snippet: a JSON object.")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH=SRC",
    help="Lay the file SRC into the box as /workspace/PATH.",
)
@click.option("--collect", multiple=True, metavar="GLOB", help="Bring these files back.")
@click.option("--out", type=click.Path(), metavar="DIR", help="A new folder for collected files.")
@click.option("--stdin", "stdin_source", metavar="FILE|-", help="What the code reads on stdin.")
@click.option("--env", multiple=True, metavar="K=V", help="A variable for the code.")
@click.option("--timeout-ms", type=int, metavar="N", help="Wall clock. Default: 5000.")
@click.option("--cpu-time-ms", type=int, metavar="N", help="CPU time. Default: no limit.")
@click.option("--memory-limit-mb", type=int, metavar="N", help="Default: 128.")
@click.option("--allow-network", is_flag=True, help="Reach public addresses.")
@click.option("--allow-host", "hosts", multiple=True, metavar="H", help="Reach this host.")
@click.option("--allow-fs", is_flag=True, help="A private /workspace and /tmp to write into.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as one JSON object.")
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
    language = _choose_language(given["language"], file)
    mode = given["mode"] or ("program" if file not in (None, "-") else "snippet")
    if given["collect"] and not (as_json or out):
        raise InvalidRequestError("collect: say where the files go, with --out DIR or --json")
    if out is not None:
        _make_folder(out)
    fields: dict[str, Any] = {
        "language": language,
        "mode": mode,
        "runtime": given["runtime"],
        "args": args,
        "files": dict(_read_file(item) for item in given["files"]),
        "collect": given["collect"],
        "stdin": _read_stdin(given["stdin_source"], file),
        "env": dict(_split(item, "--env", "K=V") for item in given["env"]),
        "allow_network": given["allow_network"],
        "allow_hosts": given["hosts"],
        "allow_fs": given["allow_fs"],
    }
    for field in ("timeout_ms", "cpu_time_ms", "memory_limit_mb"):
        if given[field] is not None:
            fields[field] = given[field]
    context = _read_context(given["context"])
    printer = None if as_json else _Printer()
    result = _run(text, context, fields, printer)
    if printer is not None and printer.broken:
        return _EXIT_BROKEN_PIPE
    try:
        if as_json:
            click.echo(json.dumps(result_to_json(result), ensure_ascii=False))
        else:
            _show(result, text, name or f"snippet.{_EXTENSION_OF[language]}", mode)
        if out is not None:
            _write_files(Path(out), result)
    except BrokenPipeError:
        return _EXIT_BROKEN_PIPE
    except OSError as error:
        raise UnavailableError(
            f"the result could not be written: {error.strerror}",
            fact="output",
            fix="free some space, or write somewhere else",
        ) from error
    if result.error_code is None:
        return 0
    return _EXIT_CODE_OF.get(result.error_code, _EXIT_FAILED)


def _run(
    code: str, context: Any, fields: dict[str, Any], printer: _Printer | None
) -> SandboxResult:
    """Runs; the first Ctrl-C ends the run, the second one ends Cloche at once."""
    from cloche.snippets import entry

    controller = AbortController()
    fields["signal"] = controller.signal
    if printer is not None:
        printer.on_broken = controller.abort
        fields["on_output"] = printer.write
    with interrupts.on_interrupt(controller.abort):
        return asyncio.run(entry.run(code, context, **fields))


class _Printer:
    """Passes the code's output on as it comes; on a terminal, without control characters."""

    def __init__(self) -> None:
        self.broken = False
        self.on_broken: Any = None
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        for stream in self._streams.values():
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")

    def write(self, stream: Stream, text: str) -> None:
        target = self._streams[stream]
        if self.broken:
            return
        try:
            target.write(make_visible(text) if target.isatty() else text)
            target.flush()
        except OSError:
            self.broken = True
            # What the stream still holds must not fail again when Python closes it.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), target.fileno())
            self.on_broken()


def _show(result: SandboxResult, code: str, name: str, mode: str) -> None:
    for stream in ("stdout", "stderr"):
        if getattr(result, f"{stream}_truncated"):
            click.echo(f"cloche: {stream} went past its limit; --json keeps both ends", err=True)
    if result.ok:
        if mode == "snippet" and result.value is not None:
            value = json.dumps(result.value, ensure_ascii=False, indent=2)
            click.echo(make_visible(value) if sys.stdout.isatty() else value)
        return
    from cloche.cli.excerpt import describe

    click.echo(describe(result, code, name), err=True)


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


def _choose_language(given: str | None, file: str | None) -> str:
    if given is not None:
        language = _ALIASES.get(given, given)
        if language not in _EXTENSION_OF:
            raise InvalidRequestError(
                f"language: {given!r} is unknown; known: {', '.join(_EXTENSION_OF)}"
            )
        return language
    suffix = Path(file).suffix if file not in (None, "-") else ""
    if suffix and suffix not in _LANGUAGE_OF:
        raise InvalidRequestError(
            f"language: files that end in {suffix!r} are unknown; say it with -l"
        )
    return _LANGUAGE_OF.get(suffix, "javascript")


def _read_code(file: str | None, code: str | None) -> tuple[str, str | None]:
    """(text, name to show or None)."""
    if code is not None:
        return code, None
    if file is None:
        raise InvalidRequestError("nothing to run: give a FILE, - or -e CODE")
    data = _read_bytes(file)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{file}: byte {error.start} is no UTF-8") from error
    return text, None if file == "-" else file


def _read_bytes(path: str) -> bytes:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(_INPUT_LIMIT_BYTES + 1)
        else:
            with Path(path).open("rb") as reader:
                data = reader.read(_INPUT_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRequestError(f"{path}: {reason}") from error
    if len(data) > _INPUT_LIMIT_BYTES:
        raise InvalidRequestError(f"{path}: more than {_INPUT_LIMIT_BYTES} bytes")
    return data


def _read_stdin(source: str | None, file: str | None) -> bytes:
    if source is None:
        return b""
    if source == "-" and file == "-":
        raise InvalidRequestError("--stdin -: standard input holds the code already")
    return _read_bytes(source)


def _split(item: str, option: str, form: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not equals or not key:
        raise InvalidRequestError(f"{option}: {item!r} is not of the form {form}")
    return key, value


def _read_file(item: str) -> tuple[str, bytes]:
    path, source = _split(item, "--file", "PATH=SRC")
    return path, _read_bytes(source)


def _read_context(given: str | None) -> Any:
    if given is None:
        return None
    text = _read_bytes(given[1:]).decode("utf-8", "replace") if given.startswith("@") else given
    try:
        context = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"--context: not JSON: {error}") from error
    if not isinstance(context, dict):
        raise InvalidRequestError("--context: must be a JSON object, its keys the names")
    return context


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
