"""A block of lines at the cursor of a terminal that is redrawn in place.

Knows nothing of what the lines say. Between two calls the cursor rests at the start of the block's
*first* line. That makes a change of the window's size harmless: whether the terminal wraps the old
lines anew, cuts them or scrolls them, it keeps the cursor on the text where it was, so everything
from there to the end of the screen is ours, and the next frame covers it. No state of the terminal
is changed between two frames (the cursor stays visible, lines wrap), so that there is nothing to
repair when the process is killed.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import threading
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Final, TextIO

ERASE_LINE: Final = "\x1b[K"
ERASE_BELOW_FIRST: Final = " \x1b[J\r"
"""From column 1: what is erased from the very first cell, tmux keeps in its scrollback."""

WRAP_OFF: Final = "\x1b[?7l"
WRAP_ON: Final = "\x1b[?7h"

BUFFER_BYTES: Final = 256 * 1024
"""More than a frame has."""


class TerminalBlock:
    """The lines, and what the terminal shows of them.

    Writes to the descriptor of ``stream`` through a buffer of its own. A frame that a signal
    interrupts is completed by the next write, so the cursor is never lost, not even when Ctrl-C
    comes in the middle. A terminal that goes away (the session was closed) is not an error; from
    then on nothing is drawn.

    Ctrl-Z removes the block from the screen before the process stops, so that the shell's prompt
    does not appear in the middle of it.
    """

    def __init__(self, stream: TextIO) -> None:
        stream.flush()
        # Unlike os.write, a buffer knows how much was written when a signal raises an exception.
        raw = io.FileIO(stream.fileno(), "w", closefd=False)
        self._out = io.BufferedWriter(raw, BUFFER_BYTES)
        self._encoding = stream.encoding
        self._lines: list[str] = []
        self._size = (0, 0)
        self._catches_stop = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
        )
        if self._catches_stop:
            signal.signal(signal.SIGTSTP, self._stop)

    def draw(self, lines: Sequence[str], *, size: tuple[int, int], whole: bool = False) -> None:
        """Show lines, none wider than the screen, in place of what the block was.

        Only lines that differ are written, unless ``whole`` or a new ``size`` (columns, rows) asks
        for all of them. Of more lines than the screen has rows the last ones are shown.
        """
        lines = list(lines[-size[1] :])
        old = self._lines
        whole = whole or size != self._size or not old
        shrinks = len(lines) < len(old)
        if not whole and lines == old:
            return
        frame = [WRAP_OFF, "\r"]
        last = len(lines) - 1
        for index, line in enumerate(lines):
            if whole or index >= len(old) or line != old[index] or (index == last and shrinks):
                # Erased first, a line forgets that it was wrapped: else a terminal that grows
                # again would join it with the next. It may also fill the last column.
                frame.append(ERASE_LINE)
                if index == last and (whole or shrinks):
                    frame.append(ERASE_BELOW_FIRST)
                frame.append(line)
            if index < last:
                frame.append("\r\n")
        if not lines:
            frame.append(ERASE_BELOW_FIRST)
        frame.append("\r")
        if last > 0:
            frame.append(f"\x1b[{last}A")
        frame.append(WRAP_ON)
        self._lines, self._size = lines, size
        self._send("".join(frame))

    def print_above(self, text: str) -> None:
        """Leave one line of text, which may wrap, above the block."""
        lines, size = self._lines, self._size
        self._erase(f"{text}\r\n")
        if lines:
            self.draw(lines, size=size)

    def close(self, lines: Iterable[str] = ()) -> None:
        """Put lines, which may wrap, in the block's place, with the cursor below them."""
        if self._catches_stop:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            self._catches_stop = False
        self._erase("".join(f"{line}\r\n" for line in lines))

    def _erase(self, successor: str = "") -> None:
        if self._lines:
            # Ctrl-C may make the kernel discard the end of a frame: lines wrap again in any case.
            successor = f"{WRAP_ON}\r{ERASE_BELOW_FIRST}{successor}"
        self._send(successor)
        self._lines = []

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # a frame is just being written: it stays
            self._erase()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._lines = []  # continued: the shell has written where the block may have been

    def _send(self, text: str) -> None:
        if self._out.closed:
            return
        self._out.write(text.encode(self._encoding, "replace"))
        try:
            while True:
                try:
                    return self._out.flush()
                except BlockingIOError:  # another program has made the shared terminal non-blocking
                    select.select([], [self._out], [])
        except OSError:
            self._out.raw.close()
