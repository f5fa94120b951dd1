"""A stand-in of a cluster for the real kubectl: an API server with pods, and an agent behind it.

All of it over TLS, with bearer tokens for users. The agent's answers are scripts.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.kube import access
from tests.kube.access import Request, User
from tests.kube.apiserver import make_node_certificates
from tests.kube.objects import (
    Document,
    Kind,
    Objects,
    group_document,
    kind_of,
    own_groups,
    resource_list,
    status,
)
from tests.serving import Handler, serving
from tests.streaming.servers import Certificates

GROUP = "progress.pycrictl.dev"
ROOT = f"/apis/{GROUP}/v1alpha1"


@dataclass
class Stream:
    """What a connection gets, line by line; it ends by ``end``, ``cut``, or ``hold`` for ever."""

    lines: Sequence[Document]
    pause_s: float = 0.0
    ending: str = "end"


@dataclass
class Cluster:
    """What the cluster has, and what it was asked.

    Attributes:
        pulls: what the agent lists, by turns; the last answer stays.
        watches, streams: what each watch of ``imagepulls``, or of a pod, gets.
        denied: users who may not see pulls.
        hidden: resources that nobody may see.
        refusals: answers of the agent in place of all others.
        versions: those that the agent offers.
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
    hidden: set[str] = field(default_factory=set)
    refusals: list[tuple[int, bytes]] = field(default_factory=list)
    is_installed: bool = True
    versions: Sequence[str] = ("v1alpha1",)
    asked: list[tuple[str, str]] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    def kubeconfig(self, folder: Path, *, token: str = "root", namespace: str = "") -> Path:
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
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, "uid": f"u-{name}", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "web:1"}]},
        "status": {"phase": "Pending"},
    }


NODE: Document = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}}


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
    metadata = {**document["metadata"], "resourceVersion": version}
    return {"type": kind, "object": {**document, "metadata": metadata}}


class _Handler(Handler):
    cluster: Cluster

    def do_GET(self) -> None:
        user = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        user = self.headers["Impersonate-User"] or user
        self.cluster.asked.append((self.path, user))
        try:
            self._route(access.parse("GET", self.path), User(user))
        except OSError:
            self.close_connection = True

    def _route(self, request: Request, user: User) -> None:
        kind = kind_of(request)
        parts = request.path.strip("/").split("/")
        if user.name == "expired":
            self.send_document(401, status(401, "Unauthorized", "Unauthorized"))
        elif request.path.startswith(f"/apis/{GROUP}"):
            self._agent(request, user)
        elif parts == ["api"]:
            self.send_document(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif parts == ["apis"]:
            offered = self.cluster.versions if self.cluster.is_installed else ()
            groups = [*own_groups(), *(group_document(GROUP, version) for version in offered)]
            document = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            self.send_document(200, document)
        elif kind is None:
            group, version = ("", "", *parts[1:])[-2:]
            found = resource_list(group, version)
            missing = status(404, "the server could not find it", "NotFound")
            self.send_document(200 if found else 404, found or missing)
        elif request.resource in self.cluster.hidden:
            text = access.forbidden_message(user, request)
            self.send_document(403, status(403, text, "Forbidden"))
        else:
            self._stored(kind, request)

    def _stored(self, kind: Kind, request: Request) -> None:
        objects = Objects()
        for group, name in (("", "pods"), ("apps", "deployments"), ("", "nodes")):
            objects.replace(group, name, {"items": getattr(self.cluster, name)})
        if request.verb == "list":
            query = dict(parse_qsl(urlsplit(self.path).query))
            self.send_document(200, objects.select(kind, request, query))
        elif (found := objects.find(kind, request)) is not None:
            self.send_document(200, found)
        else:
            what = f"{kind.resource}.{kind.group}" if kind.group else kind.resource
            text = f'{what} "{request.name}" not found'
            details = {"name": request.name, "kind": kind.resource}
            self.send_document(404, status(404, text, "NotFound", **details))

    def _agent(self, request: Request, user: User) -> None:
        cluster = self.cluster
        is_known = cluster.is_installed and "v1alpha1" in cluster.versions
        if cluster.is_installed and request.path == f"/apis/{GROUP}":
            versions = [{"groupVersion": f"{GROUP}/{v}", "version": v} for v in cluster.versions]
            document = {"kind": "APIGroup", "name": GROUP, "versions": versions}
            return self.send_document(200, document)
        if not is_known:
            return self.send(404, b"404 page not found\n", "text/plain")
        if request.path == ROOT:
            names = {"kind": "ImagePull", "name": "imagepulls", "singularName": "imagepull"}
            entry = {**names, "namespaced": True, "verbs": ["get", "list", "watch"]}
            document = {"kind": "APIResourceList", "groupVersion": f"{GROUP}/v1alpha1"}
            return self.send_document(200, {**document, "resources": [entry]})
        if user.name in cluster.denied:
            text = access.forbidden_message(user, replace(request, name=""))
            details = {"group": GROUP, "kind": request.kind}
            return self.send_document(403, status(403, text, "Forbidden", **details))
        if cluster.refusals:
            return self.send(*cluster.refusals.pop(0))
        if request.subresource:
            script = cluster.streams.pop(0) if cluster.streams else Stream([])
            if isinstance(script, tuple):
                return self.send_document(*script)
            return self._stream(script)
        if request.verb == "watch":
            return self._stream(cluster.watches.pop(0) if cluster.watches else _HOLD)
        turn = cluster.pulls.pop(0) if len(cluster.pulls) > 1 else (cluster.pulls or [[]])[0]
        node = request.field_selector.removeprefix("spec.nodeName=")
        items = [
            one
            for one in turn
            if request.namespace in ("", one["metadata"]["namespace"])
            and node in ("", one["spec"]["nodeName"])
        ]
        metadata = {"resourceVersion": "1"}
        self.send_document(200, {"kind": "ImagePullList", "metadata": metadata, "items": items})
        return None

    def _stream(self, script: Stream) -> None:
        def lines() -> Iterator[Document]:
            for line in script.lines:
                yield line
                time.sleep(script.pause_s)
            if script.ending == "hold":
                self.cluster.closed.wait(60)

        self.send_lines(lines(), is_whole=script.ending == "end")


_HOLD = Stream([], ending="hold")


@contextmanager
def running(run_folder: Path) -> Iterator[Cluster]:
    made = Cluster(make_node_certificates(run_folder))

    class Bound(_Handler):
        cluster = made

    with serving(Bound, made.certificates.server_context()) as made.port:
        try:
            yield made
        finally:
            made.closed.set()
