"""Sockets without a runtime behind them; each context manager yields the path of one."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

HTTP1_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"400 Bad Request"
)
HTTP2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
HTTP2_SETTINGS_ACK = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


_PING = _frame(6, 0, 0, bytes(8))
# 0x88 is `:status: 200`; then `content-type: application/grpc`.
_HEAD = _frame(1, 4, 1, b"\x88\x0f\x10\x10application/grpc")


@contextmanager
def _socket(backlog: int = 5) -> Iterator[tuple[socket.socket, str]]:
    folder = tempfile.mkdtemp(prefix="hostile-")
    path = str(Path(folder, "s"))
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(backlog)
            yield listener, path
    finally:
        shutil.rmtree(folder)


def _listening(
    behave: Callable[[socket.socket], object],
) -> Callable[[], AbstractContextManager[str]]:
    """Run ``behave`` for each connection in its own thread, then close the connection."""
    return contextmanager(partial(_served, behave))


def _served(behave: Callable[[socket.socket], object]) -> Iterator[str]:
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            behave(connection)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threads.append(threading.Thread(target=talk, args=(connection,)))
            threads[-1].start()

    with _socket() as (listener, path):
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


@contextmanager
def unaccepted(backlog: int = 5) -> Iterator[str]:
    """Listens but never accepts."""
    with _socket(backlog) as (_, path):
        yield path


@contextmanager
def dead() -> Iterator[str]:
    """A socket file without a listener."""
    with _socket() as (listener, path):
        listener.close()
        yield path


@_listening
def hung(connection: socket.socket) -> None:
    """Accepts connections and reads, but never responds."""
    while connection.recv(65536):
        pass


@contextmanager
def forbidden() -> Iterator[str]:
    """Denies all connections; root, whom file modes do not stop, becomes another user meanwhile."""
    with hung() as path:
        Path(path).chmod(0)
        Path(path).parent.chmod(0o755)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            yield path
        finally:
            if is_root:
                os.seteuid(0)


@_listening
def closing(connection: socket.socket) -> None:
    """Closes every connection at once."""


@_listening
def resetting(connection: socket.socket) -> None:
    """Resets every connection at once, by closing it with unread bytes in the buffer."""
    connection.recv(1)


def answering(data: bytes) -> AbstractContextManager[str]:
    """Responds to the first bytes with ``data``, then only reads."""

    @_listening
    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(data)
        while connection.recv(65536):
            pass

    return answer()


@_listening
def http1(connection: socket.socket) -> None:
    """A web server."""
    connection.recv(65536)
    connection.sendall(HTTP1_ANSWER)


@_listening
def dying(connection: socket.socket) -> None:
    """An HTTP/2 server that closes the connection at the first request."""
    _asks(connection)


@_listening
def unending(connection: socket.socket) -> None:
    """Responds with a message of ten bytes, followed by further bytes without end."""
    if _asks(connection):
        connection.sendall(_HEAD + _frame(0, 0, 1, b"\0\0\0\0\x0a"))
        while True:
            connection.sendall(_frame(0, 0, 1, bytes(16384)) * 16)


@_listening
def flooding(connection: socket.socket) -> None:
    """Pings as fast as it can after the first request, and stops reading."""
    if _asks(connection):
        while True:
            connection.sendall(_PING * 1000)


@_listening
def deaf(connection: socket.socket) -> None:
    """Like ``flooding``, but within all limits: a response goes byte by byte among the pings."""
    if _asks(connection):
        connection.sendall(_HEAD + _frame(0, 0, 1, b"\0\0\xff\xff\xff"))
        for _ in range(100):
            connection.sendall((_frame(0, 0, 1, b"x") + _PING * 9) * 1000)
        threading.Event().wait()


def _asks(connection: socket.socket) -> bool:
    """Open HTTP/2 and wait for a request; return whether one arrived."""
    connection.sendall(HTTP2_SETTINGS + HTTP2_SETTINGS_ACK)
    received = b""
    while not _has_headers(received):
        chunk = connection.recv(65536)
        if not chunk:
            return False
        received += chunk
    return True


def _has_headers(received: bytes) -> bool:
    """Whether a whole HEADERS frame follows the client's 24-byte preface."""
    position = 24
    while position + 9 <= len(received):
        length = int.from_bytes(received[position : position + 3], "big")
        kind = received[position + 3]
        position += 9 + length
        if kind == 1 and position <= len(received):
            return True
    return False
