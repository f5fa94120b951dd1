"""The one source of a node's pulls."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pycrictl.agent.node_pulls import pulls_in
from pycrictl.cri.calls.client import CriClient
from pycrictl.pulls.model import Phase
from pycrictl.pulls.tracker import Tracker
from pycrictl.wire.progress import Report
from tests.agent import standing
from tests.agent.test_objects import IMAGE
from tests.containerd.fakectd import FakeContainerd


def test_what_was_complete_at_first_sight_does_not_run() -> None:
    tracker = Tracker()
    tracker.apply(Report(IMAGE, "", 0, 0, "", Phase.DONE), now=5.0)
    view = tracker.view(6.0)
    assert [one.is_running for one in pulls_in(view, {})] == [False]
    assert [one.is_running for one in pulls_in(view, {IMAGE: time.time()})] == [True]


def test_a_runtime_that_is_there(cluster: standing.Cluster, tmp_path: Path) -> None:
    with FakeContainerd(tmp_path) as containerd:

        @contextmanager
        def connect() -> Iterator[tuple[CriClient, None]]:
            client = CriClient(containerd.endpoint.removeprefix("unix://"), timeout_s=10)
            try:
                yield client, None
            finally:
                client.close()

        cluster.add_pod("web")
        cluster.start(connect=connect)
        found = cluster.get("namespaces/default/imagepulls/web.main").document
        assert found["status"] == {"phase": "Waiting"}
