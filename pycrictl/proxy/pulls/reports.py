"""What the progress stream of a pod reports of its pulls. Pure.

The book has calls, a report has images: kubelet tries one credential after the other, so successive
calls are one pull, and a failure that is followed by another attempt at once is not reported. On
containerd the layers of an image are known as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pycrictl.progress.reference import is_same_image
from pycrictl.proxy.pulls.book import ATTEMPT_GAP_S, Book, CallState, PullCall
from pycrictl.pulls.documents import report_of, with_sums
from pycrictl.pulls.model import Phase, Pull, PullItem
from pycrictl.wire.progress import MAX_TEXT, Report

if TYPE_CHECKING:
    from pycrictl.proxy.runtime_lookup import PodKey, PullTarget

LINGER_S: Final = ATTEMPT_GAP_S + 1.0
"""How long after its end a pull is still reported to who begins to watch."""

ABANDONED: Final = "the pull was given up by its caller"

_UNSETTLED: Final = (Phase.WAITING, Phase.DOWNLOADING, Phase.EXTRACTING, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class Reporter:
    """Makes the reports; ``wall_offset_s`` added to ``now`` is the wall time."""

    book: Book
    seen: Callable[[str], Pull | None]
    others: Callable[[], Mapping[str, Pull]] = dict
    wall_offset_s: float = 0.0

    def reports(self, target: PullTarget, *, now: float, since: float) -> list[Report]:
        """Return what is known of the pulls of ``target``, by image in order of arrival.

        What had ended long before ``since`` is left out.
        """
        found: list[Report] = []
        images = self.book.images(target.pod, since - LINGER_S)
        for calls in images:
            if not target.image or is_same_image(target.image, calls[0].name):
                pods = "" if target.pod else _pods(calls)
                found += [report._replace(pod=pods) for report in self._of_image(calls, now)]
        known = {calls[0].pull.reference for calls in images}
        for image, pull in self.others().items() if target.pod is None else ():
            if image not in known:
                state = CallState.RUNNING if pull.is_running else None
                theirs = [_of_layer(item, state, image[:MAX_TEXT], "") for item in pull.items]
                found += with_sums(theirs, pull.totals if pull.is_running else None)
        return found

    def busy_until(self, pod: PodKey | None, *, now: float) -> float | None:
        """Return when nothing will be left to pull for a pod or the node; None while one runs."""
        if pod is None and any(one.is_running for one in self.others().values()):
            return None
        latest = now - ATTEMPT_GAP_S
        for call, *_ in self.book.images(pod, latest):
            if call.end is None:
                return None
            latest = max(latest, call.ended)
        return latest + ATTEMPT_GAP_S

    def _of_image(self, calls: list[PullCall], now: float) -> list[Report]:
        call = next((one for one in calls if one.pull.started is not None), calls[0])
        state, error = call.state, call.error
        if state in (CallState.FAILED, CallState.LEFT):
            if now - call.ended >= ATTEMPT_GAP_S:
                state, error = CallState.FAILED, error or ABANDONED
            else:  # another attempt may follow
                state = CallState.WAITING if call.pull.started is None else CallState.RUNNING
        seen = None if state is CallState.WAITING else self.seen(call.pull.reference)
        layers = [item for item in seen.items if item.layer] if seen is not None else []
        image, error = call.name[:MAX_TEXT], error[:MAX_TEXT] if state is CallState.FAILED else ""
        started = call.pull.started
        since_s = 0.0 if started is None else round(started + self.wall_offset_s, 3)
        if seen is None or not layers:
            return [self._whole(call, state, image, error)._replace(started=since_s)]
        reports = [_of_layer(one, state, image, error)._replace(started=since_s) for one in layers]
        if error and not any(report.error for report in reports):
            # All layers are there, and yet it failed: an error needs an item to be seen.
            reports[-1] = reports[-1]._replace(error=error, phase=Phase.FAILED)
        sums = seen.totals
        if sums is not None and state is not CallState.RUNNING:
            sums = sums.at_end(is_done=state is CallState.DONE)
        return with_sums(reports, sums)

    def _whole(self, call: PullCall, state: CallState, image: str, error: str) -> Report:
        position, behind = 0, ""
        if state is CallState.WAITING:
            phase = Phase.WAITING
            position = self.book.place(call.pull) if call.end is None else 0
            behind = self._behind(call, position)
        elif state is CallState.RUNNING:
            phase = Phase.DOWNLOADING
        elif state is CallState.FAILED:
            phase = Phase.FAILED
        else:
            phase = Phase.DONE if call.pull.takes_slot else Phase.PRESENT
        return Report(image, "", 0, 0, error, phase, position, behind=behind)

    def _behind(self, call: PullCall, place: int) -> str:
        if place > 1:
            ahead = self.book.line[place - 2]
        else:
            running = (pull for pull in self.book.running.values() if pull.takes_slot)
            found = next(running, None) if place else None
            if found is None:
                return ""
            ahead = found
        pod = None if ahead.leader is None else ahead.leader.pod
        return (ahead.reference if pod in (None, call.pod) else str(pod))[:MAX_TEXT]


def _pods(calls: Sequence[PullCall]) -> str:
    pods = dict.fromkeys(str(call.pod) for call in calls if call.pod is not None)
    first, *others = [*pods][:2] or [""]
    return f"{first} and {len(pods) - 1} more" if others else first


def _of_layer(item: PullItem, state: CallState | None, image: str, error: str) -> Report:
    """Return the report on a layer. Without a state of its pull, it alone says how it ended."""
    report = report_of(item, image, is_done=state is CallState.DONE)
    if report.phase == Phase.FAILED and state is None:
        return report
    if state is CallState.FAILED and item.phase in _UNSETTLED:
        return report._replace(phase=Phase.FAILED, error=error)
    if report.phase == Phase.FAILED:  # the layer's attempt; another one may follow
        begun = 0 < item.progress < item.total
        return report._replace(phase=Phase.DOWNLOADING if begun else Phase.WAITING, error="")
    return report
