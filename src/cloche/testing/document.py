"""The list of promises as a document: `docs/conformance.md`."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloche.testing.subject import Promise

HEAD: Final = """# Conformance

What every sandbox promises, as code: `cloche.testing`. A backend or an engine keeps the contract
when it keeps these.

- `python -m cloche.testing` looks at the sandboxes of this host; `--sandbox worker`, `--runtime
  node` and `--only queue` narrow it down. It exits with 0 when every promise that applies is kept.
- In a test suite of your own: `from cloche.testing import PROMISES, Subject`, a parametrised test,
  and `asyncio.run(promise.check(subject))`; `promise.why_not(subject)` says where one does not
  apply. A `Subject` makes your sandboxes and says what they have.

Numbers are never used again. "For" says what a sandbox must have; "without files" is a promise of
those that have none: the refusal.

This page is made by `python -m cloche.testing --document`.
"""


def document(promises: Sequence[Promise]) -> str:
    """The page, in Markdown."""
    parts = [HEAD]
    for topic, group in groupby(promises, key=lambda promise: promise.topic):
        rows = "".join(_row(promise) for promise in group)
        parts.append(f"\n## {topic}\n\n| | promise | for |\n|---|---|---|\n{rows}")
    return "".join(parts)


def _row(promise: Promise) -> str:
    conditions = [
        *((f"{kind} sandbox" for kind in promise.kinds) if len(promise.kinds) == 1 else ()),
        *promise.needs,
        *(f"without {need}" for need in promise.without),
    ]
    text = promise.text.replace("|", "\\|")
    return f"| {promise.number} | {text} | {', '.join(conditions) or 'all'} |\n"
