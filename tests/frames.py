"""Frames of HTTP/2 in bytes that are known to be right: a plain second reader, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pycrictl.wire import http2


class Unit(NamedTuple):
    """A frame; of HEADERS with its continuations."""

    kind: int
    flags: int
    stream_id: int
    raw: bytes

    @property
    def payload(self) -> bytes:
        """What comes after the frame's head."""
        return self.raw[http2.HEAD_BYTES :]

    @property
    def block(self) -> bytes:
        """The header block."""
        return http2.block_of(self.raw, 0, len(self.raw))


def units(data: bytes, start: int = 0) -> Iterator[Unit]:
    """Yield the whole units in ``data`` from ``start`` on; what is left over is ignored."""
    while stop := unit_end(data, start):
        stream_id = int.from_bytes(data[start + 5 : start + 9], "big")
        yield Unit(data[start + 3], data[start + 4], stream_id, data[start:stop])
        start = stop


def unit_end(data: bytes, start: int) -> int:
    """Return where the unit at ``start`` ends, 0 if it is not all there."""
    stop = _frame_end(data, start)
    if not stop or data[start + 3] != http2.HEADERS:
        return stop
    flags = data[start + 4]
    while not flags & http2.END_HEADERS:
        start, stop = stop, _frame_end(data, stop)
        if not stop:
            return 0
        flags = data[start + 4]
    return stop


def _frame_end(data: bytes, start: int) -> int:
    head_end = start + http2.HEAD_BYTES
    if head_end > len(data):
        return 0
    stop = head_end + int.from_bytes(data[start : start + 3], "big")
    return stop if stop <= len(data) else 0
