"""Container logs as runtimes write them: lines of the CRI's format, or Docker's JSON. Pure.

A CRI line is ``<RFC 3339 time> <stdout|stderr> <tag[:tag…]> <text>``; the first tag is ``P`` if the
container's line continues in the next CRI line of that stream, else ``F``. A Docker line is a JSON
object with ``log`` (including the line feed that ends a line), ``stream`` and ``time``. The formats
cannot be confused, so each line is read in its own format.

Logs are large and consist almost entirely of full lines of one stream. A block of such lines is
split by one regular expression, which only checks the characters of the times and returns only the
texts. All other lines, and lines whose times matter, are read one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final, Literal, NamedTuple

from pycrictl.foreign import parsed
from pycrictl.wire.logtime import TIMESTAMP, format_timestamp, timestamp_ns

MAX_LINE_BYTES: Final = 16 << 20
"""Most of a line that is buffered; the rest of a longer line is read as another line."""

LogStream = Literal["stdout", "stderr"]

_STREAMS: Final[dict[str, LogStream]] = {"stdout": "stdout", "stderr": "stderr"}
_EXCERPT: Final = 60

# Each line starts with the line feed before it. The first branch matches the usual times of nine
# digits; the last matches the rest of the block from the first line of another kind on, which makes
# the result end with an empty text.
_FULL_LINES: Final[dict[LogStream, re.Pattern[bytes]]] = {
    "stdout": re.compile(rb"\n(?:.{29}+Z stdout F |[-+.:0-9TZ]{20,35}+ stdout F |(?s:.*+))"),
    "stderr": re.compile(rb"\n(?:.{29}+Z stderr F |[-+.:0-9TZ]{20,35}+ stderr F |(?s:.*+))"),
}
_LINE: Final = re.compile(rb"\n(?:(%b) (stdout|stderr) ([^ \n]*) (.*)|(.*))" % TIMESTAMP)
_TIMESTAMP: Final = re.compile(TIMESTAMP)


class Chunk(NamedTuple):
    """Bytes that the container wrote to one of its outputs; never empty."""

    stream: LogStream
    data: bytes


class _Piece(NamedTuple):
    """A parsed line. ``data`` has a line feed unless the container's line continues."""

    timestamp: bytes
    stream: LogStream
    data: bytes
    goes_on: bool


def timestamp_of(line: bytes) -> bytes | None:
    """Return the time of a line, with or without its line feed; None if in neither format."""
    line = line.removesuffix(b"\n")
    match = _LINE.fullmatch(b"\n" + line)
    if match and match[2]:
        return match[1]
    piece = _docker_piece(line)
    return None if piece is None else piece.timestamp


def is_before(line: bytes, time_ns: int) -> bool:
    """Return whether a line has a time before ``time_ns``."""
    timestamp = timestamp_of(line)
    try:
        return timestamp is not None and timestamp_ns(timestamp) < time_ns
    except ValueError:  # the time is invalid
        return False


class LogDecoder:
    """Turns the bytes of a log file into the container's output, in order.

    Feed it blocks of 16 to 64 KiB: larger ones are slower. No input makes it raise. A line in
    neither format is passed on unchanged, as standard output.

    Args:
        only: the one output to return; None for both.
        has_timestamps: start each line of the container with its time.
        since_ns: omit lines before this time, in nanoseconds since 1970.

    Attributes:
        first_bad: the start of the first line in neither format, printable; or None.
    """

    def __init__(
        self,
        *,
        only: LogStream | None = None,
        has_timestamps: bool = False,
        since_ns: int | None = None,
    ) -> None:
        self.first_bad: str | None = None
        self._only = only
        self._has_timestamps = has_timestamps
        self._since_ns = since_ns
        self._is_plain = not has_timestamps and since_ns is None
        self._last_stream: LogStream = only or "stdout"
        self._is_inside_line: dict[LogStream, bool] = {"stdout": False, "stderr": False}
        self._pending = b"\n"  # an unfinished line, after the line feed before it

    def receive_data(self, data: bytes) -> list[Chunk]:
        """Read the next bytes of the file; return the output that they complete."""
        chunks: list[Chunk] = []
        if (end := data.rfind(b"\n")) < 0:
            self._pending += data
        else:
            block = b"".join((self._pending, memoryview(data)[:end]))
            self._pending = data[end:]
            chunks.extend(self._decode(block))
        if len(self._pending) > MAX_LINE_BYTES:
            chunks += self.receive_eof()
        return chunks

    def receive_eof(self) -> list[Chunk]:
        """Handle the end of the file; return its last line if it has no line feed.

        The decoder can be fed again afterwards, for a file that was rotated or truncated.
        """
        line, self._pending = self._pending, b"\n"
        return list(self._gather(self._lines(line, b""))) if len(line) > 1 else []

    def _decode(self, block: bytes) -> Iterable[Chunk]:
        """Decode whole lines, each with a line feed before and none after it."""
        if self._is_plain:
            texts = _FULL_LINES[self._last_stream].split(block)
            if texts[-1]:
                del texts[0]  # the empty text before the first line feed
                texts.append(b"")
                return (Chunk(self._last_stream, b"\n".join(texts)),)
        return self._gather(self._lines(block, b"\n"))

    def _gather(self, lines: Iterable[Chunk]) -> Iterator[Chunk]:
        """Merge adjacent chunks of the same output."""
        for stream, run in groupby(lines, itemgetter(0)):
            yield Chunk(stream, b"".join([data for _, data in run]))

    def _lines(self, block: bytes, line_end: bytes) -> Iterator[Chunk]:
        """Read lines of any kind, one by one."""
        for timestamp, name, tag, text, other in _LINE.findall(block):
            piece: _Piece | None
            if name:
                goes_on = tag == b"P" or tag.startswith(b"P:")
                stream: LogStream = "stdout" if name == b"stdout" else "stderr"
                piece = _Piece(timestamp, stream, text if goes_on else text + line_end, goes_on)
            else:
                piece = _docker_piece(other)
            is_early = False
            try:
                if piece is not None and self._since_ns is not None:
                    is_early = timestamp_ns(piece.timestamp) < self._since_ns
            except ValueError:
                piece = None  # the time is invalid
            if piece is None:
                line = b" ".join((timestamp, name, tag, text)) if name else other
                self._reject(line)
                yield from self._raw(line + line_end)
            elif not is_early and self._only in (None, piece.stream):
                data = piece.data
                if self._has_timestamps and not self._is_inside_line[piece.stream]:
                    data = format_timestamp(piece.timestamp) + b" " + data
                self._is_inside_line[piece.stream] = piece.goes_on
                self._last_stream = piece.stream
                if data:
                    yield Chunk(piece.stream, data)

    def _raw(self, data: bytes) -> Iterator[Chunk]:
        if data and self._only != "stderr":
            yield Chunk("stdout", data)

    def _reject(self, line: bytes) -> None:
        if self.first_bad is None:
            # repr() escapes control sequences.
            self.first_bad = repr(line[:_EXCERPT].decode(errors="replace"))


def _docker_piece(line: bytes) -> _Piece | None:
    if not line.startswith(b"{"):
        return None
    entry = parsed(line)
    text, stream, time = entry.get("log"), entry.get("stream"), entry.get("time")
    if not (isinstance(text, str) and isinstance(stream, str) and isinstance(time, str)):
        return None
    timestamp = time.encode(errors="replace")
    if stream not in _STREAMS or not _TIMESTAMP.fullmatch(timestamp):
        return None
    return _Piece(
        timestamp, _STREAMS[stream], text.encode(errors="replace"), not text.endswith("\n")
    )
