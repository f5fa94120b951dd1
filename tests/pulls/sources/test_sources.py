"""Watches of a whole source, to their end, against a containerd that plays made-up pulls."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from pycrictl.pulls.messages import MessageReader, sums_json
from pycrictl.pulls.sources.content_watcher import ContentWatcher
from pycrictl.pulls.sources.endings import SETTLE_S, Endings, Pace
from pycrictl.pulls.sources.node_watch import from_proxy, open_watcher, watch_runtime
from pycrictl.pulls.sources.stream_watch import watch_stream
from pycrictl.pulls.state import Phase, PullState, View
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from pycrictl.runtime.cri.calls.client import CriClient
from tests.cli.streaming_server import progress_streams
from tests.pulls.tracking import Report, Tracker, layers, sums
from tests.runtime.containerd.fakectd import FakeContainerd
from tests.runtime.containerd.fixtures import fake
from tests.runtime.containerd.made import Made
from tests.support.recorder import Recorder, names

__all__ = ["fake"]

INTERVAL_S = 0.02


class Enough(Exception):
    """The sink has seen what it waited for."""


def run_out(made: Made) -> None:
    """Remove the pull's lease and everything of its image."""
    fake = made.fake
    for table in (fake.leases, fake.blobs, fake.ingests, fake.snapshots):
        table.clear()


def test_a_watch_without_end_tells_a_pulls_end_and_goes_on_with_the_rest(
    fake: FakeContainerd,
) -> None:
    old, new = Made(fake, "old", ["a"]), Made(fake, "new", ["b"])
    old.begin("lease-1", at_s=time.time())
    old.download(0, 10, at_s=time.time())

    def play(view: View) -> None:
        if len(sink.views) == 3:
            assert names(view) == {old.shown_name}
            run_out(old)
            new.begin("lease-2", at_s=time.time())
            new.download(0, 20, at_s=time.time())
        elif sink.ended and len(sink.views) > sink.ended_after + 2:
            raise Enough

    sink = Recorder(play)
    watcher = ContentWatcher(ContainerdClient(fake.path))
    with pytest.raises(Enough):
        watch_runtime(watcher, Tracker(), sink, Pace(INTERVAL_S, follow=True), causes=None)
    assert sink.ended == [old.shown_name]
    last = sink.views[sink.ended_after - 1]
    assert [layer.phase for layer in last.pulls[old.shown_name].layers] == [Phase.FAILED]
    after = sink.views[sink.ended_after :]
    assert [names(view) for view in after] == [{new.shown_name}] * len(after)
    assert after[-1].sums.count == 1
    assert layers(after[-1])[0].progress == 20


@pytest.mark.parametrize(
    ("release", "phase"), [("1.6.20~ds1", Phase.DOWNLOADING), ("v2.3.4", Phase.WAITING)]
)
def test_layers_without_bytes_of_many_pulls(
    fake: FakeContainerd, release: str, phase: Phase
) -> None:
    """containerd 1.x limits each pull by itself, and opens no layer before it downloads it."""
    fake.release = release
    for number in range(3):
        made = Made(fake, f"image{number}", [f"{number}a", f"{number}b"])
        made.begin(f"lease-{number}", at_s=time.time() - 5)
        for layer in range(2):
            made.download(layer, 0, at_s=time.time() - 4)
    tracker = Tracker()
    with CriClient(fake.path, timeout_s=5) as client:
        open_watcher(client).poll(10.0).apply_to(tracker, 10.0)
    assert {layer.phase for layer in layers(tracker.view(10.0))} == {phase}


def test_a_watch_of_streams_without_end_tells_each_end_once() -> None:
    """The end of a stream ends all its pulls; the next one may repeat them, and bring others."""
    record = {"progress": 5, "total": 5, "phase": "done"}
    first = {"image": "one", "layer": "a", **record}
    second = {"image": "two", "layer": "b", **record}

    def play(view: View) -> None:
        if len(sink.ended) == 2:
            raise Enough

    sink = Recorder(play)
    with progress_streams([first], [first, second], []) as server:
        pace = Pace(INTERVAL_S, follow=True)
        with pytest.raises(Enough):
            watch_stream(lambda: server.url, Tracker(), sink, timeout_s=60.0, pace=pace)
    assert sink.ended == ["one", "two"]
    changes = [pull.image for view in sink.views for pull, _ in view.changed]
    assert changes == ["one", "two"]
    assert not sink.views[-1].pulls


# Ends of pulls reported by a stream, in a watch without end


class Stream:
    """A tracker that a test feeds, and a sink for the ends of its pulls."""

    def __init__(self) -> None:
        self.tracker, self.sink = Tracker(), Recorder()
        self.endings = Endings(self.tracker, self.sink)

    def report(self, image: str, layer: str, phase: str, now: float, *, progress: int = 9) -> None:
        report = Report(image, layer, progress, 9, "", phase)
        pull = MessageReader(self.endings.known).receive_message(report.message)
        assert pull is not None
        self.endings.track(pull, now)


def test_an_image_ends_when_nothing_has_moved_for_a_while() -> None:
    stream = Stream()
    stream.report("a", "1", "done", 0.0)
    stream.report("b", "2", "downloading", 0.0, progress=3)
    stream.endings.show(0.0)
    stream.endings.show(SETTLE_S - 0.1)
    assert stream.sink.ended == []
    stream.endings.show(SETTLE_S)
    assert stream.sink.events == [{"a", "b"}, {"a", "b"}, {"a", "b"}, ("a",), {"b"}]
    assert stream.sink.views[-1].sums.count == 1


def test_an_image_that_is_pulled_again_is_whole_and_ends_again() -> None:
    stream = Stream()
    stream.report("a", "1", "done", 0.0)
    stream.endings.show(0.0, is_final=True)
    stream.report("a", "1", "present", 60.0)
    stream.report("a", "2", "downloading", 60.0, progress=0)
    view = stream.endings.show(60.0)
    assert [layer.phase for layer in layers(view)] == [Phase.PRESENT, Phase.DOWNLOADING]
    stream.report("a", "2", "done", 61.0)
    stream.endings.show(61.0)
    stream.endings.show(61.0 + SETTLE_S)
    assert stream.sink.ended == ["a", "a"]


def test_names_are_not_remembered_without_limit() -> None:
    stream = Stream()
    stream.endings.remembered = 10
    for number in range(20):
        stream.report(f"image-{number}", "1", "done", 0.0)
    stream.endings.show(0.0, is_final=True)
    for number in range(20):
        stream.report(f"image-{number}", "1", "done", 1.0)
    assert len(stream.endings.show(1.0).pulls) == 10


# What a proxy's status says of a pod


SUMS = sums(1, 4, 2.0, 2.0)
FAILED = 'failed to pull and unpack image "a/bad:1": failed to resolve reference "a/bad:1": '
STATUS = {
    "running": [
        {
            "pull": 1,
            "image": "a/one",
            "pod": "default/batch",
            "sums": sums_json(SUMS),
        }
    ],
    "waiting": [
        {
            "pull": 2,
            "image": "a/two",
            "pod": "default/web",
            "place": 1,
            "behind": None,
            "behindPod": None,
            "startsIn": "2s",
        }
    ],
    "joined": [{"pull": 1, "image": "a/one", "pod": "default/web"}],
    "failures": [
        {"image": "a/bad", "pod": "default/web", "error": FAILED + "denied"},
        {"image": "a/other", "pod": "default/batch", "error": "denied"},
    ],
}
RUNNING = PullState(image="a/one", pods=("default/batch",), sums=SUMS)


def test_what_a_proxy_says_of_a_pod() -> None:
    pulls = from_proxy(STATUS, "default/web")
    assert pulls.own == {
        "a/two": PullState(
            image="a/two",
            pods=("default/web",),
            place=1,
            behind="default/batch",
            starts_in_s=2.0,
            is_begun=False,
        ),
        "a/one": replace(RUNNING, pods=("default/web",)),
    }
    assert pulls.failed == {"a/bad": "denied"}


def test_pulls_of_other_pods_and_what_was_seen_elsewhere() -> None:
    unknown = {"pull": 3, "image": "a/three", "pod": None, "sums": sums_json(SUMS)}
    seen = {"a/four": PullState(image="a/four")}
    pulls = from_proxy({**STATUS, "running": [unknown]}, "default/new", seen)
    assert list(pulls.node) == ["a/three", "a/two", "a/four"]
    assert not pulls.own
