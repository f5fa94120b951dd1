"""The signals that end this program, and work that they must not interrupt.

They raise an exception wherever the main thread is, so that it cleans up. Blocking them would not
help: another thread would get the signal, and the exception would be raised all the same.

The exception may come anywhere: inside a constructor, before a coroutine starts, in a destructor.
Errors while such half-made objects are destroyed are not reported.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final, NoReturn

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

REPEAT_S: Final = 0.5
"""For how long after a signal another one counts as a repetition. Signals may arrive in pairs, from
a terminal and a supervisor or an impatient user, and the second would interrupt the clean-up."""

SIGNAL_BASE: Final = 128
"""A program ended by signal N exits with this plus N, as in shells."""

_Handler = Callable[[int, FrameType | None], object]


class Terminated(BaseException):
    """Raised when a signal other than SIGINT ends the program, so ``finally`` blocks run."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = SIGNAL_BASE + number


@contextmanager
def undisturbed() -> Iterator[None]:
    """Defer the handlers of these signals until the end of the block.

    Python runs them in the main thread only; in other threads there is nothing to defer.
    """
    noted: list[tuple[_Handler, int]] = []
    try:
        with ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                for number in ENDING:
                    stack.enter_context(_noting(number, noted))
            yield
    finally:
        for handler, noted_number in noted[:1]:
            handler(noted_number, None)


@contextmanager
def _noting(number: int, noted: list[tuple[_Handler, int]]) -> Iterator[None]:
    handler = signal.getsignal(number)
    # Without a handler the signal is ignored, or ends the program at once like SIGKILL.
    if not callable(handler):
        yield
        return
    signal.signal(number, lambda *_: noted.append((handler, number)))
    try:
        yield
    finally:
        signal.signal(number, handler)


@contextmanager
def blocked() -> Iterator[None]:
    """Block these signals in this thread, and for good in threads that are started in the block.

    A library's thread is started in such a block: if it got a signal, a wait of the main thread
    would go on.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_kill() -> None:
    """Let these signals end the program at once, unless they are ignored: nothing is left to do."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def raise_ending(ending: BaseException) -> NoReturn:
    """Raise the exception that ends the program, from the handler of a signal.

    From then on neither errors in destructors nor warnings are reported. If Python drops the
    exception, as in a destructor, the program goes on until the next signal.
    """
    raised[:] = [type(ending)(*ending.args)]
    sys.unraisablehook = lambda dropped: None
    sys.warnoptions.append("ignore")  # read when the module is imported, for the first warning
    if (warnings := sys.modules.get("warnings")) is not None:
        warnings.simplefilter("ignore")
    raise ending


def ending() -> BaseException | None:
    """Return a copy of the exception raised to end the program; None if none was."""
    return raised[0] if raised else None


raised: Final[list[BaseException]] = []
"""A copy of the exception that ends the program: the raised one would keep alive the objects of its
traceback."""
