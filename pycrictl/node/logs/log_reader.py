"""Reading a container's log: a selection of its lines, once or following it."""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from pycrictl.base.errors import PycrictlError, UsageError
from pycrictl.base.units import parse_duration, quote
from pycrictl.node.logs.file import LogFile, LogMissing, open_rotated, rotated
from pycrictl.node.logs.logline import (
    Chunk,
    Grouping,
    LogDecoder,
    LogStream,
    line_starts,
    time_ns_of,
)
from pycrictl.node.logs.logtime import parse_time

_SECOND_NS: Final = 10**9
_DAY_S: Final = 86400

_CLOCK_STEP_NS: Final = 60 * _SECOND_NS
"""How far the node's clock may have been set back while the log was written."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which lines to show, and how."""

    only: LogStream | None = None
    """The one output to show; None for both."""

    since_ns: int | None = None
    """The earliest time of a line, in nanoseconds since 1970."""

    tail_lines: int | None = None
    """How many of the last lines to show, counted in the log, or in ``only`` if it is set."""

    limit_bytes: int | None = None
    has_timestamps: bool = False
    grouping: Grouping = "ordered"
    """How stdout and stderr are ordered; with ``limit_bytes``, always as in the log."""

    is_strict: bool = False
    """Whether to read as crictl does: no rotated files, an error if the format of the first line is
    unknown, no later lines of unknown format, and after a whole tail no unfinished last line.
    """

    def decoder(self) -> LogDecoder:
        return LogDecoder(
            only=self.only,
            has_timestamps=self.has_timestamps,
            since_ns=self.since_ns,
            grouping=self.grouping if self.limit_bytes is None else "ordered",
            is_strict=self.is_strict,
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
    in_days = None if is_strict else re.fullmatch(r"([0-9]{1,5})d(.*)", text, re.ASCII)
    if in_days is None:
        with suppress(UsageError):
            moment = text if is_strict else re.sub("(?<=[0-9]) (?=[0-9])", "T", text, count=1)
            return parse_time(moment)
    days, rest = (int(in_days[1]), in_days[2] or "0") if in_days else (0, text)
    try:
        ago_s = days * _DAY_S + parse_duration(rest)
        if ago_s < 0 and not is_strict:
            raise ValueError(text)
        return int((now - ago_s) // 1) * _SECOND_NS
    except ValueError:
        raise UsageError(
            f"{quote(text)} is not a valid start time",
            hint="give a duration (10m, 1d), a day (2024-01-31) or a time (2024-01-31T15:04:05Z)",
        ) from None


class LogReader:
    """Reads a log: the file at ``path`` and, unless strict, the rotated files beside it.

    Args:
        warn: called with each problem of the log, but only once for lines of unknown format.
        patience_s: how long the log may be missing during a rotation: from its renaming until the
            runtime creates the new file.
    """

    def __init__(
        self,
        path: str,
        selection: Selection,
        *,
        warn: Callable[[str], None],
        patience_s: float = 2.0,
    ) -> None:
        self._path = path
        self._selection = selection
        self._decoder = selection.decoder()
        self._warn = warn
        self._patience_s = patience_s
        self._earliest_ns = (selection.since_ns or 0) - _CLOCK_STEP_NS
        self._has_warned = False
        self.is_unfinished = False

    def read(self) -> Generator[Chunk, None, None]:
        return self.follow(lambda: False, lambda: None)

    def follow(
        self, is_alive: Callable[[], bool], wait: Callable[[], None]
    ) -> Generator[Chunk, None, None]:
        """Yield the log's content and what is appended to it, until the container has ended.

        Its files are closed at the end, or when the generator is closed.
        """

        def waiting(steps: Iterable[Chunk | None]) -> Iterator[Chunk]:
            for chunk in steps:
                if chunk is None:
                    wait()
                else:
                    yield chunk

        with closing(self.steps(is_alive)) as steps:
            yield from self._selection.limited(waiting(steps))

    def steps(self, is_alive: Callable[[], bool]) -> Generator[Chunk | None, None, None]:
        """Yield like ``follow``, without the byte limit, and None when there is nothing new yet."""
        give_up_at = time.monotonic() + self._patience_s
        while True:
            try:
                log = LogFile(self._path)
                break
            except LogMissing:
                if not is_alive() or time.monotonic() >= give_up_at:
                    raise
            yield None  # not for long: the renamed file grows meanwhile
        is_strict = self._selection.is_strict
        with ExitStack() as opened:
            opened.enter_context(log)
            if self._selection.tail_lines == 0 and not is_alive():
                return
            lacking = self._seek(log, self._selection.tail_lines)
            known = self._rotated_before(log)
            yield from self._earlier(known, lacking)
            line = log.line_ahead() if is_strict else None
            if line is not None and time_ns_of(line) is None:
                shown = quote(line.decode(errors="replace"))
                raise PycrictlError(f"unsupported log format: {shown}")
            while True:
                # Checked first: everything written before the container ended must be read.
                lives = is_alive()
                yield from self._rest(log)
                new_log = log.successor()
                if new_log is not None:
                    opened.enter_context(new_log)
                    yield from self._rest(log)
                    yield from self._end()
                    before = self._rotated_before(new_log)
                    later = [path for path in before if path not in known]
                    yield from self._earlier(later, None, but=log)
                    log.close()
                    log, known = new_log, before
                elif log.is_truncated():
                    yield from self._end()
                    log.rewind()
                elif lives:
                    yield None
                else:
                    break
            # Omitted lines do not count towards the tail.
            if not (is_strict and lacking == 0 and self._selection.tail_lines) or (
                self._decoder.first_bad
            ):
                rest = list(self._end())
                self.is_unfinished = bool(rest)
                yield from rest

    def _rotated_before(self, log: LogFile) -> list[str]:
        """Return the rotated files before an open one, which may itself be rotated by now."""
        paths = [] if self._selection.is_strict else rotated(self._path)
        return list(takewhile(lambda path: not log.is_at(path), paths))

    def _seek(self, file: LogFile, lines: int | None) -> int | None:
        """Seek to the first selected line; return how many of the last ``lines`` the file lacks."""
        selection = self._selection
        if lines is not None:
            starts = line_starts(selection.only)
            return file.seek_tail(lines, starts, is_strict=selection.is_strict)
        if selection.since_ns is not None:
            file.seek_time(self._earliest_ns)
        return None

    def _earlier(
        self, paths: Sequence[str], lacking: int | None, *, but: LogFile | None = None
    ) -> Iterator[Chunk]:
        """Read the rotated files that hold ``lacking`` more lines of the tail; None: all files.

        Only one is open at a time, since a compressed one takes space as long as it is open. The
        file ``but`` has been read already, under its old name.
        """
        needed: list[tuple[str, int | None]] = []
        for path in reversed(paths):
            if lacking == 0:
                break
            needed.append((path, lacking))
            if lacking is not None and (
                file := open_rotated(path, self._earliest_ns, lambda _: None)
            ):
                with file:
                    lacking = self._seek(file, lacking)
        for path, lines in reversed(needed):
            if file := open_rotated(path, self._earliest_ns, self._warn):
                with file:
                    if but is None or not file.is_same(but):
                        self._seek(file, lines)
                        yield from self._rest(file)
                        yield from self._end()

    def _rest(self, file: LogFile) -> Iterator[Chunk]:
        for block in file.blocks():
            yield from self._checked(self._decoder.receive_data(block))

    def _end(self) -> Iterator[Chunk]:
        yield from self._checked(self._decoder.receive_eof())

    def _checked(self, chunks: list[Chunk]) -> list[Chunk]:
        if (first_bad := self._decoder.first_bad) and not self._has_warned:
            self._has_warned = True
            self._warn(f"the log has lines in an unknown format, the first is {first_bad}")
        return chunks


def pause_for(reader_fd: int | None, *, pause_s: float = 0.1) -> Callable[[], None]:
    """Return a function that pauses before a log is checked for new content again.

    The function raises BrokenPipeError if ``reader_fd`` is a pipe without a reader: this would go
    unnoticed until the container writes again.
    """
    poll = select.poll()
    if reader_fd is not None:
        poll.register(reader_fd, 0)

    def pause() -> None:
        for fd, event in poll.poll(pause_s * 1000):
            if event & select.POLLERR:
                raise BrokenPipeError
            poll.unregister(fd)

    return pause
