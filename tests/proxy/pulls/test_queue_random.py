"""The queue of pulls: everything at random, against what the decisions alone allow."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import assert_never

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pycrictl.proxy.lookup import PodKey
from pycrictl.proxy.pulls.book import PullKey
from pycrictl.proxy.pulls.decisions import (
    Decision,
    Finished,
    Joined,
    LeaderChanged,
    Left,
    Policy,
    PullAbandoned,
    PullQueued,
    PullStarted,
    Reason,
    Refused,
)
from pycrictl.proxy.pulls.queue import PullQueue

POD = PodKey("default", "web", "u")
KEYS = [
    PullKey(image, credentials, handler)
    for image in ("a", "b")
    for credentials in ("", "secret")
    for handler in ("", "kata")
]


@dataclass
class ModelPull:
    """What a watcher of the decisions knows of one pull."""

    key: PullKey
    takes_slot: bool
    tickets: list[int]
    leader: int
    is_running: bool = False
    tries_at: list[float] = field(default_factory=list)


class Decisions(RuleBasedStateMachine):
    """Follows the decisions with plain lists: each must be allowed, and none may be missing."""

    INTERVAL_S = 10.0
    RETRIES = 3

    @initialize(limit=st.integers(0, 3), policy=st.sampled_from(Policy))
    def begin(self, limit: int, policy: Policy) -> None:
        self.now = 0.0
        self.limit = limit
        self.policy = policy
        self.queue = PullQueue[int](
            limit, policy, retry_interval_s=self.INTERVAL_S, retries=self.RETRIES
        )
        self.last_ticket = 0
        self.asked: dict[int, tuple[PullKey, bool]] = {}  # tickets without an end
        self.deadlines: dict[int, float] = {}
        self.ended: set[int] = set()
        self.pulls: dict[int, ModelPull] = {}
        self.line: list[int] = []
        self.outcome: tuple[int, int] | None = None  # the pull that ends now, and how

    # Events

    @rule(
        key=st.sampled_from(KEYS),
        is_present=st.sampled_from([False, False, False, True]),
        patience=st.none() | st.integers(0, 30),
    )
    def submit(self, key: PullKey, is_present: bool, patience: int | None) -> None:
        self.last_ticket += 1
        ticket = self.last_ticket
        self.asked[ticket] = (key, is_present)
        deadline = None
        if patience is not None:
            deadline = self.deadlines[ticket] = self.now + patience
        same = [
            number
            for number, pull in self.pulls.items()
            if pull.key == key and pull.takes_slot and pull.tickets
        ]
        decisions = self.queue.submit(
            ticket, key, now=self.now, pod=POD, deadline=deadline, is_present=is_present
        )
        self.follow(decisions)
        if patience != 0 and not is_present:
            joined = [d.pull for d in decisions if isinstance(d, Joined)]
            assert joined == same, "an equal pull is joined, and only that"

    @precondition(lambda self: any(pull.is_running for pull in self.pulls.values()))
    @rule(data=st.data(), outcome=st.integers(0, 2), unnoticed_s=st.integers(0, 12))
    def finish(self, data: st.DataObject, outcome: int, unnoticed_s: int) -> None:
        """The end of a pull may be seen before deadlines that have just passed."""
        if self.policy is Policy.WAIT:
            self.now += unnoticed_s
        running = [number for number, pull in self.pulls.items() if pull.is_running]
        number = data.draw(st.sampled_from(running))
        waiting = [
            ticket
            for ticket in self.pulls[number].tickets
            if self.deadlines.get(ticket, math.inf) > self.now
        ]
        self.outcome = (number, outcome)
        decisions = self.queue.finish(
            number, outcome, now=self.now, error="failed" if outcome else ""
        )
        self.follow(decisions, ends=number)
        assert waiting == [d.ticket for d in decisions if isinstance(d, Finished)]
        self.outcome = None

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.asked)))
        self.follow(self.queue.cancel(ticket, now=self.now))
        assert ticket in self.ended

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def hang_up_after_the_end(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.ended)))
        assert self.queue.cancel(ticket, now=self.now) == []

    @rule(limit=st.integers(0, 4))
    def change_limit(self, limit: int) -> None:
        self.limit = limit
        self.follow(self.queue.set_limit(limit, now=self.now))

    @rule(seconds=st.integers(0, 12))
    def pass_time(self, seconds: int) -> None:
        """The shell wakes up at every time that the queue names, and at the end."""
        until = self.now + seconds
        for _ in range(10_000):
            wakeup = self.queue.next_wakeup()
            if wakeup is None or wakeup > until:
                break
            assert wakeup > self.now or seconds == 0
            self.now = wakeup
            decisions = self.queue.tick(self.now)
            self.follow(decisions)
        else:
            raise AssertionError("the queue wakes up for nothing")
        self.now = until
        self.follow(self.queue.tick(self.now))

    # What each decision means

    def taken(self) -> int:
        return sum(pull.takes_slot for pull in self.pulls.values() if pull.is_running)

    def follow(self, decisions: list[Decision[int]], *, ends: int | None = None) -> None:
        for decision in decisions:
            if ends is not None and isinstance(decision, PullStarted):
                # All its callers are answered before its slot goes to somebody else.
                assert not self.pulls.pop(ends).tickets
                ends = None
            self.follow_one(decision)
        if ends is not None:
            assert not self.pulls.pop(ends).tickets

    def follow_one(self, decision: Decision[int]) -> None:
        match decision:
            case PullQueued(pull, ticket, place):
                key, is_present = self.asked[ticket]
                assert not is_present
                assert pull not in self.pulls
                assert 0 < self.limit <= self.taken(), "nobody waits while a slot is free"
                self.pulls[pull] = ModelPull(key, True, [ticket], ticket)
                self.pulls[pull].tries_at = [
                    self.now + self.INTERVAL_S * number for number in range(1, self.RETRIES + 1)
                ]
                self.line.append(pull)
                assert place == len(self.line)
            case PullStarted(pull, ticket):
                key, is_present = self.asked[ticket]
                if pull not in self.pulls:
                    if self.policy is Policy.WAIT and not is_present:
                        assert not self.line, "nobody overtakes the line"
                    self.pulls[pull] = ModelPull(key, not is_present, [ticket], ticket)
                else:
                    assert self.pulls[pull].tickets[0] == ticket, "the leader's request is sent"
                    if self.policy is Policy.WAIT:
                        assert self.line[0] == pull, "first come, first served"
                    else:
                        assert self.now in self.pulls[pull].tries_at
                    self.line.remove(pull)
                assert not self.pulls[pull].is_running
                if self.pulls[pull].takes_slot:
                    assert self.limit == 0 or self.taken() < self.limit, "the limit holds"
                self.pulls[pull].is_running = True
            case Joined(pull, ticket, leader):
                assert self.asked[ticket] == (self.pulls[pull].key, False)
                assert self.pulls[pull].takes_slot
                assert self.pulls[pull].tickets[0] == leader
                self.pulls[pull].tickets.append(ticket)
            case LeaderChanged(pull, ticket):
                assert self.pulls[pull].leader not in self.pulls[pull].tickets
                assert self.pulls[pull].tickets[0] == ticket
                self.pulls[pull].leader = ticket
            case PullAbandoned(pull):
                assert self.pulls[pull].is_running
                assert self.outcome is None or self.outcome[0] != pull, "it is over"
                assert not self.pulls[pull].tickets
            case Finished(pull, ticket, outcome):
                assert ticket in self.pulls[pull].tickets
                assert self.outcome == (pull, outcome), "the outcome of its own pull"
                self.end(ticket)
            case Refused(ticket, Reason.FULL, message):
                assert message.startswith("TooManyPullingInParallelErr:")
                assert self.policy is Policy.RETRY
                assert 0 < self.limit <= self.taken()
                (refused,) = (p for p in self.pulls.values() if ticket in p.tickets)
                assert self.now == refused.tries_at[-1]
                self.end(ticket)
            case Refused(ticket, Reason.DEADLINE):
                assert self.deadlines[ticket] <= self.now
                self.end(ticket)
            case Left(ticket):
                self.end(ticket)
            case _:  # pragma: no cover
                assert_never(decision)  # type: ignore[arg-type]  # nested patterns

    def end(self, ticket: int) -> None:
        assert ticket in self.asked, "every ticket ends once"
        del self.asked[ticket]
        self.deadlines.pop(ticket, None)
        self.ended.add(ticket)
        for number, pull in list(self.pulls.items()):
            if ticket in pull.tickets:
                pull.tickets.remove(ticket)
                if not pull.tickets and not pull.is_running:
                    self.line.remove(number)
                    del self.pulls[number]

    # What always holds

    @invariant()
    def no_caller_is_forgotten(self) -> None:
        held_tickets = [ticket for pull in self.pulls.values() for ticket in pull.tickets]
        assert sorted(held_tickets) == sorted(self.asked)
        assert len(self.ended) + len(self.asked) == self.last_ticket
        for pull in self.pulls.values():
            assert not pull.tickets or pull.tickets[0] == pull.leader

    @invariant()
    def no_slot_is_lost(self) -> None:
        if self.policy is Policy.WAIT and self.line:
            assert 0 < self.limit <= self.taken()
        assert all(pull in self.line for pull in self.pulls if not self.pulls[pull].is_running)

    @invariant()
    def nobody_stays_beyond_a_deadline(self) -> None:
        assert all(deadline > self.now for deadline in self.deadlines.values())

    @invariant()
    def the_book_says_the_same(self) -> None:
        book = self.queue.book
        assert (self.queue.limit, self.queue.taken) == (self.limit, self.taken())
        assert book.running.keys() == {
            number for number, pull in self.pulls.items() if pull.is_running
        }
        assert [pull.number for pull in book.line] == self.line
        assert [book.place(pull) for pull in book.line] == list(range(1, len(self.line) + 1))
        assert book.calls.keys() == self.asked.keys()
        for ticket, call in book.calls.items():
            assert list(call.pull.calls) == self.pulls[call.pull.number].tickets
            assert ticket in call.pull.calls
        assert {call.ticket for call in book.ended} == self.ended

    def teardown(self) -> None:
        """Whatever happened: when every upstream call ends and time passes, every caller ends."""
        if not hasattr(self, "queue"):
            return
        for _ in range(10_000):
            running = [number for number, pull in self.pulls.items() if pull.is_running]
            if not self.pulls:
                break
            for number in running:
                self.outcome = (number, 0)
                decisions = self.queue.finish(number, 0, now=self.now)
                self.follow(decisions, ends=number)
            self.pass_time(1)
        assert not self.asked
        assert not self.line
        assert self.queue.taken == 0
        assert self.queue.next_wakeup() is None


TestDecisions = Decisions.TestCase
TestDecisions.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
