"""Lists and watches as client-go's reflector uses them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.cluster.agent.standing import Answer, Cluster
from tests.waiting import wait_until

STARTED = {"running": {"startedAt": "2026-11-22T10:00:05Z"}}


def ask(cluster: Cluster, query: str, **headers: str) -> Answer:
    return cluster.get(f"namespaces/default/imagepulls?{query}", headers=headers)


@pytest.fixture(autouse=True)
def _rounds(cluster: Cluster) -> None:
    cluster.pace_s = 0.2


def events(cluster: Cluster, query: str, **headers: str) -> list[dict[str, Any]]:
    answer = ask(cluster, f"watch=true&timeoutSeconds=1&{query}", **headers)
    assert answer.status == 200
    assert answer.content.endswith(b"\n") or not answer.content
    return [json.loads(line) for line in answer.content.splitlines()]


def names(watched: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in watched]


def test_a_watch_goes_on_where_a_list_ended(cluster: Cluster) -> None:
    cluster.start()
    for name in ("web", "gone"):
        cluster.add_pod(name)
    listed = ask(cluster, "limit=500").document
    version = listed["metadata"]["resourceVersion"]
    assert [item["metadata"]["name"] for item in listed["items"]] == ["gone.main", "web.main"]
    assert int(listed["items"][0]["metadata"]["resourceVersion"]) <= int(version)
    assert events(cluster, f"resourceVersion={version}") == []
    cluster.add_pod("db")
    cluster.add_pod("web", state={"waiting": {"reason": "ImagePullBackOff"}})
    cluster.api.objects.remove("", "pods", "default", "gone")
    watched = events(cluster, f"resourceVersion={version}")
    assert sorted(names(watched)) == [
        ("ADDED", "db.main"), ("DELETED", "gone.main"), ("MODIFIED", "web.main"),
    ]  # fmt: skip
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in watched]
    assert versions == sorted(versions)
    assert versions[0] > int(version)


@pytest.mark.parametrize("version", ["", "resourceVersion=0"])
def test_initial_events(cluster: Cluster, version: str) -> None:
    cluster.start()
    cluster.add_pod("web")
    assert names(events(cluster, version)) == [("ADDED", "web.main")]


@pytest.mark.parametrize("version", ["1", "1795387110990676", "9999999999999999999"])
def test_versions_of_which_nothing_is_known(cluster: Cluster, version: str) -> None:
    cluster.start()
    (event,) = events(cluster, f"resourceVersion={version}")
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")


def test_the_list_of_another_agent(cluster: Cluster) -> None:
    """A watch may reach another agent than its list: it begins with all that is there now."""
    cluster.start("n1")
    cluster.start("n2")
    cluster.add_pod("web")
    version = int(ask(cluster, "").document["metadata"]["resourceVersion"])
    cluster.agents.reverse()
    (event,) = events(cluster, f"resourceVersion={version}")
    assert names([event]) == [("ADDED", "web.main")]
    assert int(event["object"]["metadata"]["resourceVersion"]) > version
    minute = 60_000 * 1_000_000
    (event,) = events(cluster, f"resourceVersion={version - minute}")
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_tables(cluster: Cluster) -> None:
    cluster.start()
    cluster.add_pod("web")
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    whole = ask(cluster, "", **accept).document
    assert whole["kind"] == "Table"
    assert whole["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert len(whole["rows"][0]["cells"]) == len(whole["columnDefinitions"]) == 12
    assert "object" not in ask(cluster, "includeObject=None", **accept).document["rows"][0]
    full = ask(cluster, "includeObject=Object", **accept).document["rows"][0]["object"]
    assert full["kind"] == "ImagePull"
    cluster.add_pod("db")
    watched = events(cluster, "", **accept)
    assert [event["object"]["kind"] for event in watched] == ["Table", "Table"]
    assert [bool(event["object"]["columnDefinitions"]) for event in watched] == [True, False]
    assert ask(cluster, "", Accept="application/yaml").status == 406
    partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
    assert ask(cluster, "", Accept=partial).document["kind"] == "ImagePullList"


def test_an_object_that_ceases_to_fit(cluster: Cluster) -> None:
    cluster.start()
    cluster.add_pod("web")
    selector = "fieldSelector=status.phase%3DWaiting"
    version = ask(cluster, selector).document["metadata"]["resourceVersion"]
    cluster.add_pod("web", state={"waiting": {"reason": "ErrImagePull"}})
    assert names(events(cluster, f"{selector}&resourceVersion={version}")) == [
        ("DELETED", "web.main")
    ]


def test_a_pod_that_is_deleted_together_with_its_node(cluster: Cluster) -> None:
    cluster.start().feeds.fresh_s = 0.0
    cluster.add_pod("web", node="lost")
    answer = ask(cluster, "")
    assert [item["status"]["unknown"] for item in answer.document["items"]] == [True]
    cluster.api.objects.remove("", "pods", "default", "web")
    answer = ask(cluster, "")
    assert answer.document["items"] == []
    assert "Warning" not in ask(cluster, "").headers


def test_many_watchers_cost_one_source_and_one_round(cluster: Cluster) -> None:
    agent = cluster.start()
    cluster.add_pod("web")

    async def watch() -> float:
        import asyncio
        import contextlib

        began_s = time.monotonic()
        feed = agent.feeds.get(next(iter(agent.feeds._feeds)))
        before = feed.rounds
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(100):
                await stack.enter_async_context(feed.watching())
            await asyncio.sleep(1.0)
        assert feed.rounds > before
        return (feed.rounds - before) / (time.monotonic() - began_s)

    ask(cluster, "")
    assert cluster.loop.run(watch()) <= 6, "rounds a second"
    lists = [target for _, target, _ in cluster.api.asked if "status.phase" in target]
    assert len(lists) <= 3, "a list, and for the watches a list and a watch"


def test_nothing_is_watched_while_nobody_asks(cluster: Cluster) -> None:
    agent = cluster.start()
    agent.pulls.unasked_s = 0.5
    cluster.add_pod("web")
    events(cluster, "")
    wait_until(lambda: not agent.pulls._reflector.task)
    asked = len(cluster.api.asked)
    time.sleep(1.2)
    assert len(cluster.api.asked) == asked
    assert not agent.pulls._reflector.task


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("resourceVersion=x", 400),
        ("watch=perhaps", 400),
        ("timeoutSeconds=-1", 400),
        ("fieldSelector=nothing", 400),
        ("resourceVersionMatch=Exact&resourceVersion=5", 410),
        ("resourceVersionMatch=Other", 422),
        ("watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", 422),
        ("watch=true&sendInitialEvents=true", 422),
        ("&".join(f"a{number}=1" for number in range(60)), 400),
        ("limit=1&continue=abc", 200),
    ],
)
def test_queries(cluster: Cluster, query: str, status: int) -> None:
    cluster.start()
    answer = ask(cluster, query)
    assert answer.status == status
    if status != 200:
        assert answer.document["kind"] == "Status"
