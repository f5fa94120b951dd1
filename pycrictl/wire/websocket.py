"""One end of an open WebSocket (RFC 6455) that carries channels. Pure.

The byte streams of Kubernetes (exec, attach, port-forward, copies) are binary messages whose first
byte is the number of a channel. What comes in are views of what was fed, and what goes out are
heads and the payloads as they were given. Nothing is joined: a message of any length takes no
memory, and content that is not masked is never copied.

The handshake is over (``wire.websocket_handshake``), and no extension was agreed on. Each message
of ours is a single frame, because the runtimes' server takes every frame for a message.
"""

from __future__ import annotations

import os
import struct
from enum import Enum, auto
from typing import Final, NamedTuple

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.wire import limits

NORMAL: Final = 1000
_PROTOCOL_ERROR: Final = 1002
_UNSUPPORTED: Final = 1003
_BAD_TEXT: Final = 1007

# RFC 6455, 7.4: what may be on the wire. 1005, 1006 and 1015 may not.
_CODES: Final = frozenset({*range(1000, 1004), *range(1007, 1015)})
_FREE_CODES: Final = range(3000, 5000)

_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_OPCODES: Final = frozenset({_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG})
_CONTROL: Final = 0x8
"""The bit that opcodes of control frames have."""

_FINAL: Final = 0x80
_RESERVED: Final = 0x70
_MASKED: Final = 0x80
_MAX_SHORT: Final = 125
"""The longest payload whose length is in the second byte, and the longest of a control frame."""

_LENGTHS: Final = {126: struct.Struct(">H"), 127: struct.Struct(">Q")}
"""Where longer ones stand, by what is in the second byte."""

_LONGER_THAN: Final = {126: _MAX_SHORT, 127: (1 << 16) - 1}
_MAX_LENGTH: Final = (1 << 63) - 1
_FIRST_BYTES: Final = 2
_KEY_BYTES: Final = 4
_NO_KEY: Final = bytes(_KEY_BYTES)
_MAX_HEAD_BYTES: Final = _FIRST_BYTES + _KEY_BYTES + _MAX_SHORT
"""The longest head with all of a control frame."""

_EMPTY: Final = memoryview(b"")
_SLOW_BYTES: Final = 1024
_SENT_TEXT: Final = "it sent text"


class Side(Enum):
    """Which end of a connection an object is."""

    CLIENT = auto()
    SERVER = auto()


class Piece(NamedTuple):
    """Some content of a message.

    Attributes:
        channel: the number that the message began with.
        data: a view of what was fed, or of a copy if the peer has masked it.
        is_last: whether the message ends with it; only then can it be empty.
    """

    channel: int
    data: memoryview
    is_last: bool


class WebSocket:
    """Our end of a connection.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``pieces_received``, and send
    ``data_to_send`` after each call of any method. It answers the close, and pings: the latest
    one, if several wait for an answer (RFC 6455, 5.5.3). The two feeding methods never raise for
    what the peer does: ``error`` says what was wrong, and pieces from before are valid.

    Args:
        side: what a client sends is masked, what a server sends is not.
        is_masking: whether a client's keys are random. Masking keeps a web page from making a
            browser send what an intermediary takes for something else. Between two programs of
            one machine there is neither, and masking takes longer than all the rest: there the
            key may be 0.
        peer: what errors call the peer.

    Attributes:
        is_over: the peer closed, went away or broke the protocol: nothing comes in any more.
        error: RemoteProtocolError if it broke the protocol, StreamError if it went away without
            a close, or closed with a status of failure; else None.
    """

    def __init__(
        self,
        side: Side,
        *,
        is_masking: bool = True,
        peer: str = "the peer",
    ) -> None:
        self.is_over = False
        self.error: StreamError | None = None
        self._is_client = side is Side.CLIENT
        self._key_bytes = 0 if self._is_client else _KEY_BYTES
        self._has_keys = self._is_client and is_masking
        self._peer = peer
        self._is_close_sent = False
        self._pong: bytes | None = None
        self._output: list[bytes | memoryview] = []
        self._pieces: list[Piece] = []
        self._idle = limits.Allowance(limits.STREAM_IDLE_FRAMES, limits.STREAM_IDLE_FRAMES_PER_S)
        self._now = 0.0
        # The head that is being read: with all of a control frame, or a message's first byte.
        self._head = b""
        self._missing = _FIRST_BYTES
        # The frame that is being read, and its message.
        self._left = 0
        self._key = _NO_KEY  # turned to where the next byte of that frame is
        self._channel: int | None = None
        self._is_final = True

    @property
    def bytes_wanted(self) -> int:
        """How many bytes are missing of the head or the payload that is being read.

        If no more than that is fed at once, it is either all content or none.
        """
        return self._left or self._missing

    def send(self, channel: int, data: bytes | memoryview) -> None:
        """Send a message. It is dropped once either side has closed."""
        if not self._is_close_sent:
            self._send(_BINARY, data, bytes((channel,)))

    def close(self, code: int = NORMAL) -> None:
        """Send our close. Has no effect a second time."""
        self._send_close(code.to_bytes(2, "big"))

    def receive_data(self, data: bytes | memoryview, now: float = 0.0) -> None:
        """Take in bytes from the peer at a time in seconds. They are dropped if all is over."""
        self._now = now
        view = memoryview(data)
        position, end = 0, len(view)
        while position < end and not self.is_over:
            if self._left:
                piece = view[position : position + self._left]
                position += len(piece)
                self._read_payload(piece)
            else:
                position += self._read_head(data[position : position + _MAX_HEAD_BYTES])

    def receive_eof(self) -> None:
        """Take in that the peer sends no more."""
        if not self.is_over:
            self._end(
                StreamError(f"{self._peer} dropped the connection without closing the stream")
            )

    def pieces_received(self) -> list[Piece]:
        """Return the content that came since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def data_to_send(self) -> list[bytes | memoryview]:
        """Return what to send since the last call."""
        if self._pong is not None:
            self._send(_PONG, self._pong)
            self._pong = None
        output, self._output = self._output, []
        return output

    # Sending

    def _send(self, opcode: int, payload: bytes | memoryview, prefix: bytes = b"") -> None:
        """Send a frame whose payload begins with ``prefix``, at most a byte."""
        head = _frame_head(opcode, len(prefix) + len(payload), is_masked=self._is_client)
        if self._has_keys:
            key = os.urandom(_KEY_BYTES)
            head += key
            payload = mask(payload, _turned(key, len(prefix)))
            prefix = mask(prefix, key)
        elif self._is_client:
            head += _NO_KEY
        self._output.append(head + prefix)
        if payload:
            self._output.append(payload)

    def _send_close(self, payload: bytes) -> None:
        if not self._is_close_sent:
            self._pong = None
            self._send(_CLOSE, payload)
            self._is_close_sent = True

    # Receiving

    def _read_head(self, data: bytes | memoryview) -> int:
        """Read a head, if it is all there; return how much of the data belongs to it."""
        head = self._head + data
        size = _FIRST_BYTES
        opcode = length = 0
        if len(head) >= size:
            opcode, length = head[0] & 0x0F, head[1] & ~_MASKED
            if problem := self._problem(head[0], head[1]):
                self._fail(problem, _UNSUPPORTED if problem == _SENT_TEXT else _PROTOCOL_ERROR)
                return 0
            size += self._key_bytes
            if length > _MAX_SHORT:
                size += _LENGTHS[length].size
            if opcode & _CONTROL:
                size += length
            elif length and (opcode or self._channel is None):
                size += 1  # the channel
        if len(head) < size:
            self._head, self._missing = head, size - len(head)
            return len(data)
        taken = size - len(self._head)
        self._head, self._missing = b"", _FIRST_BYTES
        position = _FIRST_BYTES
        if length > _MAX_SHORT:
            form, least = _LENGTHS[length], _LONGER_THAN[length]
            (length,) = form.unpack_from(head, position)
            position += form.size
            if not least < length <= _MAX_LENGTH:
                self._fail("the length of a frame is not in its shortest form")
                return 0
        key = _NO_KEY
        if self._key_bytes:
            key = head[position : position + _KEY_BYTES]
            position += _KEY_BYTES
        if opcode & _CONTROL:
            self._read_control(opcode, mask(head[position:size], key))
        else:
            self._is_final = head[0] >= _FINAL
            self._begin_payload(head[position:size], length, key, is_first=opcode != _CONTINUATION)
        return taken

    def _begin_payload(self, start: bytes, length: int, key: bytes, *, is_first: bool) -> None:
        if is_first:
            self._channel = None
        if start:
            self._channel = start[0] ^ key[0]
            length -= 1
            key = _turned(key, 1)
        self._left, self._key = length, key
        if not length:
            if self._is_final and self._channel is not None:
                self._pieces.append(Piece(self._channel, _EMPTY, is_last=True))
            self._count_idle()

    def _problem(self, first: int, second: int) -> str:
        """Say what is wrong with the first two bytes of a frame; nothing if they are right."""
        opcode = first & 0x0F
        if first & _RESERVED:
            return "a reserved bit is set"
        if opcode not in _OPCODES:
            return "unknown opcode"
        if bool(second & _MASKED) is self._is_client:
            wrong = "a server's frame is masked", "a client's frame is not masked"
            return wrong[not self._is_client]
        if opcode & _CONTROL:
            if not first & _FINAL:
                return "a control frame in fragments"
            return "too long a control frame" if second & ~_MASKED > _MAX_SHORT else ""
        if (opcode == _CONTINUATION) is self._is_final:
            return "a fragment of another message"
        return _SENT_TEXT if opcode == _TEXT else ""

    def _read_payload(self, data: memoryview) -> None:
        size = len(data)
        self._left -= size
        self._idle.earned = limits.STREAM_IDLE_FRAMES
        if self._key != _NO_KEY:
            data = memoryview(mask(data, self._key))
            self._key = _turned(self._key, size)
        assert self._channel is not None
        self._pieces.append(Piece(self._channel, data, self._is_final and not self._left))

    def _read_control(self, opcode: int, payload: bytes) -> None:
        if opcode == _CLOSE:
            self._read_close(payload)
            return
        if opcode == _PING and not self._is_close_sent:
            self._pong = payload
        self._count_idle()

    def _read_close(self, payload: bytes) -> None:
        if not self._is_final:
            self._fail("a close within a message")
            return
        if not payload:
            self._send_close(payload)
            self._end()
            return
        code = int.from_bytes(payload[:2], "big")
        if len(payload) < 2 or not (code in _CODES or code in _FREE_CODES):
            self._fail("invalid status of a close")
            return
        try:
            reason = payload[2:].decode()
        except UnicodeDecodeError:
            self._fail("the reason of a close is not UTF-8", _BAD_TEXT)
            return
        self._send_close(payload)
        said = f": {reason!r}" if reason else ""  # nothing in it can steer a terminal
        is_normal = code == NORMAL
        failure = StreamError(f"{self._peer} closed the stream with status {code}{said}")
        self._end(None if is_normal else failure)

    def _count_idle(self) -> None:
        if not self._idle.take(self._now):
            self._fail("it sends too many empty messages")

    def _fail(self, problem: str, code: int = _PROTOCOL_ERROR) -> None:
        self._end(RemoteProtocolError(f"{self._peer} broke the WebSocket protocol: {problem}"))
        self.close(code)

    def _end(self, error: StreamError | None = None) -> None:
        self.is_over = True
        self.error = error


def mask(payload: bytes | memoryview, key: bytes) -> bytes:
    """Mask a payload (RFC 6455, 5.3), by the C function of ``websockets`` if that pays."""
    size = len(payload)
    if size > _SLOW_BYTES:
        try:
            # Not for less: importing it takes longer than masking any short message.
            from websockets.speedups import apply_mask
        except ImportError:  # where the library was not compiled
            pass
        else:
            return apply_mask(payload, key)
    keys = (key * (size // _KEY_BYTES + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(keys, "big")).to_bytes(size, "big")


def _turned(key: bytes, count: int) -> bytes:
    """Return the key for what comes so many bytes later."""
    turn = count % _KEY_BYTES
    return key[turn:] + key[:turn] if turn and key != _NO_KEY else key


def _frame_head(opcode: int, size: int, *, is_masked: bool) -> bytes:
    """Return the head of a frame that is a whole message, without its key."""
    masked = _MASKED if is_masked else 0
    if size <= _MAX_SHORT:
        return bytes((_FINAL | opcode, masked | size))
    short = 126 if size <= _LONGER_THAN[127] else 127
    return bytes((_FINAL | opcode, masked | short)) + _LENGTHS[short].pack(size)
