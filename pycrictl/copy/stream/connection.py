"""One end of a copy stream: a socket around ``wire.messages``.

It blocks, for a thread of its own: the peer is slowed down by the socket itself. The opening
handshake is over when it begins (``streaming.blocking`` at a client, ``proxy.serve.stream_server``
at a server).
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pycrictl.errors import StreamError
from pycrictl.streaming.blocking import open_websocket
from pycrictl.streaming.target import Target, TlsFiles, reason_of
from pycrictl.units import quote
from pycrictl.wire.messages import CLIENT, SERVER, ChannelMessage, Messages, Side, by_channel

PROTOCOL: Final = "v5.channel.k8s.io"

TO_CONTAINER: Final = 0
FROM_CONTAINER: Final = 1
OUTCOME: Final = 3
CHANNEL_END: Final = 255
"""Its message is one byte, the channel that its sender closes."""

PIECE_BYTES: Final = 256 * 1024
"""The most content of an archive that is sent in a message, and the most that is read at once."""

_GOODBYE_S: Final = 1.0


def open_stream(
    target: Target, *, timeout_s: float, idle_s: float, tls: TlsFiles | None = None
) -> CopyConnection:
    """Open a copy stream, as its client.

    Args:
        target: behind its URL.
        idle_s: see ``CopyConnection``.

    The rest is as for ``open_websocket``.
    """
    sock, early = open_websocket(target, PROTOCOL, timeout_s=timeout_s, tls=tls)
    label = quote(target.label)
    return CopyConnection(sock, CLIENT, label=label, early=early, idle_s=idle_s)


def serve_stream(
    sock: socket.socket, *, label: str, idle_s: float, deadline: float | None = None
) -> CopyConnection:
    """Take over a socket whose handshake is over, as its server; see ``CopyConnection``."""
    return CopyConnection(sock, SERVER, label=label, idle_s=idle_s, deadline=deadline)


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
        self._core = Messages(side, peer=label)
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self._messages: deque[ChannelMessage] = deque()
        self.set_idle(idle_s)
        self._feed(early)

    def set_idle(self, idle_s: float) -> None:
        """Change how long the peer may be silent."""
        self._idle_s = idle_s
        self._sock.settimeout(idle_s)

    # Receiving

    def receive(self) -> ChannelMessage | None:
        """Return the next message with content; None once the peer has closed.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
            StreamError: the connection broke, or nothing came for too long.
        """
        while not self._messages and not self._core.is_over:
            self._read()
        if self._messages:
            return self._messages.popleft()
        if self._core.error is not None:
            raise self._core.error
        return None

    def can_receive(self) -> bool:
        """Return whether ``receive`` has something to return, or to raise, without waiting."""
        while not self._messages and not self._core.is_over and self._is_readable():
            self._read()
        return bool(self._messages) or self._core.is_over

    def _is_readable(self) -> bool:
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def _read(self) -> None:
        if count := self._io(self._sock.recv_into, self._buffer):
            self._feed(self._buffer[:count])
        else:
            self._core.receive_eof()

    def _feed(self, data: bytes | memoryview) -> None:
        self._core.receive_data(data, time.monotonic())
        messages = by_channel(self._core.messages_received())
        self._messages += (message for message in messages if message.data)
        try:
            self._flush()
        except StreamError:
            if not self._core.is_over:  # else nobody has to take the answer to the close
                raise

    # Sending

    def send(self, channel: int, data: bytes | memoryview) -> None:
        """Send a message.

        Raises:
            StreamError: the connection broke, or the peer took nothing for too long.
        """
        self._core.send(bytes((channel,)) + data)
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
            if isinstance(self._sock, ssl.SSLSocket):
                self._sock.unwrap()
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
        for frame in self._core.data_to_send():
            rest = memoryview(frame)
            while rest:
                rest = rest[self._io(self._sock.send, rest) :]

    def _io(self, call: Callable[..., int], *args: object) -> int:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise StreamError(f"{self._label} is too slow")
        try:
            return call(*args)
        except TimeoutError as exc:
            raise StreamError(f"{self._label} was silent for {self._idle_s:g} s") from exc
        except OSError as exc:
            raise StreamError(f"the connection to {self._label} broke: {reason_of(exc)}") from exc
