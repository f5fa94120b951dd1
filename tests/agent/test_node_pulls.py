"""The single source of a node's pulls."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pycrictl.agent.node_pulls import pulls_in
from pycrictl.cri.calls.client import CriClient
from pycrictl.logs.journal import JournalLine
from pycrictl.pulls.state import Phase
from pycrictl.units import format_moment
from tests.agent import standing
from tests.agent.test_objects import BACK_OFF, IMAGE
from tests.containerd.fakectd import FakeContainerd
from tests.pulls.tracking import Report, Tracker
from tests.waiting import wait_until


def test_what_was_complete_at_first_sight_does_not_run() -> None:
    tracker = Tracker()
    tracker.tell(Report(IMAGE, "", 0, 0, "", Phase.DONE), now=5.0)
    view = tracker.view(6.0)
    assert [one.is_running for one in pulls_in(view, ())] == [False]
    assert [one.is_running for one in pulls_in(view, {IMAGE})] == [True]


def test_who_lists_pulls_is_told_when_they_are_tried_again(
    cluster: standing.Cluster, tmp_path: Path
) -> None:
    failed_at_s = time.time() - 5
    line = f'"PullImage from image service failed" err="no such host" image="{IMAGE}"'
    with FakeContainerd(tmp_path) as containerd:

        @contextmanager
        def connect() -> Iterator[tuple[CriClient, None]]:
            client = CriClient(containerd.endpoint.removeprefix("unix://"), timeout_s=10)
            try:
                yield client, None
            finally:
                client.close()

        def read(since_s: float) -> list[JournalLine]:
            return [JournalLine(failed_at_s, "kubelet", line)]

        cluster.add_pod("web", state=BACK_OFF)
        cluster.start(connect=connect, read_journal=read)

        def told() -> str:
            found = cluster.get("namespaces/default/imagepulls/web.main").document
            return str(found["status"].get("nextRetryTime"))

        wait_until(lambda: told() == format_moment(failed_at_s + 10))
