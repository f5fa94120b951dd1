"""The terminal of a session: raw mode, size, and the keys that detach from the session."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SWITCH: Final = re.compile(rb"\x1b\[\?([0-9;]{1,60})([hl])")
"""DECSET and DECRST (xterm's control sequences)."""

_LONGEST_BYTES: Final = 64
_ON_BY_DEFAULT: Final = frozenset({7, 25})  # wrapped lines, the cursor
_OFF_BY_DEFAULT: Final = frozenset(
    # cursor keys, reverse video, mouse and focus, pasting, held output, the other screen
    {1, 5, 9, *range(1000, 1007), 1015, 1016, 2004, 2026, 47, 1047, 1049}
)
_PLAIN: Final = b"\x1b>\x1b[m"  # numeric keypad and no style: DECKPNM, SGR


class Modes:
    """Tracks the modes that output sets on a terminal, and returns the sequences that undo them."""

    def __init__(self) -> None:
        self._switched: set[int] = set()
        self._tail = b""

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Read the next bytes written. Sequences may be split anywhere."""
        text = self._tail + data
        for numbers, switch in _SWITCH.findall(text):
            modes = {int(number) for number in numbers.split(b";") if number}
            known = _OFF_BY_DEFAULT if switch == b"h" else _ON_BY_DEFAULT
            self._switched = (self._switched - modes) | (modes & known)
        # The last sequence is read again with the next bytes, which is harmless.
        start = text.rfind(b"\x1b", max(0, len(text) - _LONGEST_BYTES))
        self._tail = text[start:] if start >= 0 else b""

    def undoing(self) -> bytes:
        modes = [
            b"\x1b[?%d%s" % (mode, b"h" if mode in _ON_BY_DEFAULT else b"l")
            for mode in sorted(self._switched)
        ]
        return b"".join([*modes, _PLAIN]) if modes else b""


DETACH_KEYS: Final = b"\x10\x11"
"""Ctrl-P, Ctrl-Q."""


class DetachKeys:
    """Finds the keys that detach from a session in typed input.

    The first of the keys is held back until the next key is known.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Read typed bytes; return the bytes to send, and whether to detach after them."""
        data = self._held + data
        before, keys, _ = data.partition(DETACH_KEYS)
        if keys:
            return before, True
        self._held = DETACH_KEYS[:1] if data.endswith(DETACH_KEYS[:1]) else b""
        return data.removesuffix(self._held) if self._held else data, False


class Terminal:
    """A terminal that may be made raw, and is restored when the ``with`` statement ends.

    ``screen`` is the descriptor of the output, if that is a terminal.
    """

    def __init__(self, descriptor: int, *, screen: int | None = None) -> None:
        self._descriptor = descriptor
        self._settings = termios.tcgetattr(descriptor)
        self._screen = screen
        self._modes = Modes()

    def make_raw(self) -> None:
        """Pass on each key as it is typed, even Ctrl-C, without echo."""
        tty.setraw(self._descriptor, termios.TCSANOW)

    def showed(self, data: bytes | bytearray | memoryview) -> None:
        if self._screen is not None:
            self._modes.feed(data)

    def restore(self) -> None:
        """Restore the terminal's mode, if the terminal still exists."""
        try:
            # Without waiting for output, which never drains on a terminal stopped by Ctrl-S.
            termios.tcsetattr(self._descriptor, termios.TCSANOW, self._settings)
            # A screen that accepts no output must not delay the end.
            if self._screen is not None and select.select([], [self._screen], [], 0)[1]:
                os.write(self._screen, self._modes.undoing())
        except (termios.error, OSError):
            pass

    def size(self) -> tuple[int, int]:
        try:
            columns, rows = os.get_terminal_size(self._descriptor)
        except OSError:
            return 0, 0
        return columns, rows

    @contextmanager
    def following(self, changed: Callable[[], None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, changed)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()
