"""Blocking calls in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def call_in_thread(function: Callable[[], T]) -> Future[T]:
    """Call a function in a daemon thread; return a future of its outcome that cannot be cancelled.

    Unlike a pool's threads, the thread is never waited for: after Ctrl-C, the program ends at once.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def call() -> None:
        try:
            outcome.set_result(function())
        except BaseException as exc:  # passed on, whatever it is
            outcome.set_exception(exc)

    threading.Thread(target=call, daemon=True).start()
    return outcome
