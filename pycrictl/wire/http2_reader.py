"""Finding the frames of HTTP/2 in what one end sends, within the limits (RFC 9113). Pure.

Each byte is looked at once, however small the pieces are in which it comes. A header block with its
continuations is one unit, as nothing may come between its frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, TypeAlias

from pycrictl.wire import http2, limits
from pycrictl.wire.http2 import ErrorCode, Http2Error

__all__ = ["FrameReader", "Unit"]

Unit: TypeAlias = tuple[int, int, int, int, int]
"""Kind, flags and stream of a frame, where it starts in ``FrameReader.buffer``, and where it and
its continuations end."""

_HEAD: Final = Struct(">IBI")  # length (24 bits) and kind, flags, stream
_STREAM_BITS: Final = 0x7FFFFFFF
_HEAD_BYTES: Final = http2.HEAD_BYTES

_HARD_KINDS: Final = frozenset({http2.SETTINGS, http2.RST_STREAM})
_CONNECTION, _STREAM, _EITHER = range(3)
# What a frame may belong to, and the exact length of its payload where it has one (section 6).
_SHAPES: Final[dict[int, tuple[int, int | None]]] = {
    http2.DATA: (_STREAM, None),
    http2.HEADERS: (_STREAM, None),
    http2.PRIORITY: (_STREAM, 5),
    http2.RST_STREAM: (_STREAM, 4),
    http2.SETTINGS: (_CONNECTION, None),
    http2.PUSH_PROMISE: (_STREAM, None),
    http2.PING: (_CONNECTION, 8),
    http2.GOAWAY: (_CONNECTION, None),
    http2.WINDOW_UPDATE: (_EITHER, 4),
}


class FrameReader:
    """Feed it with ``feed``, then take the units that are complete from ``units``.

    Every frame has the shape that its kind demands; the first one is the SETTINGS with which each
    end must begin. What is in the frames is not judged here.

    Args:
        whose: what the sender is called in an error.
        turn: the frames of a turn.

    Attributes:
        buffer: what the units are in, until the next ``feed``.
        pos: where in it the next unit starts.
        has_begun: the first frame has been there.
        is_behind: there is more in the buffer, for another turn.
        idle: counts the frames that carry nothing for a call. Each that carries something earns
            more of them here; what goes the other way is for the owner to add.
    """

    def __init__(self, whose: str = "server", turn: int = limits.TURN) -> None:
        self.buffer = b""
        self.pos = 0
        self.has_begun = False
        self.is_behind = False
        self.idle = limits.Allowance(limits.IDLE_FRAMES, limits.IDLE_FRAMES_PER_S)
        self._whose = whose
        self._turn = turn
        self._now = 0.0
        # The beginning of a unit, and the length from which on there is something to do.
        self._partial = bytearray()
        self._needed_bytes = 0
        # How much of the unit at ``pos`` is known to be a header block without its end.
        self._block_bytes = 0
        self._block_frames = 0

    def feed(self, data: bytes, now: float) -> None:
        """Take in what came, at the time ``now`` in seconds; nothing goes on with what is there."""
        self._now = now
        if self._partial:
            if len(self._partial) + len(data) < self._needed_bytes:
                self._partial += data
                return
            self.buffer = b"".join((self._partial, data))
            self._partial = bytearray()
            self.pos = 0
        elif self.pos == len(self.buffer):
            self.buffer = data
            self.pos = 0
        elif data:
            self.buffer = self.buffer[self.pos :] + data
            self.pos = 0

    def skip(self, preface: bytes) -> bool:
        """Skip what comes before the first frame, and return whether it has been there.

        Raises:
            Http2Error: there is something else.
        """
        there = self.buffer[self.pos : self.pos + len(preface)]
        if not preface.startswith(there):
            raise Http2Error(f"the {self._whose}'s preface is wrong")
        if there == preface:
            self.pos += len(preface)
            return True
        if there:
            self._keep(len(preface))
        return False

    def units(self) -> Iterator[Unit]:
        """Yield the units that are complete, as many as one turn allows.

        ``pos`` moves on when the next one is asked for: who breaks off finds the last one again.

        Raises:
            Http2Error: the frames before this are right.
        """
        buffer = self.buffer
        pos, end = self.pos, len(buffer)
        self.is_behind = False
        if not buffer:
            return
        left = self._turn
        needed = _HEAD_BYTES
        while end - pos >= _HEAD_BYTES:
            if left <= 0:
                self.is_behind = True
                return
            left -= 1
            length_and_kind, flags, stream_id = _HEAD.unpack_from(buffer, pos)
            kind = length_and_kind & 0xFF
            length = length_and_kind >> 8
            stream_id &= _STREAM_BITS
            if not self.has_begun:
                if kind != http2.SETTINGS or flags & http2.ACK or stream_id:
                    raise Http2Error(f"the {self._whose}'s preface is wrong")
                self.has_begun = True
            if length > limits.FRAME_BYTES:
                raise Http2Error("a frame is larger than allowed", ErrorCode.FRAME_SIZE_ERROR)
            stop = pos + _HEAD_BYTES + length
            if stop > end:
                needed = stop - pos
                break
            if kind == http2.DATA and stream_id and (length or flags & http2.END_STREAM):
                self.idle.earned += limits.IDLE_FRAMES_PER_FRAME
            elif kind == http2.HEADERS or kind == http2.PUSH_PROMISE:
                if not stream_id:
                    raise Http2Error("a frame belongs to the wrong stream")
                if not flags & http2.END_HEADERS:
                    stop, needed = self._block_end(pos, stop, stream_id)
                    if not stop:
                        break
                left -= limits.TURN_PER_CALL
                self.idle.earned += limits.IDLE_FRAMES_PER_FRAME
            else:
                _check_shape(kind, flags, stream_id, length)
                if kind in _HARD_KINDS:
                    left -= limits.TURN_PER_CALL
                if not self.idle.take(self._now):
                    raise Http2Error("too many frames carry nothing", ErrorCode.ENHANCE_YOUR_CALM)
            yield kind, flags, stream_id, pos, stop
            pos = self.pos = stop
        self._keep(needed)

    def _keep(self, needed_bytes: int) -> None:
        """Keep what is left until there are so many bytes of it."""
        self._partial = bytearray(self.buffer[self.pos :])
        self._needed_bytes = needed_bytes
        self.buffer = b""
        self.pos = 0

    def _block_end(self, pos: int, stop: int, stream_id: int) -> tuple[int, int]:
        """Where the header block at ``pos`` ends, whose first frame does at ``stop``.

        Returns:
            0 and how much of it must be there to go on, if its end is not.
        """
        buffer = self.buffer
        end = len(buffer)
        if self._block_frames:
            stop = pos + self._block_bytes
        else:
            self._block_frames = 1
        while True:
            self._block_bytes = stop - pos
            if end - stop < _HEAD_BYTES:
                return 0, self._block_bytes + _HEAD_BYTES
            length_and_kind, flags, of_stream = _HEAD.unpack_from(buffer, stop)
            kind = length_and_kind & 0xFF
            if kind != http2.CONTINUATION or of_stream & _STREAM_BITS != stream_id:
                raise Http2Error("a header block is interrupted")
            length = length_and_kind >> 8
            if length > limits.FRAME_BYTES:
                raise Http2Error("a frame is larger than allowed", ErrorCode.FRAME_SIZE_ERROR)
            next_stop = stop + _HEAD_BYTES + length
            if (
                next_stop - pos > limits.HEADER_BLOCK_BYTES
                or self._block_frames == limits.HEADER_BLOCK_FRAMES
            ):
                raise Http2Error("a header block is too large", ErrorCode.ENHANCE_YOUR_CALM)
            if next_stop > end:
                return 0, next_stop - pos
            stop = next_stop
            if flags & http2.END_HEADERS:
                self._block_bytes = self._block_frames = 0
                return stop, 0
            self._block_frames += 1


def _check_shape(kind: int, flags: int, stream_id: int, length: int) -> None:
    shape = _SHAPES.get(kind)
    if shape is None:
        if kind == http2.CONTINUATION:
            raise Http2Error("a frame continues no header block")
        return  # an extension, to be ignored by who does not know it
    belongs, size = shape
    if belongs != _EITHER and (belongs == _STREAM) != (stream_id > 0):
        raise Http2Error("a frame belongs to the wrong stream")
    if kind == http2.SETTINGS:
        is_wrong = length % 6 != 0 or bool(flags & http2.ACK and length)
        if length > 6 * limits.SETTINGS_IN_FRAME:
            raise Http2Error("a frame has too many settings", ErrorCode.ENHANCE_YOUR_CALM)
    elif kind == http2.GOAWAY:
        is_wrong = length < 8
    else:
        is_wrong = size is not None and length != size
    if is_wrong:
        raise Http2Error("a frame has a wrong length", ErrorCode.FRAME_SIZE_ERROR)
