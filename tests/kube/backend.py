"""An APIService that says what has reached it: for the ways there, not for what pycrictl answers.

Every path below the group gives ``asked``'s entry back, or does what its query says: ``n`` lines of
NDJSON, one each ``every`` seconds; ``after``: silence for so long before the answer; ``die``: it
breaks off. A request to upgrade gets 101 and an echo.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.kube.objects import group_document, status
from tests.streaming.servers import Certificates

GROUP, VERSION = "progress.pycrictl.dev", "v1alpha1"
BASE = f"/apis/{GROUP}/{VERSION}"
_READ = ["get", "list", "watch"]
RESOURCES = [
    {
        "name": "imagepulls",
        "singularName": "imagepull",
        "kind": "ImagePull",
        "namespaced": True,
        "verbs": _READ,
        "shortNames": ["ipull"],
    },
    {
        "name": "pods/imagepullprogress",
        "singularName": "",
        "kind": "ImagePull",
        "namespaced": True,
        "verbs": ["get", "watch"],
    },
]


@dataclass
class Backend:
    """What it was asked, by whom; when clients were gone."""

    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        backend: Backend = self.server.backend  # type: ignore[attr-defined]  # set where it is made
        assert isinstance(self.connection, ssl.SSLSocket)
        certificate: Any = self.connection.getpeercert() or {}
        entry = {
            "target": self.path,
            "subject": [pair for one in certificate.get("subject", ()) for pair in one],
            "headers": [[key, value] for key, value in self.headers.items()],
        }
        backend.asked.append(entry)
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        time.sleep(float(query.get("after", 0)))
        try:
            if "upgrade" in self.headers.get("Connection", "").lower():
                self._echo()
            elif "n" in query:
                self._lines(query)
            else:
                self._document(url.path, entry)
        except OSError:
            backend.gone.append(time.monotonic())
            self.close_connection = True

    def _document(self, path: str, entry: Any) -> None:
        documents = {
            f"/apis/{GROUP}": {"kind": "APIGroup", **group_document(GROUP, VERSION)},
            BASE: {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{GROUP}/{VERSION}",
                "resources": RESOURCES,
            },
        }
        document = documents.get(path) or (entry if path.startswith(f"{BASE}/") else None)
        code = 404 if document is None else 200
        content = json.dumps(document or status(404, "no such route", "NotFound")).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _lines(self, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(int(query["n"])):
            line = json.dumps({"number": number, "at": time.time()}).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            time.sleep(float(query.get("every", 0)))
        if "die" in query:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _echo(self) -> None:
        self.send_response_only(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", self.headers["Upgrade"])
        self.end_headers()
        while data := self.connection.recv(65536):
            self.connection.sendall(data)
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass  # a client whose certificate is not asked for


@contextmanager
def serve(
    certificates: Certificates, client_ca: str, host: str = "127.0.0.1", port: int = 0
) -> Iterator[Backend]:
    """Serve TLS that only who has a certificate of ``client_ca`` gets through."""
    backend = Backend()
    context = certificates.server_context()
    context.load_verify_locations(client_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    server = _Server((host, port), _Handler)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    server.backend = backend  # type: ignore[attr-defined]  # for the handler
    backend.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield backend
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()
