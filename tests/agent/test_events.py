"""Events about the pulls of a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pycrictl.agent.events import Bulletin
from pycrictl.kube.events import PACE_S, QUIET_S
from tests.agent.standing import OWN, Cluster
from tests.agent.test_objects import IMAGE, layer
from tests.agent.test_objects import pull as shown
from tests.kube.access import Grant
from tests.waiting import wait_until


def document(phase: str, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "uid": "u-1"},
        "spec": {"podName": "web", "podUID": "u", "image": IMAGE},
        "status": {"phase": phase, **status},
    }


def test_when_events_are_due() -> None:
    bulletin = Bulletin()
    bulletin.look([document("Pulling")], 0.0)
    assert bulletin.next(QUIET_S - 0.1) is None
    first = bulletin.next(QUIET_S)
    assert first is not None
    assert (first.writing, first.is_new, first.is_warning) == (1, True, False)
    assert bulletin.next(QUIET_S + PACE_S - 0.1) is None
    bulletin.look([document("Extracting", progressBytes=5, totalBytes=5)], 3.0)
    second = bulletin.next(3.0)
    assert second is not None
    assert (second.writing, second.name) == (2, first.name)
    bulletin.look([document("Succeeded")], 4.0)
    last = bulletin.next(4.0)
    assert last is not None
    assert last.message == f"Image {IMAGE} was pulled in 4s"
    assert bulletin.next(1000.0) is None


def test_what_is_over_soon_gets_none() -> None:
    bulletin = Bulletin()
    bulletin.look([document("Pulling")], 0.0)
    bulletin.look([document("Succeeded")], 1.0)
    assert bulletin.next(1000.0) is None


def test_names_that_cannot_be() -> None:
    bulletin = Bulletin()
    evil = document("Pulling")
    evil["spec"]["podName"] = "../../secrets"
    bulletin.look([evil], 0.0)
    assert bulletin.next(1000.0) is None


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
