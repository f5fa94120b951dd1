"""Writes Events about the pulls of this node, as an option: the proxy can write them instead.

The pods of the node are watched all the time for this, its runtime only while one of them waits
for an image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pycrictl.base.errors import PycrictlError
from pycrictl.base.servicelog import Log
from pycrictl.base.units import ordinal
from pycrictl.cluster.agent.objects import (
    Need,
    PullPhase,
    error_of,
    is_waiting,
    phase_of,
    pulls_by_need,
)
from pycrictl.kube.apiclient import ApiClient
from pycrictl.kube.credential import Credential
from pycrictl.kube.events import LOOK_S, TIMEOUT_S, EventRecorder, PodPullState
from pycrictl.pulls.state import PullState, Sums
from pycrictl.pulls.words import event_text

if TYPE_CHECKING:
    from pycrictl.cluster.agent.node_pulls import NodePulls

IDLE_S: Final = 60.0

_BEGINNINGS: Final = (PullPhase.QUEUED, PullPhase.PULLING, PullPhase.EXTRACTING)
"""The phases that start an Event; failures and back-offs are in the kubelet's own Events."""


def recorder(pulls: NodePulls, load: Callable[[], Credential]) -> EventRecorder:
    """Return the recorder of a node's Events; its pods must be watched (``NodePulls.hold``)."""
    is_busy = False

    async def states(is_writing: bool) -> list[PodPullState]:
        nonlocal is_busy
        is_busy = any(map(is_waiting, pulls.pods()))
        if not (is_busy or is_writing):
            return []
        try:
            running, pods = await pulls.ask()
        except PycrictlError:
            await asyncio.sleep(IDLE_S)
            return []
        # A pull may be forgotten before its last word is written: a started container tells it.
        needed = pulls_by_need(pods, running, wants_all=is_writing)
        return [state_of(need, pull) for need, pull in needed]

    async def idle() -> None:
        await (asyncio.sleep(LOOK_S) if is_busy else pulls.changes.wait(IDLE_S))

    return EventRecorder(ApiClient(load, timeout_s=TIMEOUT_S), states, idle, Log(__name__))


def state_of(need: Need, pull: PullState | None) -> PodPullState:
    phase = phase_of(need, pull)
    place = pull.place if pull is not None else 0
    return PodPullState(
        need.pod,
        need.image,
        phase,
        lambda took_s: event_text(
            need.image,
            phase.of_layers,
            took_s,
            pull.sums if pull is not None else Sums(),
            place=f"{ordinal(place)} in line" if place else "",
            error=error_of(need, pull) if phase.has_failed else "",
        ),
        is_over=phase not in _BEGINNINGS,
        is_warning=phase.has_failed,
    )
