"""Calls to a runtime, one and many: answers, errors, deadlines, interrupts and the log."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base import errors
from pycrictl.runtime.cri.calls.client import (
    CALLS_AT_ONCE,
    CriClient,
    call_each,
    deadline_s,
    for_each,
)
from tests.fakecri import FakeServer, Maker, Status, hang, hostile, serve
from tests.waiting import wait_until

LIST = cri_pb2.ListImagesRequest()
EMPTY = cri_pb2.ListImagesResponse()
MIB = 1024 * 1024
LIMIT_S = 60


@pytest.fixture
def client(fake: FakeServer) -> Iterator[CriClient]:
    with CriClient(fake.path, timeout_s=LIMIT_S) as client:
        yield client


def images_of(size_bytes: int) -> cri_pb2.ListImagesResponse:
    return cri_pb2.ListImagesResponse(images=[cri_pb2.Image(id="x" * size_bytes)])


class TestAnswers:
    @pytest.mark.parametrize(
        ("timeout_s", "deadline_s"),
        # gRPC gets no deadline if the timeout exceeds 30 years.
        [(600, pytest.approx(600, abs=20)), (None, None), (1e300, None)],
    )
    def test_deadlines(
        self, fake: FakeServer, client: CriClient, timeout_s: float | None, deadline_s: object
    ) -> None:
        fake.prepare("ListImages", EMPTY)
        client.call("ListImages", LIST, timeout_s=timeout_s)
        assert fake.calls[0].deadline_s == deadline_s

    def test_17_mib(self, fake: FakeServer, client: CriClient) -> None:
        fake.prepare("ListImages", images_of(17 * MIB), EMPTY)
        with pytest.raises(errors.Exhausted, match=r"^listing images: a limit is reached: .*max"):
            client.call("ListImages", LIST, action="listing images")
        assert client.call("ListImages", LIST) == EMPTY

    def test_garbage_in_a_valid_frame(
        self, fake: FakeServer, client: CriClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        fake.prepare("ListImages", b"\xff\xff\xff")
        with pytest.raises(errors.RemoteProtocolError) as caught:
            client.call("ListImages", LIST, action="listing images")
        assert caught.value.message == (
            f'listing images: the answer of "{fake.endpoint}" is not a valid ListImagesResponse'
        )
        assert not caplog.records


class TestErrors:
    def test_a_call_that_the_runtime_lacks(self, fake: FakeServer, client: CriClient) -> None:
        request = cri_pb2.ImagePullProgressRequest()
        with pytest.raises(errors.Unimplemented) as caught:
            client.call("ImagePullProgress", request)
        assert caught.value.message == (
            f'the runtime at "{fake.endpoint}" does not implement ImagePullProgress'
        )
        fake.prepare(
            "Version",
            cri_pb2.VersionResponse(runtime_name="containerd", runtime_version="1.6.20\n"),
        )
        client.call("Version", cri_pb2.VersionRequest())
        assert client.runtime == "containerd 1.6.20"
        with pytest.raises(errors.Unimplemented) as caught:
            client.call("ImagePullProgress", request, action="watching pulls")
        assert caught.value.message == (
            "watching pulls: containerd 1.6.20 does not implement ImagePullProgress"
        )

    def test_a_runtime_that_keeps_the_same_deadline(
        self, fake: FakeServer, client: CriClient
    ) -> None:
        """Its reset of the call may arrive before gRPC's own deadline."""

        def give_up(request: object, context: grpc.ServicerContext) -> Status:
            time.sleep(0.95)
            return Status(grpc.StatusCode.CANCELLED, "Received RST_STREAM with error code 8")

        fake.prepare("ListImages", give_up)
        with pytest.raises(errors.DeadlineExceeded, match="listing images: no answer within 1s"):
            client.call("ListImages", LIST, timeout_s=1, action="listing images")

    def test_a_runtime_that_goes_away(self) -> None:
        with serve() as server:
            server.prepare("ListImages", EMPTY)
            client = CriClient(server.path, timeout_s=LIMIT_S)
            client.call("ListImages", LIST)
        with client, pytest.raises(errors.ConnectError) as caught:
            client.call("ListImages", LIST, action="listing images")
        assert caught.value.message == (
            f'listing images: the runtime at "{server.endpoint}" went away: no such file'
        )

    def test_a_runtime_that_comes_back(self, folder: Path) -> None:
        with serve(str(folder / "s")) as server:
            server.prepare("ListImages", EMPTY)
            client = CriClient(server.path, timeout_s=LIMIT_S)
            client.call("ListImages", LIST)
        with client, serve(server.path) as again:
            again.prepare("ListImages", EMPTY, repeat=True)

            def is_answered() -> bool:
                with suppress(errors.Unavailable):
                    return bool(client.call("ListImages", LIST) == EMPTY)
                return False

            wait_until(is_answered)
            assert again.methods() == ["ListImages"]


class TestHostilePeers:
    """None of them may block the program for long, even in calls without a deadline (pulls)."""

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            (hostile.closing, "it closes every connection at once"),
            (hostile.resetting, "it closes every connection at once"),
            (hostile.http1, 'it is not a gRPC server: it answers "HTTP/1.1 400 Bad Request"'),
            (
                lambda: hostile.answering(b"\x1b[2J\xff\xfe" + b"y" * 5000),
                'it is not a gRPC server: it answers "\\x1b[2J\ufffd\ufffd' + "y" * 54 + '"',
            ),
            (hostile.dead, "connection refused: nothing listens there"),
        ],
    )
    def test_others(self, kind: type, reason: str) -> None:
        with kind() as path, CriClient(path, timeout_s=LIMIT_S) as client:
            with pytest.raises(errors.ConnectError) as caught:
                client.call("PullImage", cri_pb2.PullImageRequest())
        assert caught.value.message.endswith(": " + reason)
        assert f'"unix://{path}"' in caught.value.message
        assert caught.value.hint


class TestStarted:
    def test_closing_the_client_ends_it(self, fake: FakeServer, client: CriClient) -> None:
        gone = threading.Event()
        fake.prepare("PullImage", until(gone))
        call = client.start("PullImage", cri_pb2.PullImageRequest())
        wait_until(lambda: fake.calls)
        client.close()
        client.close()
        assert gone.wait(LIMIT_S)
        with pytest.raises(errors.Cancelled):
            call.answer()
        with pytest.raises(errors.Cancelled):
            client.call("Version", cri_pb2.VersionRequest())


class TestStreams:
    def test_leaving_early_cancels(self, fake: FakeServer, client: CriClient) -> None:
        gone = threading.Event()
        first = cri_pb2.ContainerEventResponse(container_id="a")
        begun = threading.Event()
        fake.prepare("GetContainerEvents", [first, until(gone, begun)])
        answers = client.stream("GetContainerEvents", cri_pb2.GetEventsRequest())
        assert next(answers) == first
        assert begun.wait(LIMIT_S)
        answers.close()
        assert gone.wait(LIMIT_S)


class TestLog:
    def test_requests_and_answers_without_secrets(
        self, fake: FakeServer, client: CriClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "pycrictl.cri")
        fake.prepare(
            "PullImage", cri_pb2.PullImageResponse(image_ref="sha256:1"), RuntimeError("boom")
        )
        fake.prepare("Exec", cri_pb2.ExecResponse(url="http://127.0.0.1:1/exec/s3cr3t"))
        request = cri_pb2.PullImageRequest(auth=cri_pb2.AuthConfig(username="u", password="s3cr3t"))
        client.call("PullImage", request)
        with pytest.raises(errors.RuntimeFault):
            client.call("PullImage", request)
        client.call("Exec", cri_pb2.ExecRequest(container_id="c"))
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 6
        assert lines[0] == '> PullImage {auth { username: "u" password: "[redacted]" }}'
        assert lines[1].startswith("< PullImage after ")
        assert lines[1].endswith('10 bytes: {image_ref: "sha256:1"}')
        assert lines[3].startswith("< PullImage failed: ")
        assert lines[4] == '> Exec {container_id: "c"}'
        assert not any("s3cr3t" in line for line in lines)


def until(gone: threading.Event, begun: threading.Event | None = None) -> Maker:
    """Return a maker that sets `begun`, waits for the client to cancel, and sets `gone`."""

    def wait(request: object, context: grpc.ServicerContext) -> Any:
        if begun is not None:
            begun.set()
        status = hang(100)(request, context)
        gone.set()
        return status

    return wait


@pytest.mark.parametrize(
    ("name", "request_message", "expected"),
    [
        ("Version", cri_pb2.VersionRequest(), 3),
        ("ListImages", cri_pb2.ListImagesRequest(), 3),
        ("StreamImages", cri_pb2.StreamImagesRequest(), 3),
        ("CheckpointContainer", cri_pb2.CheckpointContainerRequest(timeout=60), 3),
        ("RunPodSandbox", cri_pb2.RunPodSandboxRequest(), 6),
        ("StopContainer", cri_pb2.StopContainerRequest(), 3),
        ("StopContainer", cri_pb2.StopContainerRequest(timeout=10), 13),
        ("StopContainer", cri_pb2.StopContainerRequest(timeout=-10), 3),
        ("ExecSync", cri_pb2.ExecSyncRequest(), None),
        ("ExecSync", cri_pb2.ExecSyncRequest(timeout=5), 8),
        ("ExecSync", cri_pb2.ExecSyncRequest(timeout=-5), None),
        ("PullImage", cri_pb2.PullImageRequest(), None),
        ("GetContainerEvents", cri_pb2.GetEventsRequest(), None),
    ],
)
def test_deadlines_of_calls(name: str, request_message: Any, expected: float | None) -> None:
    assert deadline_s(name, request_message, 3) == expected


# Many calls at once


def requests(count: int) -> list[tuple[str, cri_pb2.ContainerStatusRequest]]:
    return [
        (f"container {number}", cri_pb2.ContainerStatusRequest(container_id=str(number)))
        for number in range(count)
    ]


def echo(request: Any, context: Any) -> cri_pb2.ContainerStatusResponse:
    # Later requests are answered sooner.
    time.sleep(0.02 / (1 + int(request.container_id)))
    return cri_pb2.ContainerStatusResponse(info={"id": request.container_id})


def test_no_more_than_some_at_once(fake: FakeServer) -> None:
    begun: list[int] = []
    gate = threading.Event()

    def act(client: CriClient, number: int) -> int:
        begun.append(number)
        if number:
            gate.wait(60)
        return number

    with CriClient(fake.path, timeout_s=60) as client:
        numbers = for_each(client, act, range(1000))
        assert next(numbers) == 0
        wait_until(lambda: len(begun) > CALLS_AT_ONCE)
        numbers.close()
        gate.set()
        time.sleep(0.05)
    assert sorted(begun) == list(range(CALLS_AT_ONCE + 1))


def test_ctrl_c_ends_all(fake: FakeServer) -> None:
    gone = threading.Semaphore(0)

    def slow(request: Any, context: Any) -> Any:
        status = hang(100)(request, context)
        gone.release()
        return status

    def interrupt() -> None:
        wait_until(lambda: len(fake.calls) == CALLS_AT_ONCE)
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
    assert fake.methods() == ["ContainerStatus"] * CALLS_AT_ONCE + ["Version"]


def test_each_has_the_time_of_those_before_it(fake: FakeServer) -> None:
    """A runtime that handles calls serially has as much time as if they came one by one."""
    fake.prepare("ContainerStatus", echo, repeat=True)
    with CriClient(fake.path, timeout_s=10) as client:
        list(call_each(client, "ContainerStatus", requests(CALLS_AT_ONCE + 4)))
    allowed = sorted(
        (int(call.request.container_id), round(call.deadline_s or 0, -1)) for call in fake.calls
    )
    assert [deadline_s for _, deadline_s in allowed] == [
        *(10 * (number + 1) for number in range(CALLS_AT_ONCE)),
        *([10 * CALLS_AT_ONCE] * 4),
    ]
