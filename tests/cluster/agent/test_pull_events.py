"""Events about the pulls of a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pycrictl.cluster.agent.node_pulls import state_of
from pycrictl.cluster.agent.objects import needs_of
from pycrictl.pulls.state import PullState
from tests.cluster.agent.standing import OWN, Cluster
from tests.kube.access import Grant
from tests.pulls.tracking import Report
from tests.support.pull_objects import FAILED, IMAGE, RUNNING, WAITING, layer, pod
from tests.support.pull_objects import pull as shown
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("state", "pull", "is_over", "message"),
    [
        (
            WAITING,
            shown(Report(IMAGE, "", 0, 0, phase="waiting", queue_position=2)),
            False,
            f"Image {IMAGE} waits for a slot: 2nd in line",
        ),
        (WAITING, PullState(image=IMAGE), False, f"Pulling image {IMAGE} for 4s"),
        (
            WAITING,
            shown(layer("extracting", 100, extracted=1, extracted_total=9)),
            False,
            f"Pulling image {IMAGE}: 100 B downloaded, unpacking",
        ),
        (RUNNING, None, True, f"Image {IMAGE} was pulled in 4s"),
        (FAILED, None, True, f"Image {IMAGE} was not pulled: no such host"),
        (WAITING, None, True, f"Image {IMAGE} was not pulled: the pull was cancelled"),
    ],
)
def test_what_events_say(
    state: dict[str, Any], pull: PullState | None, is_over: bool, message: str
) -> None:
    (need,) = needs_of(pod(state=state))
    told = state_of(need, pull)
    assert (told.is_over, told.message(4.0)) == (is_over, message)
    assert told.is_warning == (state is FAILED)


def test_an_event_ends_although_nobody_knows_the_pull_any_more(cluster: Cluster) -> None:
    rules = [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]
    cluster.api.grants.append(Grant(OWN, rules))
    agent = cluster.start(writes_events=True)
    agent.pulls.keep([replace(shown(layer("downloading", 40)), ended_s=2e9)])
    document = cluster.add_pod("web")

    def written() -> list[Any]:
        bodies = [body for _, path, body in cluster.api.asked if "/events" in path]
        return [body for body in bodies if body and "message" in body]

    wait_until(written)
    first = written()[0]
    assert (first["reason"], first["involvedObject"]["name"]) == ("PullProgress", "web")
    assert first["message"].startswith(f"Pulling image {IMAGE}: 39 % (40 of 100 B)")
    document["status"]["containerStatuses"][0]["state"] = {"running": {}}
    document["status"]["phase"] = "Running"
    cluster.api.objects.add("", "pods", document)
    agent.pulls._ended = {}
    wait_until(lambda: "was pulled in" in written()[-1]["message"])
