"""A server of copy streams that does exactly what a test wants, behind a fake runtime's calls."""

from __future__ import annotations

import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pycrictl._proto import cri_pb2
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import (
    CHANNEL_END,
    FROM_CONTAINER,
    STATUS,
    STREAM_PROTOCOL,
    TO_CONTAINER,
)
from pycrictl.errors import StreamError
from pycrictl.wire.http1 import parse_request
from pycrictl.wire.upgrade import accepted
from tests.fakecri.server import FakeServer

SUCCESS = b'{"metadata":{},"status":"Success"}'

Script = Callable[[SocketLink], None]


class CopyServer:
    """Runs ``script`` on each connection.

    Attributes:
        script: what is done once the handshake is over.
        answer: instead of the handshake, these bytes.
        received: what came on the channel to the container.
        errors: what went wrong in a script, but for a client that goes.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.script: Script = self.take
        self.answer = b""
        self.received = bytearray()
        self.errors: list[BaseException] = []
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def url(self) -> str:
        scheme = "http" if self._context is None else "https"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}/copy/token"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(60)
        self._listener.close()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.errors == []

    def take(self, connection: SocketLink) -> None:
        """What an honest server does with what comes."""
        self.take_all(connection)
        connection.send(STATUS, SUCCESS)

    def take_all(self, connection: SocketLink) -> None:
        while piece := connection.receive():
            if piece.channel == CHANNEL_END:
                assert bytes(piece.data) == bytes((TO_CONTAINER,))
                return
            assert piece.channel == TO_CONTAINER
            self.received += piece.data
        raise StreamError("the client left")

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,))
            thread.start()
            self._threads.append(thread)

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(60)
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                if not (data := sock.recv(4096)):
                    return
                head += data
            request = parse_request(head)
            accept = accepted(request.headers.raw_items(), STREAM_PROTOCOL)
            assert accept is not None
            if self.answer:
                sock.sendall(self.answer)
                sock.recv(1)
                return
            sock.sendall(accept)
            connection = SocketLink(sock, idle_s=60)
            with suppress(StreamError):
                self.script(connection)
            connection.close()
        except OSError:
            pass
        except BaseException as exc:
            self.errors.append(exc)
        finally:
            sock.close()


@contextmanager
def copy_server(context: ssl.SSLContext | None = None) -> Iterator[CopyServer]:
    server = CopyServer(context)
    try:
        yield server
    finally:
        server.close()


def offer(fake: FakeServer, server: CopyServer, archive: bytes = b"", **others: Any) -> None:
    """The fake runtime answers both calls with the server's URL, and announces ``archive``."""
    told = {"size": len(archive), "checksum": zlib.crc32(archive), **others}
    fake.offer("CopyToContainer", cri_pb2.CopyToContainerResponse(url=server.url))
    fake.offer("CopyFromContainer", cri_pb2.CopyFromContainerResponse(url=server.url, **told))


def sending(archive: bytes, outcome: bytes = SUCCESS, *, piece_bytes: int = 1 << 20) -> Script:
    """A script that sends an archive, and an outcome if there is one."""

    def script(connection: SocketLink) -> None:
        for start in range(0, len(archive), piece_bytes):
            connection.send(FROM_CONTAINER, archive[start : start + piece_bytes])
        connection.send(CHANNEL_END, bytes((FROM_CONTAINER,)))
        if outcome:
            connection.send(STATUS, outcome)

    return script
