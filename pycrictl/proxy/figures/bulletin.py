"""What Kubernetes Events say of the pulls of pods, and when. Pure.

A pod and an image have one Event. It is changed when the phase does, and at most every ``PACE_S``
otherwise. What is over before ``QUIET_S`` gets none: kubelet's own Events say that it was pulled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pycrictl.kube.events import MAX_MESSAGE, PACE_S, QUIET_S, News, event_name, is_valid
from pycrictl.proxy.pulls.book import ATTEMPT_GAP_S, Book, Call, State
from pycrictl.pulls.model import Totals, stall
from pycrictl.units import format_bytes, format_duration, format_part, ordinal

if TYPE_CHECKING:
    from pycrictl.proxy.lookup import PodKey

MAX_ENTRIES: Final = 1000


@dataclass(slots=True)
class _Entry:
    call: Call
    phase: str = ""
    told_phase: str = ""
    told_at: float = field(default=-math.inf)
    count: int = 0


class Bulletin:
    """The Events of all pods. ``now`` is in seconds and never goes back.

    Args:
        book: the pulls.
        totals: how far a pull is, by its number; None where that is not known.
    """

    def __init__(self, book: Book, totals: Callable[[int], Totals | None]) -> None:
        self._book = book
        self._totals = totals
        self._entries: dict[tuple[PodKey, str], _Entry] = {}

    def look(self, now: float) -> float | None:
        """Take in what has happened.

        Returns:
            When the next Event is due; None if nothing goes on.
        """
        for call in self._book.calls.values():
            if call.pod is None or not call.pull.takes_slot or not is_valid(call.pod):
                continue
            entry = self._entries.get((call.pod, call.image))
            if entry is not None:
                entry.call = call
            elif len(self._entries) < MAX_ENTRIES:
                self._entries[call.pod, call.image] = _Entry(call)
        for key, entry in list(self._entries.items()):
            entry.phase = self._phase(entry, now)
            if entry.phase in ("done", "failed") and not entry.count:
                del self._entries[key]
        return min((self._due(entry) for entry in self._entries.values()), default=None)

    def next(self, now: float) -> News | None:
        """Return the Event that has been due for longest, which counts as written then."""
        ready = [(self._due(entry), key) for key, entry in self._entries.items()]
        due = min(ready, default=(math.inf, None), key=lambda one: one[0])
        if due[1] is None or due[0] > now:
            return None
        entry = self._entries[due[1]]
        call = entry.call
        assert call.pod is not None
        entry.told_phase, entry.told_at = entry.phase, now
        entry.count += 1
        if entry.phase in ("done", "failed"):
            del self._entries[due[1]]
        return News(
            name=event_name(call.pod, call.image),
            pod=call.pod,
            message=self._message(entry, now)[:MAX_MESSAGE],
            is_warning=entry.phase == "failed",
            writing=entry.count,
            since_s=now - call.asked,
            is_new=entry.count == 1,
        )

    def _phase(self, entry: _Entry, now: float) -> str:
        call = entry.call
        if call.state is State.DONE:
            return "done"
        if call.state in (State.FAILED, State.LEFT):
            # Another attempt may follow at once.
            return "failed" if now - call.ended >= ATTEMPT_GAP_S else entry.phase
        if call.state is State.WAITING:
            return "waiting"
        far = self._totals(call.pull.number)
        return "unpacking" if far is not None and far.is_unpacking else "pulling"

    def _due(self, entry: _Entry) -> float:
        if not entry.count:
            return entry.call.asked + QUIET_S
        if entry.phase != entry.told_phase:
            return entry.told_at
        if entry.call.end is not None:
            return entry.call.ended + ATTEMPT_GAP_S
        return entry.told_at + PACE_S

    def _message(self, entry: _Entry, now: float) -> str:
        call = entry.call
        if entry.phase == "waiting":
            return f"Image {call.name} waits for a slot: {self._place(call)}"
        since = call.asked if call.pull.started is None else call.pull.started
        took = format_duration(round((now if call.end is None else call.ended) - since))
        if entry.phase == "done":
            return f"Image {call.name} was pulled in {took}"
        if entry.phase == "failed":
            error = call.error or "its caller gave it up"
            return f"Image {call.name} was not pulled: {error}"
        far = self._totals(call.pull.number)
        if far is None or far.percent is None:
            return f"Pulling image {call.name} for {took}"
        if far.is_unpacking:
            return (
                f"Pulling image {call.name}: {format_bytes(far.total)} are there and are unpacked"
            )
        part = format_part(far.progress, far.total, of=" of ")
        text = f"Pulling image {call.name}: {far.percent} % ({part})"
        if far.is_stalled:
            return f"{text}, {stall(far.idle_s)}"
        eta_s = far.eta_whole_s
        return text if eta_s is None else f"{text}, ETA {format_duration(eta_s)}"

    def _place(self, call: Call) -> str:
        if call.pull.next_try is not None:
            return "none is free, and it tries again soon"
        place = self._book.place(call.pull)
        if place < 2:
            return "next in line"
        ahead = self._book.line[place - 2]
        return f"{ordinal(place)} in line, behind {ahead.reference}"
