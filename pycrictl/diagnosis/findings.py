"""A finding: one thing that is wrong or worth knowing, how much it weighs, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple


class Weight(IntEnum):
    NOTE = 1
    WARNING = 2
    SERIOUS = 3


class Finding(NamedTuple):
    """One finding; ``kind`` is a word for scripts, ``rank`` orders those of one weight."""

    kind: str
    weight: Weight
    text: str
    advice: str = ""
    rank: int = 0

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.weight.name.lower(),
            "text": self.text,
            "advice": self.advice or None,
        }


class Missing(NamedTuple):
    source: str
    reason: str


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings without repetitions, the heaviest first."""
    return sorted(dict.fromkeys(findings), key=lambda one: (-one.weight, -one.rank))
