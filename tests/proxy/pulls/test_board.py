"""The board is fed by a real queue, as the proxy does."""

from __future__ import annotations

from pycrictl.proxy.pulls.board import ABANDONED, LINGER_S, Board, PodKey, State
from pycrictl.proxy.pulls.decisions import Decision, Policy, PullKey, PullStarted
from pycrictl.proxy.pulls.failures import ATTEMPT_GAP_S
from pycrictl.proxy.pulls.queue import PullQueue

WEB = PodKey("default", "web", "u1")
DB = PodKey("default", "db", "u2")


class Shop:
    """A queue with its board."""

    def __init__(self, limit: int = 1, **options: float) -> None:
        policy = Policy.RETRY if options else Policy.WAIT
        self.queue = PullQueue[str](limit, policy, **options)  # type: ignore[arg-type]
        self.board = Board()
        self.started: dict[int, int] = {}

    def ask(
        self,
        ticket: int,
        pod: PodKey | None,
        image: str,
        *,
        now: float,
        secret: str = "",
        present: bool = False,
        reference: str = "",
    ) -> None:
        key = PullKey(image, credentials_hash=secret)
        self.board.ask(ticket, pod, image=image, reference=reference or image, now=now)
        decisions = self.queue.submit(ticket, key, now=now, pod=str(pod or ""), is_present=present)
        self._take(decisions, now, present=present)

    def finish(self, ticket: int, *, now: float, error: str = "") -> None:
        pull = self.started.pop(ticket)
        self._take(self.queue.finish(pull, "", now=now, error=error), now, error=error)
        self.board.forget_pull(pull)

    def cancel(self, ticket: int, *, now: float) -> None:
        self._take(self.queue.cancel(ticket, now=now), now)

    def tick(self, now: float) -> None:
        self._take(self.queue.tick(now), now)

    def _take(
        self, decisions: list[Decision[str]], now: float, *, error: str = "", present: bool = False
    ) -> None:
        self.board.take(decisions, error=error, present=present, now=now)
        for decision in decisions:
            if isinstance(decision, PullStarted):
                self.started[decision.ticket] = decision.pull

    def states(self, pod: PodKey, *, now: float) -> dict[str, State]:
        return {one.image: one.state for one in self.board.standings(pod, now=now)}


def test_a_pod_sees_its_own_images_in_order() -> None:
    shop = Shop(limit=1)
    shop.ask(1, WEB, "a", now=0)
    shop.ask(2, DB, "b", now=1)
    shop.ask(3, WEB, "c", now=2)
    assert shop.states(WEB, now=3) == {"a": State.RUNNING, "c": State.WAITING}
    assert shop.states(DB, now=3) == {"b": State.WAITING}
    shop.finish(1, now=4)
    assert shop.states(WEB, now=4) == {"a": State.DONE, "c": State.WAITING}
    assert shop.states(DB, now=4) == {"b": State.RUNNING}


def test_who_joined_sees_the_pull_under_its_own_spelling() -> None:
    shop = Shop()
    shop.ask(1, WEB, "docker.io/library/a:latest", now=0, reference="a")
    shop.ask(2, DB, "docker.io/library/a:latest", now=0, reference="docker.io/library/a")
    (mine,), (theirs,) = (shop.board.standings(pod, now=1) for pod in (WEB, DB))
    assert (mine.reference, mine.name) == ("a", "a")
    assert (theirs.reference, theirs.name) == ("docker.io/library/a", "a")
    assert theirs.state is State.RUNNING


def test_the_name_is_the_leaders_when_the_pull_starts() -> None:
    shop = Shop()
    shop.ask(1, None, "other", now=0)
    shop.ask(2, WEB, "img", now=0, reference="short")
    shop.ask(3, DB, "img", now=0, reference="long")
    shop.cancel(2, now=1)
    assert [one.name for one in shop.board.standings(DB, now=1)] == ["long"]
    shop.finish(1, now=2)
    assert shop.states(DB, now=2) == {"img": State.RUNNING}


def test_a_failure_followed_by_another_attempt_was_none() -> None:
    shop = Shop()
    shop.ask(1, WEB, "a", now=0, secret="one")
    shop.finish(1, now=1, error="denied")
    assert shop.states(WEB, now=1.5) == {"a": State.RUNNING}
    shop.ask(2, WEB, "a", now=2, secret="two")
    assert shop.states(WEB, now=1 + ATTEMPT_GAP_S) == {"a": State.RUNNING}
    shop.finish(2, now=4)
    assert shop.states(WEB, now=9) == {"a": State.DONE}


def test_a_failure_without_another_attempt_is_told() -> None:
    shop = Shop()
    shop.ask(1, WEB, "a", now=0)
    shop.finish(1, now=1, error="denied")
    (one,) = shop.board.standings(WEB, now=1 + ATTEMPT_GAP_S)
    assert (one.state, one.error) == (State.FAILED, "denied")


def test_a_caller_that_goes_and_one_that_is_refused() -> None:
    shop = Shop(limit=1, retry_interval_s=1.0, retries=1)
    shop.ask(1, None, "x", now=0)
    shop.ask(2, WEB, "a", now=0)
    shop.ask(3, DB, "b", now=0)
    shop.cancel(2, now=0.5)
    shop.tick(now=1.0)
    later = 1.0 + ATTEMPT_GAP_S
    (gone,), (refused,) = (shop.board.standings(pod, now=later) for pod in (WEB, DB))
    assert (gone.state, gone.error) == (State.FAILED, ABANDONED)
    assert refused.error.startswith("TooManyPullingInParallelErr")


def test_nothing_is_left_to_pull() -> None:
    shop = Shop()
    assert shop.board.busy_until(WEB, now=7.0) == 7.0
    shop.ask(1, WEB, "a", now=0)
    assert shop.board.busy_until(WEB, now=5) is None
    shop.finish(1, now=6)
    assert shop.board.busy_until(WEB, now=6) == 6 + ATTEMPT_GAP_S


def test_a_present_image_says_so() -> None:
    shop = Shop(limit=1)
    shop.ask(1, DB, "a", now=0)
    shop.ask(2, WEB, "b", now=0, present=True)
    (one,) = shop.board.standings(WEB, now=0)
    assert (one.state, one.is_present) == (State.RUNNING, True)
    assert not shop.board.standings(DB, now=0)[0].is_present


def test_what_ended_is_forgotten_unless_somebody_watches() -> None:
    shop = Shop(limit=0)
    shop.board.watch(WEB)
    for ticket, pod in enumerate((WEB, DB), 1):
        shop.ask(ticket, pod, "a", now=0)
        shop.finish(ticket, now=0)
    shop.ask(3, None, "x", now=LINGER_S)
    assert shop.board.standings(DB, now=LINGER_S) == []
    assert len(shop.board.standings(WEB, now=LINGER_S)) == 1
    shop.board.unwatch(WEB, now=10)
    shop.ask(4, None, "x", now=10 + LINGER_S)
    assert shop.board.standings(WEB, now=20) == []
    assert shop.board._pods == {}


def test_a_new_pull_of_an_image_that_ended_is_kept() -> None:
    shop = Shop(limit=0)
    shop.ask(1, WEB, "a", now=0)
    shop.finish(1, now=0)
    shop.ask(2, WEB, "a", now=2)
    shop.ask(3, None, "x", now=LINGER_S + 1)
    assert shop.states(WEB, now=LINGER_S + 1) == {"a": State.RUNNING}


def test_nothing_stays_of_many_callers() -> None:
    shop = Shop(limit=1)
    for ticket in range(1, 201):
        shop.ask(ticket, PodKey("n", f"p{ticket}", ""), f"i{ticket % 7}", now=0)
    for ticket in range(200, 0, -1):
        if ticket in shop.started:
            shop.finish(ticket, now=1)
        else:
            shop.cancel(ticket, now=1)
    for ticket in list(shop.started):
        shop.finish(ticket, now=1)
    shop.board.ask(999, None, image="x", reference="x", now=1 + LINGER_S)
    assert shop.board._pods == {}
    assert shop.board._pulls == {}
    assert list(shop.board._callers) == [999]
