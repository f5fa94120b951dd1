"""One end of the connection of a copy: ``streams.wire.websocket`` messages over a socket.

Its calls block, in a thread of its own: flow control of the socket slows down the peer. The
handshake comes first (``streams.opening`` in a client, ``proxy.serve.stream_server`` in a server).
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

from pycrictl.base import limits
from pycrictl.base.errors import StreamError
from pycrictl.base.memory import reuse_blocks
from pycrictl.copy.transfer.messages import ChannelMessage
from pycrictl.streams.opening import open_websocket
from pycrictl.streams.target import Target, TlsFiles, reason_of
from pycrictl.streams.wire.websocket import CLIENT, SERVER, Messages, Side

_AHEAD_BYTES: Final = 1024 * 1024
"""The send buffer of a Unix socket; TCP sizes its own."""

_FIRST_BYTES: Final = 64 * 1024
"""The receive buffer of a connection before the first large message."""

_SMALL_BYTES: Final = 1024


class SocketLink:
    """A ``Link`` over a socket.

    Leaving the ``with`` block closes it; an exception aborts it.

    Args:
        sock: a connected socket, which ``close`` closes.
        label: the peer, for messages.
        early: bytes that were read beyond the handshake.
        idle_s: the timeout of each read and write.
        deadline: when the connection ends, on the monotonic clock; None for no deadline.
        max_bytes: the longest message that is accepted.
    """

    def __init__(
        self,
        sock: socket.socket,
        side: Side = SERVER,
        *,
        label: str = "the client",
        early: bytes = b"",
        idle_s: float,
        deadline: float | None = None,
        max_bytes: int = limits.STREAM_MESSAGE_BYTES,
    ) -> None:
        self.deadline = deadline
        self._sock = sock
        self._label = label
        self._core = Messages(side, max_bytes=max_bytes, peer=label)
        self._buffer = memoryview(bytearray(_FIRST_BYTES))
        self._messages: deque[ChannelMessage] = deque()
        self._early = early
        self.set_idle(idle_s)
        reuse_blocks()
        if sock.family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _AHEAD_BYTES)

    def __enter__(self) -> SocketLink:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def set_idle(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._sock.settimeout(idle_s)

    # Receiving

    def receive(self) -> ChannelMessage | None:
        """Return the next message, valid until the next call; None once the peer has closed.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
        """
        while not self._messages and not self._core.is_over:
            self._read()
        if self._messages:
            return self._messages.popleft()
        if self._core.error is not None:
            raise self._core.error
        return None

    def can_receive(self) -> bool:
        while not self._messages and not self._core.is_over and self._is_readable():
            self._read()
        return bool(self._messages) or self._core.is_over

    def _is_readable(self) -> bool:
        if self._early or (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()):
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def _read(self) -> None:
        self._core.read_frame(self._exactly, time.monotonic())
        messages = self._core.messages_received()
        self._messages += (ChannelMessage(m[0], m[1:]) for m in messages if len(m) > 1)
        try:
            self._flush()
        except StreamError:
            if not self._core.is_over:  # else the reply to the close may be lost
                raise

    def _exactly(self, count: int) -> bytes | memoryview:
        """Read ``count`` bytes; more than ``_SMALL_BYTES`` are valid until the next read."""
        if count > len(self._buffer):
            self._buffer = memoryview(bytearray(count))
        data, done = self._buffer[:count], len(self._early[:count])
        data[:done], self._early = self._early[:done], self._early[done:]
        while done < count:
            got = self._io(self._sock.recv_into, data[done:])
            if not got:
                raise EOFError
            done += got
        return data if count > _SMALL_BYTES else bytes(data)

    # Sending

    def send(self, kind: int, head: bytes | memoryview, data: bytes | memoryview = b"") -> None:
        self._core.send(data, head=bytes((kind, *head)))
        self._flush()

    def close(self) -> None:
        """Close cleanly, if the peer allows that within ``limits.GOODBYE_S``.

        Data that the peer still sends must be read: otherwise the system would reset the
        connection, and the peer might lose data that it has not read yet.
        """
        try:
            self._sock.settimeout(limits.GOODBYE_S)
            self.deadline = time.monotonic() + limits.GOODBYE_S
            self._core.close()
            self._flush()
            while not self._core.is_over:
                self._read()
            if isinstance(self._sock, ssl.SSLSocket):
                self._sock.unwrap()
        except (OSError, StreamError):
            pass
        finally:
            self._sock.close()

    def abort(self) -> None:
        self._sock.close()

    def interrupt(self) -> None:
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


def open_link(
    target: Target,
    protocol: str,
    *,
    label: str,
    timeout_s: float,
    idle_s: float,
    tls: TlsFiles | None = None,
) -> SocketLink:
    """Open a connection as a client; raises as ``open_websocket``.

    Args:
        label, idle_s: see ``SocketLink``.
    """
    sock, early = open_websocket(target, protocol, timeout_s=timeout_s, tls=tls)
    return SocketLink(sock, CLIENT, label=label, early=early, idle_s=idle_s)
