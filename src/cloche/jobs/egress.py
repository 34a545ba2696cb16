"""What the steps of a job may connect to, and the account of what they tried."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from cloche.egress.rules import EgressRules, read_rules
from cloche.errors import InvalidRequestError
from cloche.model.job import Denial

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloche.egress.transparent import Decision
    from cloche.jobs.open_registry import OpenRegistry
    from cloche.model.job import JobSpec, Step

DECISIONS_LIMIT_COUNT: Final = 1_000
_MIB = 1024 * 1024


def rules_of(step: Step, spec: JobSpec) -> EgressRules:
    """What a step may connect to: by its own `egress`, else by the job's.

    Raises:
        InvalidRequestError: a host is none, or they are too many.
    """
    egress = spec.egress if step.egress is None else step.egress
    try:
        rules = read_rules(egress.allow)
    except ValueError as error:
        where = "egress" if step.egress is None else f"egress of step {step.name}"
        raise InvalidRequestError(f"{where}: allow: {error}", retry_safe=True) from error
    return dataclasses.replace(
        rules,
        limit_bytes=spec.limits.egress_mb * _MIB,
        concurrent_count=spec.limits.connections_count,
    )


def check_egress(steps: Iterable[Step], spec: JobSpec) -> None:
    """Raises InvalidRequestError as `rules_of`, before anything starts."""
    for step in steps:
        rules_of(step, spec)


class EgressAccount:
    """Each decision about a connection of a job's steps, the first ones of many.

    Attributes:
        decisions: As the audit record has them.
        denied: The refused ones.
    """

    def __init__(self) -> None:
        """Of a job that has connected to nothing."""
        self.decisions: list[dict[str, Any]] = []
        self.denied: list[Denial] = []

    def note(self, step: str, decision: Decision) -> None:
        """Takes a decision."""
        if len(self.decisions) >= DECISIONS_LIMIT_COUNT:
            return
        self.decisions.append({"step": step, **dataclasses.asdict(decision)})
        if not decision.allowed:
            place = str(dataclasses.replace(decision, reason=""))
            self.denied.append(Denial(step, place, decision.reason))

    def note_packages(self, step: str, opened: OpenRegistry) -> None:
        """Takes what a step had of an open registry, and what it was refused there."""
        for package in opened.fetched:
            if len(self.decisions) < DECISIONS_LIMIT_COUNT:
                entry = {"step": step, "package": str(package), "integrity": package.integrity}
                self.decisions.append({**entry, "allowed": True})
        self.denied += [Denial(step, what, why) for what, why in opened.mirror.denials]
