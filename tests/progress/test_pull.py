"""A pull that waits, on a containerd in memory that answers ``PullImage`` as well."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from threading import Event

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.client import CriClient
from pycrictl.progress.pull import pull
from pycrictl.progress.tracker import View
from tests.containerd.fakectd import FakeContainerd, Lease

REFERENCE = "https://u:topsecret@registry.example/app:1"
WAIT_S = 20.0


class Recorder:
    """Keeps the views; ``on_view`` plays what happens next."""

    def __init__(self, on_view: Callable[[View], None]) -> None:
        self.views: list[View] = []
        self._on_view = on_view
        self.is_closed = False

    def show(self, view: View) -> None:
        self.views.append(view)
        self._on_view(view)

    def note(self, text: str) -> None:
        raise AssertionError(text)

    def end(self, images: Collection[str]) -> None:
        raise AssertionError(images)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def answered() -> Event:
    """Set when the runtime is to answer ``PullImage``."""
    return Event()


@pytest.fixture
def fake(tmp_path: Path, answered: Event) -> Iterator[FakeContainerd]:
    def pull_image(request: cri_pb2.PullImageRequest, _: grpc.ServicerContext) -> object:
        assert answered.wait(WAIT_S)
        return cri_pb2.PullImageResponse(image_ref=f"ref of {request.image.image}")

    handler = grpc.unary_unary_rpc_method_handler(
        pull_image,
        request_deserializer=cri_pb2.PullImageRequest.FromString,
        response_serializer=cri_pb2.PullImageResponse.SerializeToString,
    )
    service = grpc.method_handlers_generic_handler(
        "runtime.v1.ImageService", {"PullImage": handler}
    )
    with FakeContainerd(tmp_path, service) as fake:
        yield fake


def test_a_pull_without_layers_is_named_and_waits(fake: FakeContainerd, answered: Event) -> None:
    """First for the runtime, then for the registry, and that for good: a lease that holds nothing
    for long is not taken for a pull any more."""

    def play(view: View) -> None:
        if len(sink.views) == 2:
            fake.leases["lease"] = Lease(time.time() - 1.0)
        elif len(sink.views) == 4:
            fake.leases.clear()
        elif len(sink.views) == 6:
            answered.set()

    sink = Recorder(play)
    request = cri_pb2.PullImageRequest(image=cri_pb2.ImageSpec(image=REFERENCE))
    with CriClient(fake.endpoint.removeprefix("unix://"), timeout_s=WAIT_S) as client:
        image_ref = pull(client, request, timeout_s=WAIT_S, open_sink=lambda: sink, interval_s=0.01)
    assert image_ref == f"ref of {REFERENCE}"
    assert sink.is_closed
    awaited = [one for view in sink.views for one in view.awaited]
    assert {one.image for one in awaited} == {"https://[redacted]@registry.example/app:1"}
    assert [one.is_begun for one in awaited[:6]] == [False, False, True, True, True, True]
    ages_s = [one.waited_s for one in awaited]
    assert ages_s == sorted(ages_s)
    assert 0.3 <= ages_s[0] < WAIT_S
