"""The queue of pulls: random events, checked against a model fed by its events alone."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pycrictl.proxy.events import Event, PullEnded, PullStarted
from pycrictl.proxy.pulls.book import CallState, Policy, PullCall, PullKey, QueuedPull, Reason
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey

POD = PodKey("default", "web", "u")
KEYS = [PullKey(image, handler) for image in ("a", "b") for handler in ("", "kata")]


class Decisions(RuleBasedStateMachine):
    """A model of plain lists: every decision must be allowed, and none may be missing."""

    INTERVAL_S = 10.0
    RETRIES = 3

    @initialize(limit=st.integers(0, 3), policy=st.sampled_from(Policy))
    def begin(self, limit: int, policy: Policy) -> None:
        self.now = 0.0
        self.policy = policy
        self.decisions: list[PullCall] = []
        self.due: list[QueuedPull] = []
        self.queue = PullQueue(
            limit,
            policy,
            retry_interval_s=self.INTERVAL_S,
            retries=self.RETRIES,
            emit=self.note,
            on_retry=self.due.append,
        )
        self.last_ticket = 0
        self.keys: dict[int, PullKey] = {}
        self.present: set[int] = set()
        self.waiting: list[int] = []  # in the order of their arrival
        self.running: list[int] = []
        self.follows: dict[int, int] = {}  # of equal pulls: whose slot each uses
        self.ended: set[int] = set()

    def note(self, event: Event) -> None:
        if isinstance(event, PullStarted) or (isinstance(event, PullEnded) and event.call.refusal):
            self.decisions.append(event.call)

    def decided(self) -> list[PullCall]:
        """Return the calls that were started or refused since the last call."""
        decisions, self.decisions = self.decisions, []
        return decisions

    # Events

    @rule(
        key=st.sampled_from(KEYS),
        is_present=st.sampled_from([False, False, False, True]),
    )
    def submit(self, key: PullKey, is_present: bool) -> None:
        self.last_ticket += 1
        ticket = self.last_ticket
        self.keys[ticket] = key
        if is_present:
            self.present.add(ticket)
        self.waiting.append(ticket)
        self.queue.submit(ticket, key, now=self.now, pod=POD, is_present=is_present)
        self.follow(self.decided())
        assert not (is_present and ticket in self.waiting), "what is present never waits"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from([CallState.DONE, CallState.FAILED, CallState.LEFT]))
    def end(self, data: st.DataObject, how: CallState) -> None:
        ticket = data.draw(st.sampled_from(self.running))
        key = self.keys[ticket]
        took = ticket not in self.present
        others = [one for one in self.equal(key) if one != ticket]
        equal = [one for one in self.waiting if self.keys[one] == key] if not others else []
        if not self.queue.book.calls[ticket].pull.calls.keys() - {ticket}:
            equal = []  # they have not joined it: they are in line
        self.running.remove(ticket)
        self.finish(ticket)
        error = "x" if how is CallState.FAILED else ""
        self.queue.end(ticket, how, now=self.now, error=error)
        decisions = self.decided()
        started = [call.ticket for call in decisions if call.refusal is None]
        if took and equal:
            mine = equal if how is CallState.DONE else equal[:1]
            assert started[: len(mine)] == mine, "equal ones go on in its slot"
            for one in mine:
                self.follows[one] = self.follows.get(ticket, ticket)
        self.follow(decisions)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(ticket)
        self.finish(ticket)
        self.queue.end(ticket, CallState.LEFT, now=self.now)
        self.follow(self.decided())

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data(), reason=st.sampled_from([Reason.DEADLINE, Reason.WITHDRAWN]))
    def give_up(self, data: st.DataObject, reason: Reason) -> None:
        ticket = data.draw(st.sampled_from(self.waiting + self.running))
        is_waiting = ticket in self.waiting
        self.queue.give_up(ticket, reason, "why", now=self.now)
        decisions = self.decided()
        refused = [(call.ticket, call.refusal, call.error) for call in decisions if call.refusal]
        assert refused == ([(ticket, reason, "why")] if is_waiting else [])
        self.follow(decisions)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def hang_up_after_the_end(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.ended)))
        self.queue.end(ticket, CallState.LEFT, now=self.now)
        assert self.decided() == []

    @precondition(lambda self: not self.queue.is_held)
    @rule()
    def hold(self) -> None:
        self.queue.is_held = True

    @precondition(lambda self: self.queue.is_held)
    @rule()
    def release(self) -> None:
        self.queue.release(now=self.now)
        self.follow(self.decided())

    @rule(limit=st.integers(0, 4))
    def change_limit(self, limit: int) -> None:
        self.queue.set_limit(limit, now=self.now)
        self.follow(self.decided())

    @rule(seconds=st.integers(0, 12))
    def pass_time(self, seconds: int) -> None:
        """Make every retry that is due meanwhile."""
        until = self.now + seconds
        while (pull := min(self.due, key=self.when, default=None)) and self.when(pull) <= until:
            self.due.remove(pull)
            assert self.when(pull) >= self.now
            self.now = self.when(pull)
            self.queue.retry(pull, now=self.now)
            self.follow(self.decided())
        self.now = until

    @staticmethod
    def when(pull: QueuedPull) -> float:
        assert pull.next_try is not None
        return pull.next_try

    # What each decision means

    def equal(self, key: PullKey) -> list[int]:
        """Return the running equal calls that take a slot."""
        return [t for t in self.running if self.keys[t] == key and t not in self.present]

    def slots(self) -> set[int]:
        """Return the tickets whose slots are in use, by themselves or by equal pulls."""
        return {self.follows.get(t, t) for t in self.running if t not in self.present}

    def follow(self, decisions: list[PullCall]) -> None:
        for call in decisions:
            ticket = call.ticket
            assert ticket in self.waiting
            assert call.decided.is_set()
            if call.refusal is None:
                if ticket not in self.present and ticket not in self.follows:
                    limit = self.queue.limit
                    assert not self.queue.is_held, "a hold gives no slots"
                    assert limit == 0 or len(self.slots()) < limit, "the limit holds"
                self.waiting.remove(ticket)
                self.running.append(ticket)
                continue
            if call.refusal is Reason.FULL:
                assert call.error.startswith("TooManyPullingInParallelErr:")
                assert self.policy is Policy.RETRY
                assert self.queue.is_held or 0 < self.queue.limit <= len(self.slots())
            self.waiting.remove(ticket)
            self.finish(ticket)

    def finish(self, ticket: int) -> None:
        assert ticket not in self.ended, "every ticket ends once"
        self.ended.add(ticket)

    # What always holds

    @invariant()
    def no_caller_is_forgotten(self) -> None:
        assert len(self.ended) + len(self.running) + len(self.waiting) == self.last_ticket

    @invariant()
    def no_slot_is_lost(self) -> None:
        assert self.queue.taken == len(self.slots())
        if self.policy is Policy.WAIT and self.queue.book.line and not self.queue.is_held:
            assert 0 < self.queue.limit <= self.queue.taken

    @invariant()
    def who_waits_for_an_equal_one_has_one(self) -> None:
        in_line = {ticket for pull in self.queue.book.line for ticket in pull.calls}
        for ticket in self.waiting:
            assert ticket in in_line or self.equal(self.keys[ticket])

    @invariant()
    def the_book_says_the_same(self) -> None:
        book = self.queue.book
        running = [call for pull in book.running.values() for call in pull.calls.values()]
        assert sorted(one.ticket for one in running if one.started is not None) == sorted(
            self.running
        )
        assert [book.place(pull) for pull in book.line] == list(range(1, len(book.line) + 1))
        assert sorted(book.calls) == sorted(self.running + self.waiting)
        assert all(call.pull.calls[ticket] is call for ticket, call in book.calls.items())
        assert {call.ticket for call in book.ended} == self.ended

    def teardown(self) -> None:
        """Check that every caller ends once all upstream calls end and time passes."""
        if not hasattr(self, "queue"):
            return
        if self.queue.is_held:
            self.release()
        for _ in range(10_000):
            if not self.running and not self.waiting:
                break
            for ticket in list(self.running):
                self.running.remove(ticket)
                self.finish(ticket)
                self.queue.end(ticket, CallState.DONE, now=self.now)
            due = [pull for pull in self.due if self.when(pull) <= self.now]
            for pull in due:
                self.due.remove(pull)
                self.queue.retry(pull, now=self.now)
            for call in self.decided():
                self.waiting.remove(call.ticket)
                if call.refusal is None:
                    self.running.append(call.ticket)
                else:
                    self.finish(call.ticket)
            self.now += 1
        assert not self.running
        assert not self.waiting
        assert self.queue.taken == 0


TestDecisions = Decisions.TestCase
TestDecisions.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
