"""A pull that waits, on an in-memory containerd that also serves ``PullImage``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import ConfigError, Interrupted
from pycrictl.pulls.own import image
from pycrictl.pulls.own.image import Show, images_in, pull_many
from pycrictl.pulls.state import View
from pycrictl.runtime.cri.calls.client import CriClient
from tests.cli.streaming_server import progress_streams
from tests.runtime.containerd.fakectd import FakeContainerd, Lease
from tests.support.recorder import Recorder

REFERENCE = "https://u:topsecret@registry.example/app:1"
WAIT_S = 20.0


def pull(client: CriClient, request: cri_pb2.PullImageRequest, show: Show | None = None) -> str:
    pull_one = partial(image.pull, timeout_s=WAIT_S)
    (outcome,) = pull_many(client, [request], pull_one, parallel=1, show=show)
    assert outcome.error is None
    return outcome.reference


class Display(Recorder):
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def answered() -> Event:
    """Set to let the runtime answer ``PullImage``."""
    return Event()


@pytest.fixture
def begun() -> Event:
    """Set when the runtime has received ``PullImage``."""
    return Event()


@pytest.fixture
def stream_url() -> list[str]:
    """Where the pulls are streamed, if there is a proxy."""
    return []


@pytest.fixture
def fake(
    tmp_path: Path, begun: Event, answered: Event, stream_url: list[str]
) -> Iterator[FakeContainerd]:
    def pull_image(request: cri_pb2.PullImageRequest, context: grpc.ServicerContext) -> object:
        context.add_callback(answered.set)  # a cancelled call needs no answer
        begun.set()
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

    def progress(request: object, context: grpc.ServicerContext) -> object:
        if not stream_url:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
        return cri_pb2.ImagePullProgressResponse(url=stream_url[0])

    stream = grpc.unary_unary_rpc_method_handler(
        progress,
        request_deserializer=cri_pb2.ImagePullProgressRequest.FromString,
        response_serializer=cri_pb2.ImagePullProgressResponse.SerializeToString,
    )
    of_runtime = grpc.method_handlers_generic_handler(
        "runtime.v1.RuntimeService", {"ImagePullProgress": stream}
    )
    with FakeContainerd(tmp_path, service, of_runtime) as fake:
        yield fake


def test_a_pull_without_layers_is_named_and_waits(fake: FakeContainerd, answered: Event) -> None:
    """It waits for the runtime, then for the registry, and never for the runtime again, although a
    lease that stays empty for long no longer counts as a pull."""

    def play(view: View) -> None:
        if len(sink.views) == 2:
            fake.leases["lease"] = Lease(time.time() - 1.0)
        elif len(sink.views) == 4:
            fake.leases.clear()
        elif len(sink.views) == 6:
            answered.set()

    sink = Display(play)
    request = cri_pb2.PullImageRequest(image=cri_pb2.ImageSpec(image=REFERENCE))
    with CriClient(fake.endpoint.removeprefix("unix://"), timeout_s=WAIT_S) as client:
        image_ref = pull(client, request, Show(lambda: sink, 0.01))
    assert image_ref == f"ref of {REFERENCE}"
    assert sink.is_closed
    assert (sink.notes, sink.ended) == ([], [])
    awaited = [pull for view in sink.views for pull in view.awaited]
    assert {pull.image for pull in awaited} == {"https://[redacted]@registry.example/app:1"}
    assert [pull.is_begun for pull in awaited[:6]] == [False, False, True, True, True, True]
    assert len({pull.began_s for pull in awaited}) == 1
    assert 0.3 <= sink.views[0].wall_s - awaited[0].began_s < WAIT_S


def test_a_pull_behind_a_limit_is_shown_with_its_place(
    fake: FakeContainerd, answered: Event, stream_url: list[str]
) -> None:
    """The place comes from the stream of the proxy that the pull goes through."""
    waiting = {"progress": 0, "total": 0, "phase": "waiting"}
    own = {"image": "app:1", "queue_position": 2, "behind": "default/db", "starts_in_s": 121}
    line = [{**waiting, "image": "other:1", "queue_position": 3}, {**waiting, **own}]
    sink = Display(lambda view: answered.set() if view.awaited[0].place else None)
    request = cri_pb2.PullImageRequest(image=cri_pb2.ImageSpec(image="app:1"))
    with (
        progress_streams(line) as server,
        CriClient(fake.endpoint.removeprefix("unix://"), timeout_s=WAIT_S) as client,
    ):
        stream_url.append(server.url)
        pull(client, request, Show(lambda: sink, 0.01))
    (waits,) = sink.views[-1].awaited
    assert (waits.place, waits.behind, waits.starts_in_s) == (2, "default/db", 121.0)


def test_an_interrupt_while_the_call_begins_cancels_the_pull(
    fake: FakeContainerd, begun: Event, answered: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal is held until the call has begun, and is raised before ``pull`` has the call."""
    begin = CriClient.start
    kept: list[object] = []  # gRPC cancels calls that are no longer referenced

    def interrupted(*arguments: Any, **options: Any) -> NoReturn:
        kept.append(begin(*arguments, **options))
        assert begun.wait(WAIT_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(CriClient, "start", interrupted)
    request = cri_pb2.PullImageRequest(image=cri_pb2.ImageSpec(image=REFERENCE))
    path = fake.endpoint.removeprefix("unix://")
    with (
        CriClient(path, timeout_s=WAIT_S) as client,
        pytest.raises(Interrupted, match="cancelled the pull of"),
    ):
        pull(client, request)
    assert answered.wait(WAIT_S)


# Lists of images


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("a:1\nb:2\n", ["a:1", "b:2"]),
        ("# head\n\n  a:1  # why\n a:1\r\nb:1\n", ["a:1", "b:1"]),
        ("images:1.0\nb:2\n[::1]:5000/c\n", ["images:1.0", "b:2", "[::1]:5000/c"]),
    ],
)
def test_lists(text: str, images: list[str]) -> None:
    assert images_in(text) == images


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no image is in it"),
        ("image: a:1\n", "line 1: it has more than the name of an image"),
        ("a:1\nFROM b:2\n", "line 2: it has more than the name of an image"),
        ("a:${TAG}\n", 'line 1: "a:${TAG}" is not the name of an image: its tag'),
        ("a\ndocker://b\n", 'line 2: "docker://b" is not the name of an image: it begins with'),
    ],
)
def test_what_is_none(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        images_in(text)
    assert caught.value.message.startswith(said)
