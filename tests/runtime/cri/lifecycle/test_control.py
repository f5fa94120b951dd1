from __future__ import annotations

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import RuntimeFault
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lifecycle import control
from tests.fakecri import FakeServer

POD = cri_pb2.PodSandboxConfig(metadata=cri_pb2.PodSandboxMetadata(name="web", namespace="n"))
CONTAINER = cri_pb2.ContainerConfig(
    metadata=cri_pb2.ContainerMetadata(name="main"),
    image=cri_pb2.ImageSpec(image="x/a:1", annotations={"k": "v"}),
    mounts=[
        cri_pb2.Mount(host_path="/tmp"),
        cri_pb2.Mount(image=cri_pb2.ImageSpec(image="x/data:1")),
    ],
)


def test_all_images_of_a_container_are_pulled() -> None:
    auth = cri_pb2.AuthConfig(username="u")
    requests = list(control.pull_requests(control.Launch(CONTAINER, POD, auth=auth)))
    assert [request.image.image for request in requests] == ["x/a:1", "x/data:1"]
    assert [dict(request.image.annotations) for request in requests] == [{"k": "v"}, {}]
    assert all(request.sandbox_config == POD for request in requests)
    assert all(request.auth == auth for request in requests)


def test_a_hint_is_kept_beside_the_outcome(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("RunPodSandbox", cri_pb2.RunPodSandboxResponse(pod_sandbox_id="p1"))
    fake.prepare("StopPodSandbox", None)
    fake.prepare("RemovePodSandbox", None)

    def pull(request: cri_pb2.PullImageRequest) -> None:
        raise RuntimeFault("no", hint="log in")

    with pytest.raises(RuntimeFault) as caught:
        control.run_container(client, control.Launch(CONTAINER, POD, pull=pull))
    assert caught.value.hint == 'log in; its pod sandbox "p1" was removed again'
