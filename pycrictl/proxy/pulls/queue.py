"""The limit of parallel image pulls: which calls may start, and which wait. Pure.

Each PullImage call, identified by a ticket, eventually starts or is refused. Every event returns
decisions, in the order in which they were made; the shell around this object carries them out. An
event is handled in this order:

1. Retries due by ``now`` are made.
2. The event itself. For a new call, the first of these rules that applies decides:
   a. the image is present: the call starts at once and takes no slot;
   b. an equal pull waits or runs: the call waits for its end;
   c. a slot is free: the call takes it and starts;
   d. otherwise the policy: ``WAIT`` in line, or ``RETRY`` at fixed times and then be refused.
3. Free slots go to the line, first come first served.

Equal pulls share one slot. When the first has succeeded, the others start at once: for each, the
runtime queries the registry with that call's credentials and fetches any changes. When the first
has failed or its client has disconnected, the next one starts, and the others wait for it. The
calls of a waiting pull share its place in the line until none is left.

During a hold (``is_held``) no slot is given out, since earlier calls may still arrive from another
process. A pull that already runs there gets a slot even if none is free.

Every start must be followed by exactly one ``end``. With ``RETRY`` there is no line: a call tries
at its own times only, and one that arrives while a slot is free takes it.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING

from pycrictl.proxy.pulls.book import (
    Book,
    CallState,
    Decision,
    Policy,
    PullCall,
    PullKey,
    QueuedPull,
    Reason,
    Slot,
)
from pycrictl.units import format_duration, plural

if TYPE_CHECKING:
    from pycrictl.proxy.runtime_lookup import PodKey


class PullQueue:
    """The queue. Not thread-safe; ``now`` is in seconds and must never decrease.

    ``limit`` is the maximum number of images pulled at once, 0 for no limit; ``taken`` is the
    number of slots in use.
    """

    def __init__(
        self,
        limit: int,
        policy: Policy = Policy.WAIT,
        *,
        retry_interval_s: float = 10.0,
        retries: int = 3,
    ) -> None:
        self.book = Book()
        self.limit = limit
        self.policy = policy
        self.retry_interval_s = retry_interval_s
        self.retries = retries
        self.taken = 0
        self.is_held = False
        self._last_number = 0
        self._by_key: dict[PullKey, QueuedPull] = {}
        # Ordered by next try, as the pause is the same for all; some have left the line already.
        self._trying: deque[QueuedPull] = deque()

    def submit(
        self,
        ticket: int,
        key: PullKey,
        *,
        now: float,
        pod: PodKey | None = None,
        reference: str = "",
        is_present: bool = False,
        asked: float | None = None,
        started: float | None = None,
    ) -> list[Decision]:
        """Add a call that arrived at ``asked``; with ``started`` it runs and gets a slot."""
        reference = reference or key.image
        asked = now if asked is None else asked
        out = self._advance(now)
        equal = None if is_present or started is not None else self._by_key.get(key)
        pull = equal or self._new(key, takes_slot=not is_present, reference=reference, asked=asked)
        self.book.begin(ticket, pull, pod=pod, reference=reference, asked=asked, now=now)
        if equal is not None:
            return out
        if not is_present:
            self._by_key.setdefault(key, pull)
        if is_present or started is not None or self._has_free_slot():
            self._start(pull, now if started is None else started, out)
            return out
        self._wait(pull)
        if self.policy is Policy.RETRY and not self.is_held:
            self._retry_later(pull, now, out)
        return out

    def end(self, ticket: int, how: CallState, *, now: float, error: str = "") -> list[Decision]:
        """Handle the end of a call at the runtime, or the disconnect of its client (``LEFT``).

        Nothing happens if the call has been refused.
        """
        out = self._advance(now)
        if (call := self.book.calls.get(ticket)) is not None:
            led = call.pull.leader is call
            self.book.end(call, how, now=now, error=error)
            if led and call.pull.started is not None:
                self._ended(call.pull, how, now, out)
            else:
                self._lost(call.pull, led)
            self._serve(now, out)
        return out

    def give_up(self, ticket: int, reason: Reason, message: str, *, now: float) -> list[Decision]:
        """Refuse a waiting call, keeping the others of its pull; do nothing if it has started."""
        out = self._advance(now)
        call = self.book.calls.get(ticket)
        if call is not None and call.started is None:
            led = call.pull.leader is call
            out.append(self._refuse(call, reason, message, now))
            self._lost(call.pull, led)
        return out

    def set_limit(self, limit: int, *, now: float) -> list[Decision]:
        """Change the limit. Pulls above a lower one continue; a higher one applies at once."""
        self.limit = limit
        return self.tick(now)

    def release(self, *, now: float) -> list[Decision]:
        """End the hold (``is_held``) and give slots to the calls that arrived during it."""
        self.is_held = False
        out = self._advance(now)
        self._serve_line(now, out)
        if self.policy is Policy.RETRY:
            for pull in [pull for pull in self.book.line if pull.next_try is None]:
                self._retry_later(pull, now, out)
        return out

    def tick(self, now: float) -> list[Decision]:
        """Make the retries that are due and serve the line; to be called at ``next_wakeup``."""
        out = self._advance(now)
        self._serve(now, out)
        return out

    def next_wakeup(self) -> float | None:
        """Return when ``tick`` is to be called; None if not before another event."""
        while self._trying and not self._trying[0].is_waiting:
            self._trying.popleft()
        return self._trying[0].next_try if self._trying else None

    def _advance(self, now: float) -> list[Decision]:
        out: list[Decision] = []
        while (due := self.next_wakeup()) is not None and due <= now:
            pull = self._trying.popleft()
            pull.tries += 1
            if self._has_free_slot():
                self._leave_line(pull)
                self._start(pull, now, out)
            else:
                self._retry_later(pull, now, out)
        return out

    def _serve(self, now: float, out: list[Decision]) -> None:
        """Give free slots to the line; with ``RETRY``, pulls take them at their own times."""
        if self.policy is Policy.WAIT:
            self._serve_line(now, out)

    def _serve_line(self, now: float, out: list[Decision]) -> None:
        while self.book.line and self._has_free_slot():
            pull = self.book.line[0]
            self._leave_line(pull)
            self._start(pull, now, out)

    def _new(self, key: PullKey, *, takes_slot: bool, reference: str, asked: float) -> QueuedPull:
        self._last_number += 1
        return QueuedPull(self._last_number, key, takes_slot, reference, asked)

    def _start(
        self, pull: QueuedPull, now: float, out: list[Decision], slot: Slot | None = None
    ) -> None:
        """Start the leader of a pull, in the shared ``slot`` if given, or else in a free one."""
        leader = pull.leader
        assert leader is not None
        pull.is_waiting, pull.started = False, now
        leader.started = now
        if pull.takes_slot:
            self.taken += slot is None
            pull.slot = slot or Slot()
            pull.slot.users += 1
        self.book.running[pull.number] = pull
        out.append(Decision(leader.ticket))

    def _ended(self, pull: QueuedPull, how: CallState, now: float, out: list[Decision]) -> None:
        del self.book.running[pull.number]
        self._forget_key(pull)
        calls = list(pull.calls.values())
        if calls and how is not CallState.DONE:
            calls[0].is_joined = False
        is_each_alone = how is CallState.DONE and not self.is_held
        for group in [[call] for call in calls] if is_each_alone else [calls] if calls else []:
            reference, asked = group[0].reference, min(call.asked for call in group)
            new = self._new(pull.key, takes_slot=pull.takes_slot, reference=reference, asked=asked)
            for call in group:
                call.pull, new.calls[call.ticket] = new, call
            if not is_each_alone:
                self._by_key.setdefault(pull.key, new)
            if self.is_held:
                self._wait(new)
            else:
                self._start(new, now, out, pull.slot)
        if pull.slot is not None:
            pull.slot.users -= 1
            self.taken -= not pull.slot.users

    def _wait(self, pull: QueuedPull) -> None:
        insort(self.book.line, pull, key=lambda waiting: waiting.rank)

    def _retry_later(self, pull: QueuedPull, now: float, out: list[Decision]) -> None:
        if pull.tries < self.retries:
            pull.next_try = now + self.retry_interval_s
            self._trying.append(pull)
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

    def _refuse(self, call: PullCall, reason: Reason, message: str, now: float) -> Decision:
        call.is_refused = True
        self.book.end(call, CallState.FAILED, now=now, error=message)
        return Decision(call.ticket, reason, message)

    def _lost(self, pull: QueuedPull, led: bool) -> None:
        """Update a pull that a waiting call has left, which was its leader if ``led``."""
        leader = pull.leader
        if not pull.is_waiting:
            return
        if leader is None:
            self._forget_key(pull)
            self._leave_line(pull)
        elif led:
            leader.is_joined = False
            pull.reference = leader.reference

    def _leave_line(self, pull: QueuedPull) -> None:
        del self.book.line[self.book.place(pull) - 1]
        pull.is_waiting = False

    def _forget_key(self, pull: QueuedPull) -> None:
        if self._by_key.get(pull.key) is pull:
            del self._by_key[pull.key]

    def _has_free_slot(self) -> bool:
        return not self.is_held and (self.limit == 0 or self.taken < self.limit)
