"""How a watch of pulls goes on, and ends.

containerd's leases show when a pull ends. A stream (KEP-5334) does not: all layers reported so far
may be complete with more to come, and a server repeats earlier reports, after a reconnect or as a
sign of life. So in a stream, an image has ended when all of it is complete or failed and nothing
has changed for a while; later repetitions are dropped.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from pycrictl.base.errors import Interrupted, PullFailed
from pycrictl.pulls.state import PullState, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.runtime.cri.calls.redact import quote_reference

SETTLE_S: Final = 1.5
"""A watch ends once no pull has run for this long: kubelet tries its credentials one after another,
each in a pull of its own."""


class PollResult(NamedTuple):
    """Running pulls, oldest first, and those that have ended since the last poll.

    A running pull's ``image`` is empty until it is known, and then never changes. An ended pull
    without an ``error`` has succeeded; one without an image ended before its image was known: it
    has failed or was not necessary. ``failed`` are failed pulls that no poll saw running, ``gone``
    the images whose failures are outdated; ``is_settling``: the cause of a failure is being sought.
    """

    active: tuple[PullState, ...]
    ended: tuple[PullState, ...]
    failed: tuple[PullState, ...] = ()
    gone: tuple[str, ...] = ()
    is_settling: bool = False

    def apply_to(self, tracker: Tracker, now: float) -> None:
        """Pass the pulls to a tracker, which keeps those whose layers are known."""
        for name in self.gone:
            tracker.forget(name)
        for pull in (*self.failed, *self.ended, *self.active):
            tracker.apply(pull, now=now)


class Sink(Protocol):
    def show(self, view: View) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self, images: Collection[str]) -> None:
        """Show the pulls of these images as ended, and leave them out of later views."""


@dataclass
class Endings:
    tracker: Tracker
    sink: Sink
    remembered: int = 1024  # how many ended images; a server may name any number
    _over: dict[str, PullState] = field(default_factory=dict)
    _finished_at: dict[str, float] = field(default_factory=dict)

    @property
    def known(self) -> Mapping[str, PullState]:
        """The pulls as a stream has reported them, including those that were shown to their end."""
        return ChainMap(self._over, self.tracker.pulls)

    def track(self, pull: PullState, now: float) -> None:
        """Track the state of a pull from a stream, unless it repeats what has ended."""
        if pull.name in self._over and pull.is_over:
            self._over[pull.name] = pull
            return
        self._over.pop(pull.name, None)
        self.tracker.apply(pull, now=now)

    def end(self, images: Iterable[str], now: float) -> None:
        """End the pulls of these images as last shown, and stop tracking them."""
        if ended := tuple(images):
            self.sink.end(ended)
            for image in ended:
                self.tracker.forget(image)
            self.tracker.measure_anew()
            self.sink.show(self.tracker.view(now, time.time()))

    def show(self, now: float, *, is_final: bool = False) -> View:
        """Show a stream's current state, and end the images that have settled.

        Args:
            is_final: the stream has ended: finished images end at once, unfinished ones are
                dropped silently, as the next stream may report them.
        """
        view = self.tracker.view(now, time.time())
        self.sink.show(view)
        moved = {pull.name for pull, _ in view.changed}
        self._finished_at = {
            name: now if name in moved else self._finished_at.get(name, now)
            for name, pull in view.pulls.items()
            if pull.is_over
        }
        ended = [name for name, at in self._finished_at.items() if is_final or now - at >= SETTLE_S]
        self._over |= {name: PullState(image=view.pulls[name].image) for name in ended}
        while len(self._over) > self.remembered:
            del self._over[next(iter(self._over))]
        for name in view.pulls.keys() - ended if is_final else ():
            self.tracker.forget(name)
        self.end(ended, now)
        return view


@dataclass(frozen=True, slots=True)
class Pace:
    """How a watch goes on.

    Attributes:
        interval_s: the pause between two polls or views.
        follow: keep watching when no pull is left.
        reopen_pauses_s: the pauses before the attempts to reopen a broken source, one for each.
        resume_s: how long pulls may take to resume after their source broke. When a proxy ends, the
            kubelet retries its pulls, at first after 10 s.
    """

    interval_s: float
    follow: bool = False
    reopen_pauses_s: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 5.0, 5.0)
    resume_s: float = 60.0


Outcome = Mapping[str, str] | None
"""How a watch ended: the errors of the failed pulls by image; None if no pull was seen."""


def failures_in(view: View) -> dict[str, str]:
    return {name: pull.error for name, pull in view.pulls.items() if pull.has_failed}


def stopped() -> Interrupted:
    """Return the error for Ctrl-C during a watch."""
    return Interrupted("stopped watching; the pulls go on")


def conclude(outcome: Outcome, pod: str, sink: Sink) -> None:
    """Say if nothing was seen; raise ``PullFailed`` with the reason of the first failure."""
    if outcome is None:
        whose = f' for "{pod}"' if pod else ""
        return sink.note(f"no image is being pulled{whose}")
    for image, reason in outcome.items():
        more = f" (and {len(outcome) - 1} more)" if len(outcome) > 1 else ""
        name = f" of {quote_reference(image)}" if image else ""
        raise PullFailed(f"the pull{name} failed: {reason}{more}")
    return None
