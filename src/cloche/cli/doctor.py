"""``cloche doctor``: what this host has, what is missing and how to mend it."""

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from cloche.cli import enforcement
from cloche.linux.facts import HostFacts, Verdict

if TYPE_CHECKING:
    from rich.console import Console

EXIT_HOST_CANNOT: Final = 69  # EX_UNAVAILABLE

_MARKS: Final = {
    Verdict.OK: ("ok", "green"),
    Verdict.MISSING: ("missing", "red"),
    Verdict.UNKNOWN: ("unknown", "yellow"),
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Show what this host can enforce, and how to mend what is missing.

    Exit code 0 when the default backend can run here, 69 when it cannot.
    """
    facts = gather_facts()
    if as_json:
        click.echo(json.dumps(report(facts), indent=2))
    else:
        show(facts)
    if enforcement.missing_facts(facts):
        sys.exit(EXIT_HOST_CANNOT)


def gather_facts() -> HostFacts:
    """The facts of the kernel, of other programs, and of the runtimes."""
    from cloche.environments.runtimes import runtime_probes
    from cloche.environments.toolchain import toolchain_probes
    from cloche.environments.workers import worker_probes
    from cloche.linux.probe import probe_host
    from cloche.settings import read_settings

    return probe_host().including(
        {**runtime_probes(), **worker_probes(), **toolchain_probes(read_settings())}
    )


def report(facts: HostFacts) -> dict[str, Any]:
    """Everything as JSON values.

    Keys: ``ok``, ``default_backend``, ``facts`` (name, verdict, evidence, fix, needed_by),
    ``backends`` (name → available, missing, controls: name → mechanism or null, exact, missing) and
    ``refused_versions`` (runtime, fixed_in, published, advisory).
    """
    from cloche.environments.runtimes import KNOWN_FLAWS

    missing = enforcement.missing_facts(facts)
    controls = {name: enforcement.enforce(facts, name) for name in enforcement.CONTROLS}
    backends: dict[str, Any] = {
        enforcement.DEFAULT_BACKEND: {
            "available": not missing,
            "missing": list(missing),
            "controls": {
                name: {
                    "mechanism": met.mechanism or None,
                    "exact": met.exact,
                    "missing": list(met.missing),
                }
                for name, met in controls.items()
            },
        }
    }
    for name in enforcement.UNBUILT_BACKENDS:
        backends[name] = {"available": False, "missing": ["backend"], "controls": {}}
    return {
        "ok": not missing,
        "default_backend": enforcement.DEFAULT_BACKEND,
        "facts": [
            {
                "name": fact.name,
                "verdict": fact.verdict.value,
                "evidence": fact.evidence,
                "fix": fact.fix,
                "needed_by": list(fact.needed_by),
            }
            for fact in facts.values()
        ],
        "backends": backends,
        "refused_versions": [
            {
                "runtime": flaw.runtime,
                "fixed_in": list(flaw.fixed_in),
                "published": flaw.published.isoformat(),
                "advisory": flaw.advisory,
            }
            for flaw in KNOWN_FLAWS
        ],
    }


def show(facts: HostFacts) -> None:
    """Prints the report for people; colours only on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=False)
    _show_facts(console, facts)
    _show_controls(console, facts)
    missing = enforcement.missing_facts(facts)
    if missing:
        line = f"Boxes cannot be made on this host; missing: {', '.join(missing)}."
        console.print(Text(line, style="bold red"))
    else:
        console.print(Text("Boxes can be made on this host.", style="bold green"))


def _show_facts(console: "Console", facts: HostFacts) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, title="This host", title_justify="left")
    table.add_column("fact", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("evidence", overflow="fold")
    for fact in facts.values():
        word, style = _MARKS[fact.verdict]
        cell = Text(fact.evidence)
        if not fact.ok:
            cell.append(f"\nfor: {', '.join(fact.needed_by)}", style="dim")
            if fact.fix:
                cell.append("\nfix: ", style="bold").append(fact.fix)
        table.add_row(fact.name, Text(word, style=style), cell)
    console.print(table)
    console.print()


def _show_controls(console: "Console", facts: HostFacts) -> None:
    from rich.table import Table
    from rich.text import Text

    title = f"What the {enforcement.DEFAULT_BACKEND} backend enforces with that"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("control", no_wrap=True)
    table.add_column("mechanism", overflow="fold")
    for control in enforcement.CONTROLS:
        met = enforcement.enforce(facts, control)
        lacks = ", ".join(met.missing)
        if not met.mechanism:
            cell = Text(f"refused; missing: {lacks}", style="red")
        else:
            cell = Text(met.mechanism)
            if not met.exact:
                cell.append(" (best effort)", style="yellow")
            if lacks:
                cell.append(f"\nbetter with: {lacks}", style="dim")
        table.add_row(control, cell)
    console.print(table)
    console.print()
    for name in enforcement.UNBUILT_BACKENDS:
        console.print(Text(f"This version has no {name} backend; its facts are shown only."))
    console.print()
