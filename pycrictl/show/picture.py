"""Text that is redrawn in place, on a whole terminal.

The cursor rests below the picture and no mode of the terminal is changed between two frames, so
there is nothing to repair when the process is killed or stopped.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Final, TextIO

from pycrictl.environ import terminal_size
from pycrictl.show.colours import plain
from pycrictl.show.displays.block import ERASE_BELOW, ERASE_LINE, WRAP_OFF, WRAP_ON
from pycrictl.show.displays.phrases import cut, width
from pycrictl.show.render import CLEAR_SCREEN

HOME: Final = "\x1b[H"

_SIGNALS: Final = (signal.SIGWINCH, signal.SIGCONT)


def clip(text: str, *, columns: int, rows: int) -> list[str]:
    """Return the first lines of a text as far as they fit. Pure.

    A row stays free for the cursor. Where lines do not fit, the last one says how many.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    room = max(rows - 1, 1)
    if len(lines) > room:
        left_out = len(lines) - room + 1
        lines[room - 1 :] = [f"… {left_out} more"]
    return [_clipped(line.expandtabs(), columns) for line in lines]


def _clipped(line: str, columns: int) -> str:
    bare = plain(line)
    return line if width(bare) <= columns else cut(bare, columns)


class Picture:
    """What a terminal shows of a text that changes.

    It is painted when the text or the size of the window changes, and at once when the process
    continues after Ctrl-Z. Until it is closed, it blocks SIGWINCH and SIGCONT in its thread.
    """

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self._stream = stream
        self._environ = environ
        self._text = ""
        self._seen: tuple[list[str], tuple[int, int]] | None = None
        self._former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def show(self, text: str) -> None:
        """Show another text; its control characters are line breaks and tabs only."""
        self._text = text
        self._paint()

    def pause(self, seconds: float) -> None:
        """Wait; meanwhile the picture follows the size of the window."""
        ends_at = time.monotonic() + seconds
        while (left_s := ends_at - time.monotonic()) > 0:
            received = signal.sigtimedwait(_SIGNALS, left_s)
            if received is None:
                return
            if received.si_signo == signal.SIGCONT:
                self._seen = None  # others have written there
            self._paint()

    def close(self) -> None:
        try:
            if self._seen is not None:
                # Ctrl-C makes the kernel forget what was not yet shown, and leaves a ^C.
                self._write(*self._seen)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._former_mask)

    def _paint(self) -> None:
        columns, rows = terminal_size(self._stream, self._environ)
        seen = clip(self._text, columns=columns, rows=rows), (columns, rows)
        if seen == self._seen:
            return
        is_first, self._seen = self._seen is None, seen
        self._write(*seen, before=CLEAR_SCREEN if is_first else HOME)

    def _write(self, lines: list[str], size: tuple[int, int], *, before: str = HOME) -> None:
        columns, rows = size
        frame = [before, WRAP_OFF]
        for number, line in enumerate(lines, 1):
            # In the last column a terminal would erase the character that stands there.
            erase = ERASE_LINE if width(line) < columns else ""
            frame += (line, erase, "\r\n" if number < rows else "\r")
        if len(lines) < rows:
            frame.append(ERASE_BELOW)
        frame.append(WRAP_ON)
        encoding = self._stream.encoding
        self._stream.write("".join(frame).encode(encoding, "replace").decode(encoding))
        self._stream.flush()
