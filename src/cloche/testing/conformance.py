"""Every promise, in the order of its number."""

from __future__ import annotations

from typing import Final

from cloche.testing.promises import (
    aborting,
    code,
    contexts,
    disposal,
    errors,
    fields,
    files,
    hosts,
    isolation,
    limits,
    networks,
    output,
    programs,
    queueing,
    results,
    tools,
    values,
    warmth,
)
from cloche.testing.subject import Promise

_TOPICS: Final = (
    fields,
    code,
    contexts,
    values,
    errors,
    output,
    limits,
    aborting,
    disposal,
    queueing,
    tools,
    results,
    isolation,
    files,
    programs,
    networks,
    hosts,
    warmth,
)

PROMISES: Final[tuple[Promise, ...]] = tuple(
    thing for topic in _TOPICS for thing in vars(topic).values() if isinstance(thing, Promise)
)
