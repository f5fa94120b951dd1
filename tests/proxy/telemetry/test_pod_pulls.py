"""Events on pulls of pods, and a whole proxy that sends them to a stand-in API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pycrictl.kube.events import EventSchedule
from pycrictl.proxy.pulls.pull_calls import CallState, PullKey
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey
from pycrictl.proxy.telemetry.pod_pulls import PodPulls
from pycrictl.pulls.state import PullState, Sums
from tests.fakecri import FakeServer
from tests.kube.apiserver import NODE, ApiServer, make_node_certificates, serve, write_kubeconfig
from tests.proxy.program import Program
from tests.pulls.tracking import sums
from tests.support.limited_pulls import Gate, pod, prepare
from tests.waiting import wait_until

Start = Callable[..., Program]

MIB = 1024**2
WEB, DB = PodKey("default", "web", "u1"), PodKey("default", "db", "u2")


class Node:
    def __init__(self) -> None:
        self.queue = PullQueue(1, emit=lambda event: self._pulls(event))
        self.sums: dict[str, Sums] = {}
        self._pulls = PodPulls(
            self.queue.book, lambda name: PullState(sums=self.sums.get(name) or Sums())
        )
        self._schedule = EventSchedule()

    def submit(self, ticket: int, pod: PodKey | None, now: float, image: str = "") -> None:
        image = image or f"i{ticket}"
        self.queue.submit(ticket, PullKey(f"host/{image}"), now=now, pod=pod, reference=image)

    def messages(self, now: float) -> list[str]:
        self._schedule.update(self._pulls.states(now), now)
        events = []
        while (event := self._schedule.next(now)) is not None:
            events.append(event.message)
        return events


def test_a_pull_from_its_place_in_line_to_its_end() -> None:
    node = Node()
    node.submit(1, None, 0)
    node.submit(2, DB, 1)
    node.submit(3, WEB, 2)
    assert node.messages(2) == []
    assert node.messages(4) == [
        "Image i2 waits for a slot: 1st in line",
        "Image i3 waits for a slot: 2nd in line",
    ]
    node.queue.end(1, CallState.DONE, now=5)
    node.queue.end(2, CallState.DONE, now=6)
    assert node.messages(6) == ["Image i2 was pulled in 1s", "Pulling image i3 for 0s"]
    node.sums["i3"] = sums(85 * MIB // 10, 10 * MIB, MIB, 1.5)
    assert node.messages(16) == ["Pulling image i3: 85 % (8.5 of 10.0 MiB), ETA 2s"]
    node.sums["i3"] = replace(sums(MIB // 2, 2 * MIB, 0.0), stalled_s=12.7)
    assert node.messages(26) == ["Pulling image i3: 25 % (0.5 of 2.0 MiB), no data for 12 s"]
    node.sums["i3"] = replace(sums(10 * MIB, 10 * MIB, MIB), share=0.5)
    assert node.messages(27) == ["Pulling image i3: 10.0 MiB downloaded, unpacking"]
    node.queue.end(3, CallState.DONE, now=30)
    assert node.messages(30) == ["Image i3 was pulled in 24s"]


def test_a_pull_without_a_pod_or_of_a_present_image_has_no_event() -> None:
    node = Node()
    node.submit(1, None, 0)
    node.queue.submit(3, PullKey("c"), now=0, pod=WEB, is_present=True)
    assert node.messages(10) == []


def test_a_failure_counts_when_no_attempt_follows() -> None:
    node = Node()
    node.submit(1, WEB, 0, "a")
    assert len(node.messages(3)) == 1
    node.queue.end(1, CallState.FAILED, now=4, error="denied")
    assert node.messages(5) == []
    node.submit(2, WEB, 5, "a")
    assert node.messages(15) == ["Pulling image a for 10s"]
    node.queue.end(2, CallState.FAILED, now=16, error="denied again")
    assert node.messages(19) == ["Image a was not pulled: denied again"]
    assert node.messages(1000) == []


@pytest.fixture
def api(run_folder: Path) -> Iterator[ApiServer]:
    with serve(make_node_certificates(run_folder)) as server:
        yield server


@pytest.fixture
def kubeconfig(api: ApiServer, tmp_path: Path) -> str:
    return str(write_kubeconfig(api.kubeconfig(), tmp_path))


def test_an_event_is_created_and_changed(
    fake: FakeServer, start: Start, api: ApiServer, kubeconfig: str
) -> None:
    gate = Gate()
    prepare(fake, gate)
    proxy = start("--max-parallel-image-pulls", "1", "--events", kubeconfig)
    first = proxy.kubelet.start_pull("a/first:1", pod("first"))
    wait_until(lambda: gate.running == 1)
    second = proxy.kubelet.start_pull("a/second:1", pod("second"))
    wait_until(lambda: len(api.asked) == 2)
    (how, path, event), (_, _, other) = api.asked
    assert (how, path) == ("POST", "/api/v1/namespaces/default/events")
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "first",
        "uid": "uid-first",
    }
    assert (event["reason"], event["type"], event["count"]) == ("PullProgress", "Normal", 1)
    assert event["source"] == {"component": "pycrictl", "host": NODE}
    assert event["message"].startswith("Pulling image a/first:1 for ")
    assert other["message"] == "Image a/second:1 waits for a slot: 1st in line"
    gate.open.set()
    assert first.result(60).image_ref
    assert second.result(60).image_ref
    wait_until(lambda: len(api.asked) >= 4)
    changes = {path: body for how, path, body in api.asked if how == "PATCH"}
    last = changes[f"/api/v1/namespaces/default/events/{event['metadata']['name']}"]
    assert last["message"].startswith("Image a/first:1 was pulled in ")
    assert last["count"] == 2
    assert "involvedObject" not in last


@pytest.mark.slow
def test_an_event_that_is_there_or_gone(
    fake: FakeServer, start: Start, api: ApiServer, kubeconfig: str
) -> None:
    gate = Gate()
    prepare(fake, gate)
    api.refusals["POST"] = 409
    proxy = start("--events", kubeconfig)
    held = proxy.kubelet.start_pull("a/b:1", pod("web"))
    wait_until(lambda: len(api.asked) == 2)
    api.refusals = {"PATCH": 404}
    gate.open.set()
    assert held.result(60).image_ref
    wait_until(lambda: len(api.asked) == 4)
    assert [how for how, _, _ in api.asked] == ["POST", "PATCH", "PATCH", "POST"]
    assert api.asked[3][2]["involvedObject"]["name"] == "web"
    assert " no_events " not in proxy.log()
