"""How pulls are watched, and how a watch ends, whatever its source is. It imports little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pycrictl.cri.calls.redact import quote_reference
from pycrictl.errors import PullFailed
from pycrictl.pulls.model import Phase

if TYPE_CHECKING:
    from pycrictl.progress.endings import Sink
    from pycrictl.pulls.model import View

REOPEN_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 5.0, 5.0)
"""Pauses before a broken source is tried again; as many tries as there are pauses."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to look, and whether to go on when nothing is being pulled any more."""

    interval_s: float
    follow: bool = False


@dataclass(frozen=True, slots=True)
class WatchOutcome:
    """How the watched pulls ended.

    Attributes:
        seen: whether there was any.
        failures: image (empty if that was never known) and reason of each that failed.
    """

    seen: bool
    failures: tuple[tuple[str, str], ...] = ()


def failed_items(view: View) -> dict[str, str]:
    failures: dict[str, str] = {}
    for item in view.items:
        if item.phase is Phase.FAILED:
            failures[item.image] = item.error or failures.get(item.image, "")
    return failures


def conclude(outcome: WatchOutcome, pod: str, sink: Sink) -> None:
    """Report how a watch ended.

    Raises:
        PullFailed: at least one pull failed.
    """
    if not outcome.seen:
        whose = f' for "{pod}"' if pod else ""
        sink.note(f"no image is being pulled{whose}")
    if outcome.failures:
        image, reason = outcome.failures[0]
        more = f" (and {len(outcome.failures) - 1} more)" if len(outcome.failures) > 1 else ""
        name = f" of {quote_reference(image)}" if image else ""
        raise PullFailed(f"the pull{name} failed: {reason}{more}")
