"""An end for a program that is stuck in the kernel.

A file system that has stopped responding, as one over a network may, blocks every process that uses
it. The main thread, which handles signals, does not get to see them then; another thread can see
that they are pending, and end the program. That works wherever SIGKILL does.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_S: Final = 1.0
"""How long a signal must have been pending, and how often that is looked at."""

_ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM})


@contextmanager
def ended_if_stuck(on_end: Callable[[int], None]) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the program while it cannot be interrupted.

    Nothing is cleared up then, as with SIGKILL.

    Args:
        on_end: called before that, with the signal's number, in another thread.
    """
    is_over = threading.Event()
    threading.Thread(target=_watch, args=(is_over, on_end), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _watch(is_over: threading.Event, on_end: Callable[[int], None]) -> None:
    # They are for the main thread; a thread that blocks them sees them as pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    waited: set[int] = set()
    while not is_over.wait(PATIENCE_S):
        waiting = signal.sigpending() & _ENDING
        if waiting & waited:
            number = min(waiting & waited)
            on_end(number)
            os._exit(128 + number)
        waited = waiting
