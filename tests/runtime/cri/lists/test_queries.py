from __future__ import annotations

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists.queries import (
    container_query,
    list_containers,
    list_pods,
    pod_query,
)
from tests.fakecri import FakeServer


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


def pod(name: str, namespace: str, created_at: int) -> cri_pb2.PodSandbox:
    metadata = cri_pb2.PodSandboxMetadata(name=name, namespace=namespace)
    return cri_pb2.PodSandbox(id=name, metadata=metadata, created_at=created_at)


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
