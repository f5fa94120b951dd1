"""How many objects an answer is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.client import CriClient, parts_in
from pycrictl.errors import RemoteProtocolError
from tests.fakecri import FakeServer

CONTAINERS = cri_pb2.ListContainersResponse.DESCRIPTOR


def test_all_objects_count() -> None:
    one = cri_pb2.Container(id="a", metadata=cri_pb2.ContainerMetadata(name="x"))
    one.labels["key"] = "value"
    answer = cri_pb2.ListContainersResponse(containers=[one, one])
    assert parts_in(answer.SerializeToString(), CONTAINERS, 100) == 6
    assert parts_in(answer.SerializeToString(), CONTAINERS, 3) == 4


@given(st.binary(max_size=200))
def test_what_is_malformed_ends_it(data: bytes) -> None:
    assert parts_in(data, CONTAINERS, 1000) <= 100


@pytest.mark.parametrize("name", ["ListContainers", "StreamContainers"])
def test_an_answer_of_very_many_objects(fake: FakeServer, name: str) -> None:
    many = [cri_pb2.Container()] * 350_000
    part = cri_pb2.ListContainersResponse(containers=many)
    if name == "ListContainers":
        fake.prepare(name, cri_pb2.ListContainersResponse(containers=[*many, *many]))
    else:
        streamed = cri_pb2.StreamContainersResponse.FromString(part.SerializeToString())
        fake.prepare(name, [streamed] * 4)
    request = getattr(cri_pb2, f"{name}Request")()
    with CriClient(fake.path, timeout_s=60) as client:
        answer = client.call if name == "ListContainers" else _whole(client)
        with pytest.raises(RemoteProtocolError, match="is made of more than 500000 objects"):
            answer(name, request)


def _whole(client: CriClient) -> Callable[..., Any]:
    return lambda name, request: list(client.stream(name, request))
