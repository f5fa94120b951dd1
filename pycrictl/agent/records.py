"""The records of KEP-5334 about the pulls of one pod, as the proxy's streams have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pycrictl.agent.objects import Need, PullPhase, needs_of, phase_of, pull_for
from pycrictl.kube.pods import Pod
from pycrictl.pulls.model import Phase, Pull, report_of, with_sums
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
    needs: Sequence[Need], pulls: Sequence[Pull], since_s: float = 0.0
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
            is_done = phase is PullPhase.SUCCEEDED
            reports = [report_of(item, image, is_done=is_done) for item in pull.items]
            sums = pull.totals if phase not in _FAILED else None
            if sums is not None and is_done:
                sums = sums.at_end(is_done=True)
            found += [one._replace(started=started) for one in with_sums(reports, sums)]
        elif phase in _FAILED and need.reason is not None:
            error = (need.reason.message or need.reason.reason)[:MAX_TEXT]
            found.append(Report(image, "", 0, 0, error, Phase.FAILED))
        elif pull is not None:
            found.append(Report(image, "", 0, 0, phase=Phase.DOWNLOADING))
    return found, runs
