"""Kubernetes Events about the pulls of pods, written with the kubelet's credential."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pycrictl.base.servicelog import Log
from pycrictl.kube.apiclient import ApiClient
from pycrictl.kube.credential import find_credential
from pycrictl.kube.events import EVENT_TIMEOUT_S, IDLE_S, EventRecorder, PodPullState
from pycrictl.node.kubelet import Kubelet
from pycrictl.proxy.events import Event, PullQueued, PullStarted
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.progress_streams import Notifier
from pycrictl.proxy.pulls.pull_calls import Book, CallState, PullCall
from pycrictl.proxy.runtime_lookup import PodKey
from pycrictl.proxy.settings import OWN_KUBECONFIG
from pycrictl.pulls.state import Phase, PullState
from pycrictl.pulls.words import event_text

_PHASES: Final = {
    CallState.WAITING: Phase.WAITING,
    CallState.DONE: Phase.DONE,
    CallState.FAILED: Phase.FAILED,
}


def recorder(
    kubeconfig: str, pulls: PodPulls, layers: LayerPoller, notifier: Notifier, log: Log
) -> EventRecorder:
    """Return the recorder of the node's Events, for the API server of a kubeconfig."""
    loop = asyncio.get_running_loop()
    kubelet = None if kubeconfig == OWN_KUBECONFIG else Kubelet(kubeconfig=kubeconfig)

    async def states(is_writing: bool) -> list[PodPullState]:
        pending = pulls.states(loop.time())
        if pending:
            await layers.refresh()
        return pending

    api = ApiClient(partial(find_credential, kubelet=kubelet), timeout_s=EVENT_TIMEOUT_S)
    return EventRecorder(api, states, lambda: notifier.wait(IDLE_S), log)


@dataclass
class PodPulls:
    """The pulls that pods wait for, each kept until its end was reported; a consumer of events."""

    book: Book
    seen: Callable[[str], PullState]
    _calls: dict[tuple[PodKey, str], PullCall] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        if isinstance(event, PullQueued | PullStarted):
            call = event.call
            if call.pod is not None and call.pull.takes_slot:
                self._calls[call.pod, call.image] = call

    def states(self, now: float) -> list[PodPullState]:
        states = {key: self._state(key[0], call, now) for key, call in self._calls.items()}
        self._calls = {key: call for key, call in self._calls.items() if not states[key].is_over}
        return list(states.values())

    def _state(self, pod: PodKey, call: PullCall, now: float) -> PodPullState:
        phase = self._phase(call, now)
        return PodPullState(
            pod,
            call.image,
            phase,
            partial(self._message, call, phase),
            since=call.asked,
            is_over=phase in (Phase.DONE, Phase.FAILED),
            is_warning=phase is Phase.FAILED,
        )

    def _phase(self, call: PullCall, now: float) -> Phase:
        if (state := call.state_at(now)) is not CallState.RUNNING:
            return _PHASES[state]
        is_unpacking = self.seen(call.pull.reference).sums.is_unpacking
        return Phase.EXTRACTING if is_unpacking else Phase.DOWNLOADING

    def _message(self, call: PullCall, phase: Phase, since_s: float) -> str:
        ended = call.asked + since_s if call.end is None else call.ended
        began = call.asked if call.pull.started is None else call.pull.started
        place = self.book.place(call.pull) if call.end is None else 0
        return event_text(
            call.name,
            phase,
            ended - began,
            self.seen(call.pull.reference).sums,
            place=place,
            error=call.error,
        )
