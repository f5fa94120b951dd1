"""An API server and two kubelets that keep the rules, or break the one that they are told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.serving import Handler, serving

FAULTS: Final = {
    "a token that is made up counts": "A1",
    "everybody may": "A2",
    "namespaces are not looked at": "A3",
    "an unknown container is the pod": "A4",
    "any method will do": "A5",
    "parameters are not read": "A6",
    "a refused upgrade keeps its connection": "A7",
    "an upgrade is a bad request": "A8",
    "numbers are texts": "A9",
    "a container is its pod": "A10",
    "the subresource is everybody's": "A11",
    "an unknown container is not found": "A12",
    "the subresource has other images": "A13",
    "an unknown route is a bad request": "A14",
    "the switch is not looked at": "A15",
    "the switch is the kubelet's alone": "A16",
    "everybody copies": "A17",
    "a relative path is copied": "A18",
}
"""What is broken, and the rule that says so."""

_IMAGES: Final = {"main": "test/main:1", "side": "test/side:1"}
_PODS: Final = {"default": ("web", "off")}


class Planted(Handler):
    """Answers one request; below `/off` is a kubelet that is switched off."""

    fault = ""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        match path.strip("/").split("/"):
            case ["imagePullProgress", *words]:
                self._route(words, query)
            case ["off", "imagePullProgress", *words]:
                self._route(words, query, is_off=self.fault != "the switch is not looked at")
            case ["api", "v1", "namespaces", namespace, "pods", pod, "imagepullprogress"]:
                self._subresource(namespace, pod, query.partition("container=")[2])
            case ["api", "v1", "namespaces", namespace, "pods", pod, "containercopies"]:
                self._copy(namespace, pod, json.loads(body))
            case _:
                self._refuse(404)

    do_POST = do_PUT = do_DELETE = do_GET

    def _route(self, words: list[str], query: str, *, is_off: bool = False) -> None:
        fault = self.fault
        token = self._token(lax="a token that is made up counts")
        if not token:
            return self._refuse(401)
        if token == "stranger" and (is_off or fault != "everybody may"):
            return self._refuse(403)
        if is_off:
            return self._refuse(405, "Debug endpoints are disabled.")
        if len(words) not in (2, 3):
            return self._refuse(400 if fault == "an unknown route is a bad request" else 404)
        if self.command != "GET" and fault != "any method will do":
            return self._refuse(405)
        if "soon" in query and fault != "parameters are not read":
            return self._refuse(400)
        namespace, pod, container = (*words, "")[:3]
        if fault == "namespaces are not looked at":
            namespace = "default"
        if fault == "an unknown container is the pod" and container not in _IMAGES:
            container = ""
        if pod not in _PODS.get(namespace, ()) or container not in ("", *_IMAGES):
            return self._refuse(404)
        if self.headers["Upgrade"] and fault == "an upgrade is a bad request":
            return self._refuse(400)
        self._stream("" if fault == "a container is its pod" else container)

    def _subresource(self, namespace: str, pod: str, container: str) -> None:
        fault = self.fault
        token = self._token()
        if not token:
            return self._refuse(401)
        if token == "stranger" and fault != "the subresource is everybody's":
            return self._refuse(403)
        if pod not in _PODS.get(namespace, ()):
            return self._refuse(404)
        if container not in ("", *_IMAGES):
            return self._refuse(404 if fault == "an unknown container is not found" else 400)
        if pod == "off" and fault != "the switch is the kubelet's alone":
            return self._refuse(405, "Debug endpoints are disabled.")
        self._stream("main" if fault == "the subresource has other images" else container)

    def _copy(self, namespace: str, pod: str, document: dict[str, Any]) -> None:
        path = document["spec"]["path"]
        token = self._token()
        if not token:
            return self._refuse(401)
        if token == "stranger" and self.fault != "everybody copies":
            return self._refuse(403)
        if pod not in _PODS.get(namespace, ()):
            return self._refuse(404)
        if pod == "off":
            return self._refuse(405, "Debug endpoints are disabled.")
        is_relative = not path.startswith("/") and self.fault != "a relative path is copied"
        if is_relative or ".." in path:
            return self._refuse(400)
        self.send_document(201, {})

    def _token(self, *, lax: str = "no such fault") -> str:
        """Return whose token it is; empty for nobody's."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return token if token in ("admin", "stranger") or self.fault == lax else ""

    def _stream(self, container: str) -> None:
        number: Any = "10" if self.fault == "numbers are texts" else 10
        images = [_IMAGES[container]] if container else _IMAGES.values()
        self.send_lines(
            {"image": image, "layer": "sha256:a", "progress": number, "total": 10}
            for image in images
        )

    def _refuse(self, code: int, text: str = "no") -> None:
        if self.headers["Upgrade"] and self.fault != "a refused upgrade keeps its connection":
            self.close_connection = True
        self.send(code, text.encode(), "text/plain")


@contextmanager
def serving_cluster(fault: str) -> Iterator[dict[str, str]]:
    """Servers with a fault, or with none; what the suite is to know of them."""
    with serving(type("Broken", (Planted,), {"fault": fault})) as port:
        url = f"http://127.0.0.1:{port}"
        yield {
            "CONFORMANCE_API": url,
            "CONFORMANCE_KUBELET": url,
            "CONFORMANCE_KUBELET_OFF": f"{url}/off",
            "CONFORMANCE_TOKEN": "admin",
            "CONFORMANCE_STRANGER": "stranger",
            "CONFORMANCE_POD": "default/web/main",
            "CONFORMANCE_POD_OFF": "default/off/main",
            "CONFORMANCE_COPIES": "/api/v1/namespaces/{namespace}/pods/{pod}/containercopies",
        }
