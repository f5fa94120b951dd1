"""What is between a client and an agent: a socket that hands bytes on, until it is cut."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from tests.serving import send_at_once


class Relay:
    """Hands on what comes to ``path``, or to a port of the loopback.

    Args:
        path: of a Unix socket; empty for a port.
        upstream: a path as well, or a port.

    Attributes:
        port: where it listens, if not at a path.
        flows: nothing passes while it is cleared, and no connection breaks.
        upstream: where new connections go.
        bytes_per_s: the most that passes one way of a connection; 0 for no limit.
        cuts: how often it may cut a connection.
        most: a connection that is cut passes at most so many bytes, either way.
        damages: how many bytes it may change.
        passed: bytes in all.
    """

    def __init__(self, path: str, upstream: str | int, *, seed: int = 1) -> None:
        self.upstream = upstream
        self.flows = threading.Event()
        self.flows.set()
        self.bytes_per_s = self.cuts = self.most = self.damages = self.passed = 0
        self._random = random.Random(seed)
        self._listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._listener.bind(path or ("127.0.0.1", 0))
        self._listener.listen(50)
        self.port = 0 if path else self._listener.getsockname()[1]
        self._path = path
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """Cut all connections that are open."""
        for sock in list(self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.flows.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(30)
        self.cut()
        for thread in self._threads:
            thread.join(30)
        if self._path:
            Path(self._path).unlink()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        to = self.upstream
        upstream = socket.socket(socket.AF_INET if isinstance(to, int) else socket.AF_UNIX)
        with client, upstream, suppress(ConnectionError, FileNotFoundError):
            upstream.connect(("127.0.0.1", to) if isinstance(to, int) else to)
            budget = [1 << 62]
            if self.cuts and self.most:
                budget = [self._random.randrange(1, self.most)]
            for one in (client, upstream):
                send_at_once(one)
            self._open |= {client, upstream}
            back = threading.Thread(target=self._pump, args=(upstream, client, budget))
            back.start()
            self._pump(client, upstream, budget)
            back.join()
            self._open -= {client, upstream}

    def _pump(self, source: socket.socket, target: socket.socket, budget: list[int]) -> None:
        with suppress(OSError):
            while data := bytearray(source.recv(65536)):
                budget[0] -= len(data)
                self.passed += len(data)
                if budget[0] <= 0:
                    self.cuts -= 1
                    break
                if self.damages and len(data) > 10_000:
                    self.damages -= 1
                    data[9_000] ^= 4
                if self.bytes_per_s:
                    time.sleep(len(data) / self.bytes_per_s)
                self.flows.wait()
                target.sendall(data)
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
