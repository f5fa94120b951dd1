from __future__ import annotations

from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError, RuntimeFault, UsageError
from pycrictl.runtime.cri.calls.client import CriClient, method
from pycrictl.runtime.cri.lists import lookup
from pycrictl.runtime.cri.lists.queries import (
    container_query,
    list_containers,
    pattern,
)
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
    containers = list_containers(client, client, container_query(image="alias", name="a"))
    assert [container.id for container in containers] == ["ab", "a"]
    asked = [call.request.image.image for call in fake.calls if call.method == "ImageStatus"]
    assert asked[0] == "alias"
    assert sorted(asked[1:]) == ["i:1", "j:2"]


# Whole lists


def containers(first: int, count: int, *, label_bytes: int = 0) -> list[cri_pb2.Container]:
    return [
        cri_pb2.Container(id=str(number), labels={"big": "x" * label_bytes})
        for number in range(first, first + count)
    ]


EACH = {
    "StreamContainers": "ListContainers",
    "StreamPodSandboxes": "ListPodSandbox",
    "StreamImages": "ListImages",
    "StreamContainerStats": "ListContainerStats",
    "StreamPodSandboxStats": "ListPodSandboxStats",
    "StreamPodSandboxMetrics": "ListPodSandboxMetrics",
}


@pytest.mark.parametrize("stream", EACH)
def test_a_stream_is_used_where_it_is_offered(
    fake: FakeServer, client: CriClient, stream: str
) -> None:
    """If the runtime lacks it, the list is requested as one message."""
    unary = EACH[stream]
    parts = [made(stream, count) for count in (1, 0, 2)]
    fake.prepare(unary, made(unary, 1))
    assert len(lookup.whole(client, stream, unary)) == 1
    assert fake.methods() == [stream, unary]
    fake.prepare(stream, parts)
    assert len(lookup.whole(client, stream, unary)) == 3
    assert fake.methods() == [stream, unary, stream]


def made(name: str, count: int) -> Any:
    """Return an answer to a call, with this many elements."""
    answer = method(name).response_type()
    elements = getattr(answer, answer.DESCRIPTOR.fields[0].name)
    for _ in range(count):
        elements.add()
    return answer


def test_a_stream_that_breaks_is_no_list(fake: FakeServer, client: CriClient) -> None:
    part = cri_pb2.StreamContainersResponse(containers=containers(0, 3))
    fake.prepare("StreamContainers", [part, Status(grpc.StatusCode.INTERNAL, "disk")])
    with client, pytest.raises(RuntimeFault, match="ListContainers: internal error: disk"):
        lookup.containers(client)
    assert fake.methods() == ["StreamContainers"]


def test_both_missing_names_the_older_call(fake: FakeServer, client: CriClient) -> None:
    with client, pytest.raises(PycrictlError, match="does not implement ListPodSandboxMetrics"):
        lookup.whole(client, "StreamPodSandboxMetrics", "ListPodSandboxMetrics")


@pytest.mark.parametrize(
    "text",
    ["(", "[", "*", "a**", r"\pL", r"\y", "[[:alpha:]]", "a{99999999999}", "(" * 5000, "\x1b[("],
)
def test_invalid_patterns_get_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        pattern(text, option="--name")
    message = caught.value.message
    assert message.isprintable()
    assert " for --name is not a valid regular expression: " in message
    assert len(message) < 300
