"""Regular expressions with which users select objects."""

from __future__ import annotations

import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from pycrictl.errors import UsageError
from pycrictl.units import quote

LIMIT_S: Final = 2.0
"""The longest time that a pattern may take for one name."""


class Pattern:
    """A pattern to search names with, in Python's dialect.

    As for crictl, classes of characters are ASCII. What the dialects read differently, such as
    ``[[:alpha:]]``, is refused. ``option`` is where it was typed, for messages.
    """

    def __init__(self, text: str, *, option: str) -> None:
        self._text = text
        self._option = option
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            try:
                self._compiled = re.compile(text, re.ASCII)
                return
            except FutureWarning:
                reason = "write [a-z] in place of classes such as [[:lower:]]"
            except (re.error, OverflowError, RecursionError) as exc:
                reason = str(exc)
        raise UsageError(f"{quote(text)} for {option} is not a valid regular expression: {reason}")

    def matches(self, name: str) -> bool:
        """Search the pattern in a name; a UsageError if that takes longer than ``LIMIT_S``."""
        try:
            with _limited():
                return self._compiled.search(name) is not None
        except _TookTooLong:
            raise UsageError(
                f"{quote(self._text)} for {self._option} takes too long to match",
                hint="avoid repetitions within repetitions, such as (a+)+",
            ) from None


class _TookTooLong(Exception):
    """The time is over."""


def _expire(signum: int, frame: FrameType | None) -> None:
    raise _TookTooLong


@contextmanager
def _limited() -> Iterator[None]:
    """Interrupt the block after ``LIMIT_S``; only in the main thread, which gets the signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _expire)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
