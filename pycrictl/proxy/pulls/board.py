"""Who waits for which image, as the progress stream of a pod tells it. Pure.

The queue knows pulls and callers; a pod knows images. An *entry* is one image of one pod: kubelet
tries one credential after the other, so several calls, one after another, are one entry, and a
failure that is followed at once by another attempt was none. Callers without a pod have no entries,
since nobody can ask for theirs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from pycrictl.proxy.pulls.decisions import (
    Decision,
    Finished,
    Joined,
    LeaderChanged,
    Left,
    OutcomeT,
    PullQueued,
    PullStarted,
    Refused,
)
from pycrictl.proxy.pulls.failures import ATTEMPT_GAP_S

LINGER_S: Final = ATTEMPT_GAP_S + 1.0
"""How long an entry that has ended is kept for a watcher still to come."""

ABANDONED: Final = "the pull was given up by its caller"


class PodKey(NamedTuple):
    """A pod as kubelet names it in every request (CRI ``PodSandboxMetadata``)."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class State(Enum):
    """Where the pull of an entry stands."""

    WAITING = auto()
    RUNNING = auto()
    DONE = auto()
    FAILED = auto()


@dataclass(slots=True, eq=False)
class _Pull:
    name: str
    is_present: bool
    is_running: bool = False
    callers: int = 0


@dataclass(slots=True, eq=False)
class _Entry:
    pod: PodKey
    image: str
    reference: str
    tickets: set[int] = field(default_factory=set)
    pull: _Pull | None = None
    ended_at: float | None = None
    error: str = ""


@dataclass(slots=True, eq=False)
class _Caller:
    entry: _Entry | None
    reference: str
    pull: int | None = None


class Standing(NamedTuple):
    """One image of a pod at one moment.

    Attributes:
        image: its canonical spelling, the same over all attempts.
        reference: the image as the pod's own request spells it.
        name: what the pull is called at the runtime: the reference of the caller that leads it.
        ticket: a caller of the pod that waits; 0 if none does.
        is_present: the runtime had the image before.
        error: why it failed; empty while another attempt may follow.
    """

    image: str
    reference: str
    name: str
    state: State
    ticket: int
    is_present: bool
    error: str


class Board:
    """All entries. ``now`` is in seconds and never goes back."""

    def __init__(self) -> None:
        self._callers: dict[int, _Caller] = {}
        self._pulls: dict[int, _Pull] = {}
        self._pods: dict[PodKey, dict[str, _Entry]] = {}
        self._ended: deque[tuple[float, _Entry]] = deque()
        self._watchers: Counter[PodKey] = Counter()

    def ask(
        self, ticket: int, pod: PodKey | None, *, image: str, reference: str, now: float
    ) -> None:
        """A caller is about to be submitted to the queue."""
        self._sweep(now)
        entry = None
        if pod is not None:
            images = self._pods.setdefault(pod, {})
            entry = images.get(image)
            if entry is None:
                entry = images[image] = _Entry(pod, image, reference)
            entry.tickets.add(ticket)
            entry.ended_at, entry.error = None, ""
        self._callers[ticket] = _Caller(entry, reference)

    def take(
        self,
        decisions: Iterable[Decision[OutcomeT]],
        *,
        error: str = "",
        present: bool = False,
        now: float,
    ) -> None:
        """Follows what the queue decided.

        Args:
            decisions: of one event, in their order.
            error: why the pull that the event ended has failed; empty if it did not.
            present: whether the image of the caller that the event submitted is there already.
            now: see the class.
        """
        for decision in decisions:
            if isinstance(decision, PullQueued | PullStarted | Joined):
                self._belongs(decision, present)
            elif isinstance(decision, LeaderChanged):
                pull = self._pulls[decision.pull]
                if not pull.is_running:
                    pull.name = self._callers[decision.ticket].reference
            elif isinstance(decision, Finished):
                self._end(decision.ticket, error, now)
            elif isinstance(decision, Refused):
                self._end(decision.ticket, decision.message, now)
            elif isinstance(decision, Left):
                self._end(decision.ticket, ABANDONED, now)

    def forget_pull(self, pull: int) -> None:
        """The upstream call of a pull is over and its decisions were taken."""
        self._pulls.pop(pull, None)

    def standings(self, pod: PodKey, *, now: float) -> list[Standing]:
        """The images of a pod, in the order in which it asked for them."""
        return [_standing(entry, now) for entry in self._pods.get(pod, {}).values()]

    def busy_until(self, pod: PodKey, *, now: float) -> float | None:
        """When nothing will be left to pull for a pod if nothing else happens.

        Returns:
            None while a pull waits or runs; a time that has passed if nothing is left.
        """
        latest = now - ATTEMPT_GAP_S
        for entry in self._pods.get(pod, {}).values():
            if entry.ended_at is None:
                return None
            latest = max(latest, entry.ended_at)
        return latest + ATTEMPT_GAP_S

    def watch(self, pod: PodKey) -> None:
        """Keeps all entries of a pod until ``unwatch`` is called as often."""
        self._watchers[pod] += 1

    def unwatch(self, pod: PodKey, *, now: float) -> None:
        """See ``watch``."""
        self._watchers[pod] -= 1
        if self._watchers[pod] > 0:
            return
        del self._watchers[pod]
        for entry in list(self._pods.get(pod, {}).values()):
            if entry.ended_at is not None:
                self._ended.append((now, entry))

    def _belongs(self, decision: PullQueued | PullStarted | Joined, present: bool) -> None:
        caller = self._callers[decision.ticket]
        pull = self._pulls.get(decision.pull)
        if pull is None:
            pull = self._pulls[decision.pull] = _Pull(caller.reference, present)
        if isinstance(decision, PullStarted):
            pull.is_running, pull.name = True, caller.reference
        if caller.pull is None:
            caller.pull = decision.pull
            pull.callers += 1
        if caller.entry is not None:
            caller.entry.pull = pull

    def _end(self, ticket: int, error: str, now: float) -> None:
        caller = self._callers.pop(ticket)
        pull = self._pulls.get(caller.pull) if caller.pull is not None else None
        if pull is not None and caller.pull is not None:
            pull.callers -= 1
            if not pull.callers and not pull.is_running:
                del self._pulls[caller.pull]
        entry = caller.entry
        if entry is None:
            return
        entry.tickets.discard(ticket)
        if not entry.tickets:
            entry.ended_at, entry.error = now, error
            self._ended.append((now, entry))

    def _sweep(self, now: float) -> None:
        """Forgets what ended long ago and nobody watches; the oldest come first."""
        while self._ended and self._ended[0][0] <= now - LINGER_S:
            ended_at, entry = self._ended.popleft()
            if entry.ended_at is None or entry.ended_at > ended_at or self._watchers[entry.pod]:
                continue
            images = self._pods.get(entry.pod, {})
            if images.get(entry.image) is entry:
                del images[entry.image]
                if not images:
                    del self._pods[entry.pod]


def _standing(entry: _Entry, now: float) -> Standing:
    pull = entry.pull
    state, error = State.WAITING, ""
    if entry.ended_at is not None and not entry.error:
        state = State.DONE
    elif entry.ended_at is not None and now - entry.ended_at >= ATTEMPT_GAP_S:
        state, error = State.FAILED, entry.error
    elif pull is not None and pull.is_running:  # or another attempt may follow
        state = State.RUNNING
    return Standing(
        image=entry.image,
        reference=entry.reference,
        name=pull.name if pull is not None else entry.reference,
        state=state,
        ticket=min(entry.tickets, default=0),
        is_present=pull is not None and pull.is_present,
        error=error,
    )
