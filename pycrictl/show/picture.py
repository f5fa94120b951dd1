"""Text that is redrawn in place, on a whole terminal."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Final, TextIO

from pycrictl.environ import terminal_size
from pycrictl.show.colours import plain
from pycrictl.show.displays.block import TerminalBlock
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
        self._text: str | None = None
        self._lines: list[str] = []
        self._block = TerminalBlock(stream)
        self._former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def show(self, text: str) -> None:
        """Show another text; its control characters are line breaks and tabs only."""
        before = CLEAR_SCREEN if self._text is None else ""
        self._text = text
        self._paint(before)

    def pause(self, seconds: float) -> None:
        """Wait; meanwhile the picture follows the size of the window."""
        ends_at = time.monotonic() + seconds
        while (left_s := ends_at - time.monotonic()) > 0:
            received = signal.sigtimedwait(_SIGNALS, left_s)
            if received is None:
                return
            # After a stop others have written there.
            self._paint(CLEAR_SCREEN if received.si_signo == signal.SIGCONT else HOME)

    def close(self) -> None:
        try:
            self._block.close(self._lines)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._former_mask)

    def _paint(self, before: str) -> None:
        columns, rows = terminal_size(self._stream, self._environ)
        self._lines = clip(self._text or "", columns=columns, rows=rows)
        if before:
            self._stream.write(before)
            self._stream.flush()
        self._block.draw(self._lines, size=(columns, rows), whole=bool(before))
