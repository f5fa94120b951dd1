"""What the two ends of a session say to each other: frames over the streams of ssh. Pure.

A frame is a letter, the length of its content as four bytes, and the content. The host's end begins
with a line that contains ``MARK``, since a shell's start files may print before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from pycrictl.errors import PycrictlError

MARK: Final = "pycrictl-host"
ENTRY: Final = "__host"
"""The word that makes the program the host's end of a session."""

MAX_BYTES: Final = 16 * 1024 * 1024
WINDOW_BYTES: Final = 256 * 1024
"""How much of standard input may be on its way: a host that reads slowly still sees beats."""

BEAT_S: Final = 1.0
SILENCE_S: Final = 4.0
"""How long the host waits for a sign of life before it ends the command."""

LOST_S: Final = 15.0
"""How long the client waits for one: a slow network must not end a command."""


class Kind(Enum):
    """The kinds of frames; in both directions ``BEAT``."""

    BEAT = b"b"
    # To the host: what to run, standard input, its end, the terminal's size, a signal.
    START = b"s"
    INPUT = b"i"
    INPUT_END = b"e"
    SIZE = b"w"
    SIGNAL = b"k"
    # From the host: standard output and error, records, input that was read, a stop, the status.
    OUTPUT = b"o"
    ERROR = b"r"
    RECORD = b"j"
    TAKEN = b"t"
    STOPPED = b"z"
    EXIT = b"x"


def frame(kind: Kind, content: bytes = b"") -> bytes:
    return kind.value + len(content).to_bytes(4) + content


class Frames:
    """Splits received bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        self._buffer += data
        while len(self._buffer) >= 5:
            end = 5 + int.from_bytes(self._buffer[1:5])
            try:
                kind = Kind(bytes(self._buffer[:1]))
            except ValueError:
                raise PycrictlError("it sends what is no answer") from None
            if end > MAX_BYTES:
                raise PycrictlError("it sends more at once than an answer may have")
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[5:end])
            del self._buffer[:end]
            yield kind, content
