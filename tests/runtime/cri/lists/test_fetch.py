from __future__ import annotations

from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError, RuntimeFault, UsageError
from pycrictl.runtime.cri.calls.client import CriClient, method
from pycrictl.runtime.cri.lists import fetch
from tests.fakecri import FakeServer, Status


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
    assert len(fetch.whole(client, stream, unary)) == 1
    assert fake.methods() == [stream, unary]
    fake.prepare(stream, parts)
    assert len(fetch.whole(client, stream, unary)) == 3
    assert fake.methods() == [stream, unary, stream]


def made(name: str, count: int) -> Any:
    """Return an answer to a call, with this many elements."""
    answer = method(name).response_type()
    elements = getattr(answer, answer.DESCRIPTOR.fields[0].name)
    for _ in range(count):
        elements.add()
    return answer


def test_a_list_larger_than_any_message(fake: FakeServer, client: CriClient) -> None:
    parts = [
        cri_pb2.StreamContainersResponse(containers=containers(first, 100, label_bytes=2000))
        for first in range(0, 10_000, 100)
    ]
    assert sum(part.ByteSize() for part in parts) > 20_000_000
    fake.prepare("StreamContainers", parts)
    found = fetch.containers(client)
    assert [int(each.id) for each in found] == list(range(10_000))


def test_a_stream_that_breaks_is_no_list(fake: FakeServer, client: CriClient) -> None:
    part = cri_pb2.StreamContainersResponse(containers=containers(0, 3))
    fake.prepare("StreamContainers", [part, Status(grpc.StatusCode.INTERNAL, "disk")])
    with client, pytest.raises(RuntimeFault, match="ListContainers: internal error: disk"):
        fetch.containers(client)
    assert fake.methods() == ["StreamContainers"]


def test_both_missing_names_the_older_call(fake: FakeServer, client: CriClient) -> None:
    with client, pytest.raises(PycrictlError, match="does not implement ListPodSandboxMetrics"):
        fetch.whole(client, "StreamPodSandboxMetrics", "ListPodSandboxMetrics")


@pytest.mark.parametrize(
    "text",
    ["(", "[", "*", "a**", r"\pL", r"\y", "[[:alpha:]]", "a{99999999999}", "(" * 5000, "\x1b[("],
)
def test_invalid_patterns_get_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        fetch.pattern(text, option="--name")
    message = caught.value.message
    assert message.isprintable()
    assert " for --name is not a valid regular expression: " in message
    assert len(message) < 300
