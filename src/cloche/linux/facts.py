"""Facts about a host: what each one is, and the lazy collection of them."""

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """What a probe found out."""

    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"  # the probe itself could not be carried out; its evidence says why


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that this host has or lacks.

    Attributes:
        name: in kebab-case, as error messages and ``require`` name it.
        evidence: what was tried or read, and what came of it; one line.
        fix: the command or change that mends it; empty when the verdict is ok or nothing helps.
        needed_by: the backends and controls that rest on it.
    """

    name: str
    verdict: Verdict
    evidence: str
    fix: str = ""
    needed_by: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it is there; False also when nobody knows."""
        return self.verdict is Verdict.OK


Probe = Callable[[], Fact]


class HostFacts(Mapping[str, Fact]):
    """Facts by name, each found out when it is first asked for and then kept.

    A probe that fails in an unforeseen way becomes a fact with the verdict unknown. Not for use
    from several threads at once before the facts in question are known.
    """

    def __init__(self, probes: Mapping[str, Probe]) -> None:
        self._probes = dict(probes)
        self._known: dict[str, Fact] = {}

    def __getitem__(self, name: str) -> Fact:
        if name not in self._known:
            try:
                self._known[name] = self._probes[name]()
            except (OSError, ValueError) as error:
                self._known[name] = Fact(name, Verdict.UNKNOWN, f"the probe failed: {error}")
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._probes)

    def __len__(self) -> int:
        return len(self._probes)

    def including(self, probes: Mapping[str, Probe]) -> "HostFacts":
        """These facts and more, such as those of rooms above this one; what is known stays."""
        both = HostFacts({**self._probes, **probes})
        both._known.update(self._known)
        return both
