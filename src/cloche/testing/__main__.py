"""`python -m cloche.testing`: does this host keep the contract?"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Final

import click

from cloche.errors import UnavailableError
from cloche.testing.conformance import PROMISES
from cloche.testing.document import document
from cloche.testing.subjects import SUBJECTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloche.testing.subject import Promise, Subject

_PASSED: Final = "passed"
_FAILED: Final = "FAILED"
_NOT_HERE: Final = "does not apply"
# Source: sysexits.h, EX_UNAVAILABLE.
_UNAVAILABLE: Final = 69


@click.command()
@click.option("--sandbox", type=click.Choice(["process", "worker"]), help="Only this kind.")
@click.option(
    "--runtime", type=click.Choice(["bun", "node", "deno", "python"]), help="Only this one."
)
@click.option("--only", metavar="NAME", help="Only promises with this number, name or topic.")
@click.option("--document", "as_document", is_flag=True, help="Write the list as Markdown.")
def main(sandbox: str | None, runtime: str | None, only: str | None, as_document: bool) -> None:
    """Looks whether the sandboxes of this host keep the contract's promises.

    Exits with 0 when each that applies is kept, with 1 when one is not, with 69 when none of the
    sandboxes can be had here.
    """
    if as_document:
        click.echo(document(PROMISES), nl=False)
        return
    promises = [promise for promise in PROMISES if only is None or _is_meant(promise, only)]
    if not promises:
        raise click.UsageError(f"no promise has {only!r} in its name")
    chosen = [make() for make in SUBJECTS.values()]
    subjects = [
        subject
        for subject in chosen
        if sandbox in (None, subject.kind)
        and (runtime is None or (subject.kind, runtime) == ("process", subject.runtimes[0]))
    ]
    if not subjects:
        raise click.UsageError(f"the {sandbox} sandbox has engines of its own, and no {runtime}")
    counts: Counter[str] = Counter()
    for subject in subjects:
        counts += asyncio.run(_look_at(subject, promises))
    if not counts:
        sys.exit(_UNAVAILABLE)
    click.echo(f"in all: {', '.join(f'{count} {what}' for what, count in counts.items())}")
    sys.exit(1 if counts[_FAILED] else 0)


def _is_meant(promise: Promise, only: str) -> bool:
    word = only.lower().replace("_", " ")
    return word == str(promise.number) or word in f"{promise.topic} {promise.name}".lower()


async def _look_at(subject: Subject, promises: Sequence[Promise]) -> Counter[str]:
    counts: Counter[str] = Counter()
    click.echo(f"{subject.name}: {', '.join(subject.languages)}")
    async with subject:
        try:
            await subject.run("1")
        except UnavailableError as error:
            click.echo(f"  not here: {error}\n")
            return counts
        for promise in promises:
            state, told = await _state_of(promise, subject)
            counts[state] += 1
            click.echo(f"  {promise.number:>4}  {state:<14}  {promise.name}{told}")
    click.echo(f"  {', '.join(f'{count} {what}' for what, count in counts.items())}\n")
    return counts


async def _state_of(promise: Promise, subject: Subject) -> tuple[str, str]:
    """What became of it, and what else there is to say."""
    if (reason := promise.why_not(subject)) is not None:
        return _NOT_HERE, f": {reason}"
    started = time.monotonic()
    try:
        await promise.check(subject)
    except AssertionError as error:
        return _FAILED, f"\n        {error}"
    except Exception as error:
        lines = "".join(traceback.format_exception(error)).rstrip().replace("\n", "\n        ")
        return _FAILED, f"\n        {lines}"
    return _PASSED, f" ({time.monotonic() - started:.2f} s)"


if __name__ == "__main__":
    main()
