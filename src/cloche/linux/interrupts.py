"""Ctrl-C and its like while a run is in flight."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


@contextlib.contextmanager
def on_interrupt(callback: Callable[[], None]) -> Iterator[None]:
    """Calls `callback` on the first SIGINT, SIGTERM or SIGHUP; ends the process on the next.

    The hard end leaves nothing behind either: the launcher sees that its owner is gone.

    Requires: the main thread.
    """
    fired = False

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal fired
        if fired:
            os._exit(128 + number)
        fired = True
        callback()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
