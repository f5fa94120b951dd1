"""Silent HTTP servers for tests, and free ports for other servers."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def free_port() -> int:
    """Return a port of the loopback interface on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Handler(BaseHTTPRequestHandler):
    """Base of request handlers; those of tests add ``do_GET``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def send(
        self, code: int, content: bytes, type_: str = "application/json", **headers: str
    ) -> None:
        """Send a complete response; underscores in names of headers stand for dashes."""
        self.send_response(code)
        self.send_header("Content-Type", type_)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def send_document(self, code: int, document: Any) -> None:
        self.send(code, json.dumps(document).encode() + b"\n")

    def send_lines(self, documents: Iterable[Any], *, is_whole: bool = True) -> None:
        """Send documents as they come, one line and chunk each; break off unless ``is_whole``."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for document in documents:
            line = json.dumps(document).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        if is_whole:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True


def believing(pair: tuple[str, str] | None = None) -> ssl.SSLContext:
    """Return TLS settings of a client that trusts any server; ``pair`` is its certificate and key.

    Loading the system's authorities, which are not needed, would take 30 ms each time.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


def send_at_once(sock: socket.socket) -> None:
    """Send small messages without waiting 40 ms for the acknowledgement of the last one."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class QuietServer(ThreadingHTTPServer):
    """A server that prints nothing when a connection breaks, which may be after its test."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *given: Any, context: ssl.SSLContext | None = None) -> None:
        self._open: set[Any] = set()
        self._context = context
        super().__init__(*given)

    def get_request(self) -> tuple[socket.socket, Any]:
        plain, address = super().get_request()
        if self._context is None:
            return plain, address
        try:
            plain.getpeername()  # ssl would leave its socket open if the client has gone already
        except OSError:
            plain.close()
            raise
        # The thread that answers makes the handshake, so that a slow one does not block others.
        tls = self._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        return tls, address

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        """End all connections."""
        for connection in list(self._open):
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        pass


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler],
    context: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> Iterator[int]:
    """Serve during the block; yield the port."""
    server = QuietServer((host, port), handler, context=context)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()
        server.cut()
