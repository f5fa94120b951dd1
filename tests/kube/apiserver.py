"""A stand-in for an API server: real TLS, a client certificate, recorded answers.

What it lets a kubelet's credential do is what a real one does (Node authorizer): pods of its own
node with the field selector, events by creating and patching.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.once import made_once
from tests.streaming.servers import Certificates, make_certificates

NODE = "n1"
PODS = json.loads((Path(__file__).parent / "data/pods.json").read_text())


@dataclass
class ApiServer:
    """What it answers, and what it was asked.

    Attributes:
        pods: the list that its node gets.
        silence: until it is set, the next answers do not come.
        drips: answers come a byte at a time and never end.
        token: one that is good as well.
        raw: what it answers instead of documents.
        node: whose kubelet a token stands for.
        refusals: statuses that it refuses events with, by method.
        asked: method, target and body of each request.
    """

    certificates: Certificates
    port: int = 0
    pods: dict[str, Any] = field(default_factory=lambda: PODS)
    silence: threading.Event | None = None
    drips: bool = False
    token: str = ""
    node: str = NODE
    raw: bytes = b""
    refusals: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def kubeconfig(self, *, inline: bool = False, **changes: Any) -> dict[str, Any]:
        """A kubelet's kubeconfig for it; ``changes`` are keys of the cluster or the user."""
        files = {
            "certificate-authority": self.certificates.ca,
            "client-certificate": self.certificates.cert("client"),
            "client-key": self.certificates.key("client"),
        }
        values = dict(files)
        if inline:
            values = {
                f"{key}-data": base64.b64encode(Path(path).read_bytes()).decode()
                for key, path in files.items()
            }
        cluster = {"server": self.url}
        user: dict[str, Any] = {}
        for key, value in values.items():
            (user if key.startswith("client") else cluster)[key] = value
        for key, value in changes.items():
            name = key.replace("_", "-")
            (cluster if name in ("server", "tls-server-name") else user)[name] = value
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }


class _Handler(BaseHTTPRequestHandler):
    """One request; ``server.api`` says what to answer."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    do_PATCH = do_POST

    def _answer(self, body: Any) -> None:
        api: ApiServer = self.server.api  # type: ignore[attr-defined]  # set where it is made
        api.asked.append((self.command, self.path, body))
        if api.silence is not None:
            api.silence.wait(60)
        status, document = self._judge(api, body)
        content = api.raw or json.dumps(document).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content) + (1 << 30) * api.drips))
            self.end_headers()
            while api.drips:
                self.wfile.write(b" ")
                threading.Event().wait(0.05)
            self.wfile.write(content)
        except OSError:
            pass  # the client had enough

    def _judge(self, api: ApiServer, body: Any) -> tuple[int, Any]:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if (user := self._user(api)) != f"system:node:{api.node}":
            return 401, _status(401, "Unauthorized")
        if url.path == "/api/v1/pods":
            if query.get("fieldSelector") != f"spec.nodeName={api.node}":
                return 403, _status(
                    403,
                    f'pods is forbidden: User "{user}" cannot list resource "pods" in'
                    ' API group "" at the cluster scope: can only list/watch pods with'
                    " spec.nodeName field selector",
                )
            return 200, api.pods
        if "/events" in url.path and self.command in api.refusals:
            status = api.refusals[self.command]
            return status, _status(status, "refused")
        if "/events" in url.path and self.command in ("POST", "PATCH"):
            return (201 if self.command == "POST" else 200), body
        return 404, _status(404, "the server could not find the requested resource")

    def _user(self, api: ApiServer) -> str:
        if api.token and self.headers["Authorization"] == f"Bearer {api.token}":
            return f"system:node:{api.node}"
        assert isinstance(self.connection, ssl.SSLSocket)
        certificate: Any = self.connection.getpeercert() or {}
        subject = dict(pair for entry in certificate.get("subject", ()) for pair in entry)
        return str(subject.get("commonName", ""))


def _status(code: int, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "code": code,
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass  # a client that does not trust it, or has enough


@contextmanager
def serve(certificates: Certificates) -> Iterator[ApiServer]:
    """Serve on a free port of the loopback."""
    api = ApiServer(certificates)
    context = certificates.server_context()
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    server = _Server(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.api = api  # type: ignore[attr-defined]  # for the handler
    api.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield api
    finally:
        if api.silence is not None:
            api.silence.set()
        server.shutdown()
        thread.join(60)
        server.server_close()


def make_node_certificates(folder: Path) -> Certificates:
    """Make a CA, a server's certificate, and that of the kubelet of ``NODE``."""

    def make() -> Certificates:
        (folder / "kube").mkdir()
        return make_certificates(folder / "kube", client=f"/O=system:nodes/CN=system:node:{NODE}")

    return made_once(folder / "kube-certificates", make)


def write_kubeconfig(
    document: dict[str, Any], root: Path, path: str = "etc/kubernetes/kubelet.conf"
) -> Path:
    """Put a kubeconfig where a kubelet below ``root`` would have it."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))
    return file


__all__ = ["NODE", "PODS", "ApiServer", "make_node_certificates", "serve", "write_kubeconfig"]
