"""Ending a run from outside: a controller fires, a signal tells."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class AbortSignal:
    """Handed to `run`; fires at most once. Thread-safe."""

    def __init__(self) -> None:
        """Made by `AbortController`."""
        # Reentrant: a handler of an operating system's signal fires between any two steps of the
        # thread that it interrupts, also while that subscribes.
        self._lock = threading.RLock()
        self._aborted = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def aborted(self) -> bool:
        """True once it has fired."""
        return self._aborted

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when it fires, at once if it has; from the firing thread."""
        with self._lock:
            self._callbacks.append(callback)
            if not self._aborted or callback not in self._callbacks:
                return
            self._callbacks.remove(callback)
        callback()

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Forgets a callback; no error when it is unknown."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def _fire(self) -> None:
        with self._lock:
            if self._aborted:
                return
            self._aborted = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class AbortController:
    """Holds the right to end runs.

    Attributes:
        signal: What to hand to `run`.
    """

    def __init__(self) -> None:
        """Makes a fresh signal."""
        self.signal = AbortSignal()

    def abort(self) -> None:
        """Ends every run that has the signal; idempotent, from any thread."""
        self.signal._fire()
