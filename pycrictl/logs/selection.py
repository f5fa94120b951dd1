"""Which parts of a log are wanted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from pycrictl.errors import UsageError
from pycrictl.units import parse_duration, quote
from pycrictl.wire.logline import Chunk, LogDecoder, LogStream
from pycrictl.wire.logtime import parse_time

_SECOND_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Selection:
    """Which lines, and how they are written.

    ``tail_lines`` counts lines of the file, or of ``only``. ``is_strict``: as crictl, refuse a log
    whose first line is in no known format, and leave an unfinished last line out of the tail.
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
    """Read the time from which lines are wanted: a duration back from ``now``, or a point in time.

    Durations count in whole seconds, as crictl's do; ``0`` is 1970.
    """
    try:
        return parse_time(text)
    except UsageError:
        pass
    try:
        ago_s = parse_duration(text)
        if ago_s < 0 and not is_strict:
            raise ValueError(text)
        return int((now - ago_s) // 1) * _SECOND_NS
    except ValueError:
        raise UsageError(
            f"{quote(text)} is not a time to begin at",
            hint="give a duration, 10m, a day, 2024-01-31, or a time, 2024-01-31T15:04:05Z",
        ) from None
