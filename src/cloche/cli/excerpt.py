"""Errors of a run, with the line of the caller's code and a caret below."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cloche.cli.terminal import make_visible

if TYPE_CHECKING:
    from cloche.model.snippet import SandboxResult

_WIDTH = 100


def describe(result: SandboxResult, code: str, name: str) -> str:
    """The error of a result for people; colours are click's to keep or strip."""
    head = click.style(f"{result.error_code}", fg="red", bold=True)
    lines = [f"{head}: {make_visible(result.error or 'the code failed')}"]
    if result.error_line is not None:
        column = result.error_column or 1
        lines.append(click.style(f"  --> {name}:{result.error_line}:{column}", fg="cyan"))
        lines += _excerpt(code, result.error_line, column)
    return "\n".join(lines)


def _excerpt(code: str, line: int, column: int) -> list[str]:
    source = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if line > len(source):
        return []
    text = source[line - 1]
    start = 0 if column <= _WIDTH else column - 1 - _WIDTH // 2
    shown = make_visible(text[start : start + _WIDTH].replace("\t", " "))
    gutter = str(line)
    bar = click.style("|", fg="cyan")
    caret = " " * max(0, min(column - 1 - start, _WIDTH)) + click.style("^", fg="red", bold=True)
    return [f"{gutter} {bar} {shown}", f"{' ' * len(gutter)} {bar} {caret}"]
