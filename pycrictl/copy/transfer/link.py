"""One end of the connection of a copy: messages over a socket, by ``wire.websocket``.

It blocks, for a thread of its own: the peer is slowed down by the socket itself. The handshake is
over when it begins (``streaming.blocking`` at a client, ``proxy.serve.stream_server`` at a server).
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from pycrictl.copy.transfer.messages import MAX_PIECE_MESSAGE_BYTES
from pycrictl.errors import StreamError
from pycrictl.streaming.blocking import open_websocket
from pycrictl.streaming.target import Target, TlsFiles, reason_of
from pycrictl.wire.websocket import (
    CLIENT,
    SERVER,
    ChannelMessage,
    Messages,
    Side,
    apply_mask,
    by_channel,
)

_LARGE_BYTES: Final = 64 * 1024
_PLAIN_HEAD: Final = b"\x82\x7f"
_MASKED_HEAD: Final = b"\x82\xff"
"""How a frame begins that is a whole binary message with 8 bytes of length (RFC 6455, 5.2)."""

_IS_MASKED: Final = 0x80
_SHORT: Final = 126
_KEY_BYTES: Final = 4
_GOODBYE_S: Final = 1.0


class Link(Protocol):
    """A connection for one thread; every failure is a ``StreamError`` that names the peer."""

    def receive(self) -> ChannelMessage | None:
        """Return the next message, valid until the one after; None once the peer has closed.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
            StreamError: the connection broke, or nothing came for too long.
        """

    def can_receive(self) -> bool:
        """Return whether ``receive`` has something to return, or to raise, without waiting."""

    def send(self, kind: int, head: bytes | memoryview, data: bytes | memoryview = b"") -> None:
        """Send a message; raises if the peer takes nothing for too long."""

    def close(self) -> None:
        """Close in good order, as far as the peer lets us in a moment."""

    def abort(self) -> None:
        """Close without a word."""

    def interrupt(self) -> None:
        """End what another thread waits for; the connection is then of no use."""


class SocketLink:
    """A ``Link`` over a socket.

    Large messages do not go through the library's core: it copies each one several times, which
    doubles the processor time of a copy, in whatever sizes they come.

    Args:
        sock: connected; closed by ``close``.
        side: which end this is.
        label: the peer, for messages.
        early: what was read beyond the handshake.
        idle_s: how long the peer may send nothing, or take nothing of what it is sent.
        deadline: when all must be over, on the monotonic clock; None for no such time.
        masks: a client's keys are random. Within one machine there is no intermediary to protect
            from what is sent (RFC 6455, 10.3), and masking takes a tenth of the time.
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
        masks: bool = True,
    ) -> None:
        self.deadline = deadline
        self._sock = sock
        self._label = label
        self._core = Messages(side, peer=label)
        self._buffer = memoryview(bytearray(MAX_PIECE_MESSAGE_BYTES))
        self._messages: deque[ChannelMessage] = deque()
        self._early = early
        self._is_client = side is CLIENT
        self._masks = masks
        heads = (_PLAIN_HEAD, _MASKED_HEAD)
        self._head_to_send, self._head_to_come = reversed(heads) if self._is_client else heads
        self.set_idle(idle_s)

    def set_idle(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._sock.settimeout(idle_s)

    # Receiving

    def receive(self) -> ChannelMessage | None:
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
        """Read a frame; a large one of content without the core, which copies it three times."""
        head = bytes(self._exactly(2))
        size_bytes = head[1] & ~_IS_MASKED
        if size_bytes >= _SHORT:
            head += self._exactly(2 if size_bytes == _SHORT else 8)
            size_bytes = int.from_bytes(head[2:], "big")
        key = bytes(self._exactly(_KEY_BYTES if head[1] & _IS_MASKED else 0))
        is_content = head[:2] == self._head_to_come
        if is_content and _LARGE_BYTES <= size_bytes <= len(self._buffer):
            data = self._exactly(size_bytes)
            if any(key):
                data = memoryview(apply_mask(data, key))
            self._messages.append(ChannelMessage(data[0], data[1:]))
            return
        self._feed(head + key)
        while size_bytes and not self._core.is_over:
            part = self._exactly(min(size_bytes, len(self._buffer)))
            self._feed(part)
            size_bytes -= len(part)

    def _exactly(self, count: int) -> memoryview:
        """Read so many bytes, valid until the next are read."""
        early, self._early = self._early[:count], self._early[count:]
        self._buffer[: len(early)] = early
        view, done = self._buffer[:count], len(early)
        while done < count:
            got = self._io(self._sock.recv_into, view[done:])
            if not got:
                self._core.receive_eof()
                assert self._core.error is not None
                raise self._core.error
            done += got
        return view

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

    def send(self, kind: int, head: bytes | memoryview, data: bytes | memoryview = b"") -> None:
        prefix = bytes((kind,)) + head
        if len(data) < _LARGE_BYTES:
            self._core.send(prefix + data)
            self._flush()
            return
        key = bytes(_KEY_BYTES) if self._is_client else b""
        if self._is_client and self._masks:
            key, turn = os.urandom(_KEY_BYTES), len(prefix) % _KEY_BYTES
            data = apply_mask(data, key[turn:] + key[:turn])
            prefix = apply_mask(prefix, key)
        size_bytes = len(prefix) + len(data)
        self._write(b"".join((self._head_to_send, size_bytes.to_bytes(8, "big"), key, prefix)))
        self._write(data)

    def close(self) -> None:
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
        self._sock.close()

    def interrupt(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _flush(self) -> None:
        for frame in self._core.data_to_send():
            self._write(frame)

    def _write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
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
    masks: bool = True,
) -> SocketLink:
    """Open a connection as its client; raises as ``open_websocket``.

    Args:
        label, idle_s, masks: see ``SocketLink``.
    """
    sock, early = open_websocket(target, protocol, timeout_s=timeout_s, tls=tls)
    return SocketLink(sock, CLIENT, label=label, early=early, idle_s=idle_s, masks=masks)
