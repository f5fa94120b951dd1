"""Opens the WebSocket behind a stream URL with blocking calls, without asyncio.

The rules are those of ``streams.bytestream.dial`` and ``remote_command.open_transport``.
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from typing import Final

from pycrictl.base.errors import RemoteProtocolError, StreamError
from pycrictl.streams.opening import MAX_REFUSAL_BYTES, REFUSAL_S, Opening
from pycrictl.streams.target import Target, TlsFiles, cannot_connect, connection_broke, tls_of
from pycrictl.streams.wire.upgrade import ClientHandshake

_READ_BYTES: Final = 16384


def open_websocket(
    target: Target, protocol: str, *, timeout_s: float, tls: TlsFiles | None = None
) -> tuple[socket.socket, bytes]:
    """Connect and upgrade; return the socket, and the bytes read beyond the handshake.

    The URL is used up afterwards, even if the server refuses. ``timeout_s`` limits connecting, and
    then the response.
    """
    with ExitStack() as stack:
        sock = stack.enter_context(connect(target, timeout_s, tls))
        handshake = ClientHandshake([protocol])
        opening = Opening(target, "GET", handshake.headers)
        _exchange(sock, target, opening, timeout_s)
        if opening.response is None or opening.response.status != 101:
            raise opening.refusal()
        if handshake.check(opening.response) != protocol:
            raise RemoteProtocolError(f'"{target.label}" does not speak {protocol}')
        stack.pop_all()
        return sock, opening.leftover


def connect(target: Target, timeout_s: float, tls: TlsFiles | None = None) -> socket.socket:
    secure = tls_of(target, tls)
    try:
        with ExitStack() as stack:
            if target.socket:
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.settimeout(timeout_s)
                sock.connect(target.socket)
            else:
                address = (target.host, target.port)
                sock = stack.enter_context(socket.create_connection(address, timeout_s))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secure is not None:
                sock = secure[0].wrap_socket(sock, server_hostname=secure[1])
            stack.pop_all()
            return sock
    except (OSError, UnicodeError) as exc:
        raise cannot_connect(target, exc, timeout_s) from exc


def _exchange(sock: socket.socket, target: Target, opening: Opening, timeout_s: float) -> None:
    give_up_at = time.monotonic() + timeout_s
    try:
        sock.sendall(opening.head)
        while len(opening.body) < MAX_REFUSAL_BYTES and not opening.is_complete:
            sock.settimeout(max(give_up_at - time.monotonic(), 0.001))
            opening.receive(sock.recv(_READ_BYTES))
            if opening.response is not None:
                give_up_at = min(give_up_at, time.monotonic() + REFUSAL_S)
    except (OSError, StreamError) as exc:
        if opening.response is not None:
            return  # what has arrived is enough
        if isinstance(exc, StreamError):
            raise
        if isinstance(exc, TimeoutError):
            raise opening.silence(timeout_s) from exc
        raise connection_broke(target.label, exc) from exc
