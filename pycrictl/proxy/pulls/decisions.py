"""What the pull limit is asked, decides and shows: plain data, no behaviour.

``PullKey`` says which pulls are one. The decisions are what ``PullQueue`` tells the shell around
it; a ``Snapshot`` is what it tells people.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

OutcomeT = TypeVar("OutcomeT")


class Policy(StrEnum):
    """What happens to a caller when no slot is free."""

    WAIT = "wait"
    RETRY = "retry"


class Reason(StrEnum):
    """Why a caller was refused."""

    FULL = "full"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class PullKey:
    """What two pulls must have in common to be one. It holds no secret.

    Attributes:
        image: the reference, in the spelling that all its aliases share.
        credentials_hash: empty for an anonymous pull.
        runtime_handler: selects the snapshotter in containerd.
        namespace: of the pod; selects policy and auth files in CRI-O.
    """

    image: str
    credentials_hash: str = field(default="", repr=False)
    runtime_handler: str = ""
    namespace: str = ""

    @classmethod
    def of(
        cls,
        image: str,
        *,
        credentials: bytes,
        salt: bytes,
        runtime_handler: str = "",
        namespace: str = "",
    ) -> PullKey:
        """Makes a key; of the credentials only a keyed hash is kept.

        Args:
            image: see the attribute.
            credentials: the serialised ``AuthConfig``, empty if there is none.
            salt: random bytes of this process, so that a leaked hash cannot be guessed offline.
            runtime_handler: CRI ``ImageSpec.runtime_handler``.
            namespace: of the pod.
        """
        digest = hmac.new(salt, credentials, hashlib.sha256).hexdigest() if credentials else ""
        return cls(image, digest, runtime_handler, namespace)


@dataclass(frozen=True, slots=True)
class PullStarted:
    """The upstream call is to be made, with the request of this caller and without a deadline."""

    pull: int
    ticket: int


@dataclass(frozen=True, slots=True)
class PullQueued:
    """The caller waits for a slot, at this place from 1."""

    pull: int
    ticket: int
    place: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The caller shares a pull that somebody else leads."""

    pull: int
    ticket: int
    leader: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """The leader went; this caller leads the pull now. A running upstream call goes on."""

    pull: int
    ticket: int


@dataclass(frozen=True, slots=True)
class PullAbandoned:
    """The last caller went; the upstream call is to be cancelled, then ``finish`` called."""

    pull: int


@dataclass(frozen=True, slots=True)
class Finished(Generic[OutcomeT]):
    """The caller's answer: the outcome of its pull."""

    pull: int
    ticket: int
    outcome: OutcomeT


@dataclass(frozen=True, slots=True)
class Refused:
    """The caller's answer: an error of the proxy, ``message`` says which."""

    ticket: int
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Left:
    """The caller hung up; it gets no answer."""

    ticket: int


Decision: TypeAlias = (
    PullStarted
    | PullQueued
    | Joined
    | LeaderChanged
    | PullAbandoned
    | Finished[OutcomeT]
    | Refused
    | Left
)


@dataclass(frozen=True, slots=True)
class RunningPull:
    """A pull at the runtime.

    Attributes:
        pod: of the leader; empty for a caller without a pod and for an abandoned pull.
        asked: when the leader asked, with earlier credentials too.
        started: when this upstream call began.
        attempt: from 1, counts the credentials tried.
        joined: callers beside the leader.
        is_abandoned: all callers went, the runtime has not ended it yet.
    """

    pull: int
    image: str
    pod: str
    asked: float
    started: float
    attempt: int
    joined: int
    takes_slot: bool
    is_abandoned: bool


@dataclass(frozen=True, slots=True)
class WaitingPull:
    """A pull without a slot.

    Attributes:
        place: from 1, in order of arrival.
        behind: the pull just before it; None for the first, which waits for any running one.
        next_try: when it is tried again; None in a line.
        tries_left: 0 in a line.
    """

    pull: int
    image: str
    pod: str
    place: int
    asked: float
    behind: int | None
    joined: int
    next_try: float | None
    tries_left: int


@dataclass(frozen=True, slots=True)
class JoinedCaller:
    """A caller that shares the pull of another one."""

    ticket: int
    pull: int
    image: str
    pod: str
    asked: float
    leader_pod: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The latest failure of one image for one pod; younger than ``ATTEMPT_GAP_S`` it is not final.

    Attributes:
        asked: when the first of the attempts was asked for.
        at: when the last of them failed.
        attempts: how many followed each other without a pause.
    """

    image: str
    pod: str
    error: str
    asked: float
    at: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a status shows, at one moment. ``taken`` counts the slots in use."""

    limit: int
    policy: Policy
    taken: int
    running: tuple[RunningPull, ...]
    waiting: tuple[WaitingPull, ...]
    joined: tuple[JoinedCaller, ...]
    failures: tuple[Failure, ...]
