"""HTTP requests to a cluster's API server and kubelets, by URL and credentials."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from tests.serving import believing

from .rules import SKEW, not_implemented

WAIT_S: Final = 30.0
SILENCE_S: Final = 1.0
"""How long to wait for more bytes on a connection that was kept open."""

ROUTE: Final = "/imagePullProgress"
SUBRESOURCE: Final = "/api/v1/namespaces/{namespace}/pods/{pod}/imagepullprogress"
UPGRADE: Final = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


class Answer(NamedTuple):
    """A status, and the body received within `WAIT_S`; empty if an upgrade was accepted."""

    status: int
    body: bytes

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.splitlines()]


class Pod(NamedTuple):
    namespace: str = "default"
    name: str = ""
    container: str = ""


_NONE: Final = Pod()


@dataclass
class Cluster:
    """Sends requests to the servers of a cluster, without verifying their certificates."""

    api: str = ""
    kubelet: str = ""
    kubelet_off: str = ""
    token: str = ""
    stranger: str = ""
    pod: Pod = _NONE
    pod_off: Pod = _NONE
    subresource: str = SUBRESOURCE
    copies: str = ""
    is_ours: bool = False

    def __post_init__(self) -> None:
        self._statuses: dict[str, int] = {}

    @classmethod
    def of_environment(cls) -> Cluster:
        """Read CONFORMANCE_API and so on; a pod is NAMESPACE/POD/CONTAINER."""
        names = [each.name for each in fields(cls)]
        found = {name: os.environ.get(f"CONFORMANCE_{name.upper()}") for name in names}
        given: dict[str, Any] = {name: value for name, value in found.items() if value}
        for name in {"pod", "pod_off"} & given.keys():
            given[name] = Pod(*given[name].split("/"))
        return cls(**given)

    # The streams of a kubelet and of the API server

    def ask_kubelet(self, *words: str, **how: Any) -> Answer:
        """Ask for the stream of a pod (namespace, name) or of a container (and its name)."""
        self._check_served("kubelet", "/".join((ROUTE, *self.pod[:2])))
        return self.ask(self.kubelet, "/".join((ROUTE, *words)), **how)

    def ask_api(self, namespace: str, pod: str, query: str = "", **how: Any) -> Answer:
        own = {"namespace": self.pod.namespace, "pod": self.pod.name}
        self._check_served("api", self.subresource.format(**own))
        path = self.subresource.format(namespace=namespace, pod=pod) + query
        return self.ask(self.api, path, **how)

    def _check_served(self, server: str, path: str) -> None:
        """Skip the test if the server does not have its route."""
        self.need(server, "token", "pod")
        if path not in self._statuses:
            self._statuses[path] = self.ask(getattr(self, server), path, reads=False).status
        if (status := self._statuses[path]) in SKEW:
            not_implemented(f"{server.upper()} answers {status} for {path}")

    def begin_copy(self, pod: Pod, path: str = "/etc/hostname", **how: Any) -> Answer:
        self.need("api", "token", "pod", "copies")
        spec = {"direction": "From", "path": path, "container": pod.container}
        return self.ask(
            self.api,
            self.copies.format(namespace=pod.namespace, pod=pod.name),
            method="POST",
            body=json.dumps({"spec": spec}).encode(),
            **how,
        )

    # HTTP

    def need(self, *names: str) -> None:
        """Skip the test if a setting that it needs is not given."""
        for name in names:
            value = getattr(self, name)
            if not (value.name if isinstance(value, Pod) else value):
                not_implemented(f"{name.upper()}= is not given")

    def ask(
        self,
        url: str,
        path: str,
        *,
        token: str | None = None,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        reads: bool = True,
    ) -> Answer:
        """Send a request, as the user who may do everything unless another token is given."""
        token = self.token if token is None else token
        sent = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        with closing(_connection(url)) as connection:
            connection.request(method, urlsplit(url).path.rstrip("/") + path, body, sent)
            response = connection.getresponse()
            content = b""
            ends_at = time.monotonic() + WAIT_S
            while reads and response.status != 101 and time.monotonic() < ends_at:
                if not (piece := response.read1(65536)):
                    break
                content += piece
            return Answer(response.status, content)

    def answers(self, path: str, token: str) -> tuple[list[int], bool]:
        """Pipeline an upgrade and another request; return statuses, and if it was closed."""
        first = _head(path, UPGRADE, token)
        second = _head(path, {}, self.token)
        with closing(_connected(self.kubelet)) as sock:
            sock.sendall(first + second)
            sock.settimeout(SILENCE_S)
            got, is_closed = b"", True
            try:
                while piece := sock.recv(65536):
                    got += piece
            except TimeoutError:
                is_closed = False
            except OSError:
                pass  # reset: it was closed with bytes unread
        heads = got.split(b"HTTP/1.1 ")[1:]
        return [int(head[:3]) for head in heads], is_closed


def _head(path: str, headers: Mapping[str, str], token: str) -> bytes:
    fields = {"Host": "kubelet", **headers}
    fields |= {"Authorization": f"Bearer {token}"} if token else {}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.netloc, timeout=WAIT_S)
    return http.client.HTTPSConnection(parts.netloc, timeout=WAIT_S, context=believing())


def _connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    address = parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)
    sock = socket.create_connection(address, timeout=WAIT_S)
    return sock if parts.scheme == "http" else believing().wrap_socket(sock)
