from __future__ import annotations

import copy
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import RemoteProtocolError
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.inspection import statuses
from tests.fakecri import FakeServer, Status, answers

GONE = Status(grpc.StatusCode.NOT_FOUND, "gone")

NO_CGROUP = Status(grpc.StatusCode.UNKNOWN, "cgroupPath is empty")


def whole(request: Any, context: Any) -> Any:
    if request.container_id == "gone":
        return GONE
    complete = answers.container_status(request.container_id)
    return cri_pb2.ContainerStatusResponse(status=complete)


def test_what_went_away_since_it_was_listed_is_left_out(
    fake: FakeServer, client: CriClient
) -> None:
    fake.prepare("ContainerStatus", whole, repeat=True)
    found = list(statuses.read(client, "container", ["a", "gone", "b"], is_listed=True))
    assert [each.status.id for each in found] == ["a", "b"]


def test_addresses(fake: FakeServer, client: CriClient) -> None:
    def pod(request: Any, context: Any) -> Any:
        if request.pod_sandbox_id == "gone":
            return GONE
        complete = answers.pod_status(request.pod_sandbox_id)
        answer = cri_pb2.PodSandboxStatusResponse(status=complete)
        if request.pod_sandbox_id == "two":
            answer.status.network.ip = "10.0.0.5"
            answer.status.network.additional_ips.add(ip="fd00::5")
        return answer

    fake.prepare("PodSandboxStatus", pod, repeat=True)
    pods = [cri_pb2.PodSandbox(id=name) for name in ("two", "host", "gone")]
    found = statuses.pod_addresses(client, pods)
    assert found == {"two": "10.0.0.5,fd00::5", "host": ""}


IMAGE = cri_pb2.Image(id="sha256:1", size=1)


def without(message: Any, path: str) -> Any:
    """Return a copy in which the field at ``path`` is empty."""
    changed = copy.deepcopy(message)
    *parents, name = path.split(".")
    target = changed
    for parent in parents:
        target = getattr(target, parent)
    target.ClearField(name)
    return changed


@pytest.mark.parametrize(
    ("complete", "path"),
    [
        (answers.VERSION, "runtime_version"),
        (answers.pod_status(), "metadata.uid"),
        (answers.container_status(), "image_ref"),
        (IMAGE, "size"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_not_there_is_named(complete: Any, path: str) -> None:
    statuses.check(complete, "x")
    with pytest.raises(RemoteProtocolError, match=f"^x: the runtime answered without {path}$"):
        statuses.check(without(complete, path), "x")


@pytest.mark.parametrize("count", range(4))
def test_conditions(count: int) -> None:
    status = cri_pb2.RuntimeStatus(conditions=[cri_pb2.RuntimeCondition()] * count)
    if count >= 2:
        statuses.check_conditions(status, "x")
        return
    with pytest.raises(RemoteProtocolError, match="x: the runtime answered with fewer than 2 cond"):
        statuses.check_conditions(status, "x")


# Resource usage


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
    sample = statuses.measure(client, CONDITION)
    assert [each.attributes.id for each in sample.stats] == ["a", "b"]
    assert [failure.message for failure in sample.failures] == [
        "pod no-cgroup (name-no-cgroup): cgroupPath is empty"
    ]
    (listed,) = (call for call in fake.calls if call.method == "ListPodSandbox")
    assert listed.request.filter.id == WHOLE_ID
    assert dict(listed.request.filter.label_selector) == {"k": "v"}
