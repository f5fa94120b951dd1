"""Calls by gRPC's library: the same ends as over a connection of one's own."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.channel import ChannelCall
from pycrictl.cri.calls.errmap import Status
from pycrictl.cri.calls.transport import Connection, begin, open_channel
from pycrictl.wire import codes
from tests.fakecri import FakeServer
from tests.fakecri import Status as FakeStatus

IMAGES = "/runtime.v1.ImageService/ListImages"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"

begin_at = partial(begin, message=b"", timeout_s=30.0, handshake_s=1.0)


@pytest.mark.parametrize("lasts", [False, True])
def test_what_lasts_goes_by_the_library_and_the_rest_does_not(
    fake: FakeServer, lasts: bool
) -> None:
    fake.prepare("ListImages", cri_pb2.ListImagesResponse(images=[cri_pb2.Image(id="i")]))
    call = begin_at(fake.path, IMAGES, is_stream=False, lasts=lasts)
    assert isinstance(call, ChannelCall if lasts else Connection)
    (message,) = call.messages()
    assert cri_pb2.ListImagesResponse.FromString(message).images[0].id == "i"
    assert call.status == Status(codes.OK)


@pytest.mark.parametrize("lasts", [False, True])
def test_both_give_the_status_of_the_server(fake: FakeServer, lasts: bool) -> None:
    fake.prepare("ListImages", FakeStatus(grpc.StatusCode.NOT_FOUND, "no such thing"))
    call = begin_at(fake.path, IMAGES, is_stream=False, lasts=lasts)
    assert list(call.messages()) == []
    assert call.status == Status(codes.NOT_FOUND, "no such thing")


@pytest.mark.parametrize("lasts", [False, True])
def test_both_say_what_keeps_them_from_a_server(tmp_path: Path, lasts: bool) -> None:
    call = begin_at(str(tmp_path / "none.sock"), IMAGES, is_stream=False, lasts=lasts)
    assert list(call.messages()) == []
    assert call.status is not None
    assert (call.status.code, call.status.obstacle and call.status.obstacle.reason) == (
        codes.UNAVAILABLE,
        "no such file",
    )


def test_the_messages_of_a_stream_come_in_order(fake: FakeServer) -> None:
    events = [cri_pb2.ContainerEventResponse(container_id=str(n)) for n in range(3)]
    fake.prepare("GetContainerEvents", events)
    call = begin_at(fake.path, EVENTS, is_stream=True, lasts=True)
    found = [cri_pb2.ContainerEventResponse.FromString(each) for each in call.messages()]
    assert found == events


def test_waiting_for_the_end_of_a_call_has_a_limit(fake: FakeServer) -> None:
    def late(request: object, context: object) -> cri_pb2.ListImagesResponse:
        time.sleep(0.5)
        return cri_pb2.ListImagesResponse()

    fake.prepare("ListImages", late)
    call = begin_at(fake.path, IMAGES, is_stream=False, lasts=True)
    call.receive(time.monotonic() + 0.01)
    assert call.status is None
    call.receive()
    assert call.status == Status(codes.OK)


def test_calls_share_a_channel(fake: FakeServer) -> None:
    fake.prepare("ListImages", cri_pb2.ListImagesResponse(), repeat=True)
    channel = open_channel(fake.path)
    for _ in range(3):
        call = ChannelCall(channel, IMAGES, b"", timeout_s=30.0, is_stream=False)
        assert list(call.messages()) == [b""]
    channel.close()
