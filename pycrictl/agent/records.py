"""The records of KEP-5334 about the pulls of one pod, as the proxy's streams have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pycrictl.agent.objects import Need, NodePull, PullPhase, needs_of, phase_of, pull_for
from pycrictl.kube.pods import Pod
from pycrictl.pulls.tracker import COMPLETE, Item, Phase
from pycrictl.wire.progress import MAX_TEXT, Report

_FAILED: Final = (PullPhase.FAILED, PullPhase.BACK_OFF)


def wanted(pod: Pod, container: str) -> list[Need]:
    """Return what images a pod, or one of its containers, needs."""
    return [
        need
        for need in needs_of(pod)
        if not container or any(one.container == container for one in need.uses)
    ]


def reports_of(
    needs: Sequence[Need], pulls: Sequence[NodePull], since_s: float = 0.0
) -> tuple[list[Report], bool]:
    """Return what is known of the pulls of some images, and whether one of them runs.

    Args:
        needs: the images.
        pulls: of the node.
        since_s: when somebody began to watch; of what had arrived by then only that is said.
    """
    found: list[Report] = []
    runs = False
    for need in needs:
        pull = pull_for(need, pulls)
        phase = phase_of(need, pull)
        image = need.image[:MAX_TEXT]
        is_over = phase in (PullPhase.SUCCEEDED, *_FAILED)
        runs |= pull is not None and not is_over
        is_old = pull is not None and not pull.is_running and pull.ended_s < since_s
        if phase is PullPhase.SUCCEEDED and pull is not None and (is_old or not pull.items):
            found.append(Report(image, "", 0, 0, phase=Phase.PRESENT))
        elif pull is not None and pull.items:
            started = round(pull.began_s, 3)
            reports = [_report(item, image, phase, started) for item in pull.items]
            if pull.totals is not None and phase not in _FAILED:
                is_done = phase is PullPhase.SUCCEEDED
                sums = pull.totals.at_end(is_done=True) if is_done else pull.totals
                reports[0] = reports[0]._replace(sums=sums.to_json())
            found += reports
        elif phase in _FAILED and need.reason is not None:
            error = (need.reason.message or need.reason.reason)[:MAX_TEXT]
            found.append(Report(image, "", 0, 0, error, Phase.FAILED))
        elif pull is not None:
            found.append(Report(image, "", 0, 0, phase=Phase.DOWNLOADING))
    return found, runs


def _report(item: Item, image: str, state: PullPhase, started: float) -> Report:
    phase, progress, extracted = item.phase, item.progress, item.extracted
    if state is PullPhase.SUCCEEDED and phase not in COMPLETE:
        # The runtime has said so; the last look at the layer was before.
        phase, progress = Phase.DONE, item.total
    extracted_total = 0 if item.is_estimated else item.extracted_total
    if phase is Phase.DONE:
        extracted = extracted_total
    return Report(
        image=image,
        layer=item.layer,
        progress=progress,
        total=item.total,
        error=item.error[:MAX_TEXT] if phase is Phase.FAILED else "",
        phase=phase,
        queue_position=item.queue_position,
        extracted=extracted,
        extracted_total=extracted_total,
        resumed=item.resumed,
        started=started,
        behind=item.behind,
        digest=item.digest,
        idle_s=round(item.idle_s, 1),
    )
