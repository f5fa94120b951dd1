"""A relay between a client and an agent that can slow, corrupt and cut connections."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn, UnixStreamServer

from tests.serving import send_at_once


class _Server(ThreadingMixIn, TCPServer):
    request_queue_size = 50


class _UnixServer(ThreadingMixIn, UnixStreamServer):
    request_queue_size = 50


class Relay:
    """Forwards connections from ``path``, or from a loopback port, to ``upstream``.

    Args:
        path: the Unix socket to listen on; empty for a port.
        upstream: a Unix socket as well, or a loopback port.

    Attributes:
        port: the port it listens on; 0 if it has a path.
        flows: while cleared, no bytes pass, but connections stay open.
        upstream: the target of new connections.
        bytes_per_s: the limit per connection and direction; 0 for none.
        cuts: how many connections it may still cut.
        most: a connection to be cut passes fewer bytes than this, both directions together.
        damages: how many bytes it may still corrupt.
        passed: the byte count of all connections.
    """

    def __init__(self, path: str, upstream: str | int) -> None:
        self.upstream = upstream
        self.flows = threading.Event()
        self.flows.set()
        self.bytes_per_s = self.cuts = self.most = self.damages = self.passed = 0
        self._random = random.Random(1)
        self._path = path
        self._open: set[socket.socket] = set()
        place = path or ("127.0.0.1", 0)
        self._server = (_UnixServer if path else _Server)(place, self._serve)  # type: ignore[arg-type]  # as a request handler
        self.port: int = 0 if path else self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,)).start()

    def cut(self) -> None:
        """Cut all open connections."""
        for sock in list(self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.flows.set()
        self._server.shutdown()
        self.cut()
        self._server.server_close()
        if self._path:
            Path(self._path).unlink()

    def _serve(self, client: socket.socket, *_: object) -> None:
        to = self.upstream
        upstream = socket.socket(socket.AF_INET if isinstance(to, int) else socket.AF_UNIX)
        with upstream, suppress(OSError):
            upstream.connect(("127.0.0.1", to) if isinstance(to, int) else to)
            budget = [self._random.randrange(1, self.most) if self.cuts and self.most else 1 << 62]
            for side in (client, upstream):
                send_at_once(side)
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
