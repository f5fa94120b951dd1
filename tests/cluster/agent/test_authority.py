"""The CA by which agents verify each other, and what an impostor gets."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pycrictl.base.tls import load_pair
from pycrictl.cluster.agent.trust import certificate
from tests.cluster.agent.standing import Cluster
from tests.serving import Handler, serving
from tests.waiting import wait_until

SERVER_NAME = "pycrictl-agent"


def listed(cluster: Cluster) -> dict[str, Any]:
    found = cluster.get("imagepulls").document["items"]
    return {one["metadata"]["name"]: one["status"] for one in found}


def secret(cluster: Cluster) -> dict[str, str]:
    (found,) = cluster.api.objects.documents("", "secrets")
    return {key: base64.b64decode(text).decode() for key, text in found["data"].items()}


@pytest.fixture
def redirected(cluster: Cluster) -> Iterator[list[str]]:
    """The tokens that an impostor receives in the place of the agent of n2."""
    got: list[str] = []

    class Theirs(Handler):
        def do_GET(self) -> None:
            got.append(self.headers["Authorization"])
            self.send(503, b"")

    pair = certificate.serving([SERVER_NAME])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, pair.certificate, pair.key)
    with serving(Theirs, context) as port:
        cluster.add_endpoint("n2", port)
        yield got


def test_agents_that_begin_at_once_have_one_authority(cluster: Cluster) -> None:
    threads = [threading.Thread(target=cluster.start, args=(f"n{one}",)) for one in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(cluster.agents) == 3
    cluster.add_pod("one", node="n1")
    cluster.add_pod("two", node="n2")
    cluster.add_pod("three", node="n3")
    assert len(listed(cluster)) == 3
    assert all(agent.peers.failures == 0 for agent in cluster.agents)
    context = ssl.create_default_context(cadata=secret(cluster)["ca.crt"])
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from 3.13 on
    for agent in cluster.agents:
        with (
            socket.create_connection(agent.listener.address, timeout=30) as plain,
            context.wrap_socket(plain, server_hostname=SERVER_NAME),
        ):
            pass


def test_nobody_else_gets_an_agents_token(cluster: Cluster, redirected: list[str]) -> None:
    agent = cluster.start("n1")
    cluster.add_pod("db", node="n2")
    (status,) = listed(cluster).values()
    assert status["unknown"] is True
    assert "cannot be reached" in status["error"]
    assert agent.peers.asked > 0
    assert not redirected


def test_without_the_secret_agents_are_not_verified(
    cluster: Cluster, redirected: list[str]
) -> None:
    """SECURITY.md describes this risk."""
    cluster.api.objects.remove("", "secrets", "pycrictl", "pycrictl-agent-ca")
    cluster.start("n1")
    cluster.add_pod("db", node="n2")
    listed(cluster)
    assert any(one.startswith("Bearer ") for one in redirected)


@pytest.mark.parametrize("what", ["no right", "no certificate", "half", "another key"])
def test_an_authority_that_cannot_be_read_is_none(
    cluster: Cluster, redirected: list[str], what: str
) -> None:
    """An agent must not send requests to peers that it cannot verify."""
    own, other = certificate.authority(), certificate.authority()
    good = base64.b64encode(own.certificate).decode()
    match what:
        case "no right":
            cluster.api.grants = [one for one in cluster.api.grants if one.namespace != "pycrictl"]
        case "no certificate":
            cluster.add_secret(**{"ca.crt": "aGVsbG8=", "ca.key": "aGVsbG8="})
        case "half":
            cluster.add_secret(**{"ca.crt": good})
        case "another key":
            text = base64.b64encode(other.key).decode()
            cluster.add_secret(**{"ca.crt": good, "ca.key": text})
    agent = cluster.start("n1", waits=False)
    wait_until(lambda: agent.access.trust is not None)
    cluster.add_pod("db", node="n2")
    ready = cluster.ask("/readyz")
    assert ready.status == 503
    assert ready.content.startswith(b"the agents' CA is not available yet")
    (status,) = listed(cluster).values()
    assert status["error"].endswith("cannot verify it yet")
    assert not redirected
    cluster.api.objects.remove("", "secrets", "pycrictl", "pycrictl-agent-ca")
