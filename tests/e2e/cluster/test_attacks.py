"""Attacks on agents behind a real API server, which rewrites requests as it forwards them."""

from __future__ import annotations

import json
import socket
import ssl

import pytest

from tests.kube.aggregator import BASE
from tests.serving import believing
from tests.support.cluster_copies import Container
from tests.support.cluster_pulls import pull_slowly

from .agents import Agents
from .cluster import ADDRESS, OTHER_ADDRESS, Cluster
from .cluster import PORT as API_PORT

OTHER = "vm2"
COPIES = f"{BASE}/namespaces/default/pods/web/containercopies"


def test_a_lost_node_says_what_is_wrong(
    cluster: Cluster, agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not hide the pulls of other nodes in any form of list or watch."""
    kubectl = cluster.kubectl
    pull_slowly(cluster, "near", 5200, seconds=60)
    with cluster.node(OTHER, OTHER_ADDRESS):
        cluster.run_pod("far", "a/b:1", node=OTHER)
        uid = cluster.let_wait("far", "a/b:1", OTHER_ADDRESS)
        monkeypatch.setenv("LIE", f"far {uid} {OTHER}")
        agents.start(OTHER, OTHER_ADDRESS, serves=False, module="tests.e2e.cluster.lying")
        try:
            with kubectl.running("get", "imagepulls", "-A", "-w") as watch:
                for _ in range(8):
                    table = kubectl("get", "imagepulls", "-A")
                    assert table.returncode == 0, table.stderr
                    assert "near.c0" in table.stdout
                    listed = kubectl("get", "imagepulls", "-A", "-o", "json")
                    assert listed.returncode == 0, listed.stderr
                    document = json.loads(listed.stdout, parse_constant=pytest.fail)
                    assert "near.c0" in [item["metadata"]["name"] for item in document["items"]]
                    assert OTHER in listed.stderr + table.stderr, "a warning names the node"
                assert watch.poll() is None
        finally:
            agents.stop(OTHER)


# The identity of users


class Connection:
    """A connection to the API server as its administrator, who may impersonate users."""

    def __init__(self, cluster: Cluster) -> None:
        pair = cluster.pki.cert("admin"), cluster.pki.key("admin")
        self._sock: ssl.SSLSocket = believing(pair).wrap_socket(
            socket.create_connection((ADDRESS, API_PORT), timeout=20)
        )

    def send(self, *lines: str, body: str = "") -> None:
        self._sock.sendall("\r\n".join([*lines, "Host: a", "", body]).encode())

    def read(self) -> str:
        """Read until the server closes the connection, or sends nothing for two seconds."""
        self._sock.settimeout(2)
        text = b""
        try:
            while piece := self._sock.recv(65536):
                text += piece
        except TimeoutError:
            text += b"\n(open)"
        self._sock.close()
        return text.decode()


def begin_as(cluster: Cluster, *headers: str) -> str:
    body = json.dumps({"spec": {"direction": "From", "path": "/etc/passwd"}})
    connection = Connection(cluster)
    connection.send(
        f"POST {COPIES} HTTP/1.1",
        *headers,
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        body=body,
    )
    return connection.read()


@pytest.fixture
def web(cluster: Cluster, agents: Agents) -> Container:
    cluster.run_pod("web", cluster.lab.reference(cluster.image("web:1", 1200, 1)))
    return Container(cluster, "web")


def test_rights_are_asked_for_with_all_that_is_known_of_a_user(
    cluster: Cluster, web: Container
) -> None:
    groups = [f"team-{number}" for number in range(70)]
    answer = begin_as(
        cluster,
        "Impersonate-User: joe",
        *(f"Impersonate-Group: {group}" for group in [*groups, "system:masters"]),
        "Impersonate-Extra-Example.com%2fScopes: some",
        "Impersonate-Extra-Example.com%2fScopes: more",
    )
    assert answer.startswith("HTTP/1.1 201 "), answer
    reviews = [review for review in cluster.reviews() if review["user"] == "joe"]
    assert {review["resourceAttributes"]["subresource"] for review in reviews} == {"exec"}
    for review in reviews:
        assert review["extra"] == {"example.com/scopes": ["some", "more"]}
        assert set(review["groups"]) >= {*groups, "system:masters"}


def test_groups_are_never_cut(cluster: Cluster, web: Container) -> None:
    """Too many groups are refused or all passed on: the last one may decide about rights."""
    for count in (500, 2000, 8000):
        groups = [f"a-rather-long-name-of-a-team-{number}" for number in range(count)]
        user = f"joe{count}"
        answer = begin_as(
            cluster,
            f"Impersonate-User: {user}",
            *(f"Impersonate-Group: {group}" for group in groups),
        )
        assert not answer.startswith("HTTP/1.1 201 "), answer
        for review in cluster.reviews():
            assert review["user"] != user or set(review["groups"]) >= set(groups)
