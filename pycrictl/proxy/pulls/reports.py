"""What the progress stream of a pod reports of its pulls. Pure.

The book knows calls, a pod knows images: kubelet tries one credential after the other, so several
calls, one after another, are one pull, and a failure that is followed at once by another attempt is
not reported. On containerd the layers of an image are known as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from pycrictl.progress.reference import is_same_image
from pycrictl.progress.tracker import Item, Phase
from pycrictl.proxy.pulls.book import ATTEMPT_GAP_S, Book, Call, State
from pycrictl.wire.progress import MAX_TEXT, Report

if TYPE_CHECKING:
    from pycrictl.proxy.lookup import PodKey, PullTarget

LINGER_S: Final = ATTEMPT_GAP_S + 1.0
"""How long after its end a pull is still reported to who begins to watch."""

ABANDONED: Final = "the pull was given up by its caller"

_UNSETTLED: Final = (Phase.WAITING, Phase.DOWNLOADING, Phase.EXTRACTING, Phase.FAILED)


class Reporter:
    """Makes the reports. ``now`` is in seconds and never goes back.

    Args:
        book: the pulls.
        layers: finds the layers of an image by the name of its pull at the runtime.
    """

    def __init__(self, book: Book, layers: Callable[[str], Sequence[Item]]) -> None:
        self._book = book
        self._layers = layers

    def reports(self, target: PullTarget, *, now: float, since: float) -> list[Report]:
        """Return what is known of the pulls that are meant, by image in order of arrival.

        Args:
            target: whose pulls.
            now: see the class.
            since: when the watching began. What had ended long before is left out.
        """
        found: list[Report] = []
        for calls in self._book.of_pod(target.pod):
            is_recent = calls[0].end is None or calls[0].ended > since - LINGER_S
            is_meant = not target.image or is_same_image(target.image, calls[0].name)
            if is_recent and is_meant:
                found += self._of_image(calls, now)
        return found

    def busy_until(self, pod: PodKey, *, now: float) -> float | None:
        """Return when nothing will be left to pull for a pod if nothing else happens.

        Returns:
            None while a pull waits or runs; a time that has passed if nothing is left.
        """
        latest = now - ATTEMPT_GAP_S
        for call, *_ in self._book.of_pod(pod):
            if call.end is None:
                return None
            latest = max(latest, call.ended)
        return latest + ATTEMPT_GAP_S

    def _of_image(self, calls: list[Call], now: float) -> list[Report]:
        call = next((one for one in calls if one.pull.started is not None), calls[0])
        state, error = call.state, call.error
        if state in (State.FAILED, State.LEFT):
            if now - call.ended >= ATTEMPT_GAP_S:
                state, error = State.FAILED, error or ABANDONED
            else:  # another attempt may follow
                state = State.WAITING if call.pull.started is None else State.RUNNING
        items = [] if state is State.WAITING else self._layers(call.pull.reference)
        layers = [item for item in items if item.layer]
        image, error = call.name[:MAX_TEXT], error[:MAX_TEXT] if state is State.FAILED else ""
        if not layers:
            return [self._whole(call, state, image, error)]
        reports = [_of_layer(item, state, image, error) for item in layers]
        if error and not any(report.error for report in reports):
            # All layers are there, and yet it failed: an error needs an item to be seen.
            reports[-1] = reports[-1]._replace(error=error, phase=Phase.FAILED)
        return reports

    def _whole(self, call: Call, state: State, image: str, error: str) -> Report:
        """Return the report on an image of which nothing but its state is known."""
        position = 0
        if state is State.WAITING:
            phase = Phase.WAITING
            position = self._book.place(call.pull) if call.end is None else 0
        elif state is State.RUNNING:
            phase = Phase.DOWNLOADING
        elif state is State.FAILED:
            phase = Phase.FAILED
        else:
            phase = Phase.DONE if call.pull.takes_slot else Phase.PRESENT
        return Report(image, "", 0, 0, error, phase, position)


def _of_layer(item: Item, state: State, image: str, error: str) -> Report:
    phase, progress, extracted = item.phase, item.progress, item.extracted
    if state is State.DONE and phase in _UNSETTLED:
        # The runtime has said so; the last look at the layer was before.
        phase, progress = Phase.DONE, item.total
    elif state is State.FAILED and phase in _UNSETTLED:
        phase = Phase.FAILED
    elif phase is Phase.FAILED:  # the layer's attempt; another one may follow
        phase = Phase.DOWNLOADING
    extracted_total = 0 if item.is_estimated else item.extracted_total
    if phase is Phase.DONE and extracted_total:
        extracted = extracted_total
    elif phase is Phase.DONE:
        extracted = 0
    return Report(
        image=image,
        layer=item.layer,
        progress=progress,
        total=item.total,
        error=error if phase is Phase.FAILED else "",
        phase=phase,
        extracted=extracted,
        extracted_total=extracted_total,
        resumed=item.resumed,
    )
