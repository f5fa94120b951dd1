from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.batch import IN_FLIGHT, call_each
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import DeadlineExceeded, NotFound
from tests.fakecri import FakeServer, Status, hang


def requests(count: int) -> list[tuple[str, cri_pb2.ContainerStatusRequest]]:
    return [
        (f"container {number}", cri_pb2.ContainerStatusRequest(container_id=str(number)))
        for number in range(count)
    ]


def echo(request: Any, context: Any) -> cri_pb2.ContainerStatusResponse:
    # Later ones are answered earlier.
    time.sleep(0.02 / (1 + int(request.container_id)))
    return cri_pb2.ContainerStatusResponse(info={"id": request.container_id})


def test_answers_come_in_order(fake: FakeServer) -> None:
    fake.prepare("ContainerStatus", echo, repeat=True)
    with CriClient(fake.path, timeout_s=60) as client:
        answers = list(call_each(client, "ContainerStatus", requests(50)))
    assert [answer.info["id"] for answer in answers] == [str(number) for number in range(50)]


def test_no_more_than_some_are_in_flight(fake: FakeServer) -> None:
    asked: list[str] = []
    answered = threading.Event()

    def slow(request: Any, context: Any) -> cri_pb2.ContainerStatusResponse:
        answered.wait(60)
        return cri_pb2.ContainerStatusResponse()

    def source() -> Any:
        for what, request in requests(100):
            asked.append(what)
            yield what, request

    fake.prepare("ContainerStatus", slow, repeat=True)
    with CriClient(fake.path, timeout_s=60) as client:
        answers = call_each(client, "ContainerStatus", source())
        threading.Timer(0.2, answered.set).start()
        next(answers)
        assert len(asked) == IN_FLIGHT
        answers.close()
    assert len(asked) == IN_FLIGHT


def test_each_has_the_time_of_those_before_it(fake: FakeServer) -> None:
    """A runtime that answers one after the other gets as much time as one by one."""
    fake.prepare("ContainerStatus", echo, repeat=True)
    with CriClient(fake.path, timeout_s=10) as client:
        list(call_each(client, "ContainerStatus", requests(IN_FLIGHT + 4)))
    allowed = sorted(
        (int(call.request.container_id), round(call.deadline_s or 0, -1)) for call in fake.calls
    )
    assert [deadline_s for _, deadline_s in allowed] == [
        *(10 * (number + 1) for number in range(IN_FLIGHT)),
        *([10 * IN_FLIGHT] * 4),
    ]


def test_an_error_stands_in_its_place(fake: FakeServer) -> None:
    def some(request: Any, context: Any) -> Any:
        if request.container_id == "1":
            return Status(grpc.StatusCode.NOT_FOUND, "gone")
        return cri_pb2.ContainerStatusResponse()

    fake.prepare("ContainerStatus", some, repeat=True)
    with CriClient(fake.path, timeout_s=60) as client:
        first, second, third = call_each(client, "ContainerStatus", requests(3))
    assert isinstance(second, NotFound)
    assert second.message == "container 1: not found: gone"
    assert isinstance(first, cri_pb2.ContainerStatusResponse)
    assert isinstance(third, cri_pb2.ContainerStatusResponse)


def test_a_runtime_that_hangs_costs_one_timeout(fake: FakeServer) -> None:
    fake.prepare("ContainerStatus", hang(100), repeat=True)
    start = time.monotonic()
    with CriClient(fake.path, timeout_s=1) as client:
        # The last one may take as many timeouts as there are.
        answers = call_each(client, "ContainerStatus", requests(IN_FLIGHT))
        assert isinstance(next(answers), DeadlineExceeded)
        answers.close()
    assert time.monotonic() - start < IN_FLIGHT / 2


def test_nothing_is_asked_for_nothing(fake: FakeServer) -> None:
    with CriClient(fake.path, timeout_s=60) as client:
        assert list(call_each(client, "ContainerStatus", [])) == []
    assert fake.calls == []


@pytest.mark.parametrize("count", [1, IN_FLIGHT - 1, IN_FLIGHT, IN_FLIGHT + 1])
def test_around_the_limit(fake: FakeServer, count: int) -> None:
    fake.prepare("ContainerStatus", echo, repeat=True)
    with CriClient(fake.path, timeout_s=60) as client:
        assert len(list(call_each(client, "ContainerStatus", requests(count)))) == count
    assert len(fake.calls) == count
