from __future__ import annotations

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.client import CriClient
from pycrictl.cri.lists.queries import (
    container_query,
    first_tags,
    list_containers,
    list_pods,
    pod_query,
)
from pycrictl.errors import RuntimeFault
from tests.fakecri import FakeServer, Status


def container(name: str, created_at: int, image: str = "i:1", **labels: str) -> cri_pb2.Container:
    return cri_pb2.Container(
        id=name,
        metadata=cri_pb2.ContainerMetadata(name=name),
        image=cri_pb2.ImageSpec(image=image),
        created_at=created_at,
        labels={f"io.kubernetes.pod.{key}": value for key, value in labels.items()},
    )


CONTAINERS = [
    container("a", 1, namespace="prod"),
    container("b", 3),
    container("ab", 2, "j:2", namespace="default"),
]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["b", "ab", "a"]),
        ({"name": "a"}, ["ab", "a"]),
        ({"namespace": "^unknown$"}, ["b"]),
        ({"namespace": "d"}, ["ab", "a"]),
        ({"last": 2, "latest": True}, ["b", "ab"]),
        ({"last": -1, "latest": True, "name": "a"}, ["ab"]),
    ],
)
def test_selection_and_order(
    fake: FakeServer, client: CriClient, options: dict[str, object], names: list[str]
) -> None:
    fake.offer("ListContainers", cri_pb2.ListContainersResponse(containers=CONTAINERS))
    fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse())
    query = container_query(**options)  # type: ignore[arg-type]  # mixed types
    assert [each.id for each in list_containers(client, client, query)] == names


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({}, cri_pb2.CONTAINER_RUNNING),
        ({"all_states": True}, None),
        ({"latest": True}, None),
        ({"last": 0}, cri_pb2.CONTAINER_RUNNING),
        ({"state": "exited", "all_states": True}, cri_pb2.CONTAINER_EXITED),
        ({"state": "unknown", "last": 1}, cri_pb2.CONTAINER_UNKNOWN),
    ],
)
def test_which_state_is_asked_for(options: dict[str, object], state: int | None) -> None:
    condition = container_query(**options).condition  # type: ignore[arg-type]  # mixed types
    assert (condition.state.state if condition.HasField("state") else None) == state


def test_what_the_runtime_filters_by() -> None:
    query = container_query(container_id="c", pod="p", labels={"k": "a=b"}, all_states=True)
    assert query.condition == cri_pb2.ContainerFilter(
        id="c", pod_sandbox_id="p", label_selector={"k": "a=b"}
    )
    state = cri_pb2.PodSandboxStateValue(state=cri_pb2.SANDBOX_NOTREADY)
    assert pod_query(pod_id="a", labels={"k": "v"}, state="notready").condition == (
        cri_pb2.PodSandboxFilter(id="a", label_selector={"k": "v"}, state=state)
    )
    assert pod_query(state="ready").condition.HasField("state")
    assert not pod_query().condition.HasField("state")


def image(reference: str, identifier: str, *tags: str) -> cri_pb2.ImageStatusResponse:
    assert reference
    return cri_pb2.ImageStatusResponse(image=cri_pb2.Image(id=identifier, repo_tags=tags))


def test_containers_of_an_image_by_any_of_its_names(fake: FakeServer, client: CriClient) -> None:
    ids = {"i:1": "sha256:1", "j:2": "sha256:1", "alias": "sha256:1"}
    fake.prepare("ListContainers", cri_pb2.ListContainersResponse(containers=CONTAINERS))
    fake.prepare(
        "ImageStatus",
        lambda request, context: image("x", ids[request.image.image]),
        repeat=True,
    )
    found = list_containers(client, client, container_query(image="alias", name="a"))
    assert [each.id for each in found] == ["ab", "a"]
    asked = [call.request.image.image for call in fake.calls if call.method == "ImageStatus"]
    assert asked[0] == "alias"
    assert sorted(asked[1:]) == ["i:1", "j:2"]


def test_first_tags(fake: FakeServer, client: CriClient) -> None:
    containers = [container("a", 1, "x"), container("b", 2, "x"), container("c", 3, "y")]
    containers.append(container("d", 4, ""))
    answers = {"x": image("x", "1", "x:2", "x:1"), "y": image("y", "2")}
    fake.prepare("ImageStatus", lambda request, context: answers[request.image.image], repeat=True)
    assert first_tags(client, containers) == {"x": "x:2"}
    assert len(fake.calls) == 2


def test_an_image_service_that_fails(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("ImageStatus", Status(grpc.StatusCode.INTERNAL, "broken"))
    with pytest.raises(RuntimeFault, match='looking for image "i:1": internal error: broken'):
        first_tags(client, CONTAINERS[:1])


def pod(name: str, namespace: str, created_at: int) -> cri_pb2.PodSandbox:
    metadata = cri_pb2.PodSandboxMetadata(name=name, namespace=namespace)
    return cri_pb2.PodSandbox(id=name, metadata=metadata, created_at=created_at)


def test_selection_and_order_of_pods(fake: FakeServer, client: CriClient) -> None:
    pods = [pod("web", "default", 3), pod("db", "prod", 9), pod("web-2", "prod", 5)]
    fake.prepare("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=pods), repeat=True)
    for query, names in (
        (pod_query(), ["db", "web-2", "web"]),
        (pod_query(namespace="prod", name="w"), ["web-2"]),
        (pod_query(latest=True, namespace="default"), ["web"]),
    ):
        assert [each.id for each in list_pods(client, query)] == names


def test_a_query_follows_a_pod_that_is_replaced(fake: FakeServer, client: CriClient) -> None:
    """A watched list makes the same query again and again."""
    query, of_pods = container_query(pod="web", all_states=True), pod_query(pod_id="web")
    asked = []
    for letter in "ab":
        found = pod("web", "default", 1)
        found.id = letter * 64
        fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=[found]))
        fake.offer("ListContainers", None)
        list_containers(client, client, query)
        asked.append(fake.calls[-1].request.filter.pod_sandbox_id)
        list_pods(client, of_pods)
        asked.append(fake.calls[-1].request.filter.id)
    assert asked == [*["a" * 64] * 2, *["b" * 64] * 2]
