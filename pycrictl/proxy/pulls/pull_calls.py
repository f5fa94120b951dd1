"""The book of pulls, which keeps each PullImage call once, with its state. Pure.

A *call* is one PullImage call of one client. A *pull* is made of equal calls: it has one place in
the line and takes one slot. ``PullQueue`` makes the decisions and records them here. Progress
streams, the status and the list of failures are read from here.

kubelet tries one credential after the other, so several successive calls can be attempts at one
pull. A call that closely follows a failed one of the same pod and image is its next attempt, and
the failure was not final.
"""

from __future__ import annotations

from asyncio import Event
from bisect import bisect_left
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pycrictl.proxy.runtime_lookup import PodKey

ATTEMPT_GAP_S: Final = 2.0
"""The longest pause between two attempts at one pull: until then, a failure is not final."""

MAX_ENDED: Final = 1000
"""How many calls are remembered after their end."""

MAX_FAILURES: Final = 50
MAX_ERROR_CHARS: Final = 4096


class Policy(StrEnum):
    WAIT = "wait"
    RETRY = "retry"


class PullKey(NamedTuple):
    """Identifies equal calls: while one of them is made, the others wait."""

    image: str
    runtime_handler: str = ""


class CallState(Enum):
    """The state of a call. ``LEFT``: the client disconnected before the response."""

    WAITING = auto()
    RUNNING = auto()
    DONE = auto()
    FAILED = auto()
    LEFT = auto()


class CallOutcome(StrEnum):
    """How a call ended. ``GONE``: its client disconnected. ``REFUSED``: by the proxy.

    ``PRESENT``: the runtime already had the image.
    """

    PULLED = "pulled"
    PRESENT = "present"
    FAILED = "failed"
    REFUSED = "refused"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class QueuedPull:
    """Equal calls, which share a slot; later pulls have higher numbers.

    The first of ``calls`` (by ticket) leads: the others wait for its end. ``reference`` is the
    image as the leader spells it; ``asked`` is when the first call arrived. ``takes_slot`` is False
    if the runtime had the image; ``next_try`` is None unless the pull retries.
    """

    number: int
    key: PullKey
    takes_slot: bool
    reference: str
    asked: float = 0.0
    # Not a dict, whose first entry is slow to find once many before it were deleted.
    calls: OrderedDict[int, PullCall] = field(default_factory=OrderedDict)
    started: float | None = None
    tries: int = 0
    next_try: float | None = None

    @property
    def rank(self) -> tuple[float, int]:
        return self.asked, self.number

    @property
    def leader(self) -> PullCall:
        """The first of the remaining calls, which goes to the runtime; there must be one."""
        return next(iter(self.calls.values()))

    @property
    def is_waiting(self) -> bool:
        return self.started is None and bool(self.calls)


@dataclass(slots=True, eq=False)
class PullCall:
    """One PullImage call.

    ``reference`` is the image as this request spells it, ``name`` as the pod's first call did.
    ``asked`` is when the first attempt was made; ``cause`` is the error of the previous attempt.
    ``is_joined``: an equal call went first and has not failed. ``code`` is the name of the gRPC
    status, empty without a response; ``refusal`` the status's number if the proxy refused.
    ``decided`` is set when the call has started, is refused, or belongs to another process
    (``is_elsewhere``) from now on.
    """

    ticket: int
    pull: QueuedPull
    pod: PodKey | None
    reference: str
    name: str
    asked: float
    attempt: int = 1
    end: CallState | None = None
    ended: float = 0.0
    started: float | None = None
    error: str = ""
    cause: str = ""
    is_continued: bool = False
    is_joined: bool = False
    is_elsewhere: bool = False
    refusal: int | None = None
    code: str = ""
    image_id: str = ""
    decided: Event = field(default_factory=Event)

    @property
    def reason(self) -> str:
        return "the client disconnected" if self.end is CallState.LEFT else self.error

    @property
    def image(self) -> str:
        return self.pull.key.image

    @property
    def outcome(self) -> CallOutcome:
        """How it ended; only for a call that is over."""
        if self.end is CallState.LEFT:
            return CallOutcome.GONE
        if self.refusal is not None:
            return CallOutcome.REFUSED
        if self.end is CallState.FAILED:
            return CallOutcome.FAILED
        return CallOutcome.PULLED if self.pull.takes_slot else CallOutcome.PRESENT

    @property
    def waited_s(self) -> float:
        """The time from the first attempt to the start of this one, else to its end."""
        until = self.ended if self.started is None else self.started
        return round(max(until - self.asked, 0.0), 3)

    @property
    def pulled_s(self) -> float:
        """The time that the runtime took."""
        return 0.0 if self.started is None else round(self.ended - max(self.started, self.asked), 3)

    @property
    def state(self) -> CallState:
        if self.end is not None:
            return self.end
        return CallState.WAITING if self.pull.started is None else CallState.RUNNING

    def state_at(self, now: float) -> CallState:
        """Return the state to report: a failure counts once no other attempt can follow."""
        if self.state not in (CallState.FAILED, CallState.LEFT):
            return self.state
        if now - self.ended >= ATTEMPT_GAP_S:
            return CallState.FAILED
        return CallState.WAITING if self.pull.started is None else CallState.RUNNING


class Book:
    def __init__(self) -> None:
        self.calls: dict[int, PullCall] = {}
        self.line: list[QueuedPull] = []
        self.running: dict[int, QueuedPull] = {}
        self.ended: deque[PullCall] = deque()
        self._last: dict[tuple[PodKey, str], PullCall] = {}

    def begin(self, call: PullCall, now: float) -> None:
        call.is_joined = bool(call.pull.calls)
        self.calls[call.ticket] = call.pull.calls[call.ticket] = call
        if call.pod is None:
            return
        if (earlier := self._last.get((call.pod, call.image))) is not None:
            call.name = earlier.name
            if earlier.end is CallState.FAILED and now - earlier.ended <= ATTEMPT_GAP_S:
                earlier.is_continued = True
                call.asked, call.attempt = earlier.asked, earlier.attempt + 1
                call.cause = earlier.error
        self._last[call.pod, call.image] = call

    def end(self, call: PullCall, how: CallState, *, now: float, error: str = "") -> None:
        call.end, call.ended, call.error = how, now, error[:MAX_ERROR_CHARS]
        del self.calls[call.ticket], call.pull.calls[call.ticket]
        self.ended.append(call)
        if len(self.ended) > MAX_ENDED:
            oldest = self.ended.popleft()
            if oldest.pod is not None and self._last.get((oldest.pod, oldest.image)) is oldest:
                del self._last[oldest.pod, oldest.image]

    def place(self, pull: QueuedPull) -> int:
        """Return a waiting pull's position in the line, from 1; 0 once it has started."""
        if pull.started is not None:
            return 0
        return 1 + bisect_left(self.line, pull.rank, key=lambda waiting: waiting.rank)

    def images(self, pod: PodKey | None, since: float) -> list[list[PullCall]]:
        """Return the calls of a pod, or of all pods, grouped by image in order of arrival.

        A group has the calls under way, or else the last one that has ended after ``since``.
        """
        by_image: dict[str, list[PullCall]] = {}
        for call in self.calls.values():
            if pod in (None, call.pod):
                by_image.setdefault(call.image, []).append(call)
        for call in reversed(self.ended):
            if call.ended <= since:
                break
            if pod in (None, call.pod):
                by_image.setdefault(call.image, [call])
        return sorted(by_image.values(), key=lambda calls: calls[0].ticket)

    def failures(self) -> list[PullCall]:
        """Return the last final failure of each pod and image, the newest first."""
        last: dict[tuple[PodKey | None, str], PullCall] = {}
        for call in reversed(self.ended):
            if call.end is CallState.FAILED:
                last.setdefault((call.pod, call.image), call)
        return [call for call in last.values() if not call.is_continued][:MAX_FAILURES]
