"""When Events are due, and their names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pycrictl.kube.events import PACE_S, QUIET_S, Event, EventSchedule, PodPullState
from pycrictl.proxy.runtime_lookup import PodKey

WEB = PodKey("default", "web", "u1")


def state(phase: str, pod: PodKey = WEB, image: str = "a", **more: Any) -> PodPullState:
    return PodPullState(pod, image, phase, lambda since_s: f"{phase} {since_s:g}", **more)


@pytest.fixture
def schedule() -> EventSchedule:
    return EventSchedule()


def written(schedule: EventSchedule, now: float, *states: PodPullState) -> list[Event]:
    schedule.update(states, now)
    events = []
    while (event := schedule.next(now)) is not None:
        events.append(event)
    return events


def test_a_pull_from_beginning_to_end(schedule: EventSchedule) -> None:
    assert written(schedule, 0, state("waiting")) == []
    (first,) = written(schedule, QUIET_S, state("waiting"))
    assert (first.message, first.writing, first.is_warning) == ("waiting 2", 1, False)
    assert written(schedule, QUIET_S + PACE_S - 0.1, state("waiting")) == []
    (second,) = written(schedule, 12, state("waiting"))
    (third,) = written(schedule, 13, state("pulling"))
    assert (second.writing, third.writing, third.message) == (2, 3, "pulling 13")
    assert written(schedule, 14, state("", is_over=False)) == []
    (last,) = written(schedule, 15, state("failed", is_over=True, is_warning=True))
    assert (last.message, last.name, last.is_warning) == ("failed 15", first.name, True)
    assert written(schedule, 1000, state("failed", is_over=True)) == []
    assert schedule.is_empty


def test_it_counts_from_its_beginning(schedule: EventSchedule) -> None:
    (event,) = written(schedule, 100, state("pulling", since=30.0))
    assert (event.message, event.since_s) == ("pulling 70", 70)


@pytest.mark.parametrize(
    "states",
    [
        [state("pulling"), state("done", is_over=True)],
        [state("done", is_over=True)],
        [state("")],
        [state("pulling", PodKey("default", "../secrets", "u"))],
    ],
    ids=["over soon", "over before it was seen", "not settled", "a name that cannot be"],
)
def test_no_event(schedule: EventSchedule, states: list[PodPullState]) -> None:
    for pull in states:
        assert written(schedule, 1, pull) == []
    assert written(schedule, 100) == []
    assert schedule.is_empty


def test_one_that_is_gone_is_dropped_but_its_end_is_written(schedule: EventSchedule) -> None:
    pulls = [state("pulling"), state("pulling", image="b")]
    schedule.update(pulls, 0)
    assert len(written(schedule, 2, *pulls)) == 2
    schedule.update([state("done", is_over=True), state("pulling", image="b")], 3)
    assert [event.message for event in written(schedule, 4)] == ["done 4"]
    assert schedule.is_empty


def test_the_one_that_waited_longest_is_first(schedule: EventSchedule) -> None:
    pods = [PodKey("ns", f"p{number}", "u") for number in range(20)]
    states = [state("waiting", pod, since=float(number)) for number, pod in enumerate(pods)]
    assert [event.pod for event in written(schedule, 50, *reversed(states))] == pods


def test_a_pod_and_an_image_have_one_name() -> None:
    names = []
    for pod, image in ((WEB, "a"), (WEB, "b"), (PodKey("default", "db", "u2"), "a"), (WEB, "a")):
        (event,) = written(EventSchedule(), 100, state("pulling", pod, image, since=0.0))
        names.append(event.name)
    assert names[0] == names[3]
    assert len(set(names)) == 3
    assert re.fullmatch(r"web\.pull-[0-9a-f]{16}", names[0])


def test_a_long_name_is_one_that_the_api_server_takes(schedule: EventSchedule) -> None:
    pod = PodKey("default", "p" * 199 + "-" + "q" * 20, "u")
    (event,) = written(schedule, 100, state("pulling", pod, since=0.0))
    assert re.fullmatch(r"p{199}\.pull-[0-9a-f]{16}", event.name)
