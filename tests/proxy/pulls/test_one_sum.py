"""All displays of one pull show the same numbers at each moment."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pycrictl.base.servicelog import Log
from pycrictl.base.units import parse_duration
from pycrictl.cluster.agent.api.answers import cells
from pycrictl.cluster.agent.api.names import Document
from pycrictl.cluster.agent.node_pulls import pulls_in
from pycrictl.cluster.agent.objects import objects_of
from pycrictl.cluster.kubectl.cluster_watch import PullObjects
from pycrictl.kube.pods import parse_pod
from pycrictl.proxy.operators import status_document
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.progress_streams import Reporter
from pycrictl.proxy.pulls.pull_calls import PullKey
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey, PullTarget
from pycrictl.pulls.messages import MessageReader, MessageWriter
from pycrictl.pulls.sources.node_watch import from_proxy
from pycrictl.pulls.sources.pull_names import Expected
from pycrictl.pulls.state import View
from pycrictl.pulls.tracker import Tracker
from pycrictl.pulls.words import far
from pycrictl.show import limiter_tables
from pycrictl.show.displays import phrases
from tests.cluster.agent import standing
from tests.runtime.containerd.fakectd import FakeContainerd
from tests.runtime.containerd.made import Made
from tests.waiting import until

IMAGE = "host:5000/app:1"
SIZE = 3_000_000
WEB = PodKey("default", "web", "uid-default-web")


class Shown(NamedTuple):
    """The figures of a pull in a display; empty where it shows none."""

    percent: str
    size: str
    rate: str
    eta_s: float | None


def shown(percent: str, size: str, rate: str, left: str) -> Shown:
    clock = re.fullmatch(r"(?:ETA )?(\d+):(\d\d)", left.strip())
    seconds = None
    if clock is not None:
        seconds = 60.0 * int(clock[1]) + int(clock[2])
    elif re.match(r"\d", left):
        seconds = parse_duration(left)
    return Shown(
        percent.replace(" ", ""), size.replace("/", " of "), rate.strip().strip("-"), seconds
    )


def of_bars(view: View) -> Shown:
    percent, size, _, rate, eta = phrases.words(view.sums)
    return shown(percent, size, rate, eta)


def of_status(document: dict[str, Any]) -> Shown:
    (pull,) = document["running"]
    cell = limiter_tables._running(pull)
    return shown(cell[3], cell[4], cell[5], cell[6])


def of_why(document: dict[str, Any]) -> Shown:
    text = far(from_proxy(document, str(WEB)).own[IMAGE])
    containers = [
        re.search(pattern, text)
        for pattern in (r"\d+ %", r"[\d.]+ of [\d.]+ \w+", r"[\d.]+ \w+/s", r"(\w+) left")
    ]
    words = [match[0] if match else "" for match in containers]
    return shown(words[0], words[1], words[2], words[3].removesuffix(" left"))


def of_table(document: Document) -> Shown:
    row = cells(document, datetime.now(UTC))
    return shown(row[3], row[4], row[8], row[5])


def number(rate: str) -> float:
    return float(rate.split()[0]) if rate else 0.0


class Watchers:
    """Bars on the node, the status, ``why``, the API object and the plugin, fed by one poller."""

    def __init__(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self.moments: list[dict[str, Shown]] = []
        self.queue = PullQueue(1)
        self.poller = LayerPoller(path, log=Log("pycrictl.proxy.test"), on_poll=self.poll)
        self.queue.submit(1, PullKey(IMAGE), now=loop.time(), pod=WEB, reference=IMAGE)
        self.poller.begin(1, Expected(IMAGE, time.time() - 0.1))
        offset_s = time.time() - loop.time()
        poller = self.poller
        self.reporter = Reporter(
            self.queue.book, poller.seen, poller.others, wall_offset_s=offset_s
        )
        self.bars, self.plugin = Tracker(), Tracker()
        self.error: Exception | None = None
        self.writer = MessageWriter()

    def stream(self, tracker: Tracker) -> View:
        """Return the view of a client of the stream, which is sent changed reports only."""
        now = asyncio.get_running_loop().time()
        reader = MessageReader(tracker.pulls)
        pulls = self.reporter.pulls(PullTarget(WEB), now=now, since=0.0)
        for message in self.writer.changes(pulls):
            pull = reader.receive_message(message)
            assert pull is not None
            tracker.apply(pull, now=now)
        return tracker.view(now, time.time())

    async def more(self, count: int) -> None:
        """Return after ``count`` more moments."""
        seen = len(self.moments) + count
        await until(lambda: self.error or len(self.moments) >= seen)
        if self.error is not None:
            raise self.error

    def poll(self) -> None:
        try:
            self._poll()
        except Exception as exc:  # it would be lost in the poller's task
            self.error = exc

    def _poll(self) -> None:
        """Record what each display shows."""
        if not self.poller.seen(IMAGE):
            return
        now = asyncio.get_running_loop().time()
        document = status_document(
            self.queue,
            now=now,
            wall_s=time.time(),
            seen=self.poller.seen,
            limit_origin="flag",
        )
        document = json.loads(json.dumps(document))
        view = self.stream(self.bars)
        pod = parse_pod(standing.pod("web", image=IMAGE))
        assert pod is not None
        (shown,) = objects_of([pod], pulls_in(view, ()), "n1")
        body = {"kind": "ImagePullList", "metadata": {}, "items": [shown]}
        for pull in PullObjects(is_of_one_node=True).receive_list(json.dumps(body).encode()):
            self.plugin.apply(pull, now=now)
        self.moments.append(
            {
                "bars": of_bars(view),
                "status": of_status(document),
                "why": of_why(document),
                "kubectl get": of_table(shown),
                "plugin": of_bars(self.plugin.view(now, time.time())),
            }
        )


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[FakeContainerd]:
    with FakeContainerd(tmp_path) as containerd:
        yield containerd


def test_all_show_the_same_at_each_of_twenty_moments(containerd: FakeContainerd) -> None:
    async def run() -> list[dict[str, Shown]]:
        watchers = Watchers(containerd.endpoint.removeprefix("unix://"))
        made = Made(containerd, "app", ["a", "b", "c"], size_bytes=SIZE)
        made.begin("lease", at_s=time.time())
        try:
            async with watchers.poller.watching():
                for step in range(1, 19):
                    for number in range(3):
                        offset = min(step * (number + 2) * 41_333, SIZE)
                        made.download(number, offset, at_s=time.time())
                    await watchers.more(1)
                made.download(0, SIZE, at_s=time.time())
                made.extract(0, SIZE, at_s=time.time())
                await watchers.more(4)
        finally:
            await watchers.poller.close()
        return watchers.moments

    moments = asyncio.run(asyncio.wait_for(run(), 120))
    assert len(moments) >= 20
    for moment in moments:
        alike = {figures._replace(rate="", eta_s=None) for figures in moment.values()}
        assert len(alike) == 1, moment
        # The same rate, and the same time left, may be rounded once or twice on its way.
        first, *others = (number(figures.rate) for figures in moment.values())
        assert others == [pytest.approx(first, abs=0.11)] * len(others), moment
        left = [figures.eta_s for figures in moment.values()]
        assert len({eta_s is None for eta_s in left}) == 1, moment
        assert max(eta_s or 0.0 for eta_s in left) - min(eta_s or 0.0 for eta_s in left) <= 1, (
            moment
        )
    assert len({moment["bars"].percent for moment in moments}) > 8
    assert len([moment for moment in moments if moment["bars"].rate]) >= 15
    assert len([moment for moment in moments if moment["bars"].eta_s is not None]) >= 5
