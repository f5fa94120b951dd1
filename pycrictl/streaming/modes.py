"""What a program has switched in a terminal: a pure core, for one that dies before its time.

Full-screen programs change modes of the terminal by escape sequences and undo it as they leave.
One that is killed or cut off leaves a terminal without a cursor, in the other screen, or reporting
every move of the mouse.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["Modes"]

_SEQUENCE: Final = re.compile(rb"\x1b(?:\[\?([0-9;]{1,60})([hl])|\[([0-9;:]{0,60})m|([=>])|(c))")
"""DECSET and DECRST, SGR, DECKPAM and DECKPNM, RIS (ECMA-48 and xterm's control sequences)."""

_LONGEST_BYTES: Final = 64
_ON_BY_NATURE: Final = frozenset({7, 25})  # wrapped lines, the cursor
_OFF_BY_NATURE: Final = frozenset(
    # cursor keys, reverse video, mouse and focus, pasting, held output, the other screen
    {1, 5, 9, *range(1000, 1007), 1015, 1016, 2004, 2026, 47, 1047, 1049}
)
_PLAIN: Final = frozenset({b"", b"0", b"00"})


class Modes:
    """Follows what is written to a terminal, and knows what makes it an ordinary one again."""

    def __init__(self) -> None:
        self._switched: set[int] = set()
        self._has_style = False
        self._has_keypad = False
        self._tail = b""

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take in the next bytes written. Sequences may be torn anywhere."""
        text = self._tail + data
        for modes, switch, style, keypad, reset in _SEQUENCE.findall(text):
            if switch:
                self._switch({int(mode) for mode in modes.split(b";") if mode}, switch == b"h")
            elif keypad:
                self._has_keypad = keypad == b"="
            elif reset:
                self._switched.clear()
                self._has_style = self._has_keypad = False
            else:
                self._has_style = style not in _PLAIN
        # The last sequence is read again with what follows it, which changes nothing.
        start = text.rfind(b"\x1b", max(0, len(text) - _LONGEST_BYTES))
        self._tail = text[start:] if start >= 0 else b""

    def undoing(self) -> bytes:
        """Return what makes the terminal ordinary; empty if it is."""
        pieces = [_switching(mode, is_on=mode in _ON_BY_NATURE) for mode in sorted(self._switched)]
        if self._has_keypad:
            pieces.append(b"\x1b>")
        if self._has_style:
            pieces.append(b"\x1b[m")
        return b"".join(pieces)

    def redoing(self) -> bytes:
        """Return what takes back ``undoing``, except for a style, which comes with each text."""
        pieces = [
            _switching(mode, is_on=mode not in _ON_BY_NATURE) for mode in sorted(self._switched)
        ]
        if self._has_keypad:
            pieces.append(b"\x1b=")
        return b"".join(pieces)

    def _switch(self, modes: set[int], is_on: bool) -> None:
        known = _OFF_BY_NATURE if is_on else _ON_BY_NATURE
        self._switched -= modes
        self._switched |= modes & known


def _switching(mode: int, *, is_on: bool) -> bytes:
    return b"\x1b[?%d%s" % (mode, b"h" if is_on else b"l")
