"""What many pulls have in common, in a few numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pycrictl.proxy.figures.record import Outcome, PullRecord


def summary_of(records: Sequence[PullRecord]) -> dict[str, Any]:
    """Sum records up.

    Returns:
        How many there are and how many of them failed; median and 95th percentile of the seconds
        that calls waited and that images were pulled for; bytes, once for all who shared a pull.
    """
    own = [record for record in records if not record.is_joined]
    return {
        "count": len(records),
        "failed": sum(not record.outcome.is_good for record in records),
        "waitedSeconds": _spread([record.waited_s for record in records]),
        "pulledSeconds": _spread(
            [record.pulled_s for record in records if record.outcome is Outcome.PULLED]
        ),
        "gotBytes": sum(record.got_bytes or 0 for record in own),
        "reusedBytes": sum(record.reused_bytes or 0 for record in own),
    }


def _spread(values: list[float]) -> dict[str, float | None]:
    """Return median and 95th percentile by nearest rank; None of nothing."""
    values.sort()

    def at(share: float) -> float | None:
        return values[max(math.ceil(share * len(values)) - 1, 0)] if values else None

    return {"median": at(0.5), "p95": at(0.95)}
