"""A display that records what it is shown."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pycrictl.pulls.state import View


class Recorder:
    """Records what it is shown; ``on_view`` plays the next step of the pull, or ends the watch.

    ``events`` has the images of each view, and the images that ended in between.
    """

    def __init__(self, on_view: Callable[[View], object] = id) -> None:
        self.views: list[View] = []
        self.notes: list[str] = []
        self.events: list[tuple[str, ...] | set[str]] = []
        self.ended: list[str] = []
        self.ended_after = 0
        self._on_view = on_view

    def show(self, view: View) -> None:
        self.views.append(view)
        self.events.append(names(view))
        self._on_view(view)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def end(self, images: Collection[str]) -> None:
        self.events.append(tuple(images))
        self.ended += images
        self.ended_after = len(self.views)


def names(view: View) -> set[str]:
    return set(view.pulls)
