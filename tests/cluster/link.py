"""A slow link between a workstation and the API server."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Final

_CHUNK_BYTES: Final = 64 * 1024
_BURST_S: Final = 0.05


class Link:
    """A context manager: a port of the loopback whose connections go on to another one.

    Args:
        port: the other one.
        bytes_per_s: what passes in each direction, of all connections together.

    Attributes:
        port: its own.
        passed: bytes, in both directions.
    """

    def __init__(self, port: int, bytes_per_s: float) -> None:
        self._upstream = "127.0.0.1", port
        self._rate = bytes_per_s
        self.passed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._next = {"there": 0.0, "back": 0.0}

    def __enter__(self) -> Link:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            upstream = socket.create_connection(self._upstream)
        except OSError:  # the API server is away
            client.close()
            return
        self._open |= {client, upstream}
        back = threading.Thread(target=self._pump, args=(upstream, client, "back"), daemon=True)
        back.start()
        self._pump(client, upstream, "there")
        back.join()
        self._open -= {client, upstream}
        client.close()
        upstream.close()

    def _pump(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self._wait(len(data), way)
                target.sendall(data)
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _wait(self, size_bytes: int, way: str) -> None:
        """Wait for the turn of so many bytes; a link that was idle saves up next to nothing."""
        with self._lock:
            self.passed += size_bytes
            begin = max(self._next[way], time.monotonic() - _BURST_S)
            self._next[way] = begin + size_bytes / self._rate
        time.sleep(max(begin - time.monotonic(), 0))
