"""The logs of several containers, read or followed as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter
from typing import Final

from pycrictl.errors import PycrictlError
from pycrictl.logs.log_reader import LogReader, OnBad
from pycrictl.logs.merging import LineCutter, LogLine, in_order
from pycrictl.logs.selection import Selection
from pycrictl.wire.logline import Chunk

_LINES_AT_ONCE: Final = 256
_CHUNKS_A_TURN: Final = 64
"""So much of one log is read before the others are looked at again."""


class Together:
    """Several logs, whose lines are put in the order of their times.

    The tail and the limit of ``wanted`` count for each.
    """

    def __init__(self, wanted: Selection, *, on_bad: OnBad, warn: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._on_bad = on_bad
        self._warn = warn
        self._sources: list[_FollowedLog] = []

    def add(
        self, path: str, *, prefix: str, is_alive: Callable[[], bool], is_new: bool = False
    ) -> None:
        """Take one more log; all of one is wanted that began while the others were followed."""
        wanted = self._wanted
        stamped = replace(wanted, has_timestamps=True, limit_bytes=None)
        if is_new:
            stamped = replace(stamped, tail_lines=None)
        cutter = LineCutter(
            prefix.encode(errors="replace"),
            shows_times=wanted.has_timestamps,
            limit_bytes=wanted.limit_bytes,
        )
        reader = LogReader(path, stamped, on_bad=self._on_bad)
        self._sources.append(_FollowedLog(reader, cutter, is_alive, self._warn))

    def read(self) -> Iterator[Chunk]:
        return _joined(in_order([source.whole() for source in self._sources]))

    def follow(self, goes_on: Callable[[], bool], wait: Callable[[], None]) -> Iterator[Chunk]:
        """Yield the logs as they are and as they grow.

        ``goes_on`` may add logs, and returns whether more may come.
        """
        most: int | None = None
        while True:
            is_open = goes_on()
            has_read = False
            turns = [source.turn(most) for source in self._sources]
            for chunk in _joined(in_order(turns)):
                has_read = True
                yield chunk
            most = _CHUNKS_A_TURN  # what was there at the beginning has been put in order
            self._sources = [source for source in self._sources if not source.is_over]
            if has_read:
                continue
            if not is_open and not self._sources:
                return
            wait()


class _FollowedLog:
    def __init__(
        self,
        reader: LogReader,
        cutter: LineCutter,
        is_alive: Callable[[], bool],
        warn: Callable[[str], None],
    ) -> None:
        self.is_over = False
        self._reader = reader
        self._cutter = cutter
        self._steps = reader.steps(is_alive)
        self._warn = warn

    def whole(self) -> Iterator[LogLine]:
        return self._lines(self._reader.read(), None)

    def turn(self, most: int | None) -> Iterator[LogLine]:
        """Yield lines until there are none for the moment, or so many chunks have been read."""
        return self._lines(self._steps, most)

    def _lines(self, chunks: Iterable[Chunk | None], most: int | None) -> Iterator[LogLine]:
        try:
            for number, chunk in enumerate(chunks, 1):
                if chunk is None:
                    return
                yield from self._cutter.receive(chunk)
                if self._cutter.is_full:
                    break
                if number == most:
                    return
            yield from self._cutter.end()
        except PycrictlError as error:
            self._warn(error.message)
        self.is_over = True


def _joined(lines: Iterable[LogLine]) -> Iterator[Chunk]:
    for stream, run in groupby(lines, attrgetter("stream")):
        while block := b"".join(line.text for line in islice(run, _LINES_AT_ONCE)):
            yield Chunk(stream, block)
