"""Lines of several containers as one log, in the order of their times. Pure.

The lines of one container keep their order, whatever their times say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import attrgetter
from typing import Final, NamedTuple

from pycrictl.wire.logline import Chunk, LogStream
from pycrictl.wire.logtime import TIMESTAMP, timestamp_ns

MAX_LINE_BYTES: Final = 1 << 20
"""A longer line is passed on in parts: no more of it is held."""

_STAMP: Final = re.compile(rb"(%b) " % TIMESTAMP)


class LogLine(NamedTuple):
    time_ns: int
    stream: LogStream
    text: bytes


class LineCutter:
    """Cuts what a decoder with ``has_timestamps`` gives into lines, up to a limit in bytes."""

    def __init__(
        self, prefix: bytes, *, shows_times: bool = False, limit_bytes: int | None = None
    ) -> None:
        self._prefix = prefix
        self._shows_times = shows_times
        self._left_bytes = limit_bytes
        self._last_ns = 0
        self._pending: dict[LogStream, bytes] = {}

    @property
    def is_full(self) -> bool:
        return self._left_bytes is not None and self._left_bytes <= 0

    def receive(self, chunk: Chunk) -> Iterator[LogLine]:
        *whole, rest = (self._pending.pop(chunk.stream, b"") + chunk.data).split(b"\n")
        for text in whole:
            yield from self._line(chunk.stream, text)
        if len(rest) > MAX_LINE_BYTES:
            yield from self._line(chunk.stream, rest)
        elif rest:
            self._pending[chunk.stream] = rest

    def end(self) -> Iterator[LogLine]:
        for stream, text in self._pending.items():
            yield from self._line(stream, text)
        self._pending.clear()

    def _line(self, stream: LogStream, text: bytes) -> Iterator[LogLine]:
        if self.is_full:
            return
        if stamp := _STAMP.match(text):
            self._last_ns = max(self._last_ns, _nanoseconds(stamp[1], self._last_ns))
            text = text if self._shows_times else text[stamp.end() :]
        if self._left_bytes is not None:
            text = text[: self._left_bytes]
            self._left_bytes -= len(text) + 1
        yield LogLine(self._last_ns, stream, b"%b%b\n" % (self._prefix, text))


def in_order(sources: Iterable[Iterable[LogLine]]) -> Iterator[LogLine]:
    """Yield the lines of all sources by their times; each is read no further than needed."""
    return merge(*sources, key=attrgetter("time_ns"))


def _nanoseconds(stamp: bytes, otherwise: int) -> int:
    try:
        return timestamp_ns(stamp)
    except ValueError:  # no such day or time
        return otherwise
