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
    answers = list(statuses.read(client, "container", ["a", "gone", "b"], is_listed=True))
    assert [answer.status.id for answer in answers] == ["a", "b"]


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
    addresses = statuses.pod_addresses(client, pods)
    assert addresses == {"two": "10.0.0.5,fd00::5", "host": ""}


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
        statuses.check_conditions(status)
        return
    with pytest.raises(RemoteProtocolError, match=r"^Status: .* fewer than 2 cond"):
        statuses.check_conditions(status)
