"""Pods and containers by what people type, out of lists of any length."""

from __future__ import annotations

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.client import CriClient
from pycrictl.cri.lists.lookup import call, find_container, find_pod, hint
from pycrictl.errors import NotFound, UsageError
from tests.fakecri import FakeServer, Status

GONE = Status(grpc.StatusCode.NOT_FOUND, "gone")


@pytest.fixture
def client(fake: FakeServer) -> CriClient:
    return CriClient(fake.path, timeout_s=5)


def pods(*numbers: int) -> list[cri_pb2.PodSandbox]:
    return [
        cri_pb2.PodSandbox(
            id=f"{number:064x}",
            metadata=cri_pb2.PodSandboxMetadata(name=f"pod{number % 5000}", namespace="ns"),
        )
        for number in numbers
    ]


def test_a_pod_out_of_a_streamed_list(fake: FakeServer, client: CriClient) -> None:
    parts = [
        cri_pb2.StreamPodSandboxesResponse(pod_sandboxes=pods(*range(first, first + 500)))
        for first in range(0, 10_000, 500)
    ]
    fake.prepare("StreamPodSandboxes", parts, parts, parts)
    with client:
        assert find_pod(client, f"{9999:064x}").metadata.name == "pod4999"
        with pytest.raises(UsageError, match=r'"pod7" matches 2 pods: 0{13} '):
            find_pod(client, "pod7")
        with pytest.raises(NotFound, match='no pod "nosuch"'):
            find_pod(client, "nosuch")


def test_a_container_of_one_pod(fake: FakeServer, client: CriClient) -> None:
    found = [cri_pb2.Container(id=f"a{number}", pod_sandbox_id="p") for number in range(2)]
    found[0].metadata.name = found[1].metadata.name = "main"
    found[1].created_at = 1
    fake.offer("ListContainers", cri_pb2.ListContainersResponse(containers=found))
    with client:
        newest = find_container(client, "main", pod_sandbox_id="p")
        assert newest is not None
        assert newest.id == "a1"
        assert find_container(client, "other", pod_sandbox_id="p") is None
    assert fake.methods() == ["StreamContainers", "ListContainers"] * 2
    assert {call.request.filter.pod_sandbox_id for call in fake.calls} == {"p"}


def container(number: int, name: str, pod: str, *, created_at: int = 0) -> cri_pb2.Container:
    found = cri_pb2.Container(id=f"{number:064x}", pod_sandbox_id=pod, created_at=created_at)
    found.metadata.name = name
    found.labels["io.kubernetes.pod.name"] = pod
    found.labels["io.kubernetes.pod.namespace"] = "prod"
    return found


CONTAINERS = cri_pb2.ListContainersResponse(
    containers=[
        container(1, "main", "web"),
        container(2, "main", "web", created_at=1),
        container(3, "side", "web"),
        container(4, "side", "db"),
    ]
)
SANDBOXES = cri_pb2.ListPodSandboxResponse(items=pods(1, 2, 5002))


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("main", "that is the name of container 0000000000000"),
        ("web/main", "that is the name of container 0000000000000"),
        ("prod/db/side", "that is the name of container 0000000000000"),
        ("side", "that is the name of 2 containers: 'pycrictl ps -a --name side' lists them"),
        ("prod/side", None),
        ("test/db/side", None),
        ("mai", None),
    ],
)
def test_a_name_of_containers(
    fake: FakeServer, client: CriClient, word: str, told: str | None
) -> None:
    fake.offer("ListContainers", CONTAINERS)
    request = cri_pb2.StopContainerRequest(container_id=word)
    with client:
        assert hint(client, request) == told
    assert fake.methods() == ["StreamContainers", "ListContainers"]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("pod1", "that is the name of pod 0000000000000"),
        ("ns/pod1", "that is the name of pod 0000000000000"),
        ("ns/pod2", "that is the name of 2 pods: 'pycrictl pods --name pod2' lists them"),
        ("other/pod1", None),
    ],
)
def test_a_name_of_pods(fake: FakeServer, client: CriClient, word: str, told: str | None) -> None:
    fake.offer("ListPodSandbox", SANDBOXES)
    with client:
        assert hint(client, cri_pb2.StopPodSandboxRequest(pod_sandbox_id=word)) == told
    assert fake.methods() == ["StreamPodSandboxes", "ListPodSandbox"]


def test_the_newest_attempt_is_named(fake: FakeServer, client: CriClient) -> None:
    first, second = container(16**60, "main", "web", created_at=2), container(1, "main", "web")
    fake.offer("ListContainers", cri_pb2.ListContainersResponse(containers=[first, second]))
    with client:
        told = hint(client, cri_pb2.ExecRequest(container_id="main"))
    assert told == "that is the name of container 0001000000000"


def test_a_whole_id_is_looked_for_in_no_list(fake: FakeServer, client: CriClient) -> None:
    fake.offer("PodSandboxStatus", GONE)
    with client:
        assert hint(client, cri_pb2.ExecRequest(container_id="a" * 64)) is None
    assert fake.methods() == ["PodSandboxStatus"]


def test_the_runtime_has_no_lists(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("StopContainer", GONE)
    request = cri_pb2.StopContainerRequest(container_id="main")
    with client, pytest.raises(NotFound, match="stopping it: not found: gone") as caught:
        call(client, "StopContainer", request, what="stopping it")
    assert caught.value.hint is None


def test_what_is_found_is_not_looked_for(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("StopContainer", None)
    with client:
        call(client, "StopContainer", cri_pb2.StopContainerRequest(container_id="x"), what="it")
    assert fake.methods() == ["StopContainer"]
