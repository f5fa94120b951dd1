"""One end of a copy stream: a WebSocket whose messages begin with the number of a channel.

It is blocking, for a thread of its own: content goes between the socket and one buffer without
being copied again on its way, the peer is slowed down by the socket itself, and a message of any
length takes no more memory than that buffer. The opening handshake is over when it begins
(``copy.upgrade`` at a client, ``proxy.endpoints`` at a server).

Frames are RFC 6455's. A client must mask what it sends, lest a web page makes a browser send what
an intermediary takes for something else. There is neither page nor intermediary between two
programs of one machine, and masking takes longer than all the rest: there the key is zero.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.streaming.target import reason_of
from pycrictl.streaming.upgrade import mask
from pycrictl.wire.websocket_frames import (
    BINARY,
    CLOSE,
    CONTROL,
    FINAL,
    LENGTHS,
    MAX_CONTROL_BYTES,
    PING,
    PONG,
    TEXT,
    frame_head,
    frame_problem,
    xor_mask,
)

if TYPE_CHECKING:
    from ssl import SSLSocket

PROTOCOL: Final = "v5.channel.k8s.io"

TO_CONTAINER: Final = 0
FROM_CONTAINER: Final = 1
OUTCOME: Final = 3
CHANNEL_END: Final = 255
"""Its message is one byte, the channel that its sender closes."""

PIECE_BYTES: Final = 2 * 1024 * 1024
"""The most content that is received, or sent in a message, at once."""

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
"""Why a WebSocket is closed (RFC 6455, 7.4.1)."""

_MAX_IDLE_FRAMES: Final = 1000
"""The most frames without content, one after another."""

_HEAD_BYTES: Final = 2 + 8 + 4 + 1
"""The longest head of a frame, with its key and the number of a channel."""

_NO_KEY: Final = bytes(4)
_GOODBYE_S: Final = 1.0


class Piece(NamedTuple):
    """Some content of a message, valid until the next is asked for."""

    channel: int
    data: memoryview


class Messages:
    """Sends and receives. One thread uses it; ``interrupt`` may come from another.

    Every failure is a ``StreamError`` that names the peer.

    Args:
        sock: connected; closed by ``close``.
        label: the peer, for messages.
        is_server: which end this is.
        early: what was read beyond the handshake.
        idle_s: how long the peer may send nothing, or take nothing of what it is sent.
        deadline: when all must be over, on the monotonic clock; None for no such time.

    Attributes:
        is_over: the peer has closed the WebSocket.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        label: str,
        is_server: bool,
        early: bytes = b"",
        idle_s: float,
        deadline: float | None = None,
    ) -> None:
        self.is_over = False
        self.idle_s = idle_s
        self.deadline = deadline
        self._sock = sock
        self._label = label
        self._is_server = is_server
        self._early = memoryview(early)
        self._early_buffer = memoryview(bytearray(_HEAD_BYTES))
        self._is_plain = type(sock) is socket.socket  # else one of ssl, which takes time to import
        self._is_clear = is_server or (self._is_plain and _is_same_machine(sock))
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self._left = 0  # of the frame that is being received
        self._key = _NO_KEY  # turned to where the next byte of that frame is
        self._channel: int | None = None
        self._is_in_message = False
        self._idle_frames = 0
        self._is_close_sent = False
        sock.settimeout(idle_s)

    def set_idle(self, idle_s: float) -> None:
        """Change how long the peer may be silent."""
        self.idle_s = idle_s
        self._sock.settimeout(idle_s)

    # Receiving

    def receive(self) -> Piece | None:
        """Return the next content; None once the peer has closed the WebSocket.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
            StreamError: the connection broke, or nothing came for too long.
        """
        while not self.is_over:
            if (piece := self._step()) is not None:
                return piece
        return None

    def receive_waiting(self) -> Piece | None:
        """Return content if the peer has sent some already, without waiting for it to begin."""
        while not self.is_over and self._is_readable():
            if (piece := self._step()) is not None:
                return piece
        return None

    def _is_readable(self) -> bool:
        if self._left or self._early:
            return True
        if not self._is_plain and cast("SSLSocket", self._sock).pending():
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def _step(self) -> Piece | None:
        """Receive the head of a frame if one is due, and some of its content if it has any."""
        if not self._left:
            self._begin_frame()
        if not self._left:
            self._idle_frames += 1
            if self._idle_frames > _MAX_IDLE_FRAMES:
                raise self._broke("it sends too many empty messages")
            return None
        assert self._channel is not None
        self._idle_frames = 0
        view = self._buffer[: min(self._left, PIECE_BYTES)]
        self._fill(view)
        self._left -= len(view)
        if self._key != _NO_KEY:
            # The library's C function; a piece is a multiple of the key unless it is the last.
            view = memoryview(mask(view, self._key))
        return Piece(self._channel, view)

    def _begin_frame(self) -> None:
        if not self._early:
            # All of a head in one call; what more comes of the content waits where it is found.
            self._early = self._early_buffer[: self._io(self._sock.recv_into, self._early_buffer)]
        first, second = self._exactly(2)
        opcode, size = first & 0x0F, second & 0x7F
        problem = frame_problem(
            first, second, is_masked=self._is_server, is_fragmented=self._is_in_message
        )
        if problem or opcode == TEXT:
            raise self._broke(problem or "it sent text")
        if size > MAX_CONTROL_BYTES:
            form = LENGTHS[size]
            (size,) = form.unpack(self._exactly(form.size))
        key = self._exactly(4) if self._is_server else _NO_KEY
        if opcode & CONTROL:
            self._control(opcode, size, key)
            return
        if opcode == BINARY:
            self._channel = None
        self._is_in_message = not first & FINAL
        if size and self._channel is None:
            self._channel = self._exactly(1)[0] ^ key[0]
            size, key = size - 1, key[1:] + key[:1]
        self._left, self._key = size, key

    def _control(self, opcode: int, size: int, key: bytes) -> None:
        data = xor_mask(self._exactly(size), key)
        if opcode == PING:
            self._send_frame(PONG, data)
        elif opcode == CLOSE:
            self.is_over = True
            with suppress(StreamError):
                self._send_close(data[:2])

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, view: memoryview) -> None:
        while view:
            if self._early:
                count = min(len(view), len(self._early))
                view[:count] = self._early[:count]
                self._early = self._early[count:]
            else:
                count = self._io(self._sock.recv_into, view)
                if not count:
                    raise StreamError(f"{self._label} dropped the connection")
            view = view[count:]

    # Sending

    def send(self, channel: int, data: bytes | memoryview) -> None:
        """Send a message, at most ``PIECE_BYTES`` of content in one frame."""
        view = memoryview(data)
        while True:
            self._send_frame(BINARY, view[:PIECE_BYTES], channel=channel)
            view = view[PIECE_BYTES:]
            if not view:
                return

    def end_channel(self, channel: int) -> None:
        """Tell the peer that nothing more comes on a channel."""
        self.send(CHANNEL_END, bytes((channel,)))

    def close(self, code: int = NORMAL) -> None:
        """Close in good order as far as the peer lets us, within about a second."""
        try:
            self._sock.settimeout(_GOODBYE_S)
            self._send_close(code.to_bytes(2, "big"))
            if not self._is_plain:
                cast("SSLSocket", self._sock).unwrap()
                return
            self._sock.shutdown(socket.SHUT_WR)
            # What the peer still sends must be read: otherwise the system would tell it of a
            # broken connection, and it might lose what it has not read yet.
            give_up_at = time.monotonic() + _GOODBYE_S
            while time.monotonic() < give_up_at and self._sock.recv_into(self._buffer):
                pass
        except (OSError, StreamError):
            pass
        finally:
            self._sock.close()

    def abort(self) -> None:
        """Close without a word."""
        self._sock.close()

    def interrupt(self) -> None:
        """End whatever another thread is waiting for; the connection is then of no use."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _send_close(self, payload: bytes) -> None:
        if not self._is_close_sent:
            self._is_close_sent = True
            self._send_frame(CLOSE, payload)

    def _send_frame(
        self, opcode: int, data: bytes | memoryview, *, channel: int | None = None
    ) -> None:
        key = _NO_KEY if self._is_clear else os.urandom(4)
        prefix = b"" if channel is None else bytes((channel ^ key[0],))
        turn = len(prefix)
        if key != _NO_KEY:
            data = mask(data, key[turn:] + key[:turn])
        head = self._head(opcode, len(prefix) + len(data), key) + prefix
        if self._is_plain:
            sent = self._io(self._sock.sendmsg, [head, data])
            head, data = head[sent:], memoryview(data)[max(sent - len(head), 0) :]
        self._send(head)
        self._send(data)

    def _head(self, opcode: int, size: int, key: bytes) -> bytes:
        head = frame_head(opcode, size, is_masked=not self._is_server)
        return head if self._is_server else head + key

    def _send(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[self._io(self._sock.send, view) :]

    def _io(self, call: Callable[..., int], *args: object) -> int:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise StreamError(f"{self._label} is too slow")
        try:
            return call(*args)
        except OSError as exc:
            raise self._failure(exc) from exc

    def _failure(self, exc: OSError) -> StreamError:
        if isinstance(exc, TimeoutError):
            return StreamError(f"{self._label} was silent for {self.idle_s:g} s")
        return StreamError(f"the connection to {self._label} broke: {reason_of(exc)}")

    def _broke(self, how: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self._label} broke the WebSocket protocol: {how}")


def _is_same_machine(sock: socket.socket) -> bool:
    """Whether both ends have one address: then nothing that could be deceived is in between."""
    return bool(sock.getpeername()[0] == sock.getsockname()[0])
