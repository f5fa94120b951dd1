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

Every ticket ends in exactly one ``Finished``, ``Refused`` or ``Left``. Every ``PullStarted`` must
be answered by one ``finish``. With ``RETRY`` there is no line: a caller looks at its own times
only, and one who comes when a slot is free takes it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Generic

from pycrictl.proxy.pulls.decisions import (
    Decision,
    Finished,
    Joined,
    JoinedCaller,
    LeaderChanged,
    Left,
    OutcomeT,
    Policy,
    PullAbandoned,
    PullKey,
    PullQueued,
    PullStarted,
    Reason,
    Refused,
    RunningPull,
    Snapshot,
    WaitingPull,
)
from pycrictl.proxy.pulls.failures import FailureLog
from pycrictl.units import format_duration

_MIN_STALE: Final = 64


class _State(Enum):
    WAITING = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class _Pull:
    number: int
    key: PullKey
    takes_slot: bool
    # Not a dict: its first entry is slow to find once many before it were deleted.
    callers: OrderedDict[int, _Caller] = field(default_factory=OrderedDict)
    state: _State = _State.WAITING
    started: float = 0.0
    tries: int = 0
    next_try: float | None = None

    @property
    def leader(self) -> int:
        return next(iter(self.callers))


@dataclass(slots=True, eq=False)
class _Caller:
    pull: _Pull
    pod: str
    asked: float
    attempt: int


class PullQueue(Generic[OutcomeT]):
    """The queue. One thread uses it; ``now`` is in seconds and never goes back.

    Args:
        limit: the most images pulled at once; 0 for no limit.
        policy: for callers that find no free slot.
        retry_interval_s: with ``RETRY``, the pause before each retry.
        retries: with ``RETRY``, how many there are before the refusal.
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
        self._limit = _checked(limit)
        self._policy = policy
        self._retry_interval_s = retry_interval_s
        self._retries = retries
        self._last_number = 0
        self._taken = 0
        self._callers: dict[int, _Caller] = {}
        self._by_key: dict[PullKey, _Pull] = {}
        self._running: dict[int, _Pull] = {}
        self._line: list[_Pull] = []  # in order of arrival, which is that of the numbers
        self._deadlines: list[tuple[float, int]] = []  # heap of (when, ticket), also of gone ones
        self._retry_times: list[tuple[float, int, _Pull]] = []  # heap, also of pulls that left
        self._failures = FailureLog()

    def submit(
        self,
        ticket: int,
        key: PullKey,
        *,
        now: float,
        pod: str = "",
        deadline: float | None = None,
        is_present: bool = False,
    ) -> list[Decision[OutcomeT]]:
        """A caller asks for an image.

        Args:
            ticket: names the caller; never used twice.
            key: what it asks for.
            pod: the pod it asks for, for the snapshot; empty for none.
            deadline: when it stops waiting, None for never. It also ends a pull that runs.
            is_present: the runtime has the image already.
        """
        if ticket in self._callers:
            raise ValueError(f"ticket {ticket} is in use")
        out = self._advance(now)
        if deadline is not None:
            if deadline <= now:
                return [*out, _too_late(ticket)]
            self._add_deadline(deadline, ticket)
        pull = None if is_present else self._by_key.get(key)
        if pull is not None:
            out.append(Joined(pull.number, ticket, pull.leader))
            self._add_caller(pull, ticket, pod, now)
            return out
        self._last_number += 1
        pull = _Pull(self._last_number, key, takes_slot=not is_present)
        self._add_caller(pull, ticket, pod, now)
        if is_present:
            self._start(pull, now, out)
            return out
        self._by_key[key] = pull
        if self._has_free_slot():
            self._start(pull, now, out)
            return out
        self._line.append(pull)
        out.append(PullQueued(pull.number, ticket, len(self._line)))
        if self._policy is Policy.RETRY:
            self._retry_later(pull, now, out)
        return out

    def finish(
        self, pull: int, outcome: OutcomeT, *, now: float, error: str = ""
    ) -> list[Decision[OutcomeT]]:
        """The upstream call of a started pull has ended, in whatever way.

        Args:
            pull: its number.
            outcome: what every caller of it is answered.
            error: why it failed, for the snapshot; empty if it did not.

        Raises:
            ValueError: no such pull runs.
        """
        if pull not in self._running:
            raise ValueError(f"pull {pull} is not running")
        out = self._advance(now)
        ended = self._running.pop(pull)
        ended.state = _State.ENDED
        self._taken -= ended.takes_slot
        self._forget_key(ended)
        for ticket, caller in ended.callers.items():
            del self._callers[ticket]
            out.append(Finished(pull, ticket, outcome))
            if error:
                self._record_failure(ended.key.image, caller, error, now)
        self._serve(now, out)
        return out

    def cancel(self, ticket: int, *, now: float) -> list[Decision[OutcomeT]]:
        """A caller has hung up. Nothing happens if it has been answered already."""
        out = self._advance(now)
        if ticket in self._callers:
            self._drop(ticket, Left(ticket), out)
        return out

    def set_limit(self, limit: int, *, now: float) -> list[Decision[OutcomeT]]:
        """Changes the limit. Pulls above a lower one go on; the line uses a higher one at once.

        Raises:
            ValueError: the limit is negative.
        """
        self._limit = _checked(limit)
        return self.tick(now)

    def tick(self, now: float) -> list[Decision[OutcomeT]]:
        """Time has passed: to be called when ``next_wakeup`` says so."""
        out = self._advance(now)
        self._serve(now, out)
        return out

    def next_wakeup(self) -> float | None:
        """When ``tick`` has something to do, None for not before another event."""
        while self._deadlines and self._deadlines[0][1] not in self._callers:
            heapq.heappop(self._deadlines)
        while self._retry_times and self._retry_times[0][2].state is not _State.WAITING:
            heapq.heappop(self._retry_times)
        heads = [heap[0][0] for heap in (self._deadlines, self._retry_times) if heap]
        return min(heads, default=None)

    def place(self, ticket: int) -> int:
        """Where the caller's pull stands in the line, from 1; 0 if it does not wait."""
        caller = self._callers.get(ticket)
        if caller is None or caller.pull.state is not _State.WAITING:
            return 0
        return self._index(caller.pull) + 1

    def snapshot(self) -> Snapshot:
        """A picture for people. Its cost grows with the number of callers."""
        return Snapshot(
            limit=self._limit,
            policy=self._policy,
            taken=self._taken,
            running=tuple(_running_row(pull) for pull in self._running.values()),
            waiting=tuple(self._waiting_row(index) for index in range(len(self._line))),
            joined=tuple(
                _joined_row(ticket, caller)
                for ticket, caller in self._callers.items()
                if ticket != caller.pull.leader
            ),
            failures=self._failures.entries(),
        )

    def _advance(self, now: float) -> list[Decision[OutcomeT]]:
        """Ends callers whose deadline has passed, then makes the retries that are due."""
        out: list[Decision[OutcomeT]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            ticket = heapq.heappop(self._deadlines)[1]
            if caller := self._callers.get(ticket):
                end = _too_late(ticket)
                self._record_failure(caller.pull.key.image, caller, end.message, now)
                self._drop(ticket, end, out)
        while self._retry_times and self._retry_times[0][0] <= now:
            pull = heapq.heappop(self._retry_times)[2]
            if pull.state is not _State.WAITING:
                continue
            pull.tries += 1
            if self._has_free_slot():
                del self._line[self._index(pull)]
                self._start(pull, now, out)
            else:
                self._retry_later(pull, now, out)
        return out

    def _serve(self, now: float, out: list[Decision[OutcomeT]]) -> None:
        """Gives free slots to the line; those who retry look for themselves."""
        if self._policy is Policy.WAIT:
            while self._line and self._has_free_slot():
                self._start(self._line.pop(0), now, out)

    def _start(self, pull: _Pull, now: float, out: list[Decision[OutcomeT]]) -> None:
        pull.state = _State.RUNNING
        pull.started = now
        self._taken += pull.takes_slot
        self._running[pull.number] = pull
        out.append(PullStarted(pull.number, pull.leader))

    def _retry_later(self, pull: _Pull, now: float, out: list[Decision[OutcomeT]]) -> None:
        """Sets the time of the next retry; refuses all callers if there is none."""
        if pull.tries < self._retries:
            pull.next_try = now + self._retry_interval_s
            heapq.heappush(self._retry_times, (pull.next_try, pull.number, pull))
            return
        del self._line[self._index(pull)]
        pull.state = _State.ENDED
        self._forget_key(pull)
        message = (
            f"TooManyPullingInParallelErr: {self._taken} images are being pulled, the limit is "
            f"{self._limit}; {self._retries} retries every "
            f"{format_duration(self._retry_interval_s)} found no free slot"
        )
        for ticket, caller in pull.callers.items():
            del self._callers[ticket]
            self._record_failure(pull.key.image, caller, message, now)
            out.append(Refused(ticket, Reason.FULL, message))

    def _drop(self, ticket: int, end: Refused | Left, out: list[Decision[OutcomeT]]) -> None:
        """Ends one caller before its pull has an outcome, and passes the pull on."""
        pull = self._callers.pop(ticket).pull
        led = pull.leader == ticket
        del pull.callers[ticket]
        out.append(end)
        if pull.callers:
            if led:
                out.append(LeaderChanged(pull.number, pull.leader))
            return
        self._forget_key(pull)
        if pull.state is _State.RUNNING:
            out.append(PullAbandoned(pull.number))
        else:
            del self._line[self._index(pull)]
            pull.state = _State.ENDED

    def _add_caller(self, pull: _Pull, ticket: int, pod: str, now: float) -> None:
        asked, attempt = now, 1
        if failure := self._failures.resume(pull.key.image, pod, now=now):
            asked, attempt = failure.asked, failure.attempts + 1
        caller = _Caller(pull, pod, asked, attempt)
        pull.callers[ticket] = caller
        self._callers[ticket] = caller

    def _add_deadline(self, deadline: float, ticket: int) -> None:
        heap = self._deadlines
        if len(heap) > 2 * len(self._callers) + _MIN_STALE:
            # Far deadlines of callers long gone would pile up.
            heap[:] = [entry for entry in heap if entry[1] in self._callers]
            heapq.heapify(heap)
        heapq.heappush(heap, (deadline, ticket))

    def _record_failure(self, image: str, caller: _Caller, error: str, now: float) -> None:
        asked, attempt = caller.asked, caller.attempt
        self._failures.add(image, caller.pod, error=error, asked=asked, attempt=attempt, now=now)

    def _forget_key(self, pull: _Pull) -> None:
        """Nobody joins the pull any more; another one may have taken over its key already."""
        if self._by_key.get(pull.key) is pull:
            del self._by_key[pull.key]

    def _has_free_slot(self) -> bool:
        return self._limit == 0 or self._taken < self._limit

    def _index(self, pull: _Pull) -> int:
        return bisect_left(self._line, pull.number, key=lambda waiting: waiting.number)

    def _waiting_row(self, index: int) -> WaitingPull:
        pull = self._line[index]
        leader = pull.callers[pull.leader]
        return WaitingPull(
            pull=pull.number,
            image=pull.key.image,
            pod=leader.pod,
            place=index + 1,
            asked=leader.asked,
            behind=self._line[index - 1].number if index else None,
            joined=len(pull.callers) - 1,
            next_try=pull.next_try,
            tries_left=self._retries - pull.tries if self._policy is Policy.RETRY else 0,
        )


def _running_row(pull: _Pull) -> RunningPull:
    leader = next(iter(pull.callers.values()), None)
    return RunningPull(
        pull=pull.number,
        image=pull.key.image,
        pod=leader.pod if leader else "",
        asked=leader.asked if leader else pull.started,
        started=pull.started,
        attempt=leader.attempt if leader else 1,
        joined=max(len(pull.callers) - 1, 0),
        takes_slot=pull.takes_slot,
        is_abandoned=leader is None,
    )


def _joined_row(ticket: int, caller: _Caller) -> JoinedCaller:
    pull = caller.pull
    leader = pull.callers[pull.leader]
    return JoinedCaller(ticket, pull.number, pull.key.image, caller.pod, caller.asked, leader.pod)


def _too_late(ticket: int) -> Refused:
    return Refused(ticket, Reason.DEADLINE, "the deadline passed before the image was pulled")


def _checked(limit: int) -> int:
    if limit < 0:
        raise ValueError(f"the limit of parallel pulls must not be negative, not {limit}")
    return limit
