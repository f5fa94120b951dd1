from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.runtime.cri.calls.client import AT_ONCE, CriClient, call_each, each
from tests.fakecri import FakeServer, hang
from tests.waiting import wait_until


def requests(count: int) -> list[tuple[str, cri_pb2.ContainerStatusRequest]]:
    return [
        (f"container {number}", cri_pb2.ContainerStatusRequest(container_id=str(number)))
        for number in range(count)
    ]


def echo(request: Any, context: Any) -> cri_pb2.ContainerStatusResponse:
    # Later requests are answered sooner.
    time.sleep(0.02 / (1 + int(request.container_id)))
    return cri_pb2.ContainerStatusResponse(info={"id": request.container_id})


def test_answers_come_in_order(fake: FakeServer) -> None:
    fake.prepare("ContainerStatus", echo, repeat=True)
    with CriClient(fake.path, timeout_s=60) as client:
        answers = list(call_each(client, "ContainerStatus", requests(50)))
    assert [answer.info["id"] for answer in answers] == [str(number) for number in range(50)]


def test_no_more_than_some_at_once(fake: FakeServer) -> None:
    begun: list[int] = []
    gate = threading.Event()

    def act(client: CriClient, number: int) -> int:
        begun.append(number)
        if number:
            gate.wait(60)
        return number

    with CriClient(fake.path, timeout_s=60) as client:
        numbers = each(client, act, range(1000))
        assert next(numbers) == 0
        wait_until(lambda: len(begun) > AT_ONCE)
        numbers.close()
        gate.set()
        time.sleep(0.05)
    assert sorted(begun) == list(range(AT_ONCE + 1))


def test_ctrl_c_ends_all(fake: FakeServer) -> None:
    gone = threading.Semaphore(0)

    def slow(request: Any, context: Any) -> Any:
        status = hang(100)(request, context)
        gone.release()
        return status

    def interrupt() -> None:
        wait_until(lambda: len(fake.calls) == AT_ONCE)
        os.kill(os.getpid(), signal.SIGINT)

    fake.prepare("ContainerStatus", slow, repeat=True)
    fake.prepare("Version", cri_pb2.VersionResponse())
    with CriClient(fake.path, timeout_s=60) as client:
        answers = call_each(client, "ContainerStatus", requests(100))
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            next(answers)
        assert all(gone.acquire(timeout=60) for _ in fake.calls)  # the runtime noticed
        client.call("Version", cri_pb2.VersionRequest())
    assert fake.methods() == ["ContainerStatus"] * AT_ONCE + ["Version"]


def test_each_has_the_time_of_those_before_it(fake: FakeServer) -> None:
    """A runtime that handles calls serially has as much time as if they came one by one."""
    fake.prepare("ContainerStatus", echo, repeat=True)
    with CriClient(fake.path, timeout_s=10) as client:
        list(call_each(client, "ContainerStatus", requests(AT_ONCE + 4)))
    allowed = sorted(
        (int(call.request.container_id), round(call.deadline_s or 0, -1)) for call in fake.calls
    )
    assert [deadline_s for _, deadline_s in allowed] == [
        *(10 * (number + 1) for number in range(AT_ONCE)),
        *([10 * AT_ONCE] * 4),
    ]
