"""Events about the pulls of a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pycrictl.agent.pull_events import state_of
from tests.agent.standing import OWN, Cluster
from tests.agent.test_objects import IMAGE, layer
from tests.agent.test_objects import pull as shown
from tests.kube.access import Grant
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("status", "is_over", "message"),
    [
        (
            {"phase": "Queued", "queuePosition": 2},
            False,
            f"Image {IMAGE} waits for a slot: 2nd in line",
        ),
        ({"phase": "Pulling"}, False, f"Pulling image {IMAGE} for 4s"),
        (
            {"phase": "Extracting", "sums": {"progress": 5, "total": 5, "share": 0.5}},
            False,
            f"Pulling image {IMAGE}: 5 B downloaded, unpacking",
        ),
        ({"phase": "Succeeded"}, True, f"Image {IMAGE} was pulled in 4s"),
        ({"phase": "Failed", "error": "denied"}, True, f"Image {IMAGE} was not pulled: denied"),
        ({"phase": "Waiting"}, True, f"Image {IMAGE} was not pulled: it was given up"),
    ],
)
def test_what_events_say(status: dict[str, Any], is_over: bool, message: str) -> None:
    spec = {"podName": "web", "podUID": "u", "image": IMAGE}
    state = state_of({"metadata": {"namespace": "default"}, "spec": spec, "status": status})
    assert (state.is_over, state.message(4.0)) == (is_over, message)
    assert state.is_warning == (status["phase"] == "Failed")


def test_an_event_in_the_cluster(cluster: Cluster) -> None:
    rules = [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]
    cluster.api.grants.append(Grant(OWN, rules))
    agent = cluster.start(writes_events=True)
    running = shown(layer("downloading", 40))
    agent.pulls.keep([replace(running, ended_s=2e9)])
    cluster.add_pod("web")

    def written() -> list[Any]:
        return [body for _, path, body in cluster.api.asked if path.endswith("/events")]

    wait_until(written)
    body = written()[0]
    assert body["reason"] == "PullProgress"
    assert body["involvedObject"]["name"] == "web"
    assert body["message"].startswith(f"Pulling image {IMAGE}: 39 % (40 of 100 B)")


def test_an_event_ends_although_nobody_knows_the_pull_any_more(cluster: Cluster) -> None:
    rules = [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]
    cluster.api.grants.append(Grant(OWN, rules))
    agent = cluster.start(writes_events=True)
    agent.pulls.keep([replace(shown(layer("downloading", 40)), ended_s=2e9)])
    pod = cluster.add_pod("web")

    def messages() -> list[str]:
        bodies = [body for _, path, body in cluster.api.asked if "/events" in path]
        return [body["message"] for body in bodies if body and "message" in body]

    wait_until(messages)
    pod["status"]["containerStatuses"][0]["state"] = {"running": {}}
    pod["status"]["phase"] = "Running"
    cluster.api.objects.add("", "pods", pod)
    agent.pulls._ended = {}
    wait_until(lambda: "was pulled in" in messages()[-1])
