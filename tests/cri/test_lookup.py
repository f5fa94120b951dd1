"""Pods and containers by what people type, out of lists of any length."""

from __future__ import annotations

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.client import CriClient
from pycrictl.cri.lookup import find_container, find_pod
from pycrictl.errors import NotFound, UsageError
from tests.fakecri import FakeServer


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
