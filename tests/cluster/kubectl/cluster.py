"""A cluster for the real kubectl: a stand-in for the API server, and a scripted agent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kube import access
from tests.kube.access import Request, User
from tests.kube.aggregator import BASE, GROUP, ApiService
from tests.kube.apiserver import ApiServer, make_node_certificates, serve
from tests.kube.objects import Document, group_document
from tests.kube.tokens import Token
from tests.serving import Handler


@dataclass
class Stream:
    """The lines sent on a connection, and how it ends: ``end``, ``cut``, or ``hold`` for never."""

    lines: Sequence[Document]
    pause_s: float = 0.0
    ending: str = "end"


def _items(group: str, name: str) -> Any:
    return property(
        lambda self: self.api.objects.documents(group, name),
        lambda self, items: self.api.objects.replace(group, name, {"items": items}),
    )


@dataclass
class Cluster:
    """The contents of the cluster, and the requests it has received.

    Attributes:
        pulls: the agent's successive lists, or a status and its body; the last one is repeated.
        watches: the response to each watch of ``imagepulls``.
        refusals: the next answers of the agent, in place of all others.
        users: the users whose requests reached the agent.
    """

    api: ApiServer
    pulls: list[list[Document] | tuple[int, Document]] = field(default_factory=list)
    watches: list[Stream] = field(default_factory=list)
    refusals: list[tuple[int, bytes]] = field(default_factory=list)
    users: set[str] = field(default_factory=set)
    closed: threading.Event = field(default_factory=threading.Event)

    pods = _items("", "pods")
    deployments = _items("apps", "deployments")
    nodes = _items("", "nodes")

    @property
    def asked(self) -> list[str]:
        return [path for _, path, _ in self.api.asked]

    @property
    def versions(self) -> Sequence[str]:
        """The API versions that the agent offers; none if it is not installed."""
        return [service.version for service in self.api.services]

    @versions.setter
    def versions(self, versions: Sequence[str]) -> None:
        self.api.services[:] = [ApiService(GROUP, version, "127.0.0.1", 1) for version in versions]

    def permit(self, user: str, group: str, *resources: str) -> None:
        rule = {"apiGroups": [group], "resources": resources, "verbs": ["*"]}
        self.api.grants.append(access.Grant(user, [rule]))

    def kubeconfig(self, folder: Path, *, namespace: str = "default") -> Path:
        document = self.api.kubeconfig(token="root", client_certificate="", client_key="")
        document["contexts"][0]["context"]["namespace"] = namespace
        file = folder / "kubeconfig-root"
        file.write_text(json.dumps(document))
        return file

    def answer(self, handler: Handler, request: Request, user: User) -> bool:
        """Answer as the agent; return False for requests that it does not serve."""
        if self.versions and request.path == f"/apis/{GROUP}":
            handler.send_document(
                200, {"kind": "APIGroup", **group_document(GROUP, *self.versions)}
            )
            return True
        if "v1alpha1" not in self.versions or not request.path.startswith(BASE):
            return False
        self.users.add(user.name)
        if request.path == BASE:
            names = {"kind": "ImagePull", "name": "imagepulls", "singularName": "imagepull"}
            entry = {**names, "namespaced": True, "verbs": ["get", "list", "watch"]}
            document = {"kind": "APIResourceList", "groupVersion": f"{GROUP}/v1alpha1"}
            handler.send_document(200, {**document, "resources": [entry]})
        elif self.refusals:
            handler.send(*self.refusals.pop(0))
        elif request.verb == "watch":
            self._stream(handler, self.watches.pop(0) if self.watches else _HOLD)
        else:
            self._list(handler, request)
        return True

    def _list(self, handler: Handler, request: Request) -> None:
        turn = self.pulls.pop(0) if len(self.pulls) > 1 else (self.pulls or [[]])[0]
        if isinstance(turn, tuple):
            handler.send_document(*turn)
            return
        field, _, value = request.field_selector.removeprefix("spec.").partition("=")
        items = [
            item
            for item in turn
            if request.namespace in ("", item["metadata"]["namespace"])
            and (not value or item["spec"][field] == value)
        ]
        metadata = {"resourceVersion": "1"}
        handler.send_document(200, {"kind": "ImagePullList", "metadata": metadata, "items": items})

    def _stream(self, handler: Handler, script: Stream) -> None:
        def lines() -> Iterator[Document]:
            for line in script.lines:
                yield line
                time.sleep(script.pause_s)
            if script.ending == "hold":
                self.closed.wait(60)

        handler.send_lines(lines(), is_whole=script.ending == "end")


def pod(name: str, *, namespace: str = "default", node: str = "n1", **labels: str) -> Document:
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, "uid": f"u-{name}", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "web:1"}]},
        "status": {"phase": "Pending"},
    }


NODE: Document = {
    "kind": "Node",
    "apiVersion": "v1",
    "metadata": {"name": "n1"},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
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


_HOLD = Stream([], ending="hold")


@contextmanager
def running(run_folder: Path) -> Iterator[Cluster]:
    with serve(make_node_certificates(run_folder)) as api:
        made = Cluster(api)
        api.agent = made.answer
        api.tokens["root"] = Token(User("root", (access.MASTERS,)))
        made.pods, made.versions = [], ["v1alpha1"]
        try:
            yield made
        finally:
            made.closed.set()
