"""The ends of pulls that a stream tells of, in a watch without end."""

from __future__ import annotations

from collections.abc import Collection

from pycrictl.progress.endings import _REMEMBERED, SETTLE_S, Endings
from pycrictl.pulls.model import Phase, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.wire.progress import Report


class Recorder:
    """Keeps the images of each view, and what has ended between them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...] | set[str]] = []
        self.views: list[View] = []

    def show(self, view: View) -> None:
        self.views.append(view)
        self.events.append({item.image for item in view.items})

    def note(self, text: str) -> None:
        raise AssertionError(text)

    def end(self, images: Collection[str]) -> None:
        self.events.append(tuple(images))

    @property
    def ended(self) -> list[str]:
        return [image for event in self.events if isinstance(event, tuple) for image in event]


class Stream:
    """A tracker that a test feeds, and what is told of it."""

    def __init__(self) -> None:
        self.tracker, self.sink = Tracker(), Recorder()
        self.endings = Endings(self.tracker, self.sink)

    def report(self, image: str, layer: str, phase: str, now: float, *, progress: int = 9) -> None:
        self.tracker.apply(Report(image, layer, progress, 9, "", phase), now=now)


def test_an_image_ends_when_nothing_has_moved_for_a_while() -> None:
    stream = Stream()
    stream.report("a", "1", "done", 0.0)
    stream.report("b", "2", "downloading", 0.0, progress=3)
    stream.endings.show(0.0)
    stream.endings.show(SETTLE_S - 0.1)
    assert stream.sink.ended == []
    stream.endings.show(SETTLE_S)
    assert stream.sink.events == [{"a", "b"}, {"a", "b"}, {"a", "b"}, ("a",), {"b"}]
    assert stream.sink.views[-1].totals.count == 1


def test_a_layer_that_is_named_late_keeps_its_image() -> None:
    stream = Stream()
    stream.report("a", "1", "done", 0.0)
    stream.endings.show(0.0)
    stream.report("a", "2", "done", 1.0)
    stream.endings.show(1.0)
    stream.endings.show(2.0)
    stream.report("a", "3", "extracting", 2.2)
    stream.endings.show(2.2)
    stream.endings.show(9.0)
    assert stream.sink.ended == []
    stream.report("a", "3", "done", 9.1)
    stream.endings.show(9.1)
    stream.endings.show(9.1 + SETTLE_S)
    assert stream.sink.ended == ["a"]
    assert [item.layer for item in stream.sink.views[-2].items] == ["1", "2", "3"]


def test_what_is_repeated_of_an_ended_image_is_left_out() -> None:
    stream = Stream()
    stream.report("a", "1", "done", 0.0)
    stream.report("b", "2", "downloading", 0.0, progress=3)
    stream.endings.show(0.0)
    stream.endings.show(2.0)
    for now in (3.0, 13.0):
        stream.report("a", "1", "done", now)
        stream.report("b", "2", "downloading", now, progress=4)
        view = stream.endings.show(now)
        assert [item.image for item in view.items] == ["b"]
    assert [item.image for item in stream.sink.views[-2].changed] == ["b"]
    assert stream.sink.ended == ["a"]


def test_an_image_that_is_pulled_again_is_whole_and_ends_again() -> None:
    stream = Stream()
    stream.report("a", "1", "done", 0.0)
    stream.endings.show(0.0, is_final=True)
    stream.report("a", "1", "present", 60.0)
    stream.report("a", "2", "downloading", 60.0, progress=0)
    view = stream.endings.show(60.0)
    assert [item.phase for item in view.items] == [Phase.PRESENT, Phase.DOWNLOADING]
    stream.report("a", "2", "done", 61.0)
    stream.endings.show(61.0)
    stream.endings.show(61.0 + SETTLE_S)
    assert stream.sink.ended == ["a", "a"]


def test_names_are_not_remembered_without_limit() -> None:
    stream = Stream()
    for number in range(2 * _REMEMBERED):
        stream.report(f"image-{number}", "1", "done", 0.0)
    stream.endings.show(0.0, is_final=True)
    for number in range(2 * _REMEMBERED):
        stream.report(f"image-{number}", "1", "done", 1.0)
    view = stream.endings.show(1.0)
    assert len({item.image for item in view.items}) == _REMEMBERED
