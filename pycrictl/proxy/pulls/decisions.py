"""What the pull limit decides, for the shell around ``PullQueue`` to carry out. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


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
class Started:
    """The call goes to the runtime; ``end`` must follow."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The caller's answer: an error of the proxy, ``message`` says which."""

    ticket: int
    reason: Reason
    message: str


Decision: TypeAlias = Started | Refused
