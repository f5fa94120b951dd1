"""The agent of a compromised node can lie about its own pulls, and do no other harm."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest
from aiohttp import web

from pycrictl.cluster.agent.cluster import MAX_OTHERS, judged
from pycrictl.cluster.agent.node_agent import Agent
from tests.cluster.agent.standing import Answer, Cluster

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
IMAGE = "registry.test/team/app:1"
MIB = 1 << 20


def pull(name: str = "db") -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"{name}.main",
            "namespace": "default",
            "uid": f"u-{name}",
            "creationTimestamp": "2026-11-22T10:00:00Z",
        },
        "spec": {"podName": name, "image": IMAGE, "nodeName": "n2", "containers": ["main"]},
        "status": {"phase": "Pulling", "progressBytes": 5, "totalBytes": 10},
    }


@pytest.fixture
def lost(cluster: Cluster) -> Agent:
    """The agent of n2, from which the agent of n1 requests pulls."""
    cluster.start("n1")
    cluster.add_pod("db", node="n2")
    return cluster.start("n2")


def say(agent: Agent, content: bytes) -> None:
    """Make an agent answer its peers with ``content``."""

    async def answer(*_: object) -> web.Response:
        return web.Response(body=content, content_type="application/json")

    agent.routes._peer = answer  # type: ignore[method-assign,assignment]  # a hostile node


def say_items(agent: Agent, *items: Any) -> None:
    say(agent, json.dumps({"items": items}).encode())


def ask(cluster: Cluster, path: str = "imagepulls", accept: str = "*/*") -> Answer:
    return cluster.get(path, headers={"Accept": accept})


def strictly(content: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(content, parse_constant=refuse)


def warning(answer: Answer) -> str:
    return " ".join(answer.headers.get_all("Warning") or ())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("etaSeconds", "soon"),
        ("etaSeconds", -1),
        ("totalBytes", 10**4000),
        ("totalBytes", 2**63),
        ("progressBytes", 1.5),
        ("percent", 101),
        ("bytesPerSecond", []),
        ("queuePosition", {}),
        ("error", {}),
        ("error", "x" * 5000),
        ("kubeletReason", 5),
        ("layers", {}),
        ("layers", [{}] * 201),
        ("layers", [{"name": 5}]),
        ("layers", [None]),
        ("startTime", "yesterday"),
        ("stalledSeconds", True),
        ("unknown", "yes"),
        ("phase", "Unknown"),
    ],
)
def test_a_field_that_is_wrong_is_left_out(key: str, value: Any) -> None:
    wrong = pull()
    wrong["status"][key] = value
    documents, left_out = judged([pull("web"), wrong], 2)
    items = {item["metadata"]["name"]: item["status"] for item in documents}
    assert f"status.{key}" in left_out
    if key == "phase":
        assert items.keys() == {"web.main"}
    else:
        assert items["db.main"].get(key) in (None, [], [{}])
        assert items["db.main"]["phase"] == "Pulling"


@pytest.mark.parametrize(
    "path",
    [
        ("metadata", "name"),
        ("metadata", "namespace"),
        ("metadata", "uid"),
        ("metadata", "creationTimestamp"),
        ("spec", "podName"),
        ("spec", "image"),
        ("spec", "nodeName"),
    ],
)
@pytest.mark.parametrize("value", [None, 5, "", "x\n", "a/b", {}])
def test_an_object_that_is_wrong_is_left_out(path: tuple[str, str], value: Any) -> None:
    wrong, (part, key) = pull("db"), path
    wrong[part][key] = value
    documents, _ = judged([wrong, pull("other")], 2)
    assert "other.main" in [document["metadata"]["name"] for document in documents]
    texts = [
        text
        for document in documents
        for text in (*document["metadata"].values(), *document["spec"].values())
    ]
    assert all(text.isprintable() for text in texts if isinstance(text, str))


def test_what_only_a_next_version_has_is_left_out_without_a_word() -> None:
    newer, more = pull(), {"signature": {"verified": True}, "mirrors": ["a"], "priority": 7}
    newer |= more
    newer["spec"] |= more
    newer["status"] |= {**more, "layers": [{"digest": "sha256:a", **more}]}
    documents, left_out = judged([newer], 1)
    assert not left_out
    assert "priority" not in json.dumps(documents)
    assert documents[0]["status"]["layers"] == [{"digest": "sha256:a"}]


def test_all_others_are_shown_in_each_form(cluster: Cluster, lost: Agent) -> None:
    cluster.add_pod("web", node="n1")
    wrong = pull()
    wrong["status"] |= {"etaSeconds": -1, "totalBytes": 10**4000, "layers": [{"name": 5}]}
    say_items(lost, wrong)
    answer = ask(cluster)
    assert answer.status == 200
    items = {item["metadata"]["name"]: item["status"] for item in strictly(answer.content)["items"]}
    assert items.keys() == {"web.main", "db.main"}
    assert '299 - "node n2 gave an answer with invalid parts: ' in warning(answer)
    assert "status.etaSeconds" in warning(answer)
    table = ask(cluster, accept=TABLE)
    assert table.status == 200
    assert "web.main" in [row["cells"][0] for row in strictly(table.content)["rows"]]
    watch = ask(cluster, "imagepulls?watch=true&timeoutSeconds=1", TABLE)
    assert watch.status == 200
    assert b"web.main" in watch.content


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"items":[' + b"{}," * (16 * MIB // 3) + b"{}]}", "its answer is too long"),
        (b'{"items":[' + b"{}," * (4 * MIB // 3) + b"{}]}", "its answer is not valid"),
        (b'{"items":' + b"[" * 100_000, "its answer is not valid"),
        (b'{"items":' + b"9" * 100_000 + b"}", "its answer is not valid"),
        (b'{"items":[{"status":{"percent":NaN}}]}', "its answer is not valid"),
        (b"[]", "its answer is not valid"),
        (b"\xff", "its answer is not valid"),
    ],
)
def test_an_answer_that_is_none(cluster: Cluster, lost: Agent, content: bytes, why: str) -> None:
    say(lost, content)
    answer = ask(cluster)
    assert answer.status == 200
    assert warning(answer) == f'299 - "node n2 did not answer: {why}"'
    assert answer.document["items"][0]["status"]["unknown"] is True


def test_more_objects_than_the_node_has_pods(cluster: Cluster, lost: Agent) -> None:
    say_items(lost, *(pull(f"db{number}") for number in range(2000)))
    answer = ask(cluster)
    assert len(answer.document["items"]) == MAX_OTHERS + 1
    assert "1749 objects over the limit of 251" in warning(answer)


def test_objects_of_pods_of_other_nodes(cluster: Cluster, lost: Agent) -> None:
    cluster.add_pod("web", node="n1")
    say_items(lost, pull("web"), pull("db"))
    items = {item["metadata"]["name"]: item for item in ask(cluster).document["items"]}
    assert items.keys() == {"web.main", "db.main"}
    assert items["web.main"]["spec"]["nodeName"] == "n1"
