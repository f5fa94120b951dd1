"""ImagePullProgress of a proxy in front of a runtime that is not containerd."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.proxy.pulls.progress_streams import (
    ABANDONED,
    LINGER_S,
    Reporter,
)
from pycrictl.proxy.pulls.pull_calls import (
    ATTEMPT_GAP_S,
    CallState,
    Policy,
    PullKey,
    QueuedPull,
)
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey, PullTarget
from pycrictl.pulls.messages import MessageReader
from pycrictl.pulls.sources.stream_watch import follow
from pycrictl.pulls.state import LayerState, Phase, PullState
from tests.fakecri import FakeServer
from tests.proxy.program import Program
from tests.support.limited_pulls import Gate, prepare, status
from tests.support.progress_streams import DB, WEB, ask, sandboxes
from tests.waiting import wait_until

Start = Callable[..., Program]


def containers(request: Any, context: Any) -> cri_pb2.ListContainersResponse:
    container = cri_pb2.Container(id="c1", pod_sandbox_id=WEB.id)
    container.image.image = "a/first:1"
    containers = [container] if request.filter.id == "c1" else []
    return cri_pb2.ListContainersResponse(containers=containers)


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

    received: list[list[PullState]] = [[] for _ in urls]

    def heard(stream: list[PullState], pull: PullState) -> None:
        stream.append(pull)
        # Go on once the first stream has both images and the others have a report.
        if all(received) and len({state.image for state in received[0]}) == 2:
            gate.open.set()

    async def follow_all() -> None:
        streams = [
            follow(
                url,
                MessageReader({}),
                on_pull=partial(heard, states),
                on_note=pytest.fail,
                timeout_s=60,
            )
            for url, states in zip(urls, received, strict=True)
        ]
        await asyncio.wait_for(asyncio.gather(*streams), 60)

    asyncio.run(follow_all())
    whole, *of_container = received
    assert all(future.result(60).image_ref for future in futures)
    assert {(layer.name, layer.total) for state in whole for layer in state.layers} == {("", 0)}
    first = [(phase(state), state.place) for state in whole if state.image == "a/first:1"]
    second = [(phase(state), state.place) for state in whole if state.image == "a/second:1"]
    assert len(first) + len(second) == len(whole)
    assert first == [("downloading", 0), ("done", 0)]
    assert second[0] == ("waiting", 2)
    assert second[-1] == ("done", 0)
    for stream in of_container:
        assert [(state.image, phase(state)) for state in stream] == [
            ("a/first:1", "downloading"),
            ("a/first:1", "done"),
        ]


def test_an_idle_node_says_so_at_once(fake: FakeServer, start: Start) -> None:
    """Readers need not wait for the end of the stream, which takes two seconds."""
    fake.prepare("ListPodSandbox", sandboxes, repeat=True)
    url, heard = ask(start(), WEB.id), list[PullState]()
    reader = MessageReader({})
    asyncio.run(follow(url, reader, on_pull=heard.append, on_note=pytest.fail, timeout_s=60))
    assert heard == [PullState()]


# The reports of a stream; a real queue fills the book, as in the proxy


WEB_POD = PodKey("default", "web", "u1")
DB_POD = PodKey("default", "db", "u2")


class Shop:
    """A queue, and the reports on its pulls.

    Attributes:
        layers: by the pull's name at the runtime.
    """

    def __init__(self, limit: int = 1, **options: float) -> None:
        policy = Policy.RETRY if options else Policy.WAIT
        self.due: list[QueuedPull] = []
        self.queue = PullQueue(limit, policy, on_retry=self.due.append, **options)  # type: ignore[arg-type]  # retries
        self.layers: dict[str, list[LayerState]] = {}
        self.reporter = Reporter(self.queue.book, self.seen)

    def seen(self, name: str) -> PullState:
        return PullState(image=name, layers=tuple(self.layers.get(name, ())))

    def ask(
        self,
        ticket: int,
        pod: PodKey | None,
        image: str,
        *,
        now: float,
        present: bool = False,
        reference: str = "",
    ) -> None:
        key = PullKey(image)
        self.queue.submit(ticket, key, now=now, pod=pod, reference=reference, is_present=present)

    def finish(self, ticket: int, *, now: float, error: str = "") -> None:
        self.queue.end(ticket, CallState.FAILED if error else CallState.DONE, now=now, error=error)

    def pulls(self, pod: PodKey, *, now: float, since: float = 0.0) -> list[PullState]:
        return self.reporter.pulls(PullTarget(pod), now=now, since=since)

    def phases(self, pod: PodKey, *, now: float) -> dict[str, str]:
        return {pull.image: pull.layers[-1].phase for pull in self.pulls(pod, now=now)}

    def only(self, pod: PodKey, *, now: float) -> PullState:
        (pull,) = self.pulls(pod, now=now)
        return pull


def layer(phase: Phase, progress: int, *, extracted_total: int = 0) -> LayerState:
    return LayerState(
        name=f"sha256:{progress}",
        phase=phase,
        progress=progress,
        total=9,
        extracted_total=extracted_total,
    )


def test_each_pod_sees_a_pull_under_its_own_spelling_and_once() -> None:
    shop = Shop()
    image = "docker.io/library/a:latest"
    for ticket, (pod, reference) in enumerate(
        ((WEB_POD, "a"), (WEB_POD, "library/a"), (DB_POD, image)), 1
    ):
        shop.ask(ticket, pod, image, now=0, reference=reference)
    shop.layers["a"] = [layer(Phase.DOWNLOADING, 3)]
    assert shop.only(WEB_POD, now=1).image == "a"
    assert shop.only(DB_POD, now=1).image == image
    assert shop.only(DB_POD, now=1).layers == (layer(Phase.DOWNLOADING, 3),)
    shop.layers.clear()
    shop.finish(1, now=1)
    assert shop.phases(WEB_POD, now=1) == {"a": "downloading"}
    shop.finish(2, now=2)
    assert shop.phases(WEB_POD, now=2) == {"a": "done"}


def test_layers_are_those_of_the_leader_when_the_pull_starts() -> None:
    shop = Shop()
    shop.ask(1, None, "other", now=0)
    shop.ask(2, WEB_POD, "img", now=0, reference="short")
    shop.ask(3, DB_POD, "img", now=0, reference="long")
    shop.queue.end(2, CallState.LEFT, now=1)
    shop.finish(1, now=2)
    shop.layers["long"] = [layer(Phase.DOWNLOADING, 3)]
    assert shop.only(DB_POD, now=2).layers[0].name == "sha256:3"


def test_layers_follow_their_image() -> None:
    shop = Shop()
    shop.ask(1, WEB_POD, "a", now=0)
    shop.layers["a"] = [
        layer(Phase.PRESENT, 9),
        layer(Phase.EXTRACTING, 8, extracted_total=20),
        layer(Phase.FAILED, 4),
    ]

    def seen(now: float) -> list[tuple[str, int]]:
        return [(layer.phase, layer.progress) for layer in shop.only(WEB_POD, now=now).layers]

    assert [phase for phase, _ in seen(1)] == ["present", "extracting", "downloading"]
    shop.finish(1, now=2)
    assert seen(2) == [("present", 9), ("done", 9), ("done", 9)]
    shop.ask(2, WEB_POD, "a", now=10)
    shop.finish(2, now=11, error="denied")
    assert [phase for phase, _ in seen(11)] == ["present", "extracting", "downloading"]
    assert shop.only(WEB_POD, now=11).error == ""
    assert seen(13)[1:] == [("failed", 8), ("failed", 4)]
    assert shop.only(WEB_POD, now=13).error == "denied"
    shop.layers["a"] = [layer(Phase.PRESENT, 9), layer(Phase.DONE, 8)]
    assert seen(13) == [("present", 9), ("failed", 8)]


def test_a_caller_that_goes_and_one_that_is_refused() -> None:
    shop = Shop(limit=1, retry_interval_s=1.0, retries=1)
    shop.ask(1, None, "x", now=0)
    shop.ask(2, WEB_POD, "a", now=0)
    shop.ask(3, DB_POD, "b", now=0)
    shop.queue.end(2, CallState.LEFT, now=0.5)
    for pull in shop.due:
        shop.queue.retry(pull, now=1.0)
    waits = shop.only(DB_POD, now=1.5)
    assert (waits.image, waits.layers, waits.place) == ("b", (LayerState(),), 0)
    gone, refused = (shop.only(pod, now=1.0 + ATTEMPT_GAP_S) for pod in (WEB_POD, DB_POD))
    assert (gone.layers[0].phase, gone.error) == ("failed", ABANDONED)
    assert refused.error.startswith("TooManyPullingInParallelErr")


def test_a_present_image_says_so() -> None:
    shop = Shop(limit=1)
    shop.ask(1, DB_POD, "a", now=0)
    shop.ask(2, WEB_POD, "b", now=0, present=True)
    assert shop.phases(WEB_POD, now=0) == {"b": "downloading"}
    shop.finish(2, now=1)
    shop.finish(1, now=1)
    assert shop.phases(WEB_POD, now=1) == {"b": "present"}
    assert shop.phases(DB_POD, now=1) == {"a": "done"}


def test_what_ended_is_forgotten_although_nobody_else_pulls() -> None:
    shop = Shop(limit=0)
    for ticket, error in enumerate(("", "denied"), 1):
        shop.ask(ticket, WEB_POD, f"image-{ticket}", now=0)
        shop.finish(ticket, now=1, error=error)
    just_in_time, too_late = LINGER_S + 0.9, LINGER_S + 1.0
    assert len(shop.pulls(WEB_POD, now=just_in_time, since=just_in_time)) == 2
    assert shop.pulls(WEB_POD, now=too_late, since=too_late) == []
    # A stream open from the beginning still has them all.
    assert len(shop.pulls(WEB_POD, now=900.0, since=0.5)) == 2


def test_who_is_ahead_in_the_line() -> None:
    shop = Shop(limit=1)
    shop.ask(1, WEB_POD, "a", now=0, reference="r/a")
    shop.ask(2, DB_POD, "b", now=1, reference="r/b")
    shop.ask(3, WEB_POD, "c", now=2, reference="r/c")
    shop.ask(4, WEB_POD, "d", now=2, reference="r/d")
    shop.ask(5, None, "e", now=2)
    shop.ask(6, DB_POD, "f", now=2)
    assert [pull.behind for pull in shop.pulls(WEB_POD, now=3)] == ["", "default/db", "r/c"]
    assert [pull.behind for pull in shop.pulls(DB_POD, now=3)] == ["default/web", "e"]


NODE = PullTarget(None)


def test_the_whole_node() -> None:
    shop = Shop(limit=1)
    others: dict[str, PullState] = {}
    shop.reporter = Reporter(shop.queue.book, lambda name: PullState(), lambda: others)
    assert shop.reporter.busy_until(None, now=50) == 50
    shop.ask(1, WEB_POD, "a", now=50, reference="r/a")
    shop.ask(2, DB_POD, "b", now=51, reference="r/b")
    shop.ask(3, DB_POD, "a", now=51, reference="r/a")
    shop.ask(4, None, "c", now=51, reference="r/c")
    pulls = shop.reporter.pulls(NODE, now=52, since=50)
    assert [(pull.image, pull.pod, pull.layers[0].phase) for pull in pulls] == [
        ("r/a", "default/web and 1 more", "downloading"),
        ("r/b", "default/db", "waiting"),
        ("r/c", "", "waiting"),
    ]
    assert shop.reporter.busy_until(None, now=52) is None
    for ticket in (1, 3, 2, 4):
        shop.finish(ticket, now=53)
    assert shop.reporter.busy_until(None, now=53) == 53 + ATTEMPT_GAP_S
    assert len(shop.reporter.pulls(NODE, now=54, since=50)) == 3
    assert shop.reporter.pulls(NODE, now=60, since=60) == []
    others["r/d"] = PullState(image="r/d", layers=(layer(Phase.DOWNLOADING, 3),))
    others["r/a"] = PullState(image="r/a", layers=(layer(Phase.DOWNLOADING, 3),))
    images = [pull.image for pull in shop.reporter.pulls(NODE, now=54, since=50)]
    assert sorted(images) == ["r/a", "r/b", "r/c", "r/d"]
    assert shop.reporter.busy_until(None, now=60) is None
    failed = layer(Phase.FAILED, 3)
    others["r/d"] = PullState(image="r/d", layers=(failed,), error="gone", is_running=False)
    del others["r/a"]
    (pull,) = shop.reporter.pulls(NODE, now=60, since=60)
    assert (pull.image, pull.layers[0].phase, pull.error) == ("r/d", "failed", "gone")
    assert shop.reporter.busy_until(None, now=60) == 60
