"""The signals that end this program, and work that they must not tear apart.

They raise an exception wherever the program is, so that it cleans up. Blocking them would not help:
another thread would get the signal, and the exception would come all the same.

It may come anywhere: in the middle of a constructor, before a coroutine is begun, in a destructor.
What such an object complains about when it is destroyed is not reported.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

REPEAT_S: Final = 0.5
"""For how long after a signal another one counts as the same. They may come in pairs, from a
terminal and a supervisor or an impatient user, and the second would interrupt the clean-up."""

_AGAIN_S: Final = 0.01
"""How long after it was dropped what ends the program is raised again."""

_Handler = Callable[[int, FrameType | None], object]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back what these signals do to this program until the end of the block.

    Python runs their handlers in the main thread only; in others nothing is to be held back.
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
    # Without a handler it is ignored, or ends the program at once, as SIGKILL does.
    if not callable(handler):
        yield
        return
    signal.signal(number, lambda *_: noted.append((handler, number)))
    try:
        yield
    finally:
        signal.signal(number, handler)


@contextmanager
def left_to_main_thread() -> Iterator[None]:
    """Let no thread that is started in the block take these signals.

    One that a library's thread has taken does not interrupt what the main thread waits for.
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
    """Raise the like of what ends the program, from the handler of a signal.

    Where Python drops that, in a destructor, another is raised. Nothing more is reported of what is
    destroyed, and no warnings.
    """
    sys.unraisablehook = _Dropped(ending)
    sys.warnoptions.append("ignore")  # read when the module is imported, for the first warning
    if (warnings := sys.modules.get("warnings")) is not None:
        warnings.simplefilter("ignore")
    raise _like(ending)


def ending() -> BaseException | None:
    """Return the like of what was raised to end the program; None if nothing was."""
    hook = sys.unraisablehook
    return hook.ending if isinstance(hook, _Dropped) else None


class _Dropped:
    """Takes the exceptions that Python drops while the program is ended; see ``raise_ending``.

    It holds none that was raised: that would keep all alive that is to be destroyed.
    """

    def __init__(self, ending: BaseException) -> None:
        self.ending = ending

    def __call__(self, dropped: UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, type(self.ending)):
            signal.signal(signal.SIGALRM, self._raise)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)

    def _raise(self, number: int, frame: FrameType | None) -> NoReturn:
        raise _like(self.ending)


def _like(ending: BaseException) -> BaseException:
    return type(ending)(*ending.args)
