"""The one source of a node's pulls."""

from __future__ import annotations

import time
from typing import NoReturn

from pycrictl.agent.apiserver import ApiServer
from pycrictl.agent.node import NodePulls
from pycrictl.kube.pods import parse_pod
from pycrictl.logs.journal import JournalLine
from tests.agent import standing
from tests.agent.test_objects import BACK_OFF, IMAGE


def test_the_journal_says_when_a_pull_is_tried_again() -> None:
    failed_at_s = time.time() - 5
    line = f'"PullImage from image service failed" err="rpc error: no such host" image="{IMAGE}"'
    asked: list[float] = []

    def read(since_s: float) -> list[JournalLine]:
        asked.append(since_s)
        return [JournalLine(failed_at_s, "kubelet", line)]

    def load() -> NoReturn:
        raise AssertionError

    pulls = NodePulls(standing.no_runtime, ApiServer(load), "n1", read)
    pulls.look_for_failures()
    assert not asked, "no pod waits in vain"
    found = parse_pod(standing.pod("web", state=BACK_OFF))
    assert found is not None
    pulls._reflector.items["u"] = found
    pulls._looked_at = -100.0
    pulls.look_for_failures()
    assert pulls.retries == {IMAGE: failed_at_s + 10}
    pulls.look_for_failures()
    assert len(asked) == 1, "not at every look"
