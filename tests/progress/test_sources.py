"""Watches of a whole source, to their end, against a containerd that plays made-up pulls."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import pytest

from pycrictl.containerd.config_toml import PullSettings
from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.progress.content_watcher import ContentWatcher
from pycrictl.progress.endings import Pace, WatchOutcome
from pycrictl.progress.sources import ContentWatch, ImageTracker
from pycrictl.progress.stream_watch import watch_stream
from pycrictl.pulls.model import Phase, View
from pycrictl.pulls.tracker import Tracker
from tests.cli.progress_server import progress_streams
from tests.containerd.fakectd import FakeContainerd
from tests.containerd.fixtures import fake
from tests.containerd.made import Made

__all__ = ["fake"]

INTERVAL_S = 0.02
DEADLINE_S = 20.0


class Enough(Exception):
    """The sink has seen what it waited for."""


class Recorder:
    """Keeps what it is shown; ``on_view`` plays the next step of the pull, or ends the watch."""

    def __init__(self, on_view: Callable[[View], None]) -> None:
        self.views: list[View] = []
        self.notes: list[str] = []
        self.ended: list[tuple[str, ...]] = []
        self.ended_after = 0
        self._on_view = on_view
        self._deadline = time.monotonic() + DEADLINE_S

    def show(self, view: View) -> None:
        assert time.monotonic() < self._deadline
        self.views.append(view)
        self._on_view(view)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def end(self, images: Collection[str]) -> None:
        self.ended.append(tuple(images))
        self.ended_after = len(self.views)


def names(view: View) -> set[str]:
    return {item.image for item in view.items}


def watch(
    fake: FakeContainerd, sink: Recorder, settings: PullSettings, *, follow: bool = False
) -> WatchOutcome:
    watcher = ContentWatcher(ContainerdClient(fake.path))
    pace = Pace(INTERVAL_S, follow=follow)
    return ContentWatch(watcher, settings, sink).run(ImageTracker(), pace)


def run_out(made: Made) -> None:
    """The pull's lease goes, with nothing of the image left."""
    fake = made.fake
    for table in (fake.leases, fake.blobs, fake.ingests, fake.snapshots):
        table.clear()


@pytest.mark.parametrize(
    ("timeout_s", "idle_s", "expected"),
    [
        (300.0, 45.0, "containerd cancels a pull that receives nothing for 5m0s"),
        (300.0, 5.0, None),
        (0.0, 45.0, None),
        (None, 45.0, None),
    ],
)
def test_a_stall_is_told_with_containerds_own_timeout(
    fake: FakeContainerd, timeout_s: float | None, idle_s: float, expected: str | None
) -> None:
    made = Made(fake, "app", ["a"])
    began_s = time.time() - 60
    made.begin("lease", at_s=began_s)
    made.download(0, 10, at_s=time.time() - idle_s)

    def end_after_five(view: View) -> None:
        if len(sink.views) == 5:
            run_out(made)

    sink = Recorder(end_after_five)
    outcome = watch(fake, sink, PullSettings(progress_timeout_s=timeout_s))
    assert outcome.seen
    told = [note for note in sink.notes if "image_pull_progress_timeout" in note]
    # Once, however long the stall lasts.
    assert told == ([] if expected is None else [f"{expected} (image_pull_progress_timeout)"])
    shown_s = sink.views[0].items[0].idle_s
    assert shown_s is not None
    assert idle_s - 0.1 <= shown_s < idle_s + DEADLINE_S


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
    with pytest.raises(Enough):
        watch(fake, sink, PullSettings(), follow=True)
    assert sink.ended == [(old.shown_name,)]
    last = sink.views[sink.ended_after - 1]
    assert [item.phase for item in last.items if item.image == old.shown_name] == [Phase.FAILED]
    after = sink.views[sink.ended_after :]
    assert [names(view) for view in after] == [{new.shown_name}] * len(after)
    assert after[-1].totals.count == 1
    assert after[-1].items[0].progress == 20


def test_a_watch_of_streams_without_end_tells_each_end_once() -> None:
    """A stream that ended says that all its pulls are over. A server may repeat them in the next
    one, and the next one may bring others."""
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
    assert sink.ended == [("one",), ("two",)]
    changes = [item.image for view in sink.views for item in view.changed]
    assert changes == ["one", "two"]
    assert not sink.views[-1].items
