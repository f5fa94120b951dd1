"""A real containerd behind the proxy's pass-through: everything is as without it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.proxy.calls import Answer, CallRequest
from pycrictl.proxy.upstream import Upstream
from tests.node.kubelet import IMAGE, RUNTIME, Kubelet
from tests.node.lab import Lab
from tests.node.store import Store
from tests.proxy.runtime import Proxy, channel_to

PATIENCE_S = 60.0
PULL = IMAGE + "PullImage"


@pytest.fixture
def proxy(lab: Lab) -> Iterator[Proxy]:
    path = lab.folder / "proxy.sock"
    proxy = Proxy(path, lab.node.socket_path)
    yield proxy
    proxy.close()
    path.unlink(missing_ok=True)


@pytest.fixture
def channel(proxy: Proxy) -> Iterator[grpc.Channel]:
    with channel_to(proxy.path) as channel:
        yield channel


@pytest.fixture
def kubelet(lab: Lab, channel: grpc.Channel) -> Kubelet:
    return Kubelet(channel, cgroup_parent=f"/{lab.folder.name}")


def image_status(kubelet: Kubelet, reference: str) -> cri_pb2.ImageStatusResponse:
    request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=reference))
    return kubelet.call(IMAGE + "ImageStatus", request, cri_pb2.ImageStatusResponse)


def test_errors_are_the_runtimes(lab: Lab, kubelet: Kubelet) -> None:
    missing = lab.reference(lab.busybox).replace("busybox", "missing")
    attempts = [
        (RUNTIME + "StartContainer", cri_pb2.StartContainerRequest(container_id="none")),
        (RUNTIME + "RunPodSandbox", cri_pb2.RunPodSandboxRequest()),
        (RUNTIME + "CheckpointNothing", cri_pb2.VersionRequest()),
        ("/no.such.Service/Method", cri_pb2.VersionRequest()),
        (PULL, cri_pb2.PullImageRequest(image=cri_pb2.ImageSpec(image=missing))),
    ]
    for method, request in attempts:
        errors = []
        for caller in (kubelet, lab.node.kubelet):
            with pytest.raises(grpc.RpcError) as caught:
                caller.call(method, request, cri_pb2.VersionResponse)
            error: Any = caught.value
            errors.append((error.code(), error.details(), tuple(error.trailing_metadata())))
        assert errors[0] == errors[1]
        assert errors[0][1]


def test_containerds_own_services_pass(lab: Lab, channel: grpc.Channel) -> None:
    through, direct = Store(channel), lab.node.store
    assert through.blobs() == direct.blobs()
    assert through.snapshots() == direct.snapshots() != []
    assert through.leases() == direct.leases()
    assert through.ingests() == direct.ingests() == {}


def test_another_client_library_works(lab: Lab, proxy: Proxy) -> None:
    """`ctr` is Go's: it compresses headers, sends metadata, streams content and leases."""

    def ctr(address: object, *words: str) -> str:
        command = ["ctr", "--address", str(address), "--namespace", "k8s.io", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    direct = lab.node.socket_path
    for words in (
        ("version",),
        ("images", "ls", "-q"),
        ("content", "ls", "-q"),
        ("snapshots", "ls"),
    ):
        assert ctr(proxy.path, *words) == ctr(direct, *words) != ""
    digest = lab.pause.config_digest
    assert ctr(proxy.path, "content", "get", digest) == ctr(direct, "content", "get", digest)
    exported = lab.folder / "exported.tar"
    ctr(proxy.path, "images", "export", str(exported), lab.reference(lab.pause))
    ctr(proxy.path, "images", "import", "--base-name", "copy", str(exported))
    assert exported.stat().st_size > 100_000
    exported.unlink()


def test_pull_that_the_proxy_makes_itself(lab: Lab) -> None:
    """The way of an own handler: the bytes of the request go on, and the answer comes back."""
    seen: list[Answer] = []
    path = lab.folder / "own.sock"

    async def pull(request: CallRequest) -> Answer:
        upstream = Upstream(str(lab.node.socket_path))
        answer = await upstream.unary(
            request.path,
            request.message,
            metadata=request.metadata,
            timeout_s=request.timeout_s,
        )
        await upstream.close()
        seen.append(answer)
        return answer

    proxy = Proxy(path, lab.node.socket_path, {PULL: pull})
    try:
        with channel_to(path) as channel:
            kubelet = Kubelet(channel, cgroup_parent=f"/{lab.folder.name}")
            pod = kubelet.run_pod("own")
            image_id = kubelet.pull(lab.reference(lab.busybox), pod)
            assert image_status(kubelet, lab.reference(lab.busybox)).image.id == image_id
            missing = lab.reference(lab.busybox).replace("busybox", "missing")
            errors = []
            for caller in (kubelet, lab.node.kubelet):
                with pytest.raises(grpc.RpcError) as caught:
                    caller.pull(missing)
                error: Any = caught.value
                errors.append((error.code(), error.details()))
            assert errors[0] == errors[1]
    finally:
        proxy.close()
        path.unlink(missing_ok=True)
    assert [answer.code for answer in seen] == [0, errors[0][0].value[0]]
