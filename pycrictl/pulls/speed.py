"""How fast bytes come in, over a sliding window of samples. Pure: no clock of its own."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["Speed"]

_RATE_AFTER_S: Final = 1.0
_SAMPLES_PER_WINDOW: Final = 32


class Speed:
    """Bytes a second over the last ``window_s`` seconds.

    Sources report in bursts, so a rate is only as good as the time it is taken over, and there is
    none in the first second. Time counts from the last sample before the first byte, because a
    pull may wait in a queue for long. The samples kept are as many for a fast clock as for a slow
    one; where they are sparse, the window reaches back to the last sample before it.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._step_s = window_s / _SAMPLES_PER_WINDOW
        self._samples: deque[tuple[float, int]] = deque()
        self._gained = 0
        self._since = 0.0

    def start(self, now: float) -> None:
        """Note when bytes could have begun to come; only the first call has an effect."""
        if not self._samples:
            self._restart(now)

    def record(self, gained: int, now: float) -> None:
        """Take in how many bytes came since the last call."""
        self._gained += gained
        if not self._gained:
            self._restart(now)
            return
        self.start(now)
        samples = self._samples
        if now - samples[-1][0] >= self._step_s:
            samples.append((now, self._gained))
        while len(samples) > 1 and samples[1][0] <= now - self._window_s:
            samples.popleft()

    def rate(self, now: float) -> float | None:
        """Return bytes a second, None while there are too few samples."""
        if not self._samples or self.measured_s(now) < _RATE_AFTER_S:
            return None
        then, gained = self._samples[0]
        return (self._gained - gained) / (now - then)

    def measured_s(self, now: float) -> float:
        """Return for how long bytes have been coming in."""
        return now - self._since

    def _restart(self, now: float) -> None:
        self._samples.clear()
        self._samples.append((now, self._gained))
        self._since = now
