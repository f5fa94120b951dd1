"""The queue of pulls: rule by rule."""

from __future__ import annotations

import tracemalloc

import pytest

from pycrictl.proxy.lookup import PodKey
from pycrictl.proxy.pulls.book import Pull, PullKey, State
from pycrictl.proxy.pulls.decisions import (
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

A, B, C, D = (PullKey(f"registry.example/{name}:1") for name in "abcd")
ONE, TWO, THREE, FOUR, FIVE = (PodKey("default", name, "u") for name in ("1", "2", "3", "4", "5"))


def held(limit: int = 1, policy: Policy = Policy.WAIT) -> PullQueue[str]:
    """A queue whose slots are all taken, by the tickets and pulls 1, 2, …"""
    queue = PullQueue[str](limit, policy)
    for number in range(1, limit + 1):
        key = PullKey(f"registry.example/held-{number}")
        assert queue.submit(number, key, now=0) == [PullStarted(number, number)]
    return queue


def place(queue: PullQueue[str], ticket: int) -> int:
    return queue.book.place(queue.book.calls[ticket].pull)


def running(queue: PullQueue[str]) -> list[Pull]:
    return list(queue.book.running.values())


# One program after another


def test_who_came_first_to_another_program_is_first_in_line() -> None:
    queue = held()
    queue.submit(2, A, now=10)
    queue.submit(3, B, now=10, asked=7)
    assert queue.submit(4, C, now=10, asked=5) == [PullQueued(4, 4, place=1)]
    assert [place(queue, ticket) for ticket in (4, 3, 2)] == [1, 2, 3]
    assert [call.asked for call in queue.book.calls.values()] == [0, 10, 7, 5]
    assert queue.finish(1, "ok", now=11) == [Finished(1, 1, "ok"), PullStarted(4, 4)]
    queue.cancel(3, now=12)
    assert queue.finish(4, "ok", now=12) == [Finished(4, 4, "ok"), PullStarted(2, 2)]


def test_a_pull_that_runs_already_has_its_slot_whatever_the_limit() -> None:
    queue = PullQueue[str](1)
    assert queue.submit(1, A, now=10, started=3) == [PullStarted(1, 1)]
    assert queue.submit(2, B, now=10, started=4) == [PullStarted(2, 2)]
    assert (queue.taken, [pull.started for pull in running(queue)]) == (2, [3, 4])
    assert queue.submit(3, B, now=10) == [Joined(2, 3, leader=2)]
    assert queue.submit(4, C, now=10) == [PullQueued(3, 4, place=1)]
    assert queue.finish(1, "ok", now=11) == [Finished(1, 1, "ok")]
    assert queue.finish(2, "ok", now=12) == [
        Finished(2, 2, "ok"),
        Finished(2, 3, "ok"),
        PullStarted(3, 4),
    ]


def test_who_finds_no_slot_when_they_are_given_again_is_refused() -> None:
    queue = PullQueue[str](1, Policy.RETRY, retries=0)
    queue.is_held = True
    assert queue.submit(1, A, now=1) == [PullQueued(1, 1, place=1)]
    assert queue.submit(2, B, now=1) == [PullQueued(2, 2, place=2)]
    started, refused = queue.release(now=2)
    assert started == PullStarted(1, 1)
    assert isinstance(refused, Refused)
    assert (refused.ticket, refused.reason) == (2, Reason.FULL)


@pytest.mark.parametrize("policy", Policy)
def test_slots_that_are_held_are_given_in_order_in_the_end(policy: Policy) -> None:
    queue = PullQueue[str](2, policy)
    queue.is_held = True
    assert queue.submit(1, A, now=1) == [PullQueued(1, 1, place=1)]
    assert queue.submit(2, B, now=1, asked=0.5) == [PullQueued(2, 2, place=1)]
    assert queue.submit(3, C, now=1, is_present=True) == [PullStarted(3, 3)]
    assert queue.submit(4, D, now=2) == [PullQueued(4, 4, place=3)]
    assert queue.release(now=2) == [PullStarted(2, 2), PullStarted(1, 1)]
    assert [pull.number for pull in queue.book.line] == [4]


# Rules


def test_a_free_slot_is_taken_and_then_the_line_grows() -> None:
    queue = PullQueue[str](2)
    assert queue.submit(1, A, now=0) == [PullStarted(1, 1)]
    assert queue.submit(2, B, now=0) == [PullStarted(2, 2)]
    assert queue.submit(3, C, now=1) == [PullQueued(3, 3, place=1)]
    assert queue.submit(4, D, now=2) == [PullQueued(4, 4, place=2)]
    assert [place(queue, ticket) for ticket in (1, 2, 3, 4)] == [0, 0, 1, 2]
    assert queue.finish(2, "ok", now=3) == [Finished(2, 2, "ok"), PullStarted(3, 3)]
    assert queue.finish(1, "no", now=3, error="x") == [Finished(1, 1, "no"), PullStarted(4, 4)]


def test_a_present_image_takes_no_slot_and_is_forwarded() -> None:
    queue = held()
    assert queue.submit(2, A, now=1, is_present=True) == [PullStarted(2, 2)]
    assert queue.submit(3, A, now=1, is_present=True) == [PullStarted(3, 3)]
    assert queue.taken == 1
    assert [row.takes_slot for row in running(queue)] == [True, False, False]
    assert queue.submit(4, A, now=1) == [PullQueued(4, 4, place=1)]
    assert queue.finish(2, "ok", now=2) == [Finished(2, 2, "ok")]
    assert place(queue, 4) == 1


def test_a_present_image_does_not_disturb_a_pull_of_the_same_key() -> None:
    queue = held()
    queue.submit(2, A, now=1)
    assert queue.submit(3, A, now=1, is_present=True) == [PullStarted(3, 3)]
    assert queue.finish(3, "ok", now=1) == [Finished(3, 3, "ok")]
    assert queue.submit(4, A, now=2) == [Joined(2, 4, leader=2)]


def test_equal_keys_share_a_running_pull() -> None:
    queue = PullQueue[str](1)
    queue.submit(1, A, now=0)
    assert queue.submit(2, A, now=1) == [Joined(1, 2, leader=1)]
    assert queue.finish(1, "ok", now=2) == [Finished(1, 1, "ok"), Finished(1, 2, "ok")]
    assert queue.submit(3, A, now=3) == [PullStarted(2, 3)]


def test_equal_keys_share_a_waiting_pull() -> None:
    queue = held()
    queue.submit(2, A, now=0)
    assert queue.submit(3, A, now=1) == [Joined(2, 3, leader=2)]
    assert place(queue, 3) == 1
    assert queue.finish(1, "ok", now=2) == [Finished(1, 1, "ok"), PullStarted(2, 2)]
    failed = queue.finish(2, "denied", now=3, error="denied")
    assert failed == [Finished(2, 2, "denied"), Finished(2, 3, "denied")]


@pytest.mark.parametrize(
    "other",
    [
        PullKey(A.image, credentials_hash="c0ffee"),
        PullKey(A.image, runtime_handler="kata"),
        PullKey(A.image, namespace="kube-system"),
    ],
)
def test_nothing_is_shared_across_credentials_handlers_or_namespaces(other: PullKey) -> None:
    queue = PullQueue[str](0)
    queue.submit(1, A, now=0)
    assert queue.submit(2, other, now=0) == [PullStarted(2, 2)]


# Callers that go


def test_a_caller_that_hangs_up_gives_up_its_place() -> None:
    queue = held()
    for ticket, key in ((2, A), (3, B), (4, C)):
        queue.submit(ticket, key, now=0)
    assert queue.cancel(3, now=1) == [Left(3)]
    assert place(queue, 4) == 2
    assert queue.cancel(3, now=1) == []
    assert queue.submit(5, B, now=1) == [PullQueued(5, 5, place=3)]


def test_a_leader_that_goes_passes_a_waiting_pull_on_in_its_place() -> None:
    queue = held()
    queue.submit(2, A, now=0)
    queue.submit(3, B, now=0)
    queue.submit(4, A, now=0)
    assert queue.cancel(2, now=1) == [Left(2), LeaderChanged(2, 4)]
    assert place(queue, 4) == 1
    assert queue.finish(1, "ok", now=2)[1:] == [PullStarted(2, 4)]


def test_a_leader_that_goes_passes_a_running_pull_on() -> None:
    queue = held()
    key = PullKey("registry.example/held-1")
    queue.submit(2, key, now=0)
    queue.submit(3, key, now=0)
    assert queue.cancel(2, now=1) == [Left(2)]
    assert queue.cancel(1, now=1) == [Left(1), LeaderChanged(1, 3)]
    assert queue.finish(1, "ok", now=2) == [Finished(1, 3, "ok")]


def test_the_last_caller_abandons_a_running_pull_and_its_slot_is_held_to_the_end() -> None:
    queue = held()
    key = PullKey("registry.example/held-1")
    queue.submit(2, A, now=0)
    assert queue.cancel(1, now=1) == [Left(1), PullAbandoned(1)]
    assert place(queue, 2) == 1
    # Nobody joins what is being cancelled, and its end does not disturb who follows.
    assert queue.submit(3, key, now=2) == [PullQueued(3, 3, place=2)]
    assert running(queue)[0].leader is None
    assert queue.finish(1, "cancelled", now=3, error="cancelled") == [PullStarted(2, 2)]
    assert queue.submit(4, key, now=3) == [Joined(3, 4, leader=3)]
    assert queue.book.failures() == []


def test_a_deadline_ends_waiting_joined_and_running_callers() -> None:
    queue = PullQueue[str](1)
    queue.submit(1, A, now=0, deadline=5)
    queue.submit(2, B, now=0, deadline=3)
    queue.submit(3, B, now=0, deadline=4)
    assert queue.next_wakeup() == 3
    waited, changed = queue.tick(3)
    assert isinstance(waited, Refused)
    assert (waited.ticket, waited.reason) == (2, Reason.DEADLINE)
    assert changed == LeaderChanged(2, 3)
    assert [getattr(end, "ticket", end) for end in queue.tick(4.5)] == [3]
    assert queue.book.line == []
    ended, abandoned = queue.tick(5)
    assert isinstance(ended, Refused)
    assert abandoned == PullAbandoned(1)
    assert queue.next_wakeup() is None


def test_a_caller_whose_deadline_passed_unnoticed_is_not_started() -> None:
    queue = held()
    queue.submit(2, A, now=0, deadline=3)
    queue.submit(3, B, now=0)
    late, ended, started = queue.finish(1, "ok", now=4)
    assert isinstance(late, Refused)
    assert (ended, started) == (Finished(1, 1, "ok"), PullStarted(3, 3))


def test_a_pull_that_ends_after_the_unnoticed_deadline_of_its_last_caller_is_not_abandoned() -> (
    None
):
    queue = PullQueue[str](1)
    queue.submit(1, A, now=0, deadline=3)
    queue.submit(2, B, now=0)
    late, started = queue.finish(1, "ok", now=4)
    assert isinstance(late, Refused)
    assert (late.ticket, late.reason) == (1, Reason.DEADLINE)
    assert started == PullStarted(2, 2)
    assert queue.taken == 1


def test_the_deadline_of_a_caller_that_is_gone_means_nothing() -> None:
    queue = held()
    queue.submit(2, A, now=0, deadline=3)
    queue.cancel(2, now=1)
    assert queue.tick(3) == []


def test_a_caller_that_comes_too_late_is_refused() -> None:
    queue = PullQueue[str](0)
    (end,) = queue.submit(1, A, now=5, deadline=5)
    assert isinstance(end, Refused)
    assert running(queue) == []


def test_far_deadlines_of_gone_callers_do_not_pile_up() -> None:
    queue = PullQueue[str](0)
    for ticket in range(1, 10_001):
        queue.submit(ticket, A, now=0, deadline=1e9)
        queue.finish(ticket, "ok", now=0)
    assert len(queue._deadlines) < 200
    assert queue.next_wakeup() is None


# The limit changes


def test_a_lower_limit_lets_running_pulls_go_on() -> None:
    queue = held(3)
    queue.submit(4, A, now=0)
    assert queue.set_limit(1, now=1) == []
    assert queue.finish(1, "ok", now=2) == [Finished(1, 1, "ok")]
    assert queue.finish(2, "ok", now=2) == [Finished(2, 2, "ok")]
    assert queue.finish(3, "ok", now=2) == [Finished(3, 3, "ok"), PullStarted(4, 4)]


def test_a_higher_limit_and_none_start_the_next() -> None:
    queue = held()
    for ticket, key in ((2, A), (3, B), (4, C)):
        queue.submit(ticket, key, now=0)
    assert queue.set_limit(2, now=1) == [PullStarted(2, 2)]
    assert queue.set_limit(0, now=1) == [PullStarted(3, 3), PullStarted(4, 4)]
    assert queue.limit == 0
    assert queue.set_limit(1, now=2) == []
    assert queue.submit(5, D, now=2) == [PullQueued(5, 5, place=1)]


# Retries


def test_retries_happen_at_their_times_and_then_the_caller_is_refused() -> None:
    queue = held(policy=Policy.RETRY)
    assert queue.submit(2, A, now=5) == [PullQueued(2, 2, place=1)]
    queue.submit(3, A, now=6)
    for due in (15, 25):
        assert queue.next_wakeup() == due
        assert queue.tick(due - 0.1) == []
        assert queue.tick(due) == []
    assert queue.book.line[0].tries == 2
    ends = queue.tick(35)
    assert [(end.ticket, end.reason) for end in ends if isinstance(end, Refused)] == [
        (2, Reason.FULL),
        (3, Reason.FULL),
    ]
    assert isinstance(ends[0], Refused)
    assert ends[0].message == (
        "TooManyPullingInParallelErr: 1 image is being pulled, the limit is 1; "
        "3 retries every 10s found no free slot"
    )
    assert queue.next_wakeup() is None
    assert queue.book.line == []
    assert queue.submit(4, A, now=36) == [PullQueued(3, 4, place=1)]


def test_a_retry_takes_a_slot_that_is_free_at_its_time_only() -> None:
    queue = held(policy=Policy.RETRY)
    queue.submit(2, A, now=0)
    queue.submit(3, B, now=1)
    assert queue.finish(1, "ok", now=2) == [Finished(1, 1, "ok")]
    assert queue.tick(10) == [PullStarted(2, 2)]
    assert queue.book.line[0].number == 3
    assert queue.finish(2, "ok", now=10.5) == [Finished(2, 2, "ok")]
    assert queue.tick(11) == [PullStarted(3, 3)]


def test_a_late_tick_is_one_retry() -> None:
    queue = held(policy=Policy.RETRY)
    queue.submit(2, A, now=0)
    assert queue.tick(100) == []
    assert queue.next_wakeup() == 110


def test_a_caller_that_retries_may_hang_up() -> None:
    queue = held(policy=Policy.RETRY)
    queue.submit(2, A, now=0)
    queue.submit(3, B, now=0)
    assert queue.cancel(2, now=1) == [Left(2)]
    assert queue.cancel(3, now=1) == [Left(3)]
    assert queue.tick(10) == []
    queue.submit(4, A, now=11)
    queue.cancel(4, now=12)
    assert queue.next_wakeup() is None


def test_without_retries_the_refusal_is_immediate() -> None:
    queue = PullQueue[str](1, Policy.RETRY, retries=0)
    queue.submit(1, A, now=0)
    queued, end = queue.submit(2, B, now=0)
    assert queued == PullQueued(2, 2, place=1)
    assert isinstance(end, Refused)
    assert end.reason is Reason.FULL


# Misuse


def test_misuse_is_an_error() -> None:
    queue = held()
    with pytest.raises(ValueError, match="ticket 1 is in use"):
        queue.submit(1, A, now=0)
    queue.submit(2, A, now=0)
    with pytest.raises(ValueError, match="pull 2 is not running"):
        queue.finish(2, "ok", now=0)
    for limit in (lambda: PullQueue[str](-1), lambda: queue.set_limit(-1, now=0)):
        with pytest.raises(ValueError, match="must not be negative, not -1"):
            limit()
    with pytest.raises(ValueError, match="retry interval must be positive"):
        PullQueue[str](1, retry_interval_s=0)
    with pytest.raises(ValueError, match="retries not negative"):
        PullQueue[str](1, retries=-1)


# What is written down


def test_the_book_holds_who_runs_waits_and_shares() -> None:
    queue = PullQueue[str](1)
    for now, (key, pod) in enumerate(((A, ONE), (A, TWO), (B, THREE), (C, FOUR), (C, FIVE)), 1):
        queue.submit(now, key, now=now, pod=pod)
    assert (queue.limit, queue.policy, queue.taken) == (1, Policy.WAIT, 1)
    (pull,) = running(queue)
    assert (pull.key, pull.started, len(pull.calls)) == (A, 1, 2)
    assert [(waiting.key, len(waiting.calls)) for waiting in queue.book.line] == [(B, 1), (C, 2)]
    calls = queue.book.calls.values()
    assert [(call.pod, call.asked, call.attempt, call.state) for call in calls] == [
        (ONE, 1, 1, State.RUNNING),
        (TWO, 2, 1, State.RUNNING),
        (THREE, 3, 1, State.WAITING),
        (FOUR, 4, 1, State.WAITING),
        (FIVE, 5, 1, State.WAITING),
    ]
    assert [leader.pod for call in calls if (leader := call.pull.leader) not in (None, call)] == [
        ONE,
        FOUR,
    ]
    queue.cancel(2, now=6)
    queue.finish(1, "ok", now=7)
    assert [(call.ticket, call.state, call.ended) for call in queue.book.ended] == [
        (2, State.LEFT, 6),
        (1, State.DONE, 7),
    ]
    assert queue.book.failures() == []


def test_attempts_with_one_credential_after_the_other_are_one_pull() -> None:
    queue = PullQueue[str](1)
    queue.submit(1, PullKey(A.image, "one"), now=0, pod=ONE)
    queue.finish(1, "denied", now=5, error="denied")
    assert [call.error for call in queue.book.failures()] == ["denied"]
    queue.submit(2, PullKey(A.image, "two"), now=5.1, pod=ONE)
    assert queue.book.failures() == []
    call = queue.book.calls[2]
    assert (call.asked, call.pull.started, call.attempt) == (0, 5.1, 2)
    queue.finish(2, "denied", now=8, error="denied again")
    assert queue.book.failures() == [call]
    assert (call.error, call.asked, call.ended, call.attempt) == ("denied again", 0, 8, 2)
    queue.submit(3, A, now=60, pod=ONE)
    assert queue.book.calls[3].attempt == 1


def test_refusals_are_failures_of_the_pull() -> None:
    queue = held(policy=Policy.RETRY)
    queue.submit(2, A, now=0, pod=ONE)
    queue.submit(3, B, now=0, pod=TWO, deadline=1)
    queue.submit(4, B, now=0.5, pod=THREE, deadline=0.5)
    for due in (10, 20, 30):
        queue.tick(due)
    full, late, too_late = queue.book.failures()
    assert full.error.startswith("TooManyPullingInParallelErr: ")
    assert (late.pod, late.ended) == (TWO, 10)
    assert (too_late.pod, too_late.ended) == (THREE, 0.5)


# Size


def test_thousands_wait_cheaply() -> None:
    tracemalloc.start()
    try:
        queue = held()
        for ticket in range(2, 2002):
            queue.submit(ticket, PullKey(f"registry.example/{ticket}"), now=0, deadline=1e6)
        per_caller = tracemalloc.get_traced_memory()[0] / 2000
    finally:
        tracemalloc.stop()  # which takes most of the time
    assert per_caller < 2048
    for ticket in range(2002, 20_002):
        queue.submit(ticket, PullKey(f"registry.example/{ticket}"), now=0, deadline=1e6)
    assert place(queue, 20_001) == 20_000
    for ticket in range(20_001, 10_001, -1):
        assert queue.cancel(ticket, now=1) == [Left(ticket)]
    assert len(queue.set_limit(0, now=2)) == 10_000


def test_thousands_share_cheaply() -> None:
    queue = PullQueue[str](1)
    for ticket in range(1, 20_001):
        queue.submit(ticket, A, now=0)
    for ticket in range(1, 20_000):
        assert queue.cancel(ticket, now=1) == [Left(ticket), LeaderChanged(1, ticket + 1)]
    assert queue.finish(1, "ok", now=2) == [Finished(1, 20_000, "ok")]
