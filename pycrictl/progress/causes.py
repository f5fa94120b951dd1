"""Gives the pulls of containerd that failed their causes, also those that left no trace there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pycrictl.progress.content_watcher import EndedPull, PollResult, PullEnding
from pycrictl.progress.reference import is_same_image
from pycrictl.wire.progress import MAX_TEXT, Report

if TYPE_CHECKING:
    from pycrictl.progress.failures import Failure, Failures
    from pycrictl.progress.sources import ImageTracker

SETTLE_S: Final = 0.5
"""How long a line takes to be in the journal."""

LOOK_AGAIN_S: Final = 5.0
"""Pause between two looks: a pull may fail so fast that no poll has seen it."""


class Causes:
    def __init__(self, failures: Failures, *, clock: Callable[[], float] = time.time) -> None:
        self._failures = failures
        self._clock = clock
        self._began_s = clock()
        self._held: list[EndedPull] = []
        self._look_at: float | None = None
        self._next_look = 0.0
        self._shown: dict[str, None] = {}

    def add(self, result: PollResult, tracker: ImageTracker, now: float) -> PollResult:
        """Return the result of a poll without the endings whose cause is still looked for."""
        active = [pull.image for pull in result.active if pull.image]
        done = [pull.image for pull in result.ended if pull.ending is PullEnding.DONE]
        for name in [name for name in self._shown if _same(name, active + done)]:
            del self._shown[name]
            if name not in active + done:  # else its layers stand in its place
                tracker.forget(name)
        held = [one for one in result.ended if one.ending is not PullEnding.DONE]
        if held:
            self._held += held
            self._look_at = self._look_at or now + SETTLE_S
        if now >= self._next_look:
            self._next_look = now + LOOK_AGAIN_S
            self._show_found(tracker, active, now)
        ended = tuple(one for one in result.ended if one.ending is PullEnding.DONE)
        if self._look_at is not None and now >= self._look_at:
            self._look_at = None
            ended += tuple(self._explained(tracker, active, now))
        return replace(result, ended=ended, is_settling=self._look_at is not None)

    def _show_found(self, tracker: ImageTracker, active: list[str], now: float) -> None:
        self._failures.look(self._clock())
        for failure in (*self._failures.waiting(), *self._failures.since(self._began_s)):
            if tracker.wants(failure.image) and not _same(failure.image, active):
                self._show(failure, tracker, now)

    def _explained(
        self, tracker: ImageTracker, active: list[str], now: float
    ) -> Iterable[EndedPull]:
        held, self._held = self._held, []
        self._failures.look(self._clock())
        found = self._failures.since(self._began_s - SETTLE_S)
        for one in held:
            if one.image:
                failure = next((each for each in found if _same(each.image, [one.image])), None)
                if failure is not None:
                    error = failure.text(self._clock())
                    tracker.replace_error(one.image, error)
                    one = replace(one, reason=error)
                yield one
            elif found:
                for failure in found:
                    if tracker.wants(failure.image) and not _same(failure.image, active):
                        self._show(failure, tracker, now)
            else:
                yield one

    def _show(self, failure: Failure, tracker: ImageTracker, now: float) -> None:
        self._shown[failure.image] = None
        error = failure.text(self._clock())[:MAX_TEXT]
        report = Report(failure.image, "", 0, 0, error, "failed", pod=failure.pod)
        tracker.apply(report, now=now)


def _same(name: str, others: Iterable[str]) -> bool:
    return any(name == other or is_same_image(name, other) for other in others)
