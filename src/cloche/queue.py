"""One bounded queue in front of a number of slots; first come, first served."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from cloche.errors import OverloadedError


class SlotQueue:
    """Hands out slots in order of arrival. Belongs to one event loop."""

    def __init__(self, slots_count: int, max_pending: int) -> None:
        """A queue with that many slots, and that many places to wait."""
        self._slots_count = self._free = slots_count
        self._max_pending = max_pending
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def taken_count(self) -> int:
        """How many slots are taken."""
        return self._slots_count - self._free

    def try_acquire(self) -> bool:
        """Takes a slot where one is free; False where one has to be waited for."""
        if self._free > 0:
            self._free -= 1
            return True
        return False

    async def acquire(self, timeout_ms: int) -> None:
        """Waits for a slot; `release` it.

        Raises:
            OverloadedError: no place to wait, or the wait took longer than `timeout_ms`.
        """
        if self.try_acquire():
            return
        if len(self._waiting) >= self._max_pending:
            raise OverloadedError(
                f"{len(self._waiting)} runs are waiting already (max_pending); retry later",
                retry_safe=True,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await turn
        except BaseException as error:
            if turn.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove(turn)
            else:  # the slot came in the same instant: pass it on
                self.release()
            if isinstance(error, TimeoutError):
                raise OverloadedError(
                    f"no slot was free within {timeout_ms} ms (queue_timeout_ms); retry later",
                    retry_safe=True,
                ) from None
            raise

    def release(self) -> None:
        """Gives a slot back, to whoever has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
