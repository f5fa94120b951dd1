"""The queue of pulls: rule by rule, and by random events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pycrictl.proxy.events import Event, PullEnded, PullStarted
from pycrictl.proxy.pulls.pull_calls import (
    ATTEMPT_GAP_S,
    MAX_ENDED,
    Book,
    CallState,
    Policy,
    PullCall,
    PullKey,
    QueuedPull,
)
from pycrictl.proxy.pulls.queue import PullQueue, expected_starts
from pycrictl.proxy.runtime_lookup import PodKey
from pycrictl.pulls.state import PullState, Sums
from pycrictl.streams.wire.codes import RESOURCE_EXHAUSTED

A, B, C, D = (PullKey(f"registry.example/{name}:1") for name in "abcd")
ONE, TWO, THREE, FOUR, FIVE = (PodKey("default", name, "u") for name in ("1", "2", "3", "4", "5"))
DONE, FAILED, LEFT = CallState.DONE, CallState.FAILED, CallState.LEFT


class Queue(PullQueue):
    """A queue that notes what it decides: the ticket of each start, and the reason of a refusal."""

    def __init__(self, limit: int, policy: Policy = Policy.WAIT, retries: int = 3) -> None:
        self.noted: list[int | tuple[int, int]] = []
        super().__init__(limit, policy, emit=self.note, retries=retries)

    def note(self, event: Event) -> None:
        if isinstance(event, PullStarted):
            self.noted.append(event.call.ticket)
        elif isinstance(event, PullEnded) and event.call.refusal:
            self.noted.append((event.call.ticket, event.call.refusal))

    def decided(self) -> list[int | tuple[int, int]]:
        """Return what was decided since the last call."""
        noted, self.noted = self.noted, []
        return noted


def held(limit: int = 1, policy: Policy = Policy.WAIT) -> Queue:
    """Return a queue whose slots are all taken, by the tickets 1, 2, …"""
    queue = Queue(limit, policy)
    for number in range(1, limit + 1):
        queue.submit(number, PullKey(f"registry.example/held-{number}"), now=0)
        assert queue.decided() == [number]
    return queue


def place(queue: PullQueue, ticket: int) -> int:
    return queue.book.place(queue.book.calls[ticket].pull)


def running(queue: PullQueue) -> list[QueuedPull]:
    return list(queue.book.running.values())


# Hand-overs: slots that are held, and pulls of the old process


def test_who_came_first_elsewhere_is_first_in_line() -> None:
    queue = held()
    queue.submit(2, A, now=10)
    queue.submit(3, B, now=10, asked=7)
    queue.submit(4, C, now=10, asked=5)
    assert queue.decided() == []
    assert [place(queue, ticket) for ticket in (4, 3, 2)] == [1, 2, 3]
    assert [call.asked for call in queue.book.calls.values()] == [0, 10, 7, 5]
    queue.end(1, DONE, now=11)
    assert queue.decided() == [4]
    queue.end(3, LEFT, now=12)
    queue.end(4, DONE, now=12)
    assert queue.decided() == [2]


def test_a_pull_that_runs_already_has_its_slot_whatever_the_limit() -> None:
    queue = Queue(1)
    queue.submit(1, A, now=10, started=3)
    queue.submit(2, B, now=10, started=4)
    assert queue.decided() == [1, 2]
    assert (queue.taken, [pull.started for pull in running(queue)]) == (2, [3, 4])
    queue.submit(3, B, now=10)
    queue.submit(4, C, now=10)
    queue.end(1, DONE, now=11)
    assert queue.decided() == []
    queue.end(2, LEFT, now=12)
    queue.end(3, DONE, now=13)
    assert queue.decided() == [3, 4]


@pytest.mark.parametrize("policy", Policy)
def test_slots_that_are_held_are_given_in_order_in_the_end(policy: Policy) -> None:
    queue = Queue(2, policy)
    queue.is_held = True
    queue.submit(1, A, now=1)
    queue.submit(2, B, now=1, asked=0.5)
    queue.submit(3, C, now=1, is_present=True)
    queue.submit(4, D, now=2)
    assert queue.decided() == [3]
    queue.release(now=2)
    assert queue.decided() == [2, 1]
    assert [list(pull.calls) for pull in queue.book.line] == [[4]]


# Retries


def test_retries_happen_at_their_times_and_then_the_caller_is_refused() -> None:
    queue = held(policy=Policy.RETRY)
    due: list[QueuedPull] = []
    queue.on_retry = due.append
    calls = [queue.submit(2, A, now=5), queue.submit(3, A, now=6)]
    for at in (15, 25, 35):
        (pull,) = due
        due.clear()
        assert pull.next_try == at
        assert queue.decided() == []
        queue.retry(pull, now=at)
    assert queue.decided() == [(2, RESOURCE_EXHAUSTED), (3, RESOURCE_EXHAUSTED)]
    assert all(call.decided.is_set() for call in calls)
    assert calls[0].error == (
        "TooManyPullingInParallelErr: 1 image is being pulled, the limit is 1; "
        "3 retries every 10s found no free slot"
    )
    assert due == queue.book.line == []
    queue.submit(4, A, now=36)
    assert queue.decided() == []
    assert len(due) == 1


# Work and memory


# The book: ended calls, and which of them are attempts at one pull


def begin(book: Book, image: str, pod: PodKey | None = ONE, *, now: float) -> PullCall:
    pull = QueuedPull(0, PullKey(image), takes_slot=True, reference=image)
    ticket = len(book.calls) + len(book.ended) + 1
    call = PullCall(ticket, pull, pod, image, image, now)
    book.begin(call, now)
    return call


def fail(book: Book, image: str, pod: PodKey | None = ONE, *, now: float) -> PullCall:
    call = begin(book, image, pod, now=now - 1)
    book.end(call, CallState.FAILED, now=now, error="denied")
    return call


def test_the_last_failure_of_an_image_and_pod_counts() -> None:
    book = Book()
    fail(book, "a", now=10)
    others = [fail(book, "b", now=20), fail(book, "a", TWO, now=30)]
    last = fail(book, "a", now=40)
    assert book.failures() == [last, *reversed(others)]


def test_a_late_or_foreign_attempt_does_not() -> None:
    book = Book()
    failures = [fail(book, "a", now=10), fail(book, "a", None, now=10)]
    foreign = [
        begin(book, "b", now=10),
        begin(book, "a", TWO, now=10),
        begin(book, "a", None, now=10),
    ]
    late = begin(book, "a", now=10.1 + ATTEMPT_GAP_S)
    assert {call.attempt for call in (*foreign, late)} == {1}
    assert book.failures() == failures[::-1]


def test_nothing_grows_with_the_number_of_calls() -> None:
    book = Book()
    for number in range(3 * MAX_ENDED):
        fail(book, f"image-{number % 7}", PodKey("n", f"p{number % 1500}", ""), now=number)
    assert len(book.ended) == MAX_ENDED
    assert len(book._last) <= MAX_ENDED


# Estimated starts of waiting pulls


@pytest.mark.parametrize(
    ("left_s", "limit", "typical", "expected"),
    [
        ([10.0], 1, 5.0, [10.0, 15.0, 20.0]),
        ([10.0], 1, None, [10.0, None, None]),
        ([None], 1, 5.0, [None, None, None]),
        ([10.0, 2.0], 2, 5.0, [2.0, 7.0, 10.0]),
        ([None, 2.0], 2, 5.0, [2.0, 7.0, 12.0]),
        ([1.0, 2.0, 9.0], 1, 5.0, [9.0, 14.0, 19.0]),  # the limit was lowered
    ],
)
def test_expected_starts(
    left_s: list[float | None], limit: int, typical: float | None, expected: list[float | None]
) -> None:
    queue = PullQueue(len(left_s))
    ends = [] if typical is None else [(3, DONE), (typical, DONE), (900, FAILED), (11, DONE)]
    for number, (took_s, how) in enumerate(ends, 1):
        queue.submit(number, PullKey(f"ended-{number}"), now=1000 * number)
        queue.end(number, how, now=1000 * number + took_s)
    for number in range(len(left_s) + 3):
        queue.submit(100 + number, PullKey(str(number)), now=9000)
    queue.set_limit(limit, now=9000)

    def seen(reference: str) -> PullState:
        return PullState(sums=Sums(eta_s=left_s[int(reference)]))

    assert expected_starts(queue, seen, 9000) == expected


# Random events, checked against a model fed by the queue's events alone


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
        slot = self.follows.get(ticket, ticket)
        others = [t for t in self.equal(key) if t != ticket and self.follows.get(t, t) == slot]
        equal = (
            [ticket for ticket in self.waiting if self.keys[ticket] == key] if not others else []
        )
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
            for pull in mine:
                self.follows[pull] = slot
        self.follow(decisions)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(ticket)
        self.finish(ticket)
        self.queue.end(ticket, CallState.LEFT, now=self.now)
        self.follow(self.decided())

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
            if call.refusal is RESOURCE_EXHAUSTED:
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
        assert sorted(pull.ticket for pull in running if pull.started is not None) == sorted(
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
