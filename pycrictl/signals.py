"""The signals that end this program, and work that they must not tear apart.

They raise an exception wherever the program is, so that it cleans up. Blocking them would not help:
another thread would get the signal, and the exception would come all the same.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

DEAF_S: Final = 0.5
"""For how long after one of them another counts as the same. They may come in pairs, from a
terminal and a supervisor or an impatient user, and the second would interrupt the cleaning up."""

_Handler = Callable[[int, FrameType | None], object]


@contextmanager
def undisturbed() -> Iterator[Callable[[], None]]:
    """Hold back what these signals do to this program until the end of the block.

    Python runs their handlers in the main thread only; in others nothing is to be held back.

    Yields:
        A function to call where they do no harm: it lets through what has come.
    """
    noted: list[tuple[_Handler, int]] = []

    def let_through() -> None:
        if noted:
            handler, number = noted.pop(0)
            handler(number, None)

    try:
        with ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                for number in ENDING:
                    stack.enter_context(_noting(number, noted))
            yield let_through
    finally:
        let_through()


@contextmanager
def _noting(number: int, noted: list[tuple[_Handler, int]]) -> Iterator[None]:
    handler = signal.getsignal(number)
    # Without a handler it is ignored, or ends the program at once, as SIGKILL does.
    if not callable(handler):
        yield
        return
    signal.signal(number, lambda *_: noted.append((handler, number)))
    try:
        yield
    finally:
        signal.signal(number, handler)
