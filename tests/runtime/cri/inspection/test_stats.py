from __future__ import annotations

from typing import Any

import grpc

from pycrictl._proto import cri_pb2
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.inspection.stats import measure
from tests.fakecri import FakeServer, Status

NO_CGROUP = Status(grpc.StatusCode.UNKNOWN, "cgroupPath is empty")


def pod_stats(identifier: str) -> cri_pb2.PodSandboxStats:
    stats = cri_pb2.PodSandboxStats()
    stats.attributes.id = identifier
    return stats


def one_pod(request: Any, context: Any) -> Any:
    if request.pod_sandbox_id == "no-cgroup":
        return NO_CGROUP
    if request.pod_sandbox_id == "stopped":
        return Status(grpc.StatusCode.NOT_FOUND, "stopped")
    return cri_pb2.PodSandboxStatsResponse(stats=pod_stats(request.pod_sandbox_id))


def pods(*ids: str) -> cri_pb2.ListPodSandboxResponse:
    return cri_pb2.ListPodSandboxResponse(
        items=[
            cri_pb2.PodSandbox(
                id=identifier, metadata=cri_pb2.PodSandboxMetadata(name=f"name-{identifier}")
            )
            for identifier in ids
        ]
    )


WHOLE_ID = "ab" * 32
CONDITION = cri_pb2.PodSandboxStatsFilter(id=WHOLE_ID, label_selector={"k": "v"})


def test_one_by_one_where_one_cannot(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("ListPodSandboxStats", NO_CGROUP)
    fake.prepare("ListPodSandbox", pods("b", "no-cgroup", "stopped", "a"))
    fake.prepare("PodSandboxStats", one_pod, repeat=True)
    sample = measure(client, CONDITION)
    assert [each.attributes.id for each in sample.stats] == ["a", "b"]
    assert [failure.message for failure in sample.failures] == [
        "pod no-cgroup (name-no-cgroup): cgroupPath is empty"
    ]
    (listed,) = (call for call in fake.calls if call.method == "ListPodSandbox")
    assert listed.request.filter.id == WHOLE_ID
    assert dict(listed.request.filter.label_selector) == {"k": "v"}
