"""The pulls that failed of late, and which attempts are one pull. Pure.

kubelet tries one credential after the other: several PullImage calls for one pull. To people a pull
that follows a failed one of the same image and pod at once is its next attempt, and only the last
failure counts.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from pycrictl.proxy.pulls.decisions import Failure

ATTEMPT_GAP_S: Final = 2.0
"""The longest pause between two attempts of one pull; a younger failure is not final yet."""

MAX_FAILURES: Final = 50
MAX_ERROR_CHARS: Final = 500


class FailureLog:
    """The latest failure of each image and pod, the oldest first; bounded."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str], Failure] = OrderedDict()

    def add(
        self, image: str, pod: str, *, error: str, asked: float, attempt: int, now: float
    ) -> None:
        """A pull failed; what is known of the same image and pod is replaced."""
        self._failures.pop((image, pod), None)
        self._failures[image, pod] = Failure(
            image, pod, error[:MAX_ERROR_CHARS], asked, now, attempt
        )
        if len(self._failures) > MAX_FAILURES:
            self._failures.popitem(last=False)

    def resume(self, image: str, pod: str, *, now: float) -> Failure | None:
        """The failure that a new pull continues; it is forgotten, since it was not the last word.

        Callers without a pod have nothing in common.
        """
        failure = self._failures.get((image, pod)) if pod else None
        if failure is None or now - failure.at > ATTEMPT_GAP_S:
            return None
        return self._failures.pop((image, pod))

    def entries(self) -> tuple[Failure, ...]:
        """What is remembered."""
        return tuple(self._failures.values())
