"""Container logs as runtimes write them: lines of the CRI's format, or Docker's JSON. Pure.

A CRI line is ``<RFC 3339 time> <stdout|stderr> <tag[:tag…]> <text>``; the first tag is ``P`` if the
container's line continues in the next CRI line of that stream, else ``F``. A Docker line is a JSON
object with ``log`` (including the line feed that ends a line), ``stream`` and ``time``. The formats
cannot be confused, so each line is read in its own format.

Logs are large, and nearly all of their lines are CRI lines with the tag ``F`` or ``P``. Such lines
are read many at a time: one regular expression for their day and time zone splits a block into
columns (times, streams, tags, texts), which are filtered and joined without a loop in Python. The
expression accepts valid times only, or any digits where times are not used. All other lines are
read one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import compress, groupby
from operator import not_
from typing import Any, Final, Literal, NamedTuple

from pycrictl.base.foreign import parsed
from pycrictl.node.logs.logtime import (
    TIMESTAMP,
    format_timestamp,
    in_zone,
    normalized,
    timestamp_ns,
)

MAX_LINE_BYTES: Final = 16 << 20

LogStream = Literal["stdout", "stderr"]

Grouping = Literal["ordered", "by stream", "merged"]
"""How the lines of stdout and stderr are returned.

``ordered``: in the order of the lines. ``by stream``: the same for a few lines; of many lines read
at once, all of stdout comes before all of stderr. ``merged``: everything in order, as stdout.
"""

_STREAMS: Final[dict[str, LogStream]] = {"stdout": "stdout", "stderr": "stderr"}
_EXCERPT: Final = 60
_FEW_LINES: Final = 100

_TIME_OF_DAY: Final = rb"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]++"
_TIME_SHAPE: Final = rb"T[0-9:]{8}\.[0-9]++"
"""Enough where times are not used; this makes the whole expression a tenth faster."""

_USUAL: Final = re.compile(
    rb"\n([0-9]{4}-[0-9]{2}-[0-9]{2})%b(Z|[-+][0-9]{2}:[0-9]{2}) std(?:out|err) [FP] "
    % _TIME_OF_DAY
)
# Not compiled here, as most logs are read without it.
_LINE: Final = rb"\n(?:(%b) (stdout|stderr) ([^ \n]*) (.*)|(.*))" % TIMESTAMP
_LINE_STARTS: Final[dict[LogStream | None, bytes]] = {
    None: rb"\n",
    "stdout": rb'\n(?![^ \n]+ stderr |\{.*"stream": ?"stderr")',
    "stderr": rb'\n(?=[^ \n]+ stderr |\{.*"stream": ?"stderr")',
}


_Streams = tuple[Sequence[object], Sequence[object]]
"""For each line, whether it is of stdout and whether it is of stderr, as truth values."""


class Chunk(NamedTuple):
    """Bytes that the container wrote to one of its outputs; never empty."""

    stream: LogStream
    data: bytes


class _Piece(NamedTuple):
    """A parsed line, without its line feed."""

    timestamp: bytes
    stream: LogStream
    text: bytes
    is_partial: bool
    """Whether the container's line continues."""


class _Columns(NamedTuple):
    """Adjacent lines, with an entry for each of them in every column."""

    times: Sequence[bytes]
    """Normalized, each with a space after it; empty if lines are returned without their times."""

    is_partial: Sequence[object]
    """Whether the container's line continues, as truth values; empty if no line does."""

    texts: Sequence[bytes]

    def where(self, selectors: Sequence[object]) -> _Columns:
        columns: list[Any] = [list(compress(column, selectors)) for column in self]
        return _Columns(*columns)

    def joined(self) -> bytes:
        if not self.times and not self.is_partial:
            return b"\n".join([*self.texts, b""])
        width = 3 if self.times else 2
        size = width * len(self.texts)
        pieces = [b"\n"] * size
        if self.times:
            pieces[0::3] = self.times
        pieces[width - 2 :: width] = self.texts
        for index in compress(range(width - 1, size, width), self.is_partial):
            pieces[index] = b""
        return b"".join(pieces)


def time_ns_of(line: bytes) -> int | None:
    """Return the time of a line without its line feed, in nanoseconds since 1970.

    None if the line is in neither format or its time is invalid.
    """
    match = re.fullmatch(_LINE, b"\n" + line)
    piece = None if match is None else _piece(match)
    return None if piece is None else timestamp_ns(piece.timestamp)


def line_starts(only: LogStream | None) -> re.Pattern[bytes]:
    """Return an expression that matches the line feed before each line that is shown."""
    return re.compile(_LINE_STARTS[only])


class LogDecoder:
    """Turns the bytes of a log file into the container's output.

    Feed it blocks of 64 KiB or more. No input makes it raise. A line in neither format is passed on
    unchanged, as standard output.

    Args:
        only: the one output to return; None for both.
        has_timestamps: start each line of the container with its time.
        since_ns: omit lines before this time, in nanoseconds since 1970.
        grouping: how stdout and stderr are ordered in the result; see ``Grouping``.
        is_strict: as crictl: omit lines in neither format, and lines in another format than the
            first; join a partial line with the next line of either stream, which then has no time
            of its own.
        max_line_bytes: how much of a line is buffered; the rest of a longer line is read as
            another line.

    Attributes:
        first_bad: the start of the first line in neither format, printable; or None.
    """

    def __init__(
        self,
        *,
        only: LogStream | None = None,
        has_timestamps: bool = False,
        since_ns: int | None = None,
        grouping: Grouping = "ordered",
        is_strict: bool = False,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self.first_bad: str | None = None
        self._max_line_bytes = max_line_bytes
        self._only = only
        self._has_timestamps = has_timestamps
        self._since_ns = since_ns
        self._grouping = grouping
        self._is_strict = is_strict
        self._is_merged = grouping == "merged" and only is None
        self._last_stream: LogStream = only or "stdout"
        self._is_docker: bool | None = None  # the format of the first line
        self._is_unfinished: dict[bool, bool] = {}  # by stream: whether its last line continues
        self._pending = b"\n"  # an unfinished line, after the line feed before it

    def receive_data(self, data: bytes) -> list[Chunk]:
        """Read the next bytes of the file; return the output that they complete."""
        chunks: list[Chunk] = []
        if (end := data.rfind(b"\n")) < 0:
            self._pending += data
        else:
            block = b"".join((self._pending, memoryview(data)[:end]))
            self._pending = data[end:]
            chunks = self._decode(block)
        if len(self._pending) > self._max_line_bytes:
            chunks += self.receive_eof()
        return chunks

    def receive_eof(self) -> list[Chunk]:
        """Handle the end of the file; return its last line if it has no line feed.

        The decoder can be fed again afterwards, for a file that was rotated or truncated.
        """
        line, self._pending = self._pending, b"\n"
        if len(line) == 1:
            return []
        chunks, _ = self._decode_slowly(line, has_line_feed=False)
        self._is_unfinished.clear()
        return chunks

    def _decode(self, block: bytes) -> list[Chunk]:
        """Decode whole lines, each with a line feed before and none after it."""
        chunks: list[Chunk] = []
        while block:
            if match := self._starts_usual(block):
                decoded, block = self._decode_usual(block, match[1], match[2])
            else:
                decoded, block = self._decode_slowly(block)
            chunks += decoded
        return chunks

    def _starts_usual(self, block: bytes, start: int = 0) -> re.Match[bytes] | None:
        """Return a match of the day and zone of the usual line at ``start``, if there is one."""
        match = None if self._is_strict and self._is_docker else _USUAL.match(block, start)
        return match if match and _is_day(match[1], match[2]) else None

    def _decode_usual(self, block: bytes, day: bytes, zone: bytes) -> tuple[list[Chunk], bytes]:
        """Decode lines up to the first of another kind, day or zone; return them and the rest."""
        self._is_docker = bool(self._is_docker)
        has_times = self._has_timestamps or self._since_ns is not None
        if not has_times:
            pattern = _text_pattern(day, zone, None if self._is_merged else self._last_stream)
            parts: list[Any] = pattern.split(block)
            if parts[-1]:
                width = pattern.groups + 1
                is_partial = parts[1::width] if pattern.groups else ()
                texts = parts[width::width]
                columns = _Columns((), is_partial if any(is_partial) else (), texts)
                return [Chunk(self._last_stream, columns.joined())], b""
        has_streams = self._has_timestamps or not self._is_merged
        pattern = _column_pattern(day, zone, has_times=has_times, has_streams=has_streams)
        width = pattern.groups + 1
        parts = pattern.split(block)
        rest = b""
        if parts[-2] is not None:
            rest = b"\n" + parts[-2]
            del parts[-width:]
        times: list[bytes] = parts[1::width] if has_times else []
        is_early: list[bool] = []
        if self._since_ns is not None and min(times) < (since := in_zone(self._since_ns, zone)):
            is_early = [time < since for time in times]
        if self._has_timestamps:
            times = normalized(times, zone)
        columns = _Columns(times, parts[width - 2 :: width], parts[width::width])
        streams = (
            (parts[width - 4 :: width], parts[width - 3 :: width]) if has_streams else ([], [])
        )
        return self._output(columns, streams, is_early), rest

    def _decode_slowly(
        self, block: bytes, *, has_line_feed: bool = True
    ) -> tuple[list[Chunk], bytes]:
        """Decode lines of any kind, up to the next usual one; return them and the rest."""
        rest = b""
        rows: list[tuple[bytes, bool, bytes]] = []
        is_stdout: list[bool] = []
        is_early: list[bool] = []
        for match in re.finditer(_LINE, block):
            if match.start() and self._starts_usual(block, match.start()):
                rest = block[match.start() :]
                break
            line = match[0][1:]
            is_docker = line.startswith(b"{")
            piece = _piece(match)
            if piece and self._is_docker is None:
                self._is_docker = is_docker
            if piece and (is_docker == self._is_docker or not self._is_strict):
                time = format_timestamp(piece.timestamp) + b" "
                is_partial = piece.is_partial or not (has_line_feed or is_docker)
                rows.append((time, is_partial, piece.text))
                is_stdout.append(piece.stream == "stdout")
                is_early.append(
                    self._since_ns is not None and timestamp_ns(piece.timestamp) < self._since_ns
                )
                continue
            if self.first_bad is None:
                # repr() escapes control sequences.
                self.first_bad = repr(line[:_EXCERPT].decode(errors="replace"))
            if not self._is_strict:
                rows.append((b"", not has_line_feed, line))
                is_stdout.append(True)
                is_early.append(False)
        if not rows:
            return [], rest
        streams = (is_stdout, list(map(not_, is_stdout)))
        return self._output(_Columns(*zip(*rows, strict=True)), streams, is_early), rest

    def _output(
        self, columns: _Columns, streams: _Streams, is_early: Sequence[bool]
    ) -> list[Chunk]:
        """Return what is shown of these lines; ``is_early`` has a truth value for each or is empty.

        If the outputs are merged without times, ``streams`` is not used.
        """
        if not self._has_timestamps:
            columns = columns._replace(times=())
        elif any(columns.is_partial) or any(self._is_unfinished.values()):
            columns = columns._replace(times=self._times_of_beginnings(columns, streams[0]))
        if not any(columns.is_partial):
            columns = columns._replace(is_partial=())
        if any(is_early):
            selectors = list(map(not_, is_early))
            columns = columns.where(selectors)
            streams = (list(compress(streams[0], selectors)), list(compress(streams[1], selectors)))
        chunks = [
            Chunk(stream, data)
            for stream, part in self._by_stream(columns, streams)
            if self._only in (None, stream) and (data := part.joined())
        ]
        if chunks:
            self._last_stream = chunks[-1].stream
        return chunks

    def _times_of_beginnings(
        self, columns: _Columns, is_stdout: Sequence[object]
    ) -> Sequence[bytes]:
        """Return the times, each empty if the line continues another."""
        times: list[bytes] = []
        is_unfinished = self._is_unfinished
        for time, is_partial, text, stream in zip(*columns, is_stdout, strict=True):
            key = self._is_strict or bool(stream)
            times.append(b"" if is_unfinished.get(key) else time)
            is_unfinished[key] = bool(is_partial and (text or not self._is_strict))
        return times

    def _by_stream(
        self, columns: _Columns, streams: _Streams
    ) -> Iterator[tuple[LogStream, _Columns]]:
        is_stdout, is_stderr = streams
        if self._is_merged:
            yield "stdout", columns
        elif not any(is_stdout) or not any(is_stderr):
            yield "stdout" if any(is_stdout) else "stderr", columns
        elif self._only or (self._grouping == "by stream" and len(is_stdout) > _FEW_LINES):
            if self._only != "stderr":
                yield "stdout", columns.where(is_stdout)
            if self._only != "stdout":
                yield "stderr", columns.where(is_stderr)
        else:
            start = 0
            for key, run in groupby(is_stdout):
                end = start + sum(1 for _ in run)
                part: list[Any] = [column[start:end] for column in columns]
                yield "stdout" if key else "stderr", _Columns(*part)
                start = end


@lru_cache(maxsize=8)  # adjacent blocks have the same day, and a block has a few at most
def _is_day(day: bytes, zone: bytes) -> bool:
    try:
        timestamp_ns(day + b"T00:00:00" + zone)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=8)
def _text_pattern(day: bytes, zone: bytes, stream: LogStream | None) -> re.Pattern[bytes]:
    """Return an expression that splits a block of usual lines of one stream; None for either.

    From the first line of another kind, day, zone or stream on, it matches the whole rest of the
    block, which makes the last text empty. Of one stream it takes no partial lines, as containerd
    writes them only every 16 KiB, and it is a tenth faster without a group for them.
    """
    kind = rb"std(?:out|err) (?:F|(P))" if stream is None else b"%b F" % stream.encode()
    line = b"%b%b%b %b " % (day, _TIME_SHAPE, re.escape(zone), kind)
    return re.compile(rb"\n(?:%b|(?s:.*))" % line)


@lru_cache(maxsize=8)
def _column_pattern(
    day: bytes, zone: bytes, *, has_times: bool, has_streams: bool
) -> re.Pattern[bytes]:
    """Return an expression that splits a block of usual lines.

    Its groups are the time without the zone, if ``has_times``; one group that is set for stdout and
    one for stderr, if ``has_streams``; one that is set if the line is partial; and the rest of the
    block from the first line of another kind, day or zone on.
    """
    time = b"(%b%b)" % (day, _TIME_OF_DAY) if has_times else day + _TIME_SHAPE
    stream = rb"std(?:(o)ut|(e)rr)" if has_streams else rb"std(?:out|err)"
    line = time + rb"%b %b (?:F|(P)) " % (re.escape(zone), stream)
    return re.compile(rb"\n(?:%b|((?s:.*)))" % line)


def _piece(match: re.Match[bytes]) -> _Piece | None:
    """Parse a match of ``_LINE``; None if it is in neither format or its time is invalid."""
    timestamp, name, tag, text, other = match.groups()
    piece = _docker_piece(other) if other else None
    if name:
        stream: LogStream = "stdout" if name == b"stdout" else "stderr"
        piece = _Piece(timestamp, stream, text, tag == b"P" or tag.startswith(b"P:"))
    try:
        if piece is not None:
            timestamp_ns(piece.timestamp)
    except ValueError:
        return None
    return piece


def _docker_piece(line: bytes) -> _Piece | None:
    if not line.startswith(b"{"):
        return None
    entry = parsed(line)
    text, stream, time = entry.get("log"), entry.get("stream"), entry.get("time")
    if not (isinstance(text, str) and isinstance(stream, str) and isinstance(time, str)):
        return None
    timestamp = time.encode(errors="replace")
    if stream not in _STREAMS or not re.fullmatch(TIMESTAMP, timestamp):
        return None
    data = text.encode(errors="replace")
    return _Piece(
        timestamp, _STREAMS[stream], data.removesuffix(b"\n"), is_partial=not data.endswith(b"\n")
    )
