"""Watches of a whole source, to their end, against a containerd that plays made-up pulls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pycrictl.containerd.client import ContainerdClient
from pycrictl.containerd.settings import PullSettings
from pycrictl.progress import sources
from pycrictl.progress.content import ContentWatcher
from pycrictl.progress.sources import (
    ImageTracker,
    Outcome,
    Pace,
    watch_content,
    watch_stream,
)
from pycrictl.progress.tracker import Phase, Tracker, View
from tests.cli.progress_server import http_streams
from tests.containerd.fakectd import FakeContainerd
from tests.containerd.made import Made

INTERVAL_S = 0.02
DEADLINE_S = 20.0


class Enough(Exception):
    """The sink has seen what it waited for."""


class Recorder:
    """Keeps what it is shown; ``on_view`` plays the next step of the pull, or ends the watch."""

    def __init__(self, on_view: Callable[[View], None]) -> None:
        self.views: list[View] = []
        self.notes: list[str] = []
        self._on_view = on_view
        self._deadline = time.monotonic() + DEADLINE_S

    def show(self, view: View) -> None:
        assert time.monotonic() < self._deadline
        self.views.append(view)
        self._on_view(view)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeContainerd]:
    with FakeContainerd(tmp_path) as fake:
        yield fake


def watch(
    fake: FakeContainerd, sink: Recorder, settings: PullSettings, *, follow: bool = False
) -> Outcome:
    with fake.channel() as channel:
        watcher = ContentWatcher(ContainerdClient(channel, endpoint=fake.endpoint))
        pace = Pace(INTERVAL_S, follow=follow)
        return watch_content(watcher, settings, ImageTracker(), sink, pace=pace)


def run_out(made: Made) -> None:
    """The pull's lease goes, with nothing of the image left."""
    fake = made.fake
    for table in (fake.leases, fake.blobs, fake.ingests, fake.snapshots):
        table.clear()


@pytest.mark.parametrize(
    ("timeout_s", "idle_s", "expected"),
    [
        (300.0, 45.0, "containerd gives up a pull that gets no byte for 5m0s"),
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
    assert sink.views[0].items[0].idle_s == pytest.approx(idle_s, abs=2.0)


def test_a_watch_without_end_forgets_pulls_that_ended(
    fake: FakeContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FORGET_S", 0.5)
    old, new = Made(fake, "old", ["a"]), Made(fake, "new", ["b"])
    old.begin("lease-1", at_s=time.time())
    old.download(0, 10, at_s=time.time())
    ended_at = 0.0

    def names(view: View) -> set[str]:
        return {item.image for item in view.items}

    def play(view: View) -> None:
        nonlocal ended_at
        if len(sink.views) == 3:
            assert names(view) == {old.shown_name}
            run_out(old)
            new.begin("lease-2", at_s=time.time())
            new.download(0, 20, at_s=time.time())
        elif not ended_at and any(item.phase is Phase.FAILED for item in view.items):
            ended_at = time.monotonic()
            assert names(view) == {old.shown_name, new.shown_name}
        elif ended_at and names(view) == {new.shown_name}:
            raise Enough

    sink = Recorder(play)
    with pytest.raises(Enough):
        watch(fake, sink, PullSettings(), follow=True)
    # It stays in sight for a while, so that its end can be read.
    assert time.monotonic() - ended_at >= 0.5
    # What runs is not forgotten.
    assert sink.views[-1].items[0].progress == 20


def test_a_pull_that_is_tried_again_is_not_forgotten(
    fake: FakeContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FORGET_S", 0.3)
    made = Made(fake, "app", ["a"])
    made.begin("lease-1", at_s=time.time())
    made.download(0, 10, at_s=time.time())
    revived_at = 0.0

    def play(view: View) -> None:
        nonlocal revived_at
        if len(sink.views) == 3:
            run_out(made)
        elif not revived_at and any(item.phase is Phase.FAILED for item in view.items):
            made.begin("lease-2", at_s=time.time())
            made.download(0, 30, at_s=time.time())
            revived_at = time.monotonic()
        elif revived_at and time.monotonic() - revived_at > 0.8:
            raise Enough

    sink = Recorder(play)
    with pytest.raises(Enough):
        watch(fake, sink, PullSettings(), follow=True)
    assert [(item.image, item.progress) for item in sink.views[-1].items] == [(made.shown_name, 30)]
    # It was in sight all the time.
    assert all(view.items for view in sink.views)


def test_a_watch_of_a_stream_without_end_begins_anew_with_each_stream() -> None:
    """A stream that ended says that all its pulls are over; the next one is about others."""
    record = {"progress": 5, "total": 5, "phase": "done"}
    first = [{"image": "one", "layer": "a", **record}]
    second = [{"image": "two", "layer": "b", **record}]
    seen: list[set[str]] = []

    def note_images(view: View) -> None:
        images = {item.image for item in view.items}
        if images and images not in seen:
            seen.append(images)
        if images == {"two"}:
            raise Enough

    with http_streams(first, second, []) as server:
        pace = Pace(INTERVAL_S, follow=True)
        with pytest.raises(ExceptionGroup) as caught:
            watch_stream(
                lambda: server.url, Tracker(), Recorder(note_images), timeout_s=5.0, pace=pace
            )
    assert caught.group_contains(Enough)
    assert seen == [{"one"}, {"two"}]
