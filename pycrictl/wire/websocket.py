"""A client's side of an open WebSocket (RFC 6455): frames in and out. Pure.

The handshake is over, and no extension was agreed on. Messages are bytes, text as well, which is
not checked to be UTF-8. Each message of ours is a single frame, because the runtimes' server takes
every frame for a message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.wire.websocket_frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    CONTROL,
    FINAL,
    LENGTHS,
    MAX_CONTROL_BYTES,
    PING,
    PONG,
    frame_head,
    frame_problem,
    xor_mask,
)

NORMAL: Final = 1000
_PROTOCOL_ERROR: Final = 1002
_BAD_TEXT: Final = 1007
_TOO_BIG: Final = 1009

_CODE: Final = struct.Struct(">H")

# RFC 6455, 7.4: what may be on the wire. 1005, 1006 and 1015 may not.
_CODES: Final = frozenset({*range(1000, 1004), *range(1007, 1015)})
_FREE_CODES: Final = range(3000, 5000)

Mask = Callable[[bytes, bytes], bytes]
"""Masks a payload with a key of four bytes (RFC 6455, 5.3)."""


class WebSocket:
    """Our side of a connection.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``messages_received``, and send
    ``data_to_send`` after each call of any method. It answers pings and the close. The two feeding
    methods never raise for what the peer does: ``error`` says what was wrong, and messages from
    before are valid. No more is held than one message that is not complete.

    Args:
        new_key: makes four bytes that nobody can foresee, for each frame that is sent.
        mask: masks payloads with them.
        max_message_bytes: a longer message ends the connection.
        peer: what errors call the peer.

    Attributes:
        is_over: the peer closed, went away or broke the protocol: nothing comes in any more.
        error: RemoteProtocolError if it broke the protocol, StreamError if it went away without
            a close, or closed with a status of failure; else None.
    """

    def __init__(
        self,
        *,
        new_key: Callable[[], bytes],
        mask: Mask = xor_mask,
        max_message_bytes: int,
        peer: str = "the peer",
    ) -> None:
        self.is_over = False
        self.error: StreamError | None = None
        self._new_key = new_key
        self._mask = mask
        self._max_message_bytes = max_message_bytes
        self._peer = peer
        self._is_close_sent = False
        self._messages: list[bytes | memoryview] = []
        self._output: list[bytes] = []
        # The frame that is being read, and the message that its fragments make up.
        self._cut_head = b""
        self._opcode = CONTINUATION
        self._is_final = True
        self._bytes_left = 0
        self._control = b""
        self._fragments = bytearray()
        self._is_fragmented = False

    def send_message(self, message: bytes) -> None:
        """Send a binary message. It is thrown away once either side has said farewell."""
        if not self._is_close_sent:
            self._send(BINARY, message)

    def close(self, code: int = NORMAL) -> None:
        """Say farewell. Has no effect a second time."""
        self._send_close(_CODE.pack(code))

    def receive_data(self, data: bytes) -> None:
        """Take in bytes from the peer. They are thrown away if all is over."""
        if not self.is_over:
            self._read(self._cut_head + data if self._cut_head else data)

    def receive_eof(self) -> None:
        """Take in that the peer sends no more."""
        if not self.is_over:
            self._end(
                StreamError(f"{self._peer} dropped the connection without closing the stream")
            )

    def messages_received(self) -> list[bytes | memoryview]:
        """Return the messages that were completed since the last call.

        A view shows a part of what was fed. Whoever keeps it keeps all of that.
        """
        messages, self._messages = self._messages, []
        return messages

    def data_to_send(self) -> list[bytes]:
        """Return the pieces to send since the last call."""
        output, self._output = self._output, []
        return output

    # Sending

    def _send(self, opcode: int, payload: bytes) -> None:
        head = frame_head(opcode, len(payload), is_masked=True)
        key = self._new_key()
        self._output.append(b"".join((head, key, self._mask(payload, key))))

    def _send_close(self, payload: bytes) -> None:
        if not self._is_close_sent:
            self._send(CLOSE, payload)
            self._is_close_sent = True

    # Receiving

    def _read(self, data: bytes) -> None:
        """Read all there is of frames; a head that is cut off is kept for the next time."""
        view = memoryview(data)
        pos, end = 0, len(data)
        while not self.is_over:
            if not self._bytes_left:
                size = self._read_head(data, pos)
                if not size:
                    break
                pos += size
            piece = view[pos : pos + self._bytes_left]
            pos += len(piece)
            self._bytes_left -= len(piece)
            if self._opcode & CONTROL:
                self._read_control(piece)
            else:
                self._read_data(piece)
            if pos == end:
                break
        self._cut_head = data[pos:]

    def _read_head(self, data: bytes, pos: int) -> int:
        """Read a frame's head; return how long it is, 0 if it is cut off or wrong."""
        left = len(data) - pos
        if left < 2:
            return 0
        first, second = data[pos], data[pos + 1]
        opcode = first & 0x0F
        problem = frame_problem(first, second, is_masked=False, is_fragmented=self._is_fragmented)
        if problem:
            self._fail(problem)
            return 0
        size, length = 2, second
        if second > MAX_CONTROL_BYTES:
            form = LENGTHS[second]
            size += form.size
            if left < size:
                return 0
            (length,) = form.unpack_from(data, pos + 2)
        if not opcode & CONTROL:
            if len(self._fragments) + length > self._max_message_bytes:
                limit = f"a message of more than {self._max_message_bytes} bytes"
                self._end(RemoteProtocolError(f"{self._peer} sent {limit}"), _TOO_BIG)
                return 0
            self._is_fragmented = not first & FINAL
        self._opcode = opcode
        self._is_final = bool(first & FINAL)
        self._bytes_left = length
        return size

    def _read_data(self, piece: memoryview) -> None:
        is_complete = self._is_final and not self._bytes_left
        if is_complete and not self._fragments:
            self._messages.append(piece)  # as nearly all are: no copy
            return
        self._fragments += piece
        if is_complete:
            self._messages.append(bytes(self._fragments))
            self._fragments.clear()

    def _read_control(self, piece: memoryview) -> None:
        self._control += piece
        if self._bytes_left:
            return
        payload, self._control = self._control, b""
        if self._opcode == CLOSE:
            self._read_close(payload)
        elif self._opcode == PING and not self._is_close_sent:
            self._send(PONG, payload)

    def _read_close(self, payload: bytes) -> None:
        if self._is_fragmented:
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
            self._fail("the reason of a close is no text", _BAD_TEXT)
            return
        self._send_close(payload)
        said = f": {reason!r}" if reason else ""  # nothing in it can steer a terminal
        is_normal = code == NORMAL
        failure = StreamError(f"{self._peer} closed the stream with status {code}{said}")
        self._end(None if is_normal else failure)

    def _fail(self, problem: str, code: int = _PROTOCOL_ERROR) -> None:
        text = f"{self._peer} broke the WebSocket protocol: {problem}"
        self._end(RemoteProtocolError(text), code)

    def _end(self, error: StreamError | None = None, code: int | None = None) -> None:
        self.is_over = True
        self.error = error
        self._fragments.clear()
        if code is not None:
            self.close(code)
