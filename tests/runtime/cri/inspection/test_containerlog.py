from __future__ import annotations

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError, Unavailable
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.inspection.containerlog import (
    ContainerLog,
    container_log,
    life,
)
from tests.fakecri import FakeServer, Status, answers

ID = "0123456789abcdef" * 4
RUNNING = cri_pb2.CONTAINER_RUNNING
EXITED = cri_pb2.CONTAINER_EXITED
AWAY = Status(grpc.StatusCode.UNAVAILABLE, "restarting")


def answer(
    *, path: str = "/pods/web/2.log", attempt: int = 0, state: cri_pb2.ContainerState = EXITED
) -> cri_pb2.ContainerStatusResponse:
    response = cri_pb2.ContainerStatusResponse(status=answers.container_status())
    response.status.metadata.name = "web"
    response.status.metadata.attempt = attempt
    response.status.log_path = path
    response.status.state = state
    return response


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_log_of_the_attempt_before(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("ContainerStatus", answer(state=RUNNING, attempt=2), answer(state=RUNNING))
    log = container_log(client, ID, previous=True)
    assert log == ContainerLog(ID, "/pods/web/1.log", False)
    with pytest.raises(PycrictlError, match=r'"web" has no earlier attempt'):
        container_log(client, ID, previous=True)


def test_life_is_asked_about_once_a_second(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("ContainerStatus", answer(state=RUNNING), answer())
    clock = Clock()
    lasts = life(client, ContainerLog(ID, "/log", True), clock=clock)
    for passed_s, lives, asked in ((0.9, True, 0), (0.1, True, 1), (0.5, True, 1), (0.6, 0, 2)):
        clock.now += passed_s
        assert lasts() == lives
        assert len(fake.calls) == asked
    clock.now += 60
    assert not lasts()
    assert len(fake.calls) == 2


def test_a_removed_container_has_ended(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("ContainerStatus", Status(grpc.StatusCode.NOT_FOUND, "gone"))
    clock = Clock()
    lasts = life(client, ContainerLog(ID, "/log", True), clock=clock)
    clock.now += 1
    assert not lasts()


def test_a_runtime_that_is_away(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("ContainerStatus", AWAY, answer(state=RUNNING), AWAY, AWAY)
    clock = Clock()
    lasts = life(client, ContainerLog(ID, "/log", True), clock=clock)
    for _ in range(3):
        clock.now += 9
        assert lasts()
    clock.now += 2
    with pytest.raises(Unavailable):
        lasts()
