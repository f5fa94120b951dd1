"""The logs of several containers, read or followed as one, merged by time.

The lines of one container keep their order, whatever their timestamps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, NamedTuple

from pycrictl.base.errors import ConnectError, DeadlineExceeded, PycrictlError, Unavailable
from pycrictl.node.logs.log_reader import LogReader, Selection
from pycrictl.node.logs.logline import Chunk, LogStream
from pycrictl.node.logs.logtime import TIMESTAMP, timestamp_ns

MAX_PART_BYTES: Final = 1 << 20
"""A longer line is passed on in parts, to limit the memory used."""

_STAMP: Final = rb"(%b) " % TIMESTAMP


class LogLine(NamedTuple):
    time_ns: int
    stream: LogStream
    text: bytes


_LINES_AT_ONCE: Final = 256
_CHUNKS_A_TURN: Final = 64
"""How many chunks of one log are read before the others get a turn."""


class Together:
    """Several logs, whose lines are merged by time.

    The tail of ``wanted`` applies to each log, the limit to all of them together.
    """

    def __init__(self, wanted: Selection, *, warn: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._warn = warn
        self._sources: list[_OneLog] = []

    def add(self, path: str, *, prefix: str, is_alive: Callable[[], bool]) -> None:
        stamped = replace(self._wanted, has_timestamps=True, limit_bytes=None)
        chunks = LogReader(path, stamped, warn=self._warn).steps(is_alive)
        start = prefix.encode(errors="replace")
        shows_times = self._wanted.has_timestamps
        self._sources.append(_OneLog(chunks, start, self._warn, shows_times=shows_times))

    def follow(self, wait: Callable[[], None]) -> Generator[Chunk, None, None]:
        """Yield the content of the logs, and what is appended until their containers end.

        Raises:
            ConnectError, DeadlineExceeded, Unavailable: from ``is_alive`` of a log.
        """
        try:
            yield from self._wanted.limited(self._merged(wait))
        finally:
            for source in self._sources:
                source.close()

    def _merged(self, wait: Callable[[], None]) -> Iterator[Chunk]:
        most: int | None = None
        while self._sources:
            has_read = False
            # Each log is read only as far as merging by time requires.
            turns = [source.turn(most) for source in self._sources]
            for chunk in _joined(merge(*turns, key=attrgetter("time_ns"))):
                has_read = True
                yield chunk
            most = _CHUNKS_A_TURN  # the initial content has been merged
            self._sources = [source for source in self._sources if not source.is_over]
            if self._sources and not has_read:
                wait()


class _OneLog:
    def __init__(
        self,
        chunks: Generator[Chunk | None, None, None],
        prefix: bytes,
        warn: Callable[[str], None],
        *,
        shows_times: bool,
    ) -> None:
        self.is_over = False
        self._chunks = chunks
        self._shows_times = shows_times
        self._prefix = prefix
        self._warn = warn
        self._last_ns = 0
        self._pending: dict[LogStream, bytes] = {}

    def turn(self, most: int | None) -> Iterator[LogLine]:
        """Yield lines until there are no more for now, or ``most`` chunks have been read."""
        try:
            for number, chunk in enumerate(self._chunks, 1):
                if chunk is None:
                    return
                *whole, rest = (self._pending.pop(chunk.stream, b"") + chunk.data).split(b"\n")
                if len(rest) > MAX_PART_BYTES:
                    whole.append(rest)
                elif rest:
                    self._pending[chunk.stream] = rest
                for text in whole:
                    yield self._line(chunk.stream, text)
                if number == most:
                    return
            for stream, text in self._pending.items():
                yield self._line(stream, text)
        except (ConnectError, DeadlineExceeded, Unavailable):
            raise
        except PycrictlError as error:
            self._warn(error.message)
        self.is_over = True
        self.close()

    def close(self) -> None:
        self._chunks.close()

    def _line(self, stream: LogStream, text: bytes) -> LogLine:
        if stamp := re.match(_STAMP, text):
            with suppress(ValueError):  # no such day or time
                self._last_ns = max(self._last_ns, timestamp_ns(stamp[1]))
            text = text if self._shows_times else text[stamp.end() :]
        return LogLine(self._last_ns, stream, b"%b%b\n" % (self._prefix, text))


def _joined(lines: Iterable[LogLine]) -> Iterator[Chunk]:
    for stream, run in groupby(lines, attrgetter("stream")):
        while block := b"".join(line.text for line in islice(run, _LINES_AT_ONCE)):
            yield Chunk(stream, block)
