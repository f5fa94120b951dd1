"""An APIService that says what has reached it: for the ways there, not for what pycrictl answers.

Every path below the group gives ``asked``'s entry back, or does what its query says: ``n`` lines of
NDJSON, one each ``every`` seconds; ``after``: silence for so long before the answer; ``die``: it
breaks off. A request to upgrade gets 101 and an echo.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.kube.objects import group_document, status
from tests.serving import Handler, serving
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


class _Handler(Handler):
    backend: Backend

    def do_GET(self) -> None:
        assert isinstance(self.connection, ssl.SSLSocket)
        certificate: Any = self.connection.getpeercert() or {}
        entry = {
            "target": self.path,
            "subject": [pair for one in certificate.get("subject", ()) for pair in one],
            "headers": [[key, value] for key, value in self.headers.items()],
        }
        self.backend.asked.append(entry)
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        time.sleep(float(query.get("after", 0)))
        try:
            if "upgrade" in self.headers.get("Connection", "").lower():
                self._echo()
            elif "n" in query:
                self.send_lines(self._lines(query), is_whole="die" not in query)
            else:
                self._document(url.path, entry)
        except OSError:
            self.backend.gone.append(time.monotonic())
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
        if document is None:
            self.send_document(404, status(404, "no such route", "NotFound"))
        else:
            self.send_document(200, document)

    @staticmethod
    def _lines(query: dict[str, str]) -> Iterator[Any]:
        for number in range(int(query["n"])):
            yield {"number": number, "at": time.time()}
            time.sleep(float(query.get("every", 0)))

    def _echo(self) -> None:
        self.send_response_only(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", self.headers["Upgrade"])
        self.end_headers()
        while data := self.connection.recv(65536):
            self.connection.sendall(data)
        self.close_connection = True


@contextmanager
def serve(
    certificates: Certificates, client_ca: str, host: str = "127.0.0.1", port: int = 0
) -> Iterator[Backend]:
    """Serve TLS that only who has a certificate of ``client_ca`` gets through."""
    made = Backend()

    class Bound(_Handler):
        backend = made

    context = certificates.server_context()
    context.load_verify_locations(client_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with serving(Bound, context, host, port) as made.port:
        yield made
