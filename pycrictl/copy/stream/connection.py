"""One end of a copy stream: a socket around ``wire.websocket``.

It blocks, for a thread of its own: content goes between the socket and one buffer without being
copied again on its way, the peer is slowed down by the socket itself, and a message of any length
takes no more memory than that buffer. The opening handshake is over when it begins
(``streaming.blocking`` at a client, ``proxy.serve.stream_server`` at a server).
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from pycrictl.errors import StreamError
from pycrictl.streaming.target import TlsFiles, parse_url, reason_of
from pycrictl.units import quote
from pycrictl.wire.websocket import Piece, Side, WebSocket

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

_GOODBYE_S: Final = 1.0


def open_stream(
    url: str, *, timeout_s: float, idle_s: float, tls: TlsFiles | None = None
) -> CopyConnection:
    """Open the URL of a copy stream, as its client.

    Args:
        url: http, https, ws or wss.
        idle_s: see ``CopyConnection``.

    The rest is as for ``open_websocket``.
    """
    from pycrictl.streaming.blocking import open_websocket

    target = parse_url(url)
    sock, early = open_websocket(target, PROTOCOL, timeout_s=timeout_s, tls=tls)
    label = quote(target.label)
    return CopyConnection(sock, Side.CLIENT, label=label, early=early, idle_s=idle_s)


def serve_stream(
    sock: socket.socket, *, label: str, idle_s: float, deadline: float | None = None
) -> CopyConnection:
    """Take over a socket whose handshake is over, as its server; see ``CopyConnection``."""
    return CopyConnection(sock, Side.SERVER, label=label, idle_s=idle_s, deadline=deadline)


class CopyConnection:
    """Sends and receives. One thread uses it; ``interrupt`` may come from another.

    Every failure is a ``StreamError`` that names the peer.

    Args:
        sock: connected; closed by ``close``.
        side: which end this is.
        label: the peer, for messages.
        early: what was read beyond the handshake.
        idle_s: how long the peer may send nothing, or take nothing of what it is sent.
        deadline: when all must be over, on the monotonic clock; None for no such time.
    """

    def __init__(
        self,
        sock: socket.socket,
        side: Side,
        *,
        label: str,
        early: bytes = b"",
        idle_s: float,
        deadline: float | None = None,
    ) -> None:
        self.deadline = deadline
        self._sock = sock
        self._label = label
        self._is_plain = type(sock) is socket.socket  # else one of ssl, which takes time to import
        self._core = WebSocket(
            side,
            is_masking=not (self._is_plain and _is_same_machine(sock)),
            peer=label,
        )
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self._pieces: deque[Piece] = deque()
        self.set_idle(idle_s)
        self._feed(early)

    def set_idle(self, idle_s: float) -> None:
        """Change how long the peer may be silent."""
        self._idle_s = idle_s
        self._sock.settimeout(idle_s)

    # Receiving

    def receive(self) -> Piece | None:
        """Return the next content, valid until more is asked for; None once the peer has closed.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
            StreamError: the connection broke, or nothing came for too long.
        """
        while not self._pieces and not self._core.is_over:
            self._read()
        if self._pieces:
            return self._pieces.popleft()
        if self._core.error is not None:
            raise self._core.error
        return None

    def can_receive(self) -> bool:
        """Return whether ``receive`` has something to return, or to raise, without waiting."""
        while not self._pieces and not self._core.is_over and self._is_readable():
            self._read()
        return bool(self._pieces) or self._core.is_over

    def _is_readable(self) -> bool:
        if not self._is_plain and cast("SSLSocket", self._sock).pending():
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def _read(self) -> None:
        """Read the rest of a head, or as much of a payload as the buffer takes."""
        view = rest = self._buffer[: self._core.bytes_wanted]
        while rest and (count := self._io(self._sock.recv_into, rest)):
            rest = rest[count:]
        self._feed(view[: len(view) - len(rest)])
        if rest:
            self._core.receive_eof()

    def _feed(self, data: bytes | memoryview) -> None:
        self._core.receive_data(data, time.monotonic())
        self._pieces += (piece for piece in self._core.pieces_received() if piece.data)
        try:
            self._flush()
        except StreamError:
            if not self._core.is_over:  # else nobody has to take the answer to the close
                raise

    # Sending

    def send(self, channel: int, data: bytes | memoryview) -> None:
        """Send a message, at most ``PIECE_BYTES`` of content in one frame.

        Raises:
            StreamError: the connection broke, or the peer took nothing for too long.
        """
        view = memoryview(data)
        for start in range(0, len(view) or 1, PIECE_BYTES):
            self._core.send(channel, view[start : start + PIECE_BYTES])
            self._flush()

    def end_channel(self, channel: int) -> None:
        """Tell the peer that nothing more comes on a channel."""
        self.send(CHANNEL_END, bytes((channel,)))

    def close(self) -> None:
        """Close in good order as far as the peer lets us, within about a second."""
        try:
            self._sock.settimeout(_GOODBYE_S)
            self._core.close()
            self._flush()
            if not self._is_plain:
                cast("SSLSocket", self._sock).unwrap()
                return
            self._sock.shutdown(socket.SHUT_WR)
            # What the peer still sends must be read: otherwise the system would report a broken
            # connection to it, and it might lose what it has not read yet.
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

    def _flush(self) -> None:
        for piece in self._gathered(self._core.data_to_send()):
            rest = memoryview(piece)
            while rest:
                rest = rest[self._io(self._sock.send, rest) :]

    def _gathered(self, pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Send what the system takes of all pieces at once; return the rest."""
        if not pieces or not self._is_plain:
            return pieces
        sent = self._io(self._sock.sendmsg, pieces)
        while pieces and sent >= len(pieces[0]):
            sent -= len(pieces.pop(0))
        return [pieces[0][sent:], *pieces[1:]] if pieces else []

    def _io(self, call: Callable[..., int], *args: object) -> int:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise StreamError(f"{self._label} is too slow")
        try:
            return call(*args)
        except TimeoutError as exc:
            raise StreamError(f"{self._label} was silent for {self._idle_s:g} s") from exc
        except OSError as exc:
            raise StreamError(f"the connection to {self._label} broke: {reason_of(exc)}") from exc


def _is_same_machine(sock: socket.socket) -> bool:
    """Whether both ends have one address: then nothing that could be deceived is in between.

    What listens on a Unix socket, such as ``kubectl proxy``, may hand on what it gets.
    """
    if sock.family == socket.AF_UNIX:
        return False
    return bool(sock.getpeername()[0] == sock.getsockname()[0])
