"""A relay in front of a runtime's socket that notes what its clients call.

Bytes pass untouched in both directions; a copy of what a client sends is read as HTTP/2.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from pycrictl.wire import grpc_http2, hpack, http2
from pycrictl.wire.http2_reader import FrameReader

_PIECE_BYTES: Final = 65536


@dataclass
class Call:
    """One call, as its client made it.

    Attributes:
        path: of its method, such as ``/runtime.v1.ImageService/ListImages``.
        timeout_s: the deadline that the client gave it; None without one.
    """

    path: str
    timeout_s: float | None
    body: bytearray = field(default_factory=bytearray, repr=False)

    @property
    def message(self) -> bytes:
        """The only message of the request, serialised."""
        return grpc_http2.only_message(self.body)


class CallReader:
    """Finds the calls in what one client sends on one connection. Pure.

    Args:
        begun: gets each call when its headers are there; its body is added as it comes.
    """

    def __init__(self, begun: Callable[[Call], object]) -> None:
        self._begun = begun
        self._frames = FrameReader()
        self._has_preface = False
        self._headers = hpack.Decoder()  # containerd announces no larger table
        self._calls: dict[int, Call] = {}

    def receive(self, data: bytes) -> None:
        """Takes the next bytes.

        Raises:
            RemoteProtocolError: they are no HTTP/2.
        """
        frames = self._frames
        frames.feed(data, time.monotonic())
        if not self._has_preface:
            self._has_preface = frames.skip(http2.PREFACE)
        is_behind = self._has_preface
        while is_behind:
            buffer = frames.buffer
            for kind, _, stream_id, pos, stop in frames.units():
                self._receive_unit(kind, stream_id, buffer, pos, stop)
            is_behind = frames.is_behind

    def _receive_unit(self, kind: int, stream_id: int, buffer: bytes, pos: int, stop: int) -> None:
        if kind == http2.DATA:
            self._calls[stream_id].body += http2.data_of(buffer, pos, stop)
        elif kind == http2.HEADERS:
            headers = self._headers.decode(http2.block_of(buffer, pos, stop))
            path = dict(headers)[b":path"].decode()
            call = self._calls[stream_id] = Call(path, grpc_http2.timeout_s(headers))
            self._begun(call)


class Recorder:
    """A context manager that relays connections from ``path`` to the socket at ``upstream``.

    A call is noted before it is passed on: who has its answer finds it in ``calls``. Leaving the
    block fails when a client sent what could not be read.

    Attributes:
        path: of the relay's socket.
        calls: all calls so far, in the order of their arrival, whatever the connection.
    """

    def __init__(self, upstream: Path, path: Path) -> None:
        self.path = path
        self.calls: list[Call] = []
        self._server = _Server(str(path), _Connection)
        self._server.upstream = str(upstream)
        self._server.begun = self.calls.append
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def endpoint(self) -> str:
        """The socket as ``--runtime-endpoint`` takes it."""
        return f"unix://{self.path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if exc_type is None:
            assert not self._server.failures, self._server.failures


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128
    upstream: str
    begun: Callable[[Call], object]

    def __init__(self, path: str, handler: type[socketserver.BaseRequestHandler]) -> None:
        super().__init__(path, handler)
        self.failures: list[Exception] = []


class _Connection(socketserver.BaseRequestHandler):
    request: socket.socket
    server: _Server

    def handle(self) -> None:
        reader = CallReader(self.server.begun)

        def read(data: bytes) -> None:
            try:
                reader.receive(data)
            except Exception as exc:  # the bytes pass all the same
                self.server.failures.append(exc)

        with socket.socket(socket.AF_UNIX) as upstream:
            upstream.connect(self.server.upstream)
            back = threading.Thread(target=_pass_on, args=(upstream, self.request), daemon=True)
            back.start()
            _pass_on(self.request, upstream, read)
            back.join()


def _pass_on(
    source: socket.socket, sink: socket.socket, seen: Callable[[bytes], object] | None = None
) -> None:
    """Copies bytes until the source ends, and then ends the sink's side."""
    with suppress(OSError):  # one of them was closed with something unread
        while data := source.recv(_PIECE_BYTES):
            if seen is not None:
                seen(data)
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
