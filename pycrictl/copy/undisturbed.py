"""Work that no signal may tear apart: each of its steps is done, or not begun.

A signal that ends the program does so by an exception wherever the program is. Blocking it would
not help: another thread takes it then, and the exception comes all the same.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_Handler = Callable[[int, FrameType | None], object]


@contextmanager
def undisturbed() -> Iterator[Callable[[], None]]:
    """Hold back what signals do to this program until the end of the block.

    Python runs their handlers in the main thread only; in others nothing is to be held back.

    Yields:
        A function for moments when it does no harm: it lets through what has come.
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
