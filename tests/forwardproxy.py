"""An HTTP proxy on the loopback, as ``HTTP_PROXY`` and ``HTTPS_PROXY`` name one."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from tests.serving import Handler, serving


class ForwardProxy:
    """Passes requests on to the servers of the test, whatever names the clients know them by.

    Attributes:
        url: its address.
        servers: HOST:PORT of servers by the HOST[:PORT] that clients ask for.
        requests: method, target and ``Proxy-Authorization``.
    """

    def __init__(self, servers: Mapping[str, str]) -> None:
        self.url = ""
        self.servers = servers
        self.requests: list[tuple[str, str, str]] = []

    def connect(self, handler: Handler) -> None:
        address = self._address(handler, handler.path)
        if not address:
            return
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port))) as server:
            handler.send_response(200)
            handler.end_headers()
            back = threading.Thread(target=_copy, args=(server, handler.connection))
            back.start()
            _copy(handler.connection, server)
            back.join(60)
        handler.close_connection = True

    def ask(self, handler: Handler) -> None:
        parts = urlsplit(handler.path)
        address = self._address(handler, parts.netloc)
        if not address:
            return
        connection = http.client.HTTPConnection(address, timeout=60)
        sent = {name: value for name, value in handler.headers.items() if name != "Host"}
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(handler.command, target, headers=sent)
        answer = connection.getresponse()
        handler.send_response(answer.status)
        for name, value in answer.getheaders():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(answer.read())
        connection.close()

    def _address(self, handler: Handler, name: str) -> str:
        known = handler.headers["Proxy-Authorization"] or ""
        self.requests.append((handler.command, handler.path, known))
        address = self.servers.get(name, "")
        if not address:
            handler.send(502, b"no such server")
        return address


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def forward_proxy(servers: Mapping[str, str]) -> Iterator[ForwardProxy]:
    proxy = ForwardProxy(servers)

    class Passing(Handler):
        def do_CONNECT(self) -> None:
            proxy.connect(self)

        def do_GET(self) -> None:
            proxy.ask(self)

        do_HEAD = do_GET

    with serving(Passing) as port:
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy
