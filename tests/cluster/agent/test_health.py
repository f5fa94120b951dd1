"""The agent's answers to liveness and readiness probes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.cluster.agent.standing import Cluster, bearer
from tests.kube.access import User
from tests.kube.tokens import Token
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient

PULLS = "/apis/progress.pycrictl.dev/v1alpha1/imagepulls"


def probe(cluster: Cluster, path: str) -> tuple[int, str]:
    answer = cluster.ask(path)
    return answer.status, answer.content.decode()


def test_a_source_that_hangs(cluster: Cluster) -> None:
    """A thread that hangs in a call to the runtime never returns; only a restart helps."""
    released = threading.Event()

    @contextmanager
    def connect() -> Iterator[tuple[CriClient, CriClient | None]]:
        released.wait(60)
        yield None, None  # type: ignore[misc]  # not reached before the end

    agent = cluster.start(connect=connect)
    agent.pulls.first_poll_s = 0.1
    cluster.add_pod("web")
    assert probe(cluster, "/livez") == (200, "ok")
    assert cluster.get("imagepulls").status == 200
    assert probe(cluster, "/livez") == (200, "ok")
    agent.pulls.stuck_s = 0.0
    try:
        assert probe(cluster, "/livez") == (503, "the source of the node's pulls hangs")
        assert probe(cluster, "/readyz") == (200, "ok")
    finally:
        released.set()


def test_work_that_has_ended(cluster: Cluster) -> None:
    """Without this task, the agent would never notice a new CA of the front proxy."""
    agent = cluster.start()
    task = agent._reflector.task
    assert task is not None
    task.cancel()
    wait_until(lambda: probe(cluster, "/livez") == (503, "a background task has ended"))


def test_the_api_server_is_away(cluster: Cluster) -> None:
    """A short outage is ignored; after a longer one, other agents should get the requests."""
    agent = cluster.start()
    cluster.loop.run(agent._reflector.stop())
    del cluster.api.tokens["api-token"]
    cluster.loop.run(_start(agent._reflector.start))
    wait_until(lambda: agent._reflector.error is not None)
    assert probe(cluster, "/readyz") == (200, "ok")
    agent.unreached_s = 0.0
    why = "queries to the API server fail: the API server answered 401: Unauthorized"
    assert probe(cluster, "/readyz") == (503, why)
    assert probe(cluster, "/livez") == (200, "ok")
    cluster.api.tokens["api-token"] = Token(User("system:serviceaccount:pycrictl:pycrictl-agent"))
    wait_until(lambda: probe(cluster, "/readyz") == (200, "ok"))


async def _start(begin: object) -> None:
    assert callable(begin)
    begin()


def test_nobody_to_trust(cluster: Cluster) -> None:
    agent = cluster.start()
    (config_map,) = cluster.api.objects.documents("", "configmaps")
    data = {**config_map["data"], "requestheader-client-ca-file": "none"}
    cluster.api.objects.add("", "configmaps", {**config_map, "data": data})
    wait_until(lambda: not agent.access.trust or not agent.access.trust.proxy_ca)
    wait_until(
        lambda: probe(cluster, "/readyz") == (503, "the API server names no front proxy to trust")
    )
    assert probe(cluster, "/livez") == (200, "ok")


def test_until_when_the_certificate_is_valid(cluster: Cluster) -> None:
    cluster.start()
    page = cluster.ask("/metrics", headers=bearer("of admin")).content.decode()
    (line,) = re.findall(r"(?m)^pycrictl_agent_certificate_expiry_timestamp_seconds (.+)$", page)
    assert float(line) == pytest.approx(time.time() + 2 * 86400, abs=3600)


def test_a_watch_that_expires_counts(cluster: Cluster) -> None:
    agent = cluster.start()
    path = "/apis/progress.pycrictl.dev/v1alpha1/imagepulls?watch=true&resourceVersion=1"
    cluster.get(path)
    wait_until(lambda: agent.metrics.requests["watch", "410"] == 1)
