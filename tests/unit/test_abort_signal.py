"""Abort signals fire once, tell everybody who asked, and may be used from any thread."""

import threading

from cloche import AbortController


def test_a_signal_fires_once() -> None:
    controller, heard = AbortController(), []
    controller.signal.subscribe(lambda: heard.append("x"))
    assert not controller.signal.aborted
    controller.abort()
    controller.abort()
    assert controller.signal.aborted
    assert heard == ["x"]


def test_who_asks_late_is_told_at_once() -> None:
    controller, heard = AbortController(), []
    controller.abort()
    controller.signal.subscribe(lambda: heard.append("late"))
    assert heard == ["late"]


def test_who_is_not_interested_any_more_is_not_told() -> None:
    controller, heard = AbortController(), []

    def callback() -> None:
        heard.append("x")

    controller.signal.unsubscribe(callback)
    controller.signal.subscribe(callback)
    controller.signal.unsubscribe(callback)
    controller.abort()
    assert heard == []


def test_a_callback_may_use_the_signal_itself() -> None:
    controller, heard = AbortController(), []

    def callback() -> None:
        controller.signal.unsubscribe(callback)
        controller.signal.subscribe(lambda: heard.append("inner"))

    controller.signal.subscribe(callback)
    controller.abort()
    assert heard == ["inner"]


def test_every_subscriber_is_told_exactly_once_under_threads() -> None:
    for _ in range(50):
        controller, heard = AbortController(), []
        start = threading.Barrier(5)

        def subscribe(
            controller: AbortController = controller,
            heard: list[int] = heard,
            start: threading.Barrier = start,
        ) -> None:
            start.wait()
            for number in range(20):
                controller.signal.subscribe(lambda number=number: heard.append(number))  # type: ignore[misc]

        def abort(
            controller: AbortController = controller, start: threading.Barrier = start
        ) -> None:
            start.wait()
            controller.abort()

        threads = [threading.Thread(target=subscribe) for _ in range(4)]
        threads.append(threading.Thread(target=abort))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(heard) == sorted(list(range(20)) * 4)
