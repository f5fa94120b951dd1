"""An end for a program that is held in the kernel.

A file system that has stopped to answer, as one over a network may, holds whoever asks it for
something. The main thread, which deals with signals, does not get to see them then; another thread
can see that they wait, and end the program. That gets through wherever SIGKILL does.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_S: Final = 1.0
"""How long a signal must have waited; it is looked at that often."""

_ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM})


@contextmanager
def ended_if_stuck(on_end: Callable[[int], None]) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the program while it cannot be interrupted.

    Nothing is cleared up then, as with SIGKILL.

    Args:
        on_end: called before, with the signal's number, by another thread than this one.
    """
    is_over = threading.Event()
    threading.Thread(target=_watch, args=(is_over, on_end), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _watch(is_over: threading.Event, on_end: Callable[[int], None]) -> None:
    # They are for the main thread; to a thread that blocks them they show as pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    waited: set[int] = set()
    while not is_over.wait(PATIENCE_S):
        waiting = signal.sigpending() & _ENDING
        if waiting & waited:
            number = min(waiting & waited)
            on_end(number)
            os._exit(128 + number)
        waited = waiting
