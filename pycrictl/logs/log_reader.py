"""Reading a container's log file: a selection of its lines, once or following it."""

from __future__ import annotations

import os
import re
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

from pycrictl.errors import PycrictlError, UsageError
from pycrictl.logs.file import LogFile
from pycrictl.units import parse_duration, quote
from pycrictl.wire.logline import Chunk, LogDecoder, LogStream, is_before, timestamp_of
from pycrictl.wire.logtime import parse_time

_SECOND_NS: Final = 10**9
_DAY_S: Final = 86400

_CLOCK_STEP_NS: Final = 60 * _SECOND_NS
"""How far the node's clock may have been set back while the log was written."""

_LINE: Final = re.compile(rb"[^\n]*\n|[^\n]+")

PATIENCE_S: Final = 2.0
"""How long a rotated log may be missing; the runtime is notified right after the renaming."""

LOOK_S: Final = 0.1
"""Pause before a log without new content is polled again."""

OnBad = Callable[[str], None]
"""Called once, with the printable beginning of the first line in an unknown format."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which lines to show, and how.

    ``tail_lines`` counts lines of the file, or of ``only``. ``is_strict``: like crictl, refuse a
    log whose first line is in no known format, and leave an unfinished last line out of the tail.
    """

    only: LogStream | None = None
    since_ns: int | None = None
    tail_lines: int | None = None
    limit_bytes: int | None = None
    has_timestamps: bool = False
    is_strict: bool = False

    def decoder(self) -> LogDecoder:
        return LogDecoder(
            only=self.only, has_timestamps=self.has_timestamps, since_ns=self.since_ns
        )

    def limited(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        if self.limit_bytes is None:
            yield from chunks
            return
        left = self.limit_bytes
        if left == 0:
            return
        for stream, data in chunks:
            yield Chunk(stream, data[:left])
            left -= len(data)
            if left <= 0:
                return


def parse_since(text: str, *, now: float, is_strict: bool = False) -> int:
    """Parse a start time: a duration before ``now``, or a point in time.

    The start of a duration is rounded down to whole seconds, as in crictl; ``0`` means 1970. Days
    and a space before the time of day are accepted unless ``is_strict``.
    """
    found = None if is_strict else re.fullmatch(r"([0-9]{1,5})d(.*)", text, re.ASCII)
    if found is None:
        with suppress(UsageError):
            moment = text if is_strict else re.sub("(?<=[0-9]) (?=[0-9])", "T", text, count=1)
            return parse_time(moment)
    days, rest = (int(found[1]), found[2] or "0") if found else (0, text)
    try:
        ago_s = days * _DAY_S + parse_duration(rest)
        if ago_s < 0 and not is_strict:
            raise ValueError(text)
        return int((now - ago_s) // 1) * _SECOND_NS
    except ValueError:
        raise UsageError(
            f"{quote(text)} is not a valid start time",
            hint="give a duration, 10m or 1d, a day, 2024-01-31, or a time, 2024-01-31T15:04:05Z",
        ) from None


class LogReader:
    def __init__(self, path: str, wanted: Selection, *, on_bad: OnBad) -> None:
        self._path = path
        self._wanted = wanted
        self._decoder = wanted.decoder()
        self._on_bad: OnBad | None = on_bad
        self.is_unfinished = False

    def read(self) -> Iterator[Chunk]:
        return self.follow(lambda: False, lambda: None)

    def follow(self, is_alive: Callable[[], bool], wait: Callable[[], None]) -> Iterator[Chunk]:
        """Yield the log's content and what is appended to it, until the container has ended."""

        def waiting() -> Iterator[Chunk]:
            for chunk in self.steps(is_alive):
                if chunk is None:
                    wait()
                else:
                    yield chunk

        return self._wanted.limited(waiting())

    def steps(self, is_alive: Callable[[], bool]) -> Iterator[Chunk | None]:
        """Yield like ``follow``, without the byte limit, and None when there is nothing new yet."""
        # The log is missing briefly while it is rotated.
        give_up_at = time.monotonic() + PATIENCE_S
        while not os.path.lexists(self._path) and is_alive() and time.monotonic() < give_up_at:
            yield None  # not for long: the old file beside it grows
        tail_lines = self._wanted.tail_lines
        log = LogFile(self._path)
        try:
            if tail_lines is not None:
                is_whole = not is_alive()
                if is_whole and not tail_lines:
                    return
                yield from self._tail(log, tail_lines, is_whole=is_whole)
            elif (since_ns := self._wanted.since_ns) is not None:
                log.seek_time(lambda line: is_before(line, since_ns - _CLOCK_STEP_NS))
            line = log.line_ahead() if self._wanted.is_strict else b""
            if line and timestamp_of(line) is None:
                shown = quote(line.decode(errors="replace"))
                raise PycrictlError(f"unsupported log format: {shown}")
            while True:
                # Checked first: everything written before the container ended must be read.
                lives = is_alive()
                yield from self._rest(log)
                if new_log := log.successor():
                    old_log, log = log, new_log
                    with old_log:
                        yield from self._rest(old_log)
                elif not log.rewind_if_truncated():
                    if not lives:
                        break
                    yield None
                    continue
                yield from self._end()
            if not (self._wanted.is_strict and tail_lines and log.has_lines(tail_lines)):
                rest = list(self._end())
                self.is_unfinished = bool(rest)
                yield from rest
        finally:
            log.close()

    def _tail(self, log: LogFile, lines: int, *, is_whole: bool) -> Iterator[Chunk]:
        """Seek to the start of the tail; for a single output, read the log and yield its tail."""
        only = self._wanted.only
        if not lines or only is None:
            log.seek_tail(lines, is_strict=self._wanted.is_strict)
            return
        tail: deque[bytes] = deque(maxlen=lines)
        for chunk in chain(self._rest(log), self._end() if is_whole else ()):
            begun = tail.pop() if tail and not tail[-1].endswith(b"\n") else b""
            tail.extend(_LINE.findall(begun + chunk.data))
        if tail:
            yield Chunk(only, b"".join(tail))

    def _rest(self, log: LogFile) -> Iterator[Chunk]:
        for block in log.blocks():
            yield from self._checked(self._decoder.receive_data(block))

    def _end(self) -> Iterator[Chunk]:
        yield from self._checked(self._decoder.receive_eof())

    def _checked(self, chunks: list[Chunk]) -> list[Chunk]:
        if self._decoder.first_bad is not None and self._on_bad is not None:
            self._on_bad(self._decoder.first_bad)
            self._on_bad = None
        return chunks


def pause_for(reader_fd: int | None) -> Callable[[], None]:
    """Return a function that pauses for ``LOOK_S``; BrokenPipeError if the pipe has no reader.

    Otherwise that would go unnoticed until the container writes again.
    """
    poll = select.poll()
    if reader_fd is not None:
        poll.register(reader_fd, 0)

    def pause() -> None:
        for fd, event in poll.poll(LOOK_S * 1000):
            if event & select.POLLERR:
                raise BrokenPipeError
            poll.unregister(fd)

    return pause
