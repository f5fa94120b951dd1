"""ImagePullProgress of a proxy in front of a runtime that is not containerd."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.servicelog import Log
from pycrictl.proxy.pulls.book import PullKey, QueuedPull
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.progress_streams import Notifier, PullProgress
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey, PullTarget, RuntimeLookup
from pycrictl.proxy.serve.stream_server import Tokens
from pycrictl.proxy.upstream import Upstream
from pycrictl.pulls.messages import MessageReader
from pycrictl.pulls.sources.stream_watch import follow
from pycrictl.pulls.state import Phase, PullState
from tests.fakecri import FakeServer, Status
from tests.proxy.program import Program
from tests.support.limited_pulls import Gate, prepare, status
from tests.support.progress_streams import DB, WEB, ask, read, sandboxes
from tests.waiting import wait_until

Start = Callable[..., Program]


def containers(request: Any, context: Any) -> cri_pb2.ListContainersResponse:
    container = cri_pb2.Container(id="c1", pod_sandbox_id=WEB.id)
    container.image.image = "a/first:1"
    found = [container] if request.filter.id == "c1" else []
    return cri_pb2.ListContainersResponse(containers=found)


def phase(pull: PullState) -> Phase:
    (layer,) = pull.layers
    return layer.phase


def test_whole_images_and_no_invented_number(fake: FakeServer, start: Start) -> None:
    gate = Gate()
    prepare(fake, gate)
    fake.prepare("ListPodSandbox", sandboxes, repeat=True)
    fake.prepare("ListContainers", containers, repeat=True)
    proxy = start("--max-parallel-image-pulls", "1")
    futures = [proxy.kubelet.start_pull("a/first:1", WEB)]
    wait_until(lambda: gate.running)
    futures.append(proxy.kubelet.start_pull("a/theirs:1", DB))
    wait_until(lambda: len(status(proxy)["waiting"]) == 1)
    futures.append(proxy.kubelet.start_pull("a/second:1", WEB))
    wait_until(lambda: len(status(proxy)["waiting"]) == 2)
    urls = [ask(proxy, WEB.id), ask(proxy, WEB.id, "c1"), ask(proxy, container_id="c1")]

    found: list[list[PullState]] = [[] for _ in urls]

    def heard(stream: list[PullState], pull: PullState) -> None:
        stream.append(pull)
        # Go on once the first stream has both images and the others have a report.
        if all(found) and len({one.image for one in found[0]}) == 2:
            gate.open.set()

    async def follow_all() -> None:
        streams = [
            follow(
                url,
                MessageReader({}),
                on_pull=partial(heard, one),
                on_note=pytest.fail,
                timeout_s=60,
            )
            for url, one in zip(urls, found, strict=True)
        ]
        await asyncio.wait_for(asyncio.gather(*streams), 60)

    asyncio.run(follow_all())
    whole, *of_container = found
    assert all(future.result(60).image_ref for future in futures)
    assert {(layer.name, layer.total) for one in whole for layer in one.layers} == {("", 0)}
    first = [(phase(one), one.place) for one in whole if one.image == "a/first:1"]
    second = [(phase(one), one.place) for one in whole if one.image == "a/second:1"]
    assert len(first) + len(second) == len(whole)
    assert first == [("downloading", 0), ("done", 0)]
    assert second[0] == ("waiting", 2)
    assert second[-1] == ("done", 0)
    for stream in of_container:
        assert [(one.image, phase(one)) for one in stream] == [
            ("a/first:1", "downloading"),
            ("a/first:1", "done"),
        ]


def test_a_failure_is_told_at_the_end(fake: FakeServer, start: Start) -> None:
    prepare(fake, Status(grpc.StatusCode.UNKNOWN, "denied by https://u:pw@host/x"))
    fake.prepare("ListPodSandbox", sandboxes, repeat=True)
    proxy = start()
    assert proxy.kubelet.start_pull("a/b:1", WEB).exception(60) is not None
    found = read(ask(proxy, WEB.id))
    assert [(phase(one), one.error) for one in found][-1] == (
        "failed",
        "denied by https://[redacted]@host/x",
    )
    assert "pw@" not in proxy.log()


def followed(fake: FakeServer, count: int) -> list[list[str]]:
    """Return the first batches about a pull that waits."""

    async def run() -> list[list[str]]:
        notifier, queue = Notifier(), PullQueue(1)
        book = queue.book
        layers = LayerPoller(fake.path, log=Log("pycrictl.proxy.test"), on_look=notifier.notify)
        progress = PullProgress(
            RuntimeLookup(Upstream(fake.path)),
            queue,
            layers,
            notifier=notifier,
            tokens=Tokens(),
        )
        target = PullTarget(PodKey("default", "web", "u1"))
        book.line.append(QueuedPull(1, PullKey("a"), takes_slot=True, reference="a"))
        book.begin(1, book.line[0], pod=target.pod, reference="a", now=0.0)
        found = []
        async with contextlib.aclosing(progress.follow(target)) as batches:
            async for batch in batches:
                found.append(batch)
                if len(found) == count:
                    break
        await layers.close()
        return found

    return asyncio.run(run())


def test_a_heartbeat_repeats_the_last_record(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pycrictl.proxy.pulls.progress_streams.HEARTBEAT_S", 0.5)
    batches = followed(fake, 3)
    assert batches == [batches[0]] * 3
    (message,) = batches[0]
    fields = {"image": "a", "progress": 0, "total": 0, "phase": "waiting", "queue_position": 1}
    assert json.loads(message) == fields
