"""What the pull limit decides, for the shell around ``PullQueue`` to carry out. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
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
    WITHDRAWN = "withdrawn"


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
