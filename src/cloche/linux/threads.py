"""Work in threads that the event loop waits for, whatever becomes of who asked for it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


async def finish_in_thread(
    function: Callable[..., _T],
    *arguments: Any,
    on_cancel: Callable[[], None] = lambda: None,
    let_go: Callable[[_T], object] = lambda _: None,
) -> _T:
    """Runs a function in a thread; not even cancellation leaves before the thread does.

    What it works with (descriptors, folders) is closed and removed right after.

    Args:
        function: Called with `arguments`; what it raises is raised here.
        on_cancel: Called when nobody waits any more, to have it end early.
        let_go: Takes what it gave all the same, where nobody waits any more.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        on_cancel()
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        if work.exception() is None:
            let_go(work.result())
        raise
