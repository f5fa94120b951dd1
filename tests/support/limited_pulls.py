"""Pulls through a proxy whose runtime finishes them when told to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc

from pycrictl._proto import cri_pb2
from pycrictl.proxy import admin
from tests.e2e.node.kubelet import IMAGE, RUNTIME, Pod
from tests.fakecri import FakeServer
from tests.proxy.program import Program

ABSENT = cri_pb2.ImageStatusResponse()
PRESENT = cri_pb2.ImageStatusResponse(image=cri_pb2.Image(id="sha256:1"))


class Gate:
    """Holds PullImage calls until the test releases them; at most ``peak`` ran at once.

    Attributes:
        open: releases all calls.
        one: each ``release()`` releases one call.
    """

    def __init__(self) -> None:
        self.open = threading.Event()
        self.permit = threading.Semaphore(0)
        self.running = self.peak = 0
        self._lock = threading.Lock()

    def __call__(self, request: cri_pb2.PullImageRequest, context: grpc.ServicerContext) -> Any:
        with self._lock:
            self.running += 1
            self.peak = max(self.peak, self.running)
        ended = threading.Event()
        context.add_callback(ended.set)
        while not (self.permit.acquire(timeout=0.01) or self.open.is_set() or ended.is_set()):
            pass
        with self._lock:
            self.running -= 1
        return cri_pb2.PullImageResponse(image_ref=f"ref of {request.image.image}")


def prepare(fake: FakeServer, answer: Any, *, status: Any = ABSENT) -> None:
    fake.prepare("ImageStatus", status, repeat=True)
    fake.prepare("PullImage", answer, repeat=True)


def pod(name: str) -> Pod:
    metadata = cri_pb2.PodSandboxMetadata(name=name, namespace="default", uid=f"uid-{name}")
    return Pod(f"id-{name}", cri_pb2.PodSandboxConfig(metadata=metadata))


def status(proxy: Program) -> dict[str, Any]:
    return admin.ask(str(proxy.admin_path), "status", timeout_s=30.0)


def code_of(future: Any) -> grpc.StatusCode:
    future.exception(timeout=60)
    code: grpc.StatusCode = future.code()
    return code


def pulls(fake: FakeServer) -> list[Any]:
    return [call for call in fake.calls if call.method == "PullImage"]


def version(proxy: Program) -> str:
    request, response = cri_pb2.VersionRequest(), cri_pb2.VersionResponse
    return proxy.kubelet.call(RUNTIME + "Version", request, response, timeout_s=60).runtime_name


class LandingCri(grpc.GenericRpcHandler):
    """The CRI methods that a pull needs; ``on_pull`` is called by each PullImage."""

    def __init__(self, on_pull: Callable[[], object]) -> None:
        self._on_pull = on_pull

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == IMAGE + "PullImage":
            return grpc.unary_unary_rpc_method_handler(self._pull)
        if details.method == IMAGE + "ImageStatus":
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
        return None

    def _pull(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._on_pull()
        return cri_pb2.PullImageResponse(image_ref="sha256:id").SerializeToString()
