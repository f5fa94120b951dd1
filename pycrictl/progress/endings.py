"""Ends pulls in an endless watch, showing each end once.

containerd's leases show when a pull ends. A stream (KEP-5334) does not: all layers reported so far
may be complete with more to come, and after a reconnect a server may repeat earlier reports. So in
a stream, an image has ended when all of it is complete or failed and nothing has changed for a
while; later repetitions are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from pycrictl.cri.calls.redact import quote_reference
from pycrictl.errors import PullFailed
from pycrictl.pulls.state import PullState, View
from pycrictl.pulls.tracker import Tracker

SETTLE_S: Final = 1.5
"""How long no pull may run before the watch is over: kubelet tries its credentials one after
another, each in a pull of its own."""

_REMEMBERED: Final = 1024
"""How many ended images are remembered; limited, as their names come from outside."""


class PullEnding(StrEnum):
    """How a pull ended; ``UNKNOWN`` if it ended before its image was known.

    In that case the registry refused the image, or the node already has the newest.
    """

    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


class EndedPull(NamedTuple):
    """A pull that has ended; ``image`` is empty if it never had a name."""

    image: str
    ending: PullEnding
    reason: str


class PollResult(NamedTuple):
    """Running pulls, oldest first, and ended ones; ``is_settling``: a cause is being sought.

    A running pull's ``image`` is empty until it is known, and then never changes.
    """

    active: tuple[PullState, ...]
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
        """End the pulls of these images as last shown, and stop tracking them."""
        if ended := tuple(images):
            self.sink.end(ended)
            for image in ended:
                self.tracker.forget(image)
                self._finished_at.pop(image, None)
            self.tracker.measure_anew()
            self.sink.show(self.tracker.view(now, time.time()))

    def show(self, now: float, *, is_final: bool = False) -> View:
        """Show a stream's current state, and end the images that have settled.

        Args:
            is_final: the stream has ended: finished images end at once, unfinished ones are
                dropped silently, as the next stream may report them.
        """
        view = self.tracker.view(now, time.time())
        unfinished = {name for name, pull in view.pulls.items() if not pull.is_over}
        finished = [name for name in view.pulls if name not in unfinished]
        for name in unfinished:
            self._shown.pop(name, None)
        if repeated := self._shown.keys() & set(finished):
            view = self._without(repeated, view)
        fresh = [name for name in finished if name not in repeated]
        moved = {pull.name for pull, _ in view.changed}
        self._finished_at = {
            name: now if name in moved else self._finished_at.get(name, now) for name in fresh
        }
        self.sink.show(view)
        ended = [name for name in fresh if is_final or now - self._finished_at[name] >= SETTLE_S]
        self._shown.update(dict.fromkeys(ended))
        while len(self._shown) > _REMEMBERED:
            del self._shown[next(iter(self._shown))]
        if is_final:
            for name in unfinished:
                self.tracker.forget(name)
        self.end(ended, now)
        return view

    def _without(self, images: Iterable[str], view: View) -> View:
        for image in images:
            self.tracker.forget(image)
        changed = tuple(change for change in view.changed if change[0].name not in images)
        # The view that is replaced has consumed the changes, so the new one has none.
        return replace(self.tracker.view(view.now, view.wall_s), changed=changed)


REOPEN_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 5.0, 5.0)
"""Pauses before each attempt to reopen a broken source; one attempt per pause."""


@dataclass(frozen=True, slots=True)
class Pace:
    interval_s: float
    follow: bool = False


@dataclass(frozen=True, slots=True)
class WatchOutcome:
    """Whether any pull was seen; image (empty if never known) and reason of each failed one."""

    seen: bool
    failures: tuple[tuple[str, str], ...] = ()


def failures_in(view: View) -> dict[str, str]:
    return {name: pull.error for name, pull in view.pulls.items() if pull.has_failed}


def conclude(outcome: WatchOutcome, pod: str, sink: Sink) -> None:
    if not outcome.seen:
        whose = f' for "{pod}"' if pod else ""
        sink.note(f"no image is being pulled{whose}")
    if outcome.failures:
        image, reason = outcome.failures[0]
        more = f" (and {len(outcome.failures) - 1} more)" if len(outcome.failures) > 1 else ""
        name = f" of {quote_reference(image)}" if image else ""
        raise PullFailed(f"the pull{name} failed: {reason}{more}")
