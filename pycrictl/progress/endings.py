"""How pulls leave an endless watch: the end of each is shown once.

containerd's leases say when a pull ends. A stream (KEP-5334) does not: all layers named so far may
be there while the next one is still to come, and after a reconnection a server may repeat what it
has said. So in a stream an image ends when all of it has arrived or failed and nothing has moved
for a while; what is repeated of it later is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from pycrictl.cri.calls.redact import quote_reference
from pycrictl.errors import PullFailed
from pycrictl.pulls.model import Phase, View
from pycrictl.pulls.tracker import Tracker

SETTLE_S: Final = 1.5
"""How long nothing must be pulled for the pulls to be over: kubelet tries its credentials one after
another, and each try is its own pull."""

_REMEMBERED: Final = 1024
"""How many images whose end was shown are remembered; their names come from outside."""


class PullEnding(StrEnum):
    """How a pull ended; ``UNKNOWN`` if it did before its image was known.

    Then the registry has refused the image, or says that the node has the newest.
    """

    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


class ActivePull(NamedTuple):
    """A running pull; ``image`` is its name for good, and empty while the registry is asked."""

    image: str
    started_s: float


class EndedPull(NamedTuple):
    """A pull that has ended; ``image`` is empty if it never had a name."""

    image: str
    ending: PullEnding
    reason: str


class PollResult(NamedTuple):
    """Running pulls, oldest first, those that ended; ``is_settling``: a cause is sought."""

    active: tuple[ActivePull, ...]
    ended: tuple[EndedPull, ...]
    is_settling: bool = False


class Sink(Protocol):
    def show(self, view: View) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self, images: Collection[str]) -> None:
        """Show the pulls of these images as ended, and leave them out of later views."""


@dataclass
class Endings:
    tracker: Tracker
    sink: Sink
    _shown: dict[str, None] = field(default_factory=dict)
    _finished_at: dict[str, float] = field(default_factory=dict)

    def end(self, images: Iterable[str], now: float) -> None:
        """Report that the pulls of these images have ended, as the last view shows it."""
        if ended := tuple(images):
            self.sink.end(ended)
            for image in ended:
                self.tracker.forget(image)
                self._finished_at.pop(image, None)
            self.tracker.measure_anew()
            self.sink.show(self.tracker.view(now))

    def show(self, now: float, *, is_final: bool = False) -> View:
        """Show what a stream has said by now, and end the images that have settled.

        Args:
            is_final: the stream has ended, and with it all that it reported. Unfinished images
                are dropped silently, as the next stream may report them.
        """
        view = self.tracker.view(now)
        unfinished = {item.image for item in view.items if not item.is_finished}
        finished = dict.fromkeys(item.image for item in view.items if item.image not in unfinished)
        for image in unfinished:
            self._shown.pop(image, None)
        if repeated := self._shown.keys() & finished.keys():
            view = self._without(repeated, view)
        fresh = [image for image in finished if image not in repeated]
        moved = {item.image for item in view.changed}
        self._finished_at = {
            image: now if image in moved else self._finished_at.get(image, now) for image in fresh
        }
        self.sink.show(view)
        ended = [image for image in fresh if is_final or now - self._finished_at[image] >= SETTLE_S]
        self._shown.update(dict.fromkeys(ended))
        while len(self._shown) > _REMEMBERED:
            del self._shown[next(iter(self._shown))]
        if is_final:
            for image in unfinished:
                self.tracker.forget(image)
        self.end(ended, now)
        return view

    def _without(self, images: Iterable[str], view: View) -> View:
        for image in images:
            self.tracker.forget(image)
        changed = tuple(item for item in view.changed if item.image not in images)
        # Whatever moved was in the view that is replaced, so the new one knows of no change.
        return replace(self.tracker.view(view.now), changed=changed)


REOPEN_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 5.0, 5.0)
"""Pauses before a broken source is tried again; as many tries as there are pauses."""


@dataclass(frozen=True, slots=True)
class Pace:
    interval_s: float
    follow: bool = False


@dataclass(frozen=True, slots=True)
class WatchOutcome:
    """Whether there was any pull; image (empty if never known) and reason of each that failed."""

    seen: bool
    failures: tuple[tuple[str, str], ...] = ()


def failed_items(view: View) -> dict[str, str]:
    failures: dict[str, str] = {}
    for item in view.items:
        if item.phase is Phase.FAILED:
            failures[item.image] = item.error or failures.get(item.image, "")
    return failures


def conclude(outcome: WatchOutcome, pod: str, sink: Sink) -> None:
    if not outcome.seen:
        whose = f' for "{pod}"' if pod else ""
        sink.note(f"no image is being pulled{whose}")
    if outcome.failures:
        image, reason = outcome.failures[0]
        more = f" (and {len(outcome.failures) - 1} more)" if len(outcome.failures) > 1 else ""
        name = f" of {quote_reference(image)}" if image else ""
        raise PullFailed(f"the pull{name} failed: {reason}{more}")
