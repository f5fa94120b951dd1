from __future__ import annotations

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.lists.queries import pod_query, select_pods


def pod(name: str, namespace: str, created_at: int) -> cri_pb2.PodSandbox:
    metadata = cri_pb2.PodSandboxMetadata(name=name, namespace=namespace)
    return cri_pb2.PodSandbox(id=name, metadata=metadata, created_at=created_at)


PODS = [pod("web", "default", 3), pod("db", "prod", 9), pod("web-2", "prod", 5)]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["db", "web-2", "web"]),
        ({"name": "web"}, ["web-2", "web"]),
        ({"name": "^web$"}, ["web"]),
        ({"namespace": "pro"}, ["db", "web-2"]),
        ({"namespace": "prod", "name": "w"}, ["web-2"]),
        ({"latest": True}, ["db"]),
        ({"last": 2}, ["db", "web-2"]),
        ({"last": 2, "latest": True}, ["db", "web-2"]),
        ({"last": 0}, ["db", "web-2", "web"]),
        ({"last": -1}, ["db", "web-2", "web"]),
        ({"last": -1, "latest": True}, ["db"]),
        ({"latest": True, "namespace": "default"}, ["web"]),
    ],
)
def test_selection_and_order(options: dict[str, object], names: list[str]) -> None:
    found = select_pods(PODS, pod_query(**options))  # type: ignore[arg-type]  # mixed types
    assert [each.id for each in found] == names


def test_what_the_runtime_filters_by() -> None:
    query = pod_query(pod_id="a", labels={"k": "v"}, state="notready")
    assert query.condition == cri_pb2.PodSandboxFilter(
        id="a",
        label_selector={"k": "v"},
        state=cri_pb2.PodSandboxStateValue(state=cri_pb2.SANDBOX_NOTREADY),
    )
    assert pod_query(state="ready").condition.HasField("state")
    assert not pod_query().condition.HasField("state")
