"""Limits on what one client may cost an agent."""

from __future__ import annotations

import contextlib
import ssl
import time

import pytest

from tests.cluster.agent.attackers import reach, watch
from tests.cluster.agent.standing import OWN, Cluster, token_of
from tests.waiting import wait_until

PULLS = "/apis/progress.pycrictl.dev/v1alpha1/imagepulls"


def connected(cluster: Cluster, pair: tuple[str, str] | None = None) -> ssl.SSLSocket:
    return reach(cluster.agents[0].listener.address, pair)


def is_over(connection: ssl.SSLSocket) -> bool:
    with contextlib.suppress(OSError):
        return connection.recv(1) == b""
    return True


def test_a_head_that_does_not_end(cluster: Cluster) -> None:
    listener = cluster.start().listener
    listener.handshake_s, listener.first_request_s = 2.0, 0.5
    begun = time.monotonic()
    with connected(cluster) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        assert is_over(connection)
    assert time.monotonic() - begun < 15


def test_too_many_connections(cluster: Cluster) -> None:
    agent = cluster.start()
    agent.listener.max_connections = 3
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connected(cluster))
        wait_until(lambda: len(agent.listener.server.connections) == 3)
        with pytest.raises((ssl.SSLError, ConnectionError)), connected(cluster):
            pass
    assert agent.listener.turned_away == 1
    wait_until(lambda: agent.listener.server.connections == [])
    assert cluster.ask("/livez").status == 200


def test_the_request_of_a_stranger_is_bounded_as_a_whole(cluster: Cluster) -> None:
    """Each group of a user has its own header, so authenticated clients may send more."""
    cluster.start()
    large = {f"X-{number}": "a" * 10_000 for number in range(10)}
    with pytest.raises(OSError, match=r"."):
        cluster.ask("/livez", headers=large)
    assert cluster.get("imagepulls", headers=large).status == 200
    assert cluster.ask("/livez", headers={"X": "a" * 12_000}).status == 200


@pytest.mark.parametrize("path", ["nosuch", "namespaces/default/pods/web/containercopies/x/data"])
def test_nothing_follows_an_upgrade_that_is_refused(cluster: Cluster, path: str) -> None:
    cluster.start()
    cluster.add_pod("web")
    head = [f"GET {PULLS.removesuffix('imagepulls')}{path} HTTP/1.1", "Host: a"]
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    follows = ["", "GET /livez HTTP/1.1", "Host: a", "", ""]
    with connected(cluster, cluster.front_proxy) as connection:
        words = [*head, "X-Remote-User: jane", *upgrade, *follows]
        connection.sendall("\r\n".join(words).encode())
        answer = b""
        with contextlib.suppress(OSError):
            while data := connection.recv(65536):
                answer += data
    assert answer.startswith(b"HTTP/1.1 4")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in answer


def test_a_client_that_goes_ends_its_watch(cluster: Cluster) -> None:
    agent = cluster.start()
    watcher, status = watch(agent.listener.address, PULLS, cluster.front_proxy, "jane")
    assert status == 200
    wait_until(lambda: agent.routes.watches == 1)
    watcher.close()
    wait_until(lambda: agent.routes.watches == 0)
    assert not any(feed.watchers for feed in agent.feeds._feeds.values())


def test_questions_about_ever_other_pods_are_forgotten(cluster: Cluster) -> None:
    """Each pod's name has its own feed; beyond the limit, the least recently used are dropped."""
    agent = cluster.start()
    agent.feeds.max_feeds = 8
    for number in range(30):
        path = f"{PULLS.replace('imagepulls', 'namespaces/default/imagepulls')}/web{number}.main"
        assert cluster.get(path).status == 404
    assert len(agent.feeds._feeds) <= 8


def test_tokens_that_are_made_up_cost_few_questions(cluster: Cluster) -> None:
    cluster.start()
    for token, path, reviews in (
        ("made-up", "/node/v1alpha1/pulls", 0),
        (f"{token_of(OWN)}-not", "/node/v1alpha1/pulls", 1),
        ("made-up", "/metrics", 2),
    ):
        for _ in range(5):
            headers = {"Authorization": f"Bearer {token}"}
            assert cluster.ask(path, headers=headers).status == 401
        assert cluster.reviews == reviews
