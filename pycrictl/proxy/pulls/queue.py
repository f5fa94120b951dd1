"""The limit of parallel image pulls: who may pull now, who waits, who shares. Pure.

Callers (one PullImage call each, named by a ticket) ask; pulls (one upstream call each, named by a
number) do the work. Every event returns decisions, in the order in which they were taken; the shell
around this object carries them out. An event is handled in this order:

1. Whatever fell due by ``now``: callers whose deadline passed end, retries are made.
2. The event itself. For a new caller the first of these that applies decides:
   a. the image is present: its pull starts at once and takes no slot, nobody joins it;
   b. a pull with an equal key waits or runs: the caller joins it and shares its outcome;
   c. a slot is free: its pull takes it and starts;
   d. otherwise the policy: ``WAIT`` in line, or ``RETRY`` at fixed times and then be refused.
3. Slots that are free go to the line, first come first served.

A pull belongs to all its callers; the first of them leads it. When the leader goes, the next one
leads, in the same place of the line or with the same upstream call. When the last one goes, a
waiting pull is forgotten; a running one is abandoned: the shell cancels the upstream call, and
``finish`` frees the slot as for every pull that started. So a slot is held for exactly as long as
the runtime works, and nobody joins a pull that is being cancelled.

When one program follows another, calls that came to the first keep their places by the time of
their arrival, pulls that run there have their slots, and no slot is given (``is_held``) before both
are known.

Every ticket ends in exactly one ``Finished``, ``Refused`` or ``Left``. Every ``PullStarted`` must
be answered by one ``finish``. With ``RETRY`` there is no line: a caller looks at its own times
only, and one who comes when a slot is free takes it.
"""

from __future__ import annotations

import heapq
from bisect import insort
from typing import TYPE_CHECKING, Final, Generic

from pycrictl.proxy.pulls.book import Book, Call, Pull, PullKey, State
from pycrictl.proxy.pulls.decisions import (
    Decision,
    Finished,
    Joined,
    LeaderChanged,
    Left,
    OutcomeT,
    Policy,
    PullAbandoned,
    PullQueued,
    PullStarted,
    Reason,
    Refused,
)
from pycrictl.units import format_duration, plural

if TYPE_CHECKING:
    from pycrictl.proxy.lookup import PodKey

_MIN_STALE: Final = 64
_TOO_LATE: Final = "the deadline passed before the image was pulled"


class PullQueue(Generic[OutcomeT]):
    """The queue. One thread uses it; ``now`` is in seconds and never goes back.

    Args:
        limit: the most images pulled at once; 0 for no limit.
        policy: for callers that find no free slot.
        retry_interval_s: with ``RETRY``, the pause before each retry.
        retries: with ``RETRY``, how many there are before the refusal.

    Attributes:
        book: all calls and pulls; only the queue writes there.
        taken: how many slots are in use.
        is_held: no slot is given, because calls may be on their way that came before all others.
    """

    def __init__(
        self,
        limit: int,
        policy: Policy = Policy.WAIT,
        *,
        retry_interval_s: float = 10.0,
        retries: int = 3,
    ) -> None:
        if retry_interval_s <= 0 or retries < 0:
            raise ValueError("the retry interval must be positive, the retries not negative")
        self.book = Book()
        self.limit = _checked(limit)
        self.policy = policy
        self.retry_interval_s = retry_interval_s
        self.retries = retries
        self.taken = 0
        self.is_held = False
        self._last_number = 0
        self._by_key: dict[PullKey, Pull] = {}
        self._deadlines: list[tuple[float, int]] = []  # heap of (when, ticket), also of gone ones
        self._retry_times: list[tuple[float, int, Pull]] = []  # heap, also of pulls that left

    def submit(
        self,
        ticket: int,
        key: PullKey,
        *,
        now: float,
        pod: PodKey | None = None,
        reference: str = "",
        deadline: float | None = None,
        is_present: bool = False,
        asked: float | None = None,
        started: float | None = None,
    ) -> list[Decision[OutcomeT]]:
        """Take a call.

        Args:
            ticket: names it; never used twice.
            key: what it asks for.
            now: see the class.
            pod: the pod it is for.
            reference: the image as its request spells it; the key's image by default.
            deadline: when the caller stops waiting, None for never. It also ends a running pull.
            is_present: the runtime has the image already.
            asked: when it came, if that was to another program before; ``now`` by default.
            started: when its pull began, if it runs already: it has its slot, free or not.
        """
        if ticket in self.book.calls:
            raise ValueError(f"ticket {ticket} is in use")
        reference = reference or key.image
        asked = now if asked is None else asked
        out = self._advance(now)
        if deadline is not None:
            if deadline <= now:
                pull = Pull(0, key, takes_slot=False, reference=reference, asked=asked)
                call = self.book.begin(
                    ticket, pull, pod=pod, reference=reference, asked=asked, now=now
                )
                return [*out, self._refuse(call, Reason.DEADLINE, _TOO_LATE, now)]
            self._add_deadline(deadline, ticket)
        joined = None if is_present else self._by_key.get(key)
        if joined is not None:
            out.append(Joined(joined.number, ticket, next(iter(joined.calls))))
            self.book.begin(ticket, joined, pod=pod, reference=reference, asked=asked, now=now)
            return out
        self._last_number += 1
        pull = Pull(
            self._last_number, key, takes_slot=not is_present, reference=reference, asked=asked
        )
        self.book.begin(ticket, pull, pod=pod, reference=reference, asked=asked, now=now)
        if not is_present:
            self._by_key[key] = pull
        if is_present or started is not None or self._has_free_slot():
            self._start(pull, now if started is None else started, out)
            return out
        insort(self.book.line, pull, key=lambda waiting: waiting.rank)
        out.append(PullQueued(pull.number, ticket, self.book.place(pull)))
        if self.policy is Policy.RETRY and not self.is_held:
            self._retry_later(pull, now, out)
        return out

    def finish(
        self, pull: int, outcome: OutcomeT, *, now: float, error: str = ""
    ) -> list[Decision[OutcomeT]]:
        """Take the end of a started pull's upstream call, whatever it is.

        Args:
            pull: its number.
            outcome: what every caller of it is answered.
            now: see the class.
            error: why it failed; empty if it did not.

        Raises:
            ValueError: no such pull is running.
        """
        if pull not in self.book.running:
            raise ValueError(f"pull {pull} is not running")
        ended = self.book.running.pop(pull)
        out = self._advance(now)
        self.taken -= ended.takes_slot
        self._forget_key(ended)
        for call in list(ended.calls.values()):
            self.book.end(call, State.FAILED if error else State.DONE, now=now, error=error)
            out.append(Finished(pull, call.ticket, outcome))
        self._serve(now, out)
        return out

    def cancel(self, ticket: int, *, now: float) -> list[Decision[OutcomeT]]:
        """Take the hanging-up of a caller. Nothing happens if it has been answered already."""
        out = self._advance(now)
        if (call := self.book.calls.get(ticket)) is not None:
            led = call.pull.leader is call
            self.book.end(call, State.LEFT, now=now)
            out.append(Left(ticket))
            self._pass_on(call.pull, led, out)
        return out

    def withdraw(self, ticket: int, message: str, *, now: float) -> list[Decision[OutcomeT]]:
        """Refuse a caller that waits for a slot. Nothing happens if it does not wait any more."""
        out = self._advance(now)
        call = self.book.calls.get(ticket)
        if call is not None and call.pull.is_waiting:
            led = call.pull.leader is call
            out.append(self._refuse(call, Reason.WITHDRAWN, message, now))
            self._pass_on(call.pull, led, out)
        return out

    def set_limit(self, limit: int, *, now: float) -> list[Decision[OutcomeT]]:
        """Change the limit. Pulls above a lower one go on; the line uses a higher one at once.

        Raises:
            ValueError: the limit is negative.
        """
        self.limit = _checked(limit)
        return self.tick(now)

    def release(self, *, now: float) -> list[Decision[OutcomeT]]:
        """Give slots again after ``is_held``, to all that have come meanwhile."""
        self.is_held = False
        out = self._advance(now)
        self._serve_line(now, out)
        if self.policy is Policy.RETRY:
            for pull in [pull for pull in self.book.line if pull.next_try is None]:
                self._retry_later(pull, now, out)
        return out

    def tick(self, now: float) -> list[Decision[OutcomeT]]:
        """Do what has fallen due: to be called when ``next_wakeup`` says so."""
        out = self._advance(now)
        self._serve(now, out)
        return out

    def next_wakeup(self) -> float | None:
        """Return when ``tick`` has something to do, None for not before another event."""
        while self._deadlines and self._deadlines[0][1] not in self.book.calls:
            heapq.heappop(self._deadlines)
        while self._retry_times and not self._retry_times[0][2].is_waiting:
            heapq.heappop(self._retry_times)
        heads = [heap[0][0] for heap in (self._deadlines, self._retry_times) if heap]
        return min(heads, default=None)

    def _advance(self, now: float) -> list[Decision[OutcomeT]]:
        """End callers whose deadline has passed, then make the retries that are due."""
        out: list[Decision[OutcomeT]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            ticket = heapq.heappop(self._deadlines)[1]
            if call := self.book.calls.get(ticket):
                led = call.pull.leader is call
                out.append(self._refuse(call, Reason.DEADLINE, _TOO_LATE, now))
                self._pass_on(call.pull, led, out)
        while self._retry_times and self._retry_times[0][0] <= now:
            pull = heapq.heappop(self._retry_times)[2]
            if not pull.is_waiting:
                continue
            pull.tries += 1
            if self._has_free_slot():
                self._leave_line(pull)
                self._start(pull, now, out)
            else:
                self._retry_later(pull, now, out)
        return out

    def _serve(self, now: float, out: list[Decision[OutcomeT]]) -> None:
        """Give free slots to the line; those who retry look for themselves."""
        if self.policy is Policy.WAIT:
            self._serve_line(now, out)

    def _serve_line(self, now: float, out: list[Decision[OutcomeT]]) -> None:
        while self.book.line and self._has_free_slot():
            pull = self.book.line[0]
            self._leave_line(pull)
            self._start(pull, now, out)

    def _start(self, pull: Pull, now: float, out: list[Decision[OutcomeT]]) -> None:
        pull.is_waiting, pull.started = False, now
        self.taken += pull.takes_slot
        self.book.running[pull.number] = pull
        out.append(PullStarted(pull.number, next(iter(pull.calls))))

    def _retry_later(self, pull: Pull, now: float, out: list[Decision[OutcomeT]]) -> None:
        """Set the time of the next retry; refuse all callers if there is none."""
        if pull.tries < self.retries:
            pull.next_try = now + self.retry_interval_s
            heapq.heappush(self._retry_times, (pull.next_try, pull.number, pull))
            return
        self._leave_line(pull)
        self._forget_key(pull)
        message = (
            f"TooManyPullingInParallelErr: {plural(self.taken, 'image is', 'images are')} being "
            f"pulled, the limit is {self.limit}; {plural(self.retries, 'retry', 'retries')} every "
            f"{format_duration(self.retry_interval_s)} found no free slot"
        )
        for call in list(pull.calls.values()):
            out.append(self._refuse(call, Reason.FULL, message, now))

    def _refuse(self, call: Call, reason: Reason, message: str, now: float) -> Refused:
        call.is_refused = True
        self.book.end(call, State.FAILED, now=now, error=message)
        return Refused(call.ticket, reason, message)

    def _pass_on(self, pull: Pull, led: bool, out: list[Decision[OutcomeT]]) -> None:
        """Go on with a pull that lost a caller, its leader if ``led``, before it has an outcome."""
        if (leader := pull.leader) is not None:
            if led:
                leader.is_joined = False
                out.append(LeaderChanged(pull.number, leader.ticket))
                if pull.is_waiting:
                    pull.reference = leader.reference
            return
        self._forget_key(pull)
        if pull.is_waiting:
            self._leave_line(pull)
        elif pull.number in self.book.running:  # else it has just ended
            out.append(PullAbandoned(pull.number))

    def _leave_line(self, pull: Pull) -> None:
        del self.book.line[self.book.place(pull) - 1]
        pull.is_waiting = False

    def _add_deadline(self, deadline: float, ticket: int) -> None:
        heap = self._deadlines
        if len(heap) > 2 * len(self.book.calls) + _MIN_STALE:
            # Far deadlines of callers long gone would pile up.
            heap[:] = [entry for entry in heap if entry[1] in self.book.calls]
            heapq.heapify(heap)
        heapq.heappush(heap, (deadline, ticket))

    def _forget_key(self, pull: Pull) -> None:
        """Let nobody join the pull; another one may have taken over its key already."""
        if self._by_key.get(pull.key) is pull:
            del self._by_key[pull.key]

    def _has_free_slot(self) -> bool:
        return not self.is_held and (self.limit == 0 or self.taken < self.limit)


def _checked(limit: int) -> int:
    if limit < 0:
        raise ValueError(f"the limit of parallel pulls must not be negative, not {limit}")
    return limit
