"""Writes Events about the pulls of this node, as an option: the proxy can write them instead.

The pods of the node are watched all the time for this, its runtime only while one of them waits
for an image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from pycrictl.agent.api.names import Document
from pycrictl.agent.objects import PullPhase, is_waiting, objects_of
from pycrictl.errors import PycrictlError
from pycrictl.kube.apiclient import ApiClient
from pycrictl.kube.credential import Credential
from pycrictl.kube.events import LOOK_S, TIMEOUT_S, EventRecorder, PodPullState
from pycrictl.kube.pods import Pod
from pycrictl.pulls.messages import sums_in
from pycrictl.pulls.state import Phase, Sums
from pycrictl.pulls.words import event_text
from pycrictl.servicelog import Log
from pycrictl.units import ordinal

if TYPE_CHECKING:
    from pycrictl.agent.node_pulls import NodePulls

IDLE_S: Final = 60.0

_PHASES: Final = {
    PullPhase.QUEUED: Phase.WAITING,
    PullPhase.PULLING: Phase.DOWNLOADING,
    PullPhase.EXTRACTING: Phase.EXTRACTING,
    PullPhase.SUCCEEDED: Phase.DONE,
}
_BEGINNINGS: Final = _PHASES.keys() - {PullPhase.SUCCEEDED}
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
            found, pods = await pulls.ask()
        except PycrictlError:
            await asyncio.sleep(IDLE_S)
            return []
        # A pull may be forgotten before its last word is written: a started container tells it.
        return [state_of(one) for one in objects_of(pods, found, pulls.node, wants_all=is_writing)]

    async def idle() -> None:
        await (asyncio.sleep(LOOK_S) if is_busy else pulls.changed(IDLE_S))

    return EventRecorder(ApiClient(load, timeout_s=TIMEOUT_S), states, idle, Log(__name__))


def state_of(document: Document) -> PodPullState:
    spec, status = document["spec"], document["status"]
    phase = status["phase"]
    return PodPullState(
        Pod(document["metadata"]["namespace"], spec["podName"], spec["podUID"], "", (), ()),
        spec["image"],
        phase,
        partial(_message, spec["image"], status),
        is_over=phase not in _BEGINNINGS,
        is_warning=phase in (PullPhase.FAILED, PullPhase.BACK_OFF),
    )


def _message(image: str, status: Document, took_s: float) -> str:
    place = status.get("queuePosition", 0)
    return event_text(
        image,
        _PHASES.get(status["phase"], Phase.FAILED),
        took_s,
        sums_in(status.get("sums")) or Sums(),
        place=f"{ordinal(place)} in line" if place else "",
        error=status.get("error", ""),
    )
