"""A server of progress streams for tests of commands: each connection gets the next script."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

Record = dict[str, Any]

JOIN_S = 10


class ProgressServer:
    """Where the streams are, and how many were asked for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connections = 0


def _lines(records: Sequence[Record]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@contextmanager
def http_streams(
    *scripts: Sequence[Record] | int, cut: Sequence[int] = ()
) -> Iterator[ProgressServer]:
    """Plain HTTP with newline-delimited JSON.

    Args:
        scripts: for each connection its records, or the status to refuse it with.
        cut: indexes of connections that break off after their records.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    server = ProgressServer(f"http://127.0.0.1:{listener.getsockname()[1]}/progress/token")

    def answer(connection: socket.socket, index: int, script: Sequence[Record] | int) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := connection.recv(4096)):
                return
            head += data
        if isinstance(script, int):
            reason = f"HTTP/1.1 {script} No\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(reason.encode())
            return
        body = _lines(script)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        if body:
            connection.sendall(f"{len(body):x}\r\n".encode() + body + b"\r\n")
        if index not in cut:
            connection.sendall(b"0\r\n\r\n")

    def accept() -> None:
        with suppress(OSError):  # the listener is closed at the end
            for index, script in enumerate(scripts):
                connection, _ = listener.accept()
                server.connections += 1
                with connection:
                    answer(connection, index, script)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield server
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(JOIN_S)


@contextmanager
def websocket_stream(records: Sequence[Record]) -> Iterator[ProgressServer]:
    server = ProgressServer("")

    def handle(connection: ServerConnection) -> None:
        server.connections += 1
        with suppress(ConnectionClosed):
            for record in records:
                connection.send(json.dumps(record))

    with serve(handle, "127.0.0.1", 0) as websocket:
        server.url = f"ws://127.0.0.1:{websocket.socket.getsockname()[1]}/progress/token"
        thread = threading.Thread(target=websocket.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            websocket.shutdown()
            thread.join(JOIN_S)
