"""A stand-in of a cluster for the real kubectl: an API server with pods, and an agent behind it.

All of it over TLS, with bearer tokens for users. The agent's answers are scripts.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.kube.apiserver import make_node_certificates
from tests.streaming.servers import Certificates

GROUP = "progress.pycrictl.dev"
ROOT = f"/apis/{GROUP}/v1alpha1"
Document = dict[str, Any]

_RESOURCES = {
    "v1": [("pods", "Pod", "po"), ("namespaces", "Namespace", "ns"), ("nodes", "Node", "no")],
    "apps/v1": [("deployments", "Deployment", "deploy")],
}
_PULLS = [("imagepulls", "ImagePull", "ipull")]


@dataclass
class Stream:
    """What a connection gets, line by line, and how it ends.

    Attributes:
        lines: the documents.
        pause_s: after each of them.
        ending: ``end`` in good order, ``cut``, or ``hold`` until the cluster goes.
    """

    lines: Sequence[Document]
    pause_s: float = 0.0
    ending: str = "end"


@dataclass
class Cluster:
    """What the cluster has, and what it was asked.

    Attributes:
        pods, deployments, nodes: objects.
        pulls: what the agent lists, by turns; the last answer stays.
        watches: what each watch of ``imagepulls`` gets.
        streams: what each connection to a pod's stream gets.
        denied: users who may not see pulls.
        refusals: answers of the agent in place of all others: a status and a body.
        is_installed: whether there is an agent.
        versions: those that the agent offers.
        asked: method, target and user of each request.
    """

    certificates: Certificates
    port: int = 0
    pods: list[Document] = field(default_factory=list)
    deployments: list[Document] = field(default_factory=list)
    nodes: list[Document] = field(default_factory=list)
    pulls: list[list[Document]] = field(default_factory=list)
    watches: list[Stream] = field(default_factory=list)
    streams: list[Stream | tuple[int, Document]] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    refusals: list[tuple[int, bytes]] = field(default_factory=list)
    is_installed: bool = True
    versions: Sequence[str] = ("v1alpha1",)
    asked: list[tuple[str, str]] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    def kubeconfig(self, folder: Path, *, token: str = "root", namespace: str = "") -> Path:
        """Write a kubeconfig."""
        context = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
        cluster = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority": self.certificates.ca,
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": context}],
            "current-context": "x",
        }
        file = folder / f"kubeconfig-{token}"
        file.write_text(json.dumps(document))
        return file


def pod(name: str, *, namespace: str = "default", node: str = "n1", **labels: str) -> Document:
    """Make a pod with the container ``app``."""
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, "uid": f"u-{name}", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "web:1"}]},
        "status": {"phase": "Pending"},
    }


def pull(
    name: str,
    phase: str = "Pulling",
    *,
    progress: int = 0,
    total: int = 0,
    node: str = "n1",
    namespace: str = "default",
    image: str = "web:1",
    **status: Any,
) -> Document:
    """Make an ImagePull of a pod's container ``app``, with one layer."""
    layer = {
        "digest": f"sha256:{image.encode().hex():0<64}"[:71],
        "phase": {"Pulling": "downloading", "Succeeded": "done"}.get(phase, "waiting"),
        "progressBytes": progress,
        "totalBytes": total,
    }
    return {
        "kind": "ImagePull",
        "apiVersion": f"{GROUP}/v1alpha1",
        "metadata": {"name": f"{name}.app", "namespace": namespace, "uid": f"u-{name}-{image}"},
        "spec": {"podName": name, "containers": ["app"], "image": image, "nodeName": node},
        "status": {
            "phase": phase,
            "progressBytes": progress,
            "totalBytes": total,
            **({"layers": [layer]} if total else {}),
            **status,
        },
    }


def event(kind: str, document: Document, version: str = "2") -> Document:
    """Make a watch event."""
    metadata = {**document["metadata"], "resourceVersion": version}
    return {"type": kind, "object": {**document, "metadata": metadata}}


def failure(code: int, reason: str, message: str, **details: Any) -> Document:
    """Make a ``metav1.Status``."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        cluster: Cluster = self.server.cluster  # type: ignore[attr-defined]  # set where it is made
        user = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        user = self.headers["Impersonate-User"] or user
        cluster.asked.append((self.path, user))
        try:
            self._route(cluster, user)
        except OSError:
            self.close_connection = True

    def _route(self, cluster: Cluster, user: str) -> None:
        url = urlsplit(self.path)
        path, query = url.path.rstrip("/"), dict(parse_qsl(url.query))
        if user == "expired":
            return self._send(401, failure(401, "Unauthorized", "Unauthorized"))
        if path.startswith(f"/apis/{GROUP}"):
            return self._agent(cluster, user, path, query)
        if (found := _discovery(cluster, path)) is not None:
            return self._send(200, found)
        parts = path.split("/")
        kind = next((one for one in ("pods", "deployments", "nodes") if one in parts), "")
        if not kind:
            return self._send(404, failure(404, "NotFound", "the server could not find it"))
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
        objects = [
            one
            for one in getattr(cluster, kind)
            if namespace in ("", one["metadata"].get("namespace", ""))
        ]
        if parts[-1] != kind:
            name = parts[-1]
            for one in objects:
                if one["metadata"]["name"] == name:
                    return self._send(200, one)
            group = ".apps" if kind == "deployments" else ""
            text = f'{kind}{group} "{name}" not found'
            return self._send(404, failure(404, "NotFound", text, name=name, kind=kind))
        return self._send(200, _select(kind, objects, query))

    def _agent(self, cluster: Cluster, user: str, path: str, query: dict[str, str]) -> None:
        if not cluster.is_installed:
            return self._write(404, b"404 page not found\n", "text/plain")
        if path == f"/apis/{GROUP}":
            versions = [{"groupVersion": f"{GROUP}/{v}", "version": v} for v in cluster.versions]
            return self._send(200, {"kind": "APIGroup", "name": GROUP, "versions": versions})
        if "v1alpha1" not in cluster.versions:
            return self._write(404, b"404 page not found\n", "text/plain")
        if path == ROOT:
            return self._send(200, _resources(f"{GROUP}/v1alpha1", _PULLS))
        if user in cluster.denied:
            return self._send(403, _forbidden(user, path, query))
        if cluster.refusals:
            code, body = cluster.refusals.pop(0)
            return self._write(code, body, "application/json")
        if path.endswith("/imagepullprogress"):
            script = cluster.streams.pop(0) if cluster.streams else Stream([])
            if isinstance(script, tuple):
                return self._send(*script)
            return self._stream(cluster, script)
        if query.get("watch") == "true":
            return self._stream(cluster, cluster.watches.pop(0) if cluster.watches else _HOLD)
        turn = cluster.pulls.pop(0) if len(cluster.pulls) > 1 else (cluster.pulls or [[]])[0]
        namespace = path.split("/")[5] if "/namespaces/" in path else ""
        node = query.get("fieldSelector", "").removeprefix("spec.nodeName=")
        items = [
            one
            for one in turn
            if namespace in ("", one["metadata"]["namespace"])
            and node in ("", one["spec"]["nodeName"])
        ]
        version = {"resourceVersion": "1"}
        return self._send(200, {"kind": "ImagePullList", "metadata": version, "items": items})

    def _stream(self, cluster: Cluster, script: Stream) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in script.lines:
            data = json.dumps(line).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            time.sleep(script.pause_s)
        if script.ending == "hold":
            cluster.closed.wait(60)
        if script.ending == "end":
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True

    def _send(self, code: int, document: Document) -> None:
        self._write(code, json.dumps(document).encode(), "application/json")

    def _write(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


_HOLD = Stream([], ending="hold")


def _select(kind: str, objects: list[Document], query: dict[str, str]) -> Document:
    node = query.get("fieldSelector", "").removeprefix("spec.nodeName=")
    terms = [term.split("=") for term in query.get("labelSelector", "").split(",") if term]
    items = [
        one
        for one in objects
        if node in ("", one.get("spec", {}).get("nodeName"))
        and all(one["metadata"].get("labels", {}).get(key) == value for key, value in terms)
    ]
    name = {"pods": "Pod", "deployments": "Deployment", "nodes": "Node"}[kind]
    version = "apps/v1" if kind == "deployments" else "v1"
    return {"kind": f"{name}List", "apiVersion": version, "metadata": {}, "items": items}


def _forbidden(user: str, path: str, query: dict[str, str]) -> Document:
    """Refuse in the words of a real API server."""
    parts = path.split("/")
    namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    what = "pods/imagepullprogress" if parts[-1] == "imagepullprogress" else "imagepulls"
    verb = "watch" if what == "imagepulls" and query.get("watch") else "list"
    verb = "watch" if "watch" in parts else "get" if what != "imagepulls" else verb
    text = (
        f'{what.partition("/")[0]}.{GROUP} is forbidden: User "{user}" cannot {verb} resource'
        f' "{what}" in API group "{GROUP}" {where}'
    )
    return failure(403, "Forbidden", text, group=GROUP, kind=what)


def _discovery(cluster: Cluster, path: str) -> Document | None:
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        names = [("apps", "v1"), *((GROUP, v) for v in cluster.versions if cluster.is_installed)]
        groups = [
            {
                "name": name,
                "versions": [{"groupVersion": f"{name}/{version}", "version": version}],
                "preferredVersion": {"groupVersion": f"{name}/{version}", "version": version},
            }
            for name, version in names
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version not in _RESOURCES:
        return None
    return _resources(version, _RESOURCES[version])


def _resources(version: str, kinds: list[tuple[str, str, str]]) -> Document:
    resources = [
        {
            "name": name,
            "singularName": kind.lower(),
            "namespaced": kind not in ("Namespace", "Node"),
            "kind": kind,
            "verbs": ["get", "list", "watch"],
            "shortNames": [short],
        }
        for name, kind, short in kinds
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass


@contextmanager
def running(run_folder: Path) -> Iterator[Cluster]:
    """Serve on a free port of the loopback."""
    cluster = Cluster(make_node_certificates(run_folder))
    context = cluster.certificates.server_context()
    assert isinstance(context, ssl.SSLContext)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.cluster = cluster  # type: ignore[attr-defined]  # for the handler
    cluster.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield cluster
    finally:
        cluster.closed.set()
        server.shutdown()
        thread.join(60)
        server.server_close()
