"""Responses for recorded commands that change state.

A recording has each call's status; the little else that a response must hold is made here from
the request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from tests.captures import Capture
from tests.captures.calls import LOOKED_UP, OTHER_CALLS, calls_that_count
from tests.captures.scene import fake_containers, fake_images, prepared, real_version
from tests.fakecri import FakeServer, Maker, Status

FILES: Final = Path(__file__).parent / "data" / "files"
"""The configuration files of the scenes."""


def prepare(fake: FakeServer, capture: Capture, now: float) -> None:
    answers: dict[str, list[Any]] = {}
    is_looked_up = OTHER_CALLS.get(capture.name) == LOOKED_UP
    if is_looked_up:
        fake.offer("ListContainers", cri_pb2.ListContainersResponse())
        fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse())
    for rpc in calls_that_count(capture):
        if is_looked_up and rpc["code"] == "NOT_FOUND":
            continue  # the empty lists show it
        code = grpc.StatusCode[rpc["code"]]
        ok = code is grpc.StatusCode.OK
        answers.setdefault(rpc["rpc"], []).append(
            _answer(capture, now) if ok else Status(code, "as recorded")
        )
    for name, queued in answers.items():
        fake.prepare(name, *queued)


def _answer(capture: Capture, now: float) -> Maker:
    is_fake = capture.name.startswith("f-")

    def make(request: Any, context: grpc.ServicerContext) -> Message | None:
        match request:
            case cri_pb2.ListContainersRequest() if is_fake:
                return cri_pb2.ListContainersResponse(containers=fake_containers(now))
            case cri_pb2.ContainerStatusRequest() if is_fake:
                status: Message = prepared("ContainerStatus")
                return status
            case cri_pb2.ContainerStatusRequest():
                response = cri_pb2.ContainerStatusResponse()
                response.status.id = request.container_id
                response.status.state = cri_pb2.CONTAINER_RUNNING
                return response
            case cri_pb2.PodSandboxStatusRequest():
                pod = cri_pb2.PodSandboxStatusResponse()
                pod.status.id = request.pod_sandbox_id
                return pod
            case cri_pb2.ImageStatusRequest() if is_fake:
                images = [i for i in fake_images() if request.image.image in i.repo_tags]
                return cri_pb2.ImageStatusResponse(image=images[0])
            case cri_pb2.VersionRequest():
                return real_version()
        return None

    return make
