"""The limit of parallel image pulls: which calls may start, and which wait. Pure.

Each PullImage call, identified by a ticket, eventually starts or is refused, which sets its
``decided``. For a new call, the first of these rules that applies decides:

a. the image is present: the call starts at once and takes no slot;
b. an equal pull waits or runs: the call waits for its end;
c. a slot is free: the call takes it and starts;
d. otherwise the policy: ``WAIT`` in line, or ``RETRY`` at fixed times, until it is refused.

Free slots go to the line, first come first served. With ``RETRY`` there is no line: a call tries at
its own times only, and one that arrives while a slot is free takes it.

Equal calls share one slot. When the first has succeeded, the others start at once: for each, the
runtime queries the registry with that call's credentials and fetches any changes. When the first
has failed or its client has disconnected, the next one starts, and the others wait for it.

During a hold (``is_held``) no slot is given out, since earlier calls may still arrive from another
process. A pull that already runs there gets a slot even if none is free.

Every start must be followed by exactly one ``end``.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pycrictl.base.units import format_duration, plural
from pycrictl.proxy.events import Emit, PullEnded, PullQueued, PullStarted
from pycrictl.proxy.pulls.pull_calls import (
    Book,
    CallOutcome,
    CallState,
    Policy,
    PullCall,
    PullKey,
    QueuedPull,
)
from pycrictl.streams.wire.codes import RESOURCE_EXHAUSTED, name_of

if TYPE_CHECKING:
    from pycrictl.proxy.runtime_lookup import PodKey
    from pycrictl.pulls.state import PullState

_RECENT: Final = 50


@dataclass(eq=False)
class PullQueue:
    """The queue. Not thread-safe; ``now`` is in seconds and must never decrease."""

    limit: int  # The maximum number of images pulled at once, 0 for no limit
    policy: Policy = Policy.WAIT
    retry_interval_s: float = 10.0
    retries: int = 3
    emit: Emit = lambda event: None  # Gets the events of the calls
    on_retry: Callable[[QueuedPull], object] = lambda pull: None  # Calls retry at its next_try
    taken: int = field(init=False, default=0)  # The number of slots in use
    refused: int = field(init=False, default=0)  # How many calls got no slot in time
    is_held: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.book = Book()
        self._numbers = itertools.count(1)
        self._by_key: dict[PullKey, QueuedPull] = {}

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
    ) -> PullCall:
        """Add a call that arrived at ``asked``; with ``started`` another process has made it."""
        reference = reference or key.image
        asked = now if asked is None else asked
        equal = None if is_present or started is not None else self._by_key.get(key)
        pull = equal or QueuedPull(next(self._numbers), key, not is_present, reference, asked)
        call = PullCall(ticket, pull, pod, reference, reference, asked)
        call.is_elsewhere = started is not None
        self.book.begin(call, now)
        if equal is None and not is_present:
            self._by_key.setdefault(key, pull)
        if is_present or started is not None or (equal is None and self._has_free_slot()):
            self._start(pull, now if started is None else started)
            return call
        self.emit(PullQueued(call))
        if equal is None:
            insort(self.book.line, pull, key=lambda waiting: waiting.rank)
            if self.policy is Policy.RETRY and not self.is_held:
                self._retry_later(pull, now)
        return call

    def end(self, ticket: int, how: CallState, *, now: float, error: str = "") -> None:
        """Handle the end of a call at the runtime, or the disconnect of its client (``LEFT``).

        Nothing happens if the call has been refused.
        """
        if (call := self.book.calls.get(ticket)) is not None:
            self._over(call, how, now, error)
            self._serve(now)

    def move_away(self, *, now: float) -> None:
        """Leave all waiting calls to another process."""
        for call in self.in_line():
            call.is_elsewhere = True
            self.end(call.ticket, CallState.LEFT, now=now)
            call.decided.set()

    def in_line(self) -> list[PullCall]:
        """Return the calls that have not started, also those that wait for an equal one."""
        return [call for call in self.book.calls.values() if call.started is None]

    def set_limit(self, limit: int, *, now: float) -> None:
        """Change the limit. Pulls above a lower one continue; a higher one applies at once."""
        self.limit = limit
        self._serve(now)

    def release(self, *, now: float) -> None:
        """End the hold (``is_held``) and give slots to the calls that arrived during it."""
        self.is_held = False
        self._serve_line(now)
        if self.policy is Policy.RETRY:
            for pull in [pull for pull in self.book.line if pull.next_try is None]:
                self._retry_later(pull, now)

    def retry(self, pull: QueuedPull, *, now: float) -> None:
        """Start a pull whose retry is due (``on_retry``), or try again later if no slot is free."""
        if not pull.is_waiting:
            return
        pull.tries += 1
        if self._has_free_slot():
            self._leave_line(pull)
            self._start(pull, now)
        else:
            self._retry_later(pull, now)

    def _serve(self, now: float) -> None:
        """Give free slots to the line; with ``RETRY``, pulls take them at their own times."""
        if self.policy is Policy.WAIT:
            self._serve_line(now)

    def _serve_line(self, now: float) -> None:
        while self.book.line and self._has_free_slot():
            pull = self.book.line[0]
            self._leave_line(pull)
            self._start(pull, now)

    def _start(self, pull: QueuedPull, now: float) -> None:
        pull.started = now
        self.taken += pull.takes_slot
        self.book.running[pull.number] = pull
        self._start_next(pull, now)

    def _start_next(self, pull: QueuedPull, now: float, *, all_left: bool = False) -> None:
        """Start the next call of a pull that has a slot, or all that are left."""
        for call in [call for call in pull.calls.values() if call.started is None]:
            call.started = now
            call.decided.set()
            self.emit(PullStarted(call))
            if not all_left:
                break

    def _over(self, call: PullCall, how: CallState, now: float, error: str) -> None:
        pull, led = call.pull, call.pull.leader is call
        self.book.end(call, how, now=now, error=error)
        self.emit(PullEnded(call))
        if not pull.calls:
            self._forget_key(pull)
            if pull.started is None:
                self._leave_line(pull)
            else:
                del self.book.running[pull.number]
                self.taken -= pull.takes_slot
        elif led and pull.leader.started is None:
            if how is CallState.DONE:
                self._forget_key(pull)
            else:
                pull.leader.is_joined = False
                pull.reference = pull.leader.reference
            if pull.started is not None:
                self._start_next(pull, now, all_left=how is CallState.DONE)

    def _retry_later(self, pull: QueuedPull, now: float) -> None:
        if pull.tries < self.retries:
            pull.next_try = now + self.retry_interval_s
            self.on_retry(pull)
            return
        message = (
            f"TooManyPullingInParallelErr: {plural(self.taken, 'image is', 'images are')} being "
            f"pulled, the limit is {self.limit}; {plural(self.retries, 'retry', 'retries')} every "
            f"{format_duration(self.retry_interval_s)} found no free slot"
        )
        for call in list(pull.calls.values()):
            self.refused += 1
            self.refuse(call, RESOURCE_EXHAUSTED, message, now=now)

    def refuse(self, call: PullCall, code: int, message: str, *, now: float) -> None:
        """Refuse a waiting call; the other calls of its pull keep their place."""
        call.refusal, call.code = code, name_of(code)
        self._over(call, CallState.FAILED, now, message)
        call.decided.set()

    def _leave_line(self, pull: QueuedPull) -> None:
        del self.book.line[self.book.place(pull) - 1]

    def _forget_key(self, pull: QueuedPull) -> None:
        if self._by_key.get(pull.key) is pull:
            del self._by_key[pull.key]

    def _has_free_slot(self) -> bool:
        return not self.is_held and (self.limit == 0 or self.taken < self.limit)


def expected_starts(
    queue: PullQueue, seen: Callable[[str], PullState], now: float
) -> list[float | None]:
    """Return in how many seconds each pull in line is expected to start; None if unknown.

    Each running pull is expected to take as long as its rate says, each waiting one as long as the
    median of recent pulls.
    """
    book = queue.book
    if not queue.limit:
        return [0.0] * len(book.line)
    took_s = sorted(
        call.pulled_s
        for call in list(book.ended)[-_RECENT:]
        if call.outcome is CallOutcome.PULLED and not call.is_joined
    )
    typical_s = took_s[len(took_s) // 2] if took_s else math.inf
    left_s = [seen(pull.reference).sums.eta_s for pull in book.running.values() if pull.takes_slot]
    ends = sorted(math.inf if left is None else left for left in left_s)
    # With more pulls than slots, as after the limit was lowered, the first to end free no slot.
    free = max(queue.limit - len(ends), 0)
    ends = [0.0] * min(free, len(book.line)) + ends[max(len(ends) - queue.limit, 0) :]
    times = []
    for pull in book.line:
        at = heapq.heapreplace(ends, ends[0] + typical_s)
        if pull.next_try is not None:
            at = max(at, pull.next_try - now)
        times.append(None if math.isinf(at) else at)
    return times
