"""A real containerd behind the proxy's pass-through: everything is as without it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from pycrictl.proxy.calls import Answer, CallRequest
from pycrictl.proxy.upstream import Upstream
from tests.node.images import random_file
from tests.node.kubelet import IMAGE, RUNTIME, Kubelet
from tests.node.lab import MIB, Lab
from tests.node.store import Store
from tests.proxy.runtime import Proxy, channel_to
from tests.waiting import wait_until

PATIENCE_S = 60.0
PULL = IMAGE + "PullImage"


@pytest.fixture
def proxy(lab: Lab) -> Iterator[Proxy]:
    """A proxy that forwards everything."""
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
    """A kubelet that knows the proxy only."""
    return Kubelet(channel, cgroup_parent=f"/{lab.folder.name}")


def image_status(kubelet: Kubelet, reference: str) -> cri_pb2.ImageStatusResponse:
    request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=reference))
    return kubelet.call(IMAGE + "ImageStatus", request, cri_pb2.ImageStatusResponse)


def test_what_kubelet_does_for_a_pod(lab: Lab, kubelet: Kubelet) -> None:
    reference = lab.push(lab.busybox)
    version = kubelet.call(
        RUNTIME + "Version", cri_pb2.VersionRequest(version="v1"), cri_pb2.VersionResponse
    )
    assert version.runtime_name == "containerd"
    usage = kubelet.call(
        IMAGE + "ImageFsInfo", cri_pb2.ImageFsInfoRequest(), cri_pb2.ImageFsInfoResponse
    )
    assert usage.image_filesystems
    assert not image_status(kubelet, reference).HasField("image")
    pod = kubelet.run_pod("web")
    image_id = kubelet.pull(reference, pod)
    assert image_status(kubelet, reference).image.id == image_id
    container = kubelet.create_container(pod, reference)
    kubelet.start_container(container)
    request = cri_pb2.ExecSyncRequest(container_id=container, cmd=["echo", "through the proxy"])
    result = kubelet.call(RUNTIME + "ExecSync", request, cri_pb2.ExecSyncResponse)
    assert (result.exit_code, result.stdout) == (0, b"through the proxy\n")
    direct = lab.node.kubelet
    questions: list[tuple[str, Message, Any]] = [
        (RUNTIME + "Version", cri_pb2.VersionRequest(), cri_pb2.VersionResponse),
        (RUNTIME + "ListPodSandbox", cri_pb2.ListPodSandboxRequest(),
         cri_pb2.ListPodSandboxResponse),
        (RUNTIME + "ListContainers", cri_pb2.ListContainersRequest(),
         cri_pb2.ListContainersResponse),
        (RUNTIME + "ContainerStatus", cri_pb2.ContainerStatusRequest(container_id=container),
         cri_pb2.ContainerStatusResponse),
        (
            IMAGE + "ImageStatus",
            cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=reference)),
            cri_pb2.ImageStatusResponse,
        ),
    ]  # fmt: skip
    for method, question, response_type in questions:
        answer = kubelet.call(method, question, response_type)
        assert answer == direct.call(method, question, response_type)
        assert answer.ByteSize()
    images = sorted(image.id for image in kubelet.images())  # they come in no certain order
    assert images == sorted(image.id for image in direct.images())
    kubelet.remove_pods()
    kubelet.remove_image(image_id)
    assert not image_status(direct, reference).HasField("image")


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


def begin_slow_pull(
    lab: Lab, kubelet: Kubelet, name: str, *, seed: int
) -> tuple[str, grpc.Future[cri_pb2.PullImageResponse]]:
    """A pull that goes on for seconds after its first bytes have come, and what it pulls."""
    layer = lab.layout.layer([random_file("big", 8 * MIB, seed=seed)])
    reference = lab.push(lab.layout.image(name, [layer]))
    lab.throttle.limit(MIB)
    pull = kubelet.start_pull(reference)
    wait_until(lambda: any(offset for offset, _ in lab.node.store.ingests().values()))
    return reference, pull


def test_cancelled_pull_ends_in_the_runtime(lab: Lab, kubelet: Kubelet) -> None:
    _, pull = begin_slow_pull(lab, kubelet, "slow:1", seed=3)
    assert len(lab.node.store.leases()) == 1
    pull.cancel()
    wait_until(lambda: not lab.node.store.leases() and not lab.node.store.ingests())


def test_runtime_that_is_killed_and_comes_back(lab: Lab, kubelet: Kubelet) -> None:
    reference, pull = begin_slow_pull(lab, kubelet, "killed:1", seed=4)
    lab.node.kill9()
    error: Any = pull.exception(timeout=PATIENCE_S)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.RpcError) as caught:
        kubelet.images()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # and not that time has run out
    lab.node.start()
    time.sleep(0.2)  # it is tried again ten times a second
    assert len(kubelet.images()) == len(lab.node.kubelet.images()) > 0
    lab.throttle.limit(None)
    assert kubelet.pull(reference)


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
